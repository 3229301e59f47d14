"""The cases of `bench.full_depth`: each prepares a run directory, starts the ranks and makes a line of what they found.
The docstring there says what every field is."""

import os
import shutil
import statistics
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentworld.data.errors import RequestError
from agentworld.train import checkpoint as checkpoints
from agentworld.train.compose import compose
from agentworld.train.config import Config
from bench import full_depth_lines as lines
from bench import full_depth_setup as setup
from bench.rank_processes import RankError, say

BASE_PROCESSES = 24  # a shard of 4 GiB each: the 35B model has 17
STEPS = lines.WARM + lines.TIMED + 1  # the last one profiled
SAVED_STEP, LAST_STEP = 2, 3  # of the case of a checkpoint
ROLLOUTS, MINI_BATCHES = 2, 2


def rows4k(options: Namespace, recompute: bool = True) -> dict[str, Any]:
    """Rows of one document, as many as the plan says to fit."""
    keys = [setup.recompute(recompute), f"data.cpt_row_tokens={options.sizes.short_row}"]
    config = _config(options, options.layers, "cpt", STEPS, keys)
    chosen = setup.fitting_rows(config, "cpt", options.sizes.micro_batches, lines.card_bytes(options))
    if chosen is None:
        raise RequestError(f"the plan says that no row fits with {options.layers} layers; lower --layers")
    config.cpt.rows_per_device = chosen
    return _cpt(options, config, "rows4k" if recompute else "rows4k-kept", packed=False, export=False)


def packed32k(options: Namespace) -> dict[str, Any]:
    """Packed rows, then the export of the whole model where the disk has room."""
    keys = [setup.recompute(True), f"data.cpt_row_tokens={options.sizes.long_row}", "cpt.rows_per_device=1"]
    config = _config(options, options.layers, "cpt", STEPS, keys)
    room = _disk(options) > 1.02 * setup.weight_bytes(Path(config.model.path))
    return _cpt(options, config, "packed32k", packed=True, export=room)


def _cpt(options: Namespace, config: Config, name: str, packed: bool, export: bool) -> dict[str, Any]:
    """Warm, timed and profiled steps; where the card is too small for the rows after all, once more with half."""
    watch = {"profiled_step": STEPS, "saved_step": 0, "export": export}
    tokens, failed = config.data.cpt_row_tokens, []
    while True:
        run_dir = _new_run(options, config, name)
        rows = config.cpt.rows_per_device * options.gpus
        _write_rows(options, run_dir, rows * STEPS, tokens, packed)
        try:
            ranks, host = lines.start_ranks(options, run_dir, "cpt", watch)
            break
        except RankError as error:
            if "out of memory" not in str(error) or config.cpt.rows_per_device == 1:
                raise
        failed.append(config.cpt.rows_per_device)
        config.cpt.rows_per_device //= 2
    line = {
        **lines.head(options, config, ranks),
        "rows_per_device": config.cpt.rows_per_device,
        "rows_out_of_memory": failed,
        "row_tokens": tokens,
        "tokens_a_step": rows * tokens,
        **lines.steps(ranks, rows * tokens / options.gpus, lines.operations(config, packed)),
        **lines.gpu_memory(ranks, setup.planned_peak(config, "cpt")),
        "load": lines.speed(ranks, "load", setup.weight_bytes(Path(config.model.path))),
        "host_gib": host,
    }
    return line | {"export": lines.export(ranks, run_dir / "cpt" / "export") if export else None}


def checkpoint(options: Namespace) -> dict[str, Any]:
    """A checkpoint and an export of as many layers as the disk has room for, and a resume in new processes."""
    budget = _disk(options)
    layers = setup.layers_within(budget, setup.checkpoint_bytes_a_parameter(options), options.layers, options)
    if not layers:
        raise RequestError(f"{budget / 1e9:.0f} GB of disk hold no base, checkpoint and export of four layers")
    tokens = options.sizes.short_row
    keys = [setup.recompute(True), f"data.cpt_row_tokens={tokens}", "cpt.rows_per_device=1"]
    config = _config(options, layers, "cpt", LAST_STEP, keys)
    run_dir = _new_run(options, config, "checkpoint")
    _write_rows(options, run_dir, LAST_STEP * options.gpus, tokens, packed=False)
    watch = {"profiled_step": 0, "saved_step": SAVED_STEP, "export": True}
    ranks, host = lines.start_ranks(options, run_dir, "cpt", watch)
    saved = run_dir / "cpt" / "checkpoints" / f"{checkpoints.PREFIX}{SAVED_STEP}"
    size = sum(path.stat().st_size for path in saved.rglob("*") if path.is_file())
    base = setup.weight_bytes(Path(config.model.path))
    line = {
        **lines.head(options, config, ranks),
        "layers_of_the_model": options.layers,
        "disk_gb": budget / 1e9,
        "tokens_a_step": options.gpus * tokens,
        "losses": ranks[0]["steps"]["losses"],
        "load": lines.speed(ranks, "load", base),
        "checkpoint": lines.speed(ranks, "checkpoint", size),
        "export": lines.export(ranks, run_dir / "cpt" / "export"),
        "host_gib": host,
    }
    setup.leave_page_cache(saved)
    again, host = lines.start_ranks(options, run_dir, "cpt", watch | {"saved_step": 0, "export": False})
    resume = {**lines.speed(again, "resume", size), "losses": again[0]["steps"]["losses"], "host_gib": host}
    return line | {"resume": resume | {"load": lines.speed(again, "load", base)}}


