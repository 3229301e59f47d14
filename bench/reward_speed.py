"""Rule verifications a second on one core, by domain, and the rate of the whole offline reward.

    python -m bench.reward_speed TRAJECTORIES.jsonl [--turns 400] [--seconds 1.0] [--repeats 3]

The file holds trajectories of the domains to be measured (`agentworld record`, `agentworld import`). Each turn is
verified with three predictions: its truth, the observation before it, and the truth with its last quarter cut off; the
three take turns as the samples of a group do, so that a truth is taken apart once for its group. A verification is one
call of all verifiers of the domain on one prediction, deterministic where the file says so. Median and range of the
repeats; one process, one thread. Figures under load say little: the load is printed.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from agentworld.data.examples import Example, example
from agentworld.data.render import Prediction
from agentworld.data.schema import DOMAINS, read_jsonl
from agentworld.rewards.guard import content_hits
from agentworld.rewards.hybrid import reward
from agentworld.rewards.settings import RewardSettings
from agentworld.rewards.verdicts import Item, context_of
from agentworld.rewards.verifiers import domain_verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trajectories", type=Path, metavar="TRAJECTORIES.jsonl")
    parser.add_argument("--turns", type=int, default=400, help="of each domain, spread over the file")
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time, for each figure and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, {platform.platform()}, Python {platform.python_version()}")
    print(f"{'domain':10} {'turns':>6} {'chars':>7} {'verifications/s':>26} {'guards/s':>24} {'offline rewards/s':>24}")
    for domain, items in items_of(options.trajectories, options.turns).items():
        characters = statistics.median(len(item.reference) for item in items)
        figures = [rates(call, items, options) for call in (domain_verdicts, content_hits, offline_reward)]
        turns = len(items) // 3
        print(f"{domain:10} {turns:6} {characters:7.0f} {figures[0]:>26} {figures[1]:>24} {figures[2]:>24}")


def items_of(path: Path, turns: int) -> dict[str, list[Item]]:
    """For each domain of the file, three predictions of each of its chosen turns."""
    pools: dict[str, list[Example]] = {}
    for trajectory in read_jsonl(path):
        for index, turn in enumerate(trajectory.turns):
            if turn.is_target:
                pools.setdefault(trajectory.domain, []).append(example(trajectory, index))
    found: dict[str, list[Item]] = {}
    for domain in (domain for domain in DOMAINS if domain in pools):
        pool = pools[domain]
        step = max(1, len(pool) // turns)
        found[domain] = [item for one in pool[::step][:turns] for item in predictions(one)]
    return found


def predictions(one: Example) -> list[Item]:
    context = context_of(one.domain, one.history, one.trajectory.system)
    truth = one.observation
    texts = (truth, context.last or "", truth[: len(truth) * 3 // 4])
    return [Item(text, truth, one.action, one.deterministic, context) for text in texts]


def offline_reward(item: Item) -> float:
    """The whole offline reward, guards and reference scorer included."""
    prediction = Prediction(item.prediction, None, ended=True, tag_valid=True)
    settings = RewardSettings()
    got = reward(prediction, item.reference, item.action, item.deterministic, settings, context=item.context)
    return got.total


def rates(call: Callable[[Item], object], items: list[Item], options: argparse.Namespace) -> str:
    """Calls a second of processor time: median (smallest to largest of the repeats)."""
    found = []
    for _ in range(options.repeats):
        count, start = 0, time.process_time()
        while time.process_time() - start < options.seconds:
            for item in items[count % len(items) : count % len(items) + 60]:
                call(item)
                count += 1
        found.append(count / (time.process_time() - start))
    return f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"


if __name__ == "__main__":
    main()
