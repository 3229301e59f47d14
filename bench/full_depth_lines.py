"""From the ranks of `bench.full_depth` to the fields of a line; its docstring says what each one is."""

import json
import statistics
import subprocess
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from agentworld.data.errors import ContentError
from agentworld.train.architecture import text_config
from agentworld.train.config import Config
from bench import full_depth_setup as setup
from bench import layer_speed, rank_processes

PROGRAM = "bench.full_depth_rank"
WARM, TIMED = 2, 4


def start_ranks(
    options: Namespace, run_dir: Path, stage: str, watch: dict[str, Any], processes: int = 0
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Start a rank a GPU (or so many processes) on a run directory; what each found, and the peaks of host memory."""
    count = processes or options.gpus
    results = [run_dir / f"result-{rank}.json" for rank in range(count)]
    start = len(list(options.logs.glob(f"{run_dir.name}-*-0.log")))
    logs = [options.logs / f"{run_dir.name}-{start}-{rank}.log" for rank in range(count)]
    commands = [["-m", PROGRAM, str(run_dir), stage, str(result), json.dumps(watch)] for result in results]
    host = rank_processes.run(commands, logs, options.limit, {})
    return [json.loads(result.read_text()) for result in results], host


def head(options: Namespace, config: Config, ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ran, and on what."""
    architecture, _ = text_config(config)
    engine = {"zero": config.engine.zero_stage, "offload": options.offload}
    return {
        "layers": architecture.num_hidden_layers,
        "parameters": ranks[0]["parameters"],
        "engine": engine | {"expert_parallel": config.engine.expert_parallel},
        "recompute": config.model.recompute,
        **ranks[0]["machine"],
    }


def steps(ranks: Sequence[dict[str, Any]], tokens: float, operations: float) -> dict[str, Any]:
    """Speed and what the trainer logged.

    Args:
        tokens: of a step on one GPU; operations: of forward and backward pass of these.
    """
    first = ranks[0]["steps"]
    seconds = [max(each) for each in zip(*(rank["steps"]["seconds"] for rank in ranks), strict=True)]
    timed = seconds[WARM : WARM + TIMED]
    products = [rank["matrix_product_flops"] for rank in ranks]
    middle = statistics.median(timed)
    return {
        **{key: first[key] for key in ("losses", "norms", "load_max_over_mean")},
        "seconds": seconds,
        "tokens_per_s_a_gpu": {"median": tokens / middle, "range": [tokens / max(timed), tokens / min(timed)]},
        "matrix_product_tflops_of_each_rank": [product / 1e12 for product in products],
        "operations_a_gpu": operations,
        "mfu": operations / middle / statistics.mean(products),
        "communication_of_each_rank": [rank["steps"]["communication"] for rank in ranks],
    }


def operations(config: Config, packed: bool) -> float:
    """Of forward and backward pass of a micro-batch of CPT, without recomputing."""
    architecture, _ = text_config(config)
    widths = {key: getattr(architecture, key) for key in layer_speed.REAL}
    rows, row = config.cpt.rows_per_device, config.data.cpt_row_tokens
    attended = rows * sum(length * (length + 1) / 2 for length in setup.document_lengths(row, packed))
    layers = architecture.num_hidden_layers * layer_speed.layer_flops(widths, rows * row, attended)
    return layers + 6 * rows * row * architecture.hidden_size * architecture.vocab_size


def gpu_memory(ranks: Sequence[dict[str, Any]], planned: int) -> dict[str, Any]:
    """Peaks beside the plan; None on a CPU, where none is measured."""
    peaks = [rank["steps"]["peak_gib"] for rank in ranks]
    measured = None if None in peaks else max(peaks)
    return {
        "peak_gib_of_each_rank": peaks,
        "reserved_gib_of_each_rank": [rank["steps"]["reserved_gib"] for rank in ranks],
        "planned_gib": planned / 2**30,
        "planned_over_measured": planned / 2**30 / measured if measured else None,
    }


def slowest(ranks: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Seconds of each call of this name, on the rank that took longest."""
    return [max(each) for each in zip(*(rank["seconds_of_calls"][name] for rank in ranks), strict=True)]


def speed(ranks: Sequence[dict[str, Any]], name: str, size: int) -> dict[str, float]:
    """Of the only call of this name, which moved `size` bytes."""
    (seconds,) = slowest(ranks, name)
    return {"bytes": size, "seconds": seconds, "gb_per_s": size / 1e9 / seconds}


def export(ranks: Sequence[dict[str, Any]], directory: Path) -> dict[str, Any]:
    """Of the shards that a stage has written into `directory`, and how plain transformers reads them."""
    size = setup.weight_bytes(directory)
    return {**speed(ranks, "export", size), "in_transformers": in_transformers(directory)}


def in_transformers(directory: Path) -> dict[str, Any]:
    """Load a directory by plain transformers on the meta device: how many keys it finds not to fit."""
    from transformers import Qwen3_5MoeForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    started = time.perf_counter()
    model, report = Qwen3_5MoeForCausalLM.from_pretrained(directory, device_map="meta", output_loading_info=True)
    if any(parameter.device.type != "meta" for parameter in model.parameters()):
        raise ContentError(f"{directory}: transformers has loaded values, not shapes")
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    found = {kind.removesuffix("_keys"): len(report[kind]) for kind in kinds}
    return found | {
        "layers": model.config.num_hidden_layers,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": time.perf_counter() - started,
    }


def rollouts(ranks: Sequence[dict[str, Any]], completions: Path, count: int, mini_batches: int) -> list[dict]:
    """One entry a rollout, of the rank whose steps took longest.

    Args:
        completions: where the stage has written what it sampled; mini_batches: optimizer steps of a rollout.
    """
    found = []
    for number in range(count):
        first = number * mini_batches
        of_steps = [sum(rank["steps"]["seconds"][first : first + mini_batches]) for rank in ranks]
        calls = ranks[of_steps.index(max(of_steps))]["seconds_of_calls"]
        sampling, reward, both = (calls[name][number] for name in ("rollout", "reward", "rollout_and_scoring"))
        files = list(completions.glob(f"step_{first:05d}_rank_*.parquet"))
        tokens = sum(sum(pq.read_table(file)["sampled_tokens"].to_pylist()) for file in files)
        seconds = {"sampling": sampling, "reward": reward, "log_probs": both - sampling - reward}
        seconds |= {"training": max(of_steps) - both}
        found.append({**seconds, "sampled_tokens": tokens, "tokens_per_s": tokens / sampling})
    return found


def card_bytes(options: Namespace) -> int | None:
    """Memory of the smallest GPU; None with --tiny."""
    if options.tiny:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    sizes = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    return min(map(int, sizes)) << 20