def rl(options: Namespace) -> dict[str, Any]:
    """Rollouts by transformers in the training engine, and the steps that use them."""
    sizes = options.sizes
    keys = {
        "data.rl_prompt_tokens": sizes.prompt,
        "rl.max_completion_tokens": sizes.completion,
        "rl.prompts_per_rollout": sizes.prompts,
        "rl.num_generations": sizes.completions,
        "rl.mini_batches": MINI_BATCHES,
        "rl.completions_per_device": 1,
        "rl.rollout.batch_size": 0,
    }
    set_keys = [setup.recompute(True), *(f"{key}={value}" for key, value in keys.items())]
    config = _config(options, options.layers, "rl", ROLLOUTS * MINI_BATCHES, set_keys)
    share = sizes.prompts * sizes.completions // MINI_BATCHES // options.gpus
    dividing = [number for number in range(share, 0, -1) if share % number == 0]
    chosen = setup.fitting_rows(config, "rl", dividing, lines.card_bytes(options))
    if chosen is None:
        raise RequestError(f"the plan says that no completion fits with {options.layers} layers; lower --layers")
    config.rl.completions_per_device = chosen
    run_dir = _new_run(options, config, "rl")
    path = run_dir / "data" / "prompts" / "rl.parquet"
    lengths = setup.write_random_prompts(path, _tokenizer(options), ROLLOUTS * sizes.prompts, sizes.prompt)
    watch = {"profiled_step": 0, "saved_step": 0, "export": False}
    ranks, host = lines.start_ranks(options, run_dir, "rl", watch)
    return {
        **lines.head(options, config, ranks),
        "prompts": sizes.prompts,
        "completions": sizes.completions,
        "prompt_tokens": statistics.mean(lengths),
        "completions_per_device": config.rl.completions_per_device,
        "rollouts": lines.rollouts(ranks, run_dir / "rl" / "completions", ROLLOUTS, MINI_BATCHES),
        **{key: ranks[0]["steps"][key] for key in ("losses", "norms", "load_max_over_mean")},
        **lines.gpu_memory(ranks, setup.planned_peak(config, "rl")),
        "load": lines.speed(ranks, "load", setup.weight_bytes(Path(config.model.path))),
        "host_gib": host,
    }


def _config(options: Namespace, layers: int, stage: str, steps: int, keys: Sequence[str]) -> Config:
    """The recipe of a case, which starts from random weights; they are written if they are not there."""
    shared = [f"{stage}.max_steps={steps}", f"{stage}.warmup_steps=0", f"{stage}.lr_scheduler=constant"]
    path = f"model.path={_base(options, layers)}"
    return compose([*setup.overrides(options, layers), f"stage={stage}", *shared, *keys, path])


def _base(options: Namespace, layers: int) -> Path:
    """The directory of the random weights of so many layers; a line where they are written."""
    directory = options.folder / f"base-{layers}"
    if directory.is_dir():
        return directory
    unfinished = options.folder / f".base-{layers}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    config = compose([*setup.overrides(options, layers), "stage=cpt"])
    run_dir = _new_run(options, config, f"base-{layers}")
    watch = {"directory": str(unfinished), "tokenizer": str(_tokenizer(options))}
    processes = options.gpus if options.tiny else min(BASE_PROCESSES, os.cpu_count() or 1)
    ranks, host = lines.start_ranks(options, run_dir, "base", watch, processes)
    size, seconds = setup.weight_bytes(unfinished), max(rank["seconds"] for rank in ranks)
    setup.leave_page_cache(unfinished)
    unfinished.rename(directory)
    facts = {"layers": layers, "parameters": setup.parameters_of(config).total, "processes": processes, "bytes": size}
    facts |= {"seconds": seconds, "gb_per_s": size / 1e9 / seconds, "host_gib": host}
    say({"case": "base", **facts}, options.out)
    return directory


def _new_run(options: Namespace, config: Config, name: str) -> Path:
    """A run directory of this name, in place of an earlier one."""
    run_dir = options.folder / "runs" / name
    shutil.rmtree(run_dir, ignore_errors=True)
    setup.write_run(run_dir, config, _tokenizer(options), {"case": name})
    return run_dir


def _write_rows(options: Namespace, run_dir: Path, rows: int, tokens: int, packed: bool) -> None:
    """The rows of all steps, and as held-out rows one of the same kind for each rank."""
    for name, count in (("cpt", rows), ("cpt_heldout", options.gpus)):
        setup.write_rows(run_dir / "data" / "rows" / f"{name}.parquet", count, tokens, packed, options.sizes.vocabulary)


def _tokenizer(options: Namespace) -> Path:
    return setup.tokenizer_of(options.folder / "tokenizer", options.sizes.vocabulary)


def _disk(options: Namespace) -> float:
    """Bytes that a case may write: what is free at the folder, and no more than --disk."""
    free = shutil.disk_usage(options.folder).free
    return min(free, options.disk * 1e9) if options.disk else free
