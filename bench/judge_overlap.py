"""How long a rollout waits for its judge, with judging beside sampling and with judging after it.

    python -m bench.judge_overlap [--batches 8] [--samples 32] [--sampling 2.0] [--latency 1.0] [--concurrency 32]

A rollout of `--batches` x `--samples` completions, each batch sampled for `--sampling` seconds (a sleep stands for the
GPU), and the judge of the tests, which answers after `--latency` seconds, `--concurrency` at once. Both ways in turn,
each repeat with completions that no cache has seen. Wall clock, median and range. The least time there could be is the
longer of sampling and judging. Says nothing of a real endpoint; figures under load say little: the load is printed.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # the server stands beside the tests

from judge_server import judge_server

from agentworld.data.render import Message, parse_text
from agentworld.rewards.judge import Completion, Panel
from agentworld.rewards.settings import JudgeSettings, RewardSettings

ACTION = '[{"keystrokes": "cat a.txt\\n", "duration": 0.1}]'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--samples", type=int, default=32, help="completions of a batch")
    parser.add_argument("--sampling", type=float, default=2.0, help="seconds of a batch")
    parser.add_argument("--latency", type=float, default=1.0, help="seconds of a judgement")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at once")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, {platform.platform()}, Python {platform.python_version()}")
    with (
        judge_server(fault=lambda request: "late", late_seconds=options.latency) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        judge = JudgeSettings(base_url=server.address, model="test", concurrency=options.concurrency)
        settings, found = RewardSettings(rubric="judge", judge=judge), {"beside": [], "after": []}
        for repeat in range(options.repeats):
            for way, seconds in found.items():
                panel = Panel(settings, Path(folder, f"{way}-{repeat}.sqlite"), len)
                seconds.append(rollout(panel, options, f"{way} {repeat}", early=way == "beside"))
    sampling = options.batches * options.sampling
    judging = options.batches * options.samples / options.concurrency * options.latency
    print(f"sampling alone {sampling:.1f} s, judging alone at least {judging:.1f} s")
    for way, seconds in found.items():
        median = statistics.median(seconds)
        print(
            f"judged {way} sampling: {median:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), the judge busy "
            f"{judging / median:.0%} of it"
        )


def rollout(panel: Panel, options: argparse.Namespace, name: str, early: bool) -> float:
    """Seconds from the first batch to the last reward."""
    start, sampled = time.perf_counter(), []
    for batch in range(options.batches):
        time.sleep(options.sampling)
        items = [completion(f"{name} {batch} {number}") for number in range(options.samples)]
        sampled += items
        if early:
            panel.submit(items)
    outcomes = panel.rewards(sampled)
    assert all(outcome.total is not None for outcome in outcomes)
    return time.perf_counter() - start


def completion(name: str) -> Completion:
    said = parse_text(f"<predicted_observation>cat a.txt\n{name}\n$ </predicted_observation>", ended=True)
    messages = (Message("system", "A terminal.", 3), Message("user", ACTION, 9))
    return Completion(said, "cat a.txt\napple\n$ ", ACTION, None, "terminal", messages)


if __name__ == "__main__":
    main()
