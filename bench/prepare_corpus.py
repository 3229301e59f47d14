"""Tokens/s of rendering and masking, and the peak memory, of a preparation (`stage=data`) of a multiplied corpus.

    python -m bench.prepare_corpus TRAJECTORIES.jsonl TOKENIZER [--size-mb 50 200] [--workers 1 2] [--repeats 3]

TOKENIZER is a Hugging Face directory, for the figures in README one with the 248,077 entries of the Qwen3.5 vocabulary.
The trajectories are copied until they reach a size, each copy with an id, a split group and a first action of its own,
so that none is an exact duplicate; near duplicates are not sought (they all are, and finding them is not rendering).
Tokens are all that is rendered: CPT, SFT, prompts and held-out rows. The time of `rows` goes from the pools to the
files that trainers read: parsing, rendering, masking, packing, Parquet. Peak memory is the proportional set size of all
processes together, read every 0.2 s, and beside it the resident set of the largest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agentworld.data.prepare import prepare
from agentworld.data.settings import DataSettings, DuplicateSettings, SplitSettings
from agentworld.data.tokenizer import load_tokenizer
from agentworld.train.traces import scripted_teacher
from bench.import_corpus import MB, SAMPLE_SECONDS, machine, pss, tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trajectories", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--size-mb", type=float, nargs="*", default=[50, 200])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs=3, metavar=("INPUT", "OUT", "WORKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        prepare_once(options)
        return
    print(machine())
    print(
        f"{'MB':>6} {'workers':>7} {'M tokens':>8} {'M tokens/s':>10} {'(spread)':14} {'gather MB/s':>11} {'s':>7}",
        end="",
    )
    print(f" {'peak MB':>8} {'largest':>8}")
    for size in options.size_mb:
        with tempfile.TemporaryDirectory(prefix="agentworld-bench-") as temporary:
            source = Path(temporary, "input.jsonl")
            written = multiply(options.trajectories, source, size * MB) / MB
            for workers in options.workers:
                measure(options, source, written, workers, Path(temporary, "out"))


def measure(options: argparse.Namespace, source: Path, size: float, workers: int, out: Path) -> None:
    """Print one line."""
    reports, peaks, largest = [], [], []
    for _ in range(options.repeats):
        here = ("bench.prepare_corpus", str(options.trajectories), str(options.tokenizer))
        command = [sys.executable, "-m", *here, "--only", str(source), str(out), str(workers)]
        total = single = 0
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                sizes = [pss(pid) for pid in tree(process.pid)]
                total, single = max(total, sum(sizes)), max(single, *sizes, 0)
                try:
                    process.wait(SAMPLE_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        if process.returncode:
            raise SystemExit(f"the preparation ended with {process.returncode}")
        reports.append(json.loads((out / "report.json").read_text()))
        peaks.append(total)
        largest.append(single)
    tokens = (
        sum(row["tokens"] + row["dropped_tokens"] for row in reports[0]["rows"].values()) + reports[0]["rl"]["tokens"]
    )
    rates = [tokens / 1e6 / report["seconds"]["rows"] for report in reports]
    gather = statistics.median(size / report["seconds"]["gather"] for report in reports)
    spread = f"({min(rates):.2f} to {max(rates):.2f})"
    seconds = statistics.median(report["seconds"]["total"] for report in reports)
    print(
        f"{size:6.0f} {workers:7} {tokens / 1e6:8.1f} {statistics.median(rates):10.2f} {spread:14} {gather:11.1f}",
        end="",
    )
    print(f" {seconds:7.1f} {max(peaks) / MB:8.0f} {max(largest) / MB:8.0f}", flush=True)


def multiply(trajectories: Path, out: Path, size: float) -> int:
    """Write copies until `size` bytes are reached; returns the bytes."""
    rows = [json.loads(line) for line in trajectories.read_bytes().split(b"\n") if line]
    written = copy = 0
    with open(out, "w", encoding="utf-8") as file:
        while written < size:
            for row in rows:
                first, *others = row["turns"]
                turns = [first | {"action": f"{first['action']} {copy}"}, *others]
                names = {"id": f"{row['id']}-{copy}", "split_group": f"{row['split_group']}-{copy}"}
                written += file.write(json.dumps(row | names | {"turns": turns}, ensure_ascii=False) + "\n")
            copy += 1
    return written


def prepare_once(options: argparse.Namespace) -> None:
    """In a process of its own."""
    source, out, workers = options.only
    settings = DataSettings(
        trajectories=[source],
        duplicates=DuplicateSettings(near=False),
        prompt_set="domains",
        cpt_row_tokens=32_768,
        sft_row_tokens=262_144,
        rl_prompt_tokens=131_072,
        split=SplitSettings(cpt=0.78, sft=0, rl=0.2, eval=0.02),
        workers=int(workers),
    )
    started = time.perf_counter()
    prepare(settings, 0, Path(out), scripted_teacher, load_tokenizer(options.tokenizer), lambda line: None)
    print(f"{time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
