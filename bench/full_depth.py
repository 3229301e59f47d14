"""The whole model on one host: steps of CPT, a checkpoint, a resume, an export, a rollout of RL, each on all GPUs.

    python -m bench.full_depth --gpus 8 --folder DIR --out depth.jsonl --logs logs    # the 35B configuration
    python -m bench.full_depth --gpus 4 --offload --folder DIR --out depth.jsonl      # states in CPU memory
    python -m bench.full_depth --tiny --gpus 2 --out depth.jsonl                      # CPU, gloo: does it run?

Each case runs in processes of its own and prints a JSON line when it is done; one that fails prints a line with
"error". Random weights are written to DIR once and found again by the next call, so cases may be asked for one by one.
What trains is the stage's own worker (`agentworld.train.worker`) on a run directory with random rows: the command
itself would evaluate the model before and after. ZeRO-3, experts over all GPUs.

    base          the weights, drawn and written by several processes: parameters, bytes, seconds, gb_per_s
    rows4k        CPT on rows of one document of 4,096 tokens, as many to a micro-batch as the plan says to fit the card
                  beside its headroom (`rows_out_of_memory`: those that did not fit, then half), activations recomputed
    packed32k     CPT on rows of 32,768 tokens of six documents, one to a micro-batch, activations recomputed; then the
                  live export, if the disk has room
    checkpoint    CPT on fewer layers, whose base, checkpoint and export fit --disk: three steps, a checkpoint after the
                  second, the export; then new processes resume it and take the third step again
    rl            two rollouts of 8 prompts x 8 completions, sampled by transformers, each used in two optimizer steps;
                  random weights gain no reward, so the loss is the router's alone, and costs what another does
    rows4k-kept   as rows4k, activations kept: the fewer rows that fit so

Fields. GB are 10^9 bytes, GiB 2^30; lists "of_each_rank" are in the order of the ranks.

    layers, parameters, gpus, offload, engine, recompute, rows_per_device, row_tokens, prompts, completions,
    prompt_tokens (mean), completions_per_device, device and versions: what ran; of checkpoint layers_of_the_model and
    disk_gb say what its layers were chosen from
    tokens_a_step           over all GPUs; every token carries a loss
    losses, norms, load_max_over_mean   of each step, as the trainer logged them (train/router_load.py)
    seconds                 of each step but the profiled one, on the slowest rank, optimizer included, rows not
    tokens_per_s_a_gpu      median and range of the timed steps, without the warm ones
    matrix_product_tflops_of_each_rank  bf16, 8192 x 8192, on all GPUs at once, right before the steps
    operations_a_gpu        of forward and backward pass, recomputing not counted (`layer_speed.layer_flops`, the head)
    mfu                     these over the median step and the mean matrix product
    peak_gib_of_each_rank   allocated, from the second step on; reserved: with what the allocator keeps
    planned_gib, planned_over_measured  `agentworld plan`'s peak of the stage, and over the largest rank's
    communication_of_each_rank  of the profiled last step, milliseconds (`kernel_groups.communication`)
    load                    from_pretrained into the partitions: seconds of the slowest rank, GB/s of the files. The
                            first after base reads the disk, later ones what the page cache still holds
    checkpoint, resume      the trainer's save until it is whole and synced, DeepSpeed's load (page cache dropped):
                            seconds, bytes on disk, GB/s; the resumed `losses` are to be the last of those before
    export                  shards with their hashes: bytes on disk, seconds, GB/s; `in_transformers`: keys that plain
                            `from_pretrained` on the meta device finds missing, unexpected or of another shape
    rollouts                of each rollout, on the rank whose steps took longest: seconds of sampling, of reward, of
                            log_probs (of the policy that sampled, and advantages), of training (both steps without
                            these), and the sampled tokens of all ranks
    host_gib                highest while the case ran (`rank_processes.run`); case_seconds: all of it, with
                            the weights that it found missing
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

PROGRAM = "bench.full_depth"
CASES = ("rows4k", "packed32k", "checkpoint", "rl", "rows4k-kept")
LAYERS = 40


def main() -> int:
    options = _options()
    from bench import rank_processes

    failed = False
    with ExitStack() as stack:
        if options.folder is None:
            options.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options.logs = options.logs or options.folder / "logs"
        for folder in (options.folder, options.logs):
            folder.mkdir(parents=True, exist_ok=True)
        for name in options.cases:
            line = _measured(name, options)
            failed |= "error" in line
            rank_processes.say(line, options.out)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=layout)
    parser.add_argument(
        "--gpus", type=int, default=8, choices=(1, 2, 4, 8), help="ranks; with --tiny processes on the CPU"
    )
    parser.add_argument("--layers", type=int, help=f"a multiple of 4; default {LAYERS}, or what memory has room for")
    parser.add_argument("--offload", action="store_true", help="parameters and optimizer in CPU memory")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--folder", type=Path, help="for weights and runs; default a temporary one")
    parser.add_argument("--disk", type=float, help="GB for the files of a case; default what is free at the folder")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds that one start of the ranks may take")
    parser.add_argument("--out", type=Path, help="lines are added to this file")
    parser.add_argument("--logs", type=Path, help="directory for the output of the ranks")
    parser.add_argument("--keep", action="store_true", help="keep the run directories")
    parser.add_argument("--overrides", nargs="+", default=[], metavar="KEY=VALUE", help="further recipe keys")
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    options = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if options.tiny:
        os.environ["DS_ACCELERATOR"] = "cpu"
    return options


def _measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The line of a case. A failure becomes one, too, whatever it is: the next case has its turn."""
    from bench import full_depth_cases, full_depth_setup

    options.sizes = full_depth_setup.TINY if options.tiny else full_depth_setup.Sizes()
    cases: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "rows4k": full_depth_cases.rows4k,
        "packed32k": full_depth_cases.packed32k,
        "checkpoint": full_depth_cases.checkpoint,
        "rl": full_depth_cases.rl,
        "rows4k-kept": partial(full_depth_cases.rows4k, recompute=False),
    }
    started = time.perf_counter()
    head = {"case": name, "gpus": options.gpus, "offload": options.offload}
    try:
        options.layers = options.layers or _layers(options)
        found = cases[name](options)
    except Exception as error:
        trace = options.logs / f"{name}-error.log"
        trace.write_text(traceback.format_exc())
        found = {"layers": options.layers, "error": f"{type(error).__name__}: {error}"[:800], "traceback": str(trace)}
    if not options.keep:
        shutil.rmtree(options.folder / "runs", ignore_errors=True)
    return head | found | {"case_seconds": time.perf_counter() - started}


def _layers(options: argparse.Namespace) -> int:
    """All layers, or with --offload as many as nine tenths of the free memory hold: 16 bytes a parameter
    (recipes/engine/zero3-offload-cpu.yaml)."""
    from agentworld.data.errors import RequestError
    from bench import full_depth_setup

    if options.tiny:
        return full_depth_setup.LAYERS_A_GROUP
    if not options.offload:
        return LAYERS
    free = free_memory()
    layers = full_depth_setup.layers_within(0.9 * free, 16, LAYERS, options)
    if not layers:
        raise RequestError(f"{free / 1e9:.0f} GB of free memory hold not even four layers; give --layers")
    return layers


def free_memory() -> int:
    """Bytes that this process and its children may still take, of the host or of its control group; files in the page
    cache give way."""
    text = Path("/proc/meminfo").read_text()
    available = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable:")) << 10
    group = Path("/sys/fs/cgroup")
    if (group / "memory.max").is_file() and (limit := (group / "memory.max").read_text().strip()) != "max":
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        taken = int((group / "memory.current").read_text()) - int(statistics["file"])
        available = min(available, int(limit) - taken)
    return available


if __name__ == "__main__":
    sys.exit(main())
