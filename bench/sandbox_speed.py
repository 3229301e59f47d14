"""Verifications a second in the sandbox of synthesised verifiers, and the seconds of its start.

    python -m bench.sandbox_speed [--verifiers 64] [--samples 8] [--workers 1 2 4] [--repeats 5]

The work of one rollout of RL: each verifier (a regular expression and JSON) judges the samples of one prompt, texts of
2,000 characters. Wall clock, median and range of the repeats. Figures under load say little: the load is printed.
"""

import argparse
import os
import platform
import statistics
import time

from agentworld.rewards.sandbox import Task, run

SOURCE = """
import json
import re

def verify(prediction: str) -> bool:
    head, _, body = prediction.partition("\\n")
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return re.fullmatch(r"exit [0-9]+", head) is not None and found["id"] == {number}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verifiers", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, {platform.platform()}, Python {platform.python_version()}")
    single = [Task(SOURCE.replace("{number}", "0"), ("",))]
    print(f"start and one call: {measured(lambda: run(single, workers=1), options.repeats, 1)}")
    tasks = [
        Task(
            SOURCE.replace("{number}", str(number)),
            [f'exit {sample}\n{{"id": {number}, "text": "{"x" * 1950}"}}' for sample in range(options.samples)],
        )
        for number in range(options.verifiers)
    ]
    calls = options.verifiers * options.samples
    assert run(tasks) == [[True] * options.samples] * options.verifiers
    for workers in options.workers:
        took = measured(lambda workers=workers: run(tasks, workers=workers), options.repeats, calls)
        print(f"{workers} processes, {calls} calls: {took}")


def measured(call, repeats: int, calls: int) -> str:
    """Seconds, median (smallest to largest), and calls a second at the median."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    middle = statistics.median(found)
    return f"{middle:.2f} s ({min(found):.2f} to {max(found):.2f}), {calls / middle:,.0f} a second"


if __name__ == "__main__":
    main()
