"""Turns a second of `agentworld record terminal`, for both mixes.

    python -m bench.record_terminal [--light 1500] [--full 500] [--repeats 3] [--workers 0]

A turn counts once although every session runs twice; start and end of the workers are inside the time.
"""

import argparse
import os
import platform
import statistics
import tempfile
from pathlib import Path

from agentworld.data.record.terminal import record
from agentworld.data.settings import RecordSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--light", type=int, default=1500, help="sessions of mix=light")
    parser.add_argument("--full", type=int, default=500, help="sessions of mix=full")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="0: the default of the recorder")
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, {platform.platform()}, Python {platform.python_version()}")
    for mix, count in (("light", options.light), ("full", options.full)):
        rates = []
        for repeat in range(options.repeats):
            settings = RecordSettings(count=count, mix=mix, workers=options.workers)
            with tempfile.TemporaryDirectory() as folder:
                counts = record(settings, repeat, Path(folder, "out.jsonl"), print)
            rates.append(counts["turns_per_s"])
            print(
                f"  {mix} seed {repeat}: {counts['turns']} turns in {counts['seconds']} s = {rates[-1]} turns/s, "
                f"dropped {counts['dropped']}, {counts['workers']} workers, isolation {counts['isolation']}"
            )
        spread = f"{min(rates)} to {max(rates)}"
        print(
            f"{mix}: median {statistics.median(rates)} turns/s ({spread}, {len(rates)} repeats); {counts['programs']}"
        )


if __name__ == "__main__":
    main()
