"""vLLM beside the training engine: do their probabilities agree, do updates arrive, how fast are rollouts.

The trainer of the RL stage, a random model, prompts of random tokens and a reward that only has to vary, with vLLM
started and fed as the product does it. Before each rollout, so after 0, 1, 2 and 3 updates, the log-probabilities of
fixed sequences are taken from vLLM (prefill), from the training engine and from plain transformers in float32 with the
weights of that moment; after it, those of what vLLM sampled. On one training GPU, whole rollouts are then sampled by
vLLM and by `generate`, with the kernels that training has, in turn. Each case runs in processes of its own and prints a
JSON line of what rank 0 found.

    python -m bench.vllm_rollouts --out rollouts.jsonl                  # the cases of one GPU
    python -m bench.vllm_rollouts --cases server tensor-parallel --out rollouts.jsonl      # two GPUs

    state-float32    colocated, as the product starts it
    state-bfloat16   colocated; vLLM's state of Gated DeltaNet in bfloat16, as vLLM keeps it where config.json names no
                     dtype. The product asks for float32, in which the training engine keeps it
    sleep            colocated, `rl.rollout.enable_sleep_mode=true`: vLLM gives its memory up between rollouts
    server           `vllm serve` on the second GPU, started from other random weights; ZeRO-3 on the first
    tensor-parallel  one vLLM over the two GPUs that train with ZeRO-3 and the experts over both
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentworld.train.launch import free_port
from bench.rank_processes import RankError, run, say

PROGRAM = "bench.vllm_rollouts"
WIDTHS = {
    "small": {
        "hidden_size": 512, "num_hidden_layers": 8, "num_experts": 16, "num_experts_per_tok": 4, "head_dim": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
    },
    "mini": {},  # recipes/model/mini.yaml as it is
}  # fmt: skip
SIZES = {"prompts": 64, "generations": 4, "longest_prompt": 512, "new_tokens": 256, "fixed": 8, "greedy_tokens": 64}
UPDATES = 3
COLOCATED = ("rl.rollout.engine=vllm_colocate", "rl.rollout.gpu_memory_utilization=0.3")
# What docs/rollouts.md tells to start a server with, but for its directory, port and length.
SERVER_FLAGS = (
    "--language-model-only", "--gdn-prefill-backend", "triton", "--mamba-ssm-cache-dtype", "float32",
    "--weight-transfer-config", '{"backend": "nccl"}', "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """How a case trains and samples."""

    keys: tuple[str, ...] = (*COLOCATED, "engine=zero1")
    ranks: int = 1
    server: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # of a colocated vLLM, on top of the product's


CASES = {
    "state-float32": Case(),
    "state-bfloat16": Case(options={"mamba_ssm_cache_dtype": "bfloat16"}),
    "sleep": Case(keys=(*COLOCATED, "engine=zero1", "rl.rollout.enable_sleep_mode=true")),
    "server": Case(keys=("rl.rollout.engine=vllm_server", "model.export_layout=release", "engine=zero3"), server=True),
    "tensor-parallel": Case(
        keys=(*COLOCATED, "engine=zero3", "engine.expert_parallel=2", "rl.rollout.tensor_parallel_size=2"), ranks=2
    ),
}
ONE_GPU = [name for name, case in CASES.items() if case.ranks == 1 and not case.server]


def main() -> int:
    """Start the processes of each case and print its line."""
    options = _options()
    if options.one:
        from bench import vllm_watch

        found = vllm_watch.measure(json.loads(options.one))
        if os.environ["RANK"] == "0":
            options.result.write_text(json.dumps(found))
        return 0
    failed = False
    for name in options.cases:
        line = _in_processes(name, options)
        failed |= "error" in line
        say(line, options.out)
    return 1 if failed else 0


def _in_processes(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The line of a case: what its first rank found, or why there is nothing."""
    case = CASES[name]
    facts = {"case": name, "widths": options.widths, "repeats": options.repeats if case.ranks == 1 else 0}
    facts |= {"sizes": SIZES, "keys": list(case.keys), "ranks": case.ranks}
    logs = [options.logs / f"vllm-{options.widths}-{name}-{rank}.log" for rank in range(case.ranks)]
    with tempfile.TemporaryDirectory() as folder:
        port, result = free_port(), Path(folder) / "result.json"
        asked = {**facts, "options": case.options, "folder": folder}
        if case.server:
            asked["keys"] = [*case.keys, f"rl.rollout.server_base_url=http://127.0.0.1:{port}"]
        command = ["-m", PROGRAM, "--one", json.dumps(asked), "--result", str(result)]
        try:
            with _server(options, Path(folder), port) if case.server else nullcontext() as server:
                beside = [server] if server else []
                run([command] * case.ranks, logs, options.limit, {}, beside)
        except RankError as error:
            return {**facts, "error": str(error)}
        return {**facts, **json.loads(result.read_text())}


@contextmanager
def _server(options: argparse.Namespace, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A vLLM server on the last GPU, started from random weights that are not those of the trainer. It need not be up:
    the trainer waits for it."""
    from agentworld.train import vllm_rollouts
    from agentworld.train.compose import compose
    from bench.random_policy import random_parent

    config = compose(overrides(options.widths, SIZES, CASES["server"].keys))
    parent = random_parent(config, folder / "server_parent", seed=1)
    vllm_rollouts.write_released(parent, folder / "server_model", parent, config.model.dtype)
    length = SIZES["longest_prompt"] + SIZES["new_tokens"]
    place = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(length)]
    command = ["-m", "vllm.entrypoints.cli.main", "serve", str(folder / "server_model"), *place, *SERVER_FLAGS]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    variables = {"CUDA_VISIBLE_DEVICES": gpus[-1], "VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": "127.0.0.1"}
    with (options.logs / f"vllm-{options.widths}-server-serve.log").open("w") as log:
        memory = ["--gpu-memory-utilization", "0.3"]
        server = subprocess.Popen(
            [sys.executable, *command, *memory], env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield server
        finally:
            server.terminate()
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _options() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=layout)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=ONE_GPU)
    parser.add_argument("--widths", choices=list(WIDTHS), default="small")
    parser.add_argument("--repeats", type=int, default=3, help="timed rollouts of each engine")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a case may take")
    parser.add_argument("--out", type=Path, help="lines are added to this file")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="directory for vLLM's output")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def overrides(widths: str, sizes: dict[str, int], keys: Sequence[str], ranks: int = 1) -> list[str]:
    """The recipe of a case."""
    return [
        "recipe=mini", f"nproc={ranks}", "wandb.mode=disabled", "rl.rollout.batch_size=0",
        f"rl.prompts_per_rollout={sizes['prompts']}", f"rl.num_generations={sizes['generations']}",
        "rl.mini_batches=1", f"rl.completions_per_device={sizes['prompts'] // 2}",
        f"rl.max_completion_tokens={sizes['new_tokens']}", f"data.rl_prompt_tokens={sizes['longest_prompt']}",
        f"rl.max_steps={UPDATES + 1}", "rl.warmup_steps=0", "rl.learning_rate=2e-3", "rl.router_aux_loss_coef=0",
        *(f"model.architecture.{key}={value}" for key, value in WIDTHS[widths].items()), *keys,
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
