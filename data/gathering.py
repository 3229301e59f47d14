"""From files to pools: record or read, filter, find duplicates, choose, and split by group."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentworld.data import filters
from agentworld.data.catalogue import Catalogue
from agentworld.data.corpus import ReadCount, read_corpus
from agentworld.data.duplicates import DuplicateCount, DuplicateIndex
from agentworld.data.errors import ContentError
from agentworld.data.filters import FilterCount
from agentworld.data.held_out import read_held_out
from agentworld.data.record.terminal import record
from agentworld.data.rendering import workers_of
from agentworld.data.selection import select
from agentworld.data.settings import DataSettings
from agentworld.data.splits import POOLS, assign_pools


def gather(
    settings: DataSettings, seed: int, directory: Path, scratch: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Write <pool>.jsonl of each pool into `directory`, and return its part of the report.

    Memory is some 50 bytes a trajectory beside the names of its group; texts lie in files in `scratch`.
    """
    recorded = None
    paths: Sequence[str | Path] = settings.trajectories
    if not paths:
        paths = [directory / "recorded.jsonl"]
        recorded = record(settings.record, seed, paths[0], say)
    held_out = read_held_out(settings.held_out)
    read, filtered = ReadCount(), FilterCount()
    catalogue = Catalogue(scratch / "catalogue.jsonl", seed)
    with DuplicateIndex(settings.duplicates, held_out, scratch) as index:
        passing = filters.passing(read_corpus(paths, settings.on_bad, read, scratch), settings.min_turns, filtered)
        index.add(catalogue.adding(passing), workers_of(settings))
        for reason in read.reasons[:5]:
            say(f"skipped: {reason}")
        duplicates = index.resolve()
        say(f"trajectories: {duplicates.kept} of {read.read} kept")
        _require_trajectories(settings, filtered, duplicates)
        chosen, selection = select(catalogue, index.kept(), settings.domain_weights, settings.source_shares)
    report = {
        "seed": seed,
        "files": [str(path) for path in settings.trajectories],
        "recorded": recorded,
        "read": asdict(read),
        "filters": asdict(filtered),
        "duplicates": duplicates.to_dict(),
        "selection": selection.to_dict(),
    }
    try:
        return report | {"pools": _write_pools(settings, seed, catalogue, chosen, directory)}
    finally:
        catalogue.close()


def _require_trajectories(settings: DataSettings, filtered: FilterCount, duplicates: DuplicateCount) -> None:
    if duplicates.kept:
        return
    if filtered.kept:
        raise ContentError(f"no trajectory is left: the split groups of all {filtered.kept} are in data.held_out")
    raise ContentError(
        f"no trajectory is left after the filters: of {filtered.read} read, {filtered.too_short} have "
        f"fewer than data.min_turns={settings.min_turns} turns (lower it or give longer ones), "
        f"{filtered.without_target} no turn that may be a target, and {filtered.evaluation} are rows of a benchmark, "
        "which data.held_out is for"
    )


def _write_pools(
    settings: DataSettings, seed: int, catalogue: Catalogue, chosen: bytearray, directory: Path
) -> dict[str, Any]:
    """The files, disjoint by split group; returns their sizes."""
    pool_of = assign_pools(catalogue.group_sizes(chosen), settings.split, seed)
    sizes = {pool: {"trajectories": 0, "groups": 0, "turns": 0} for pool in POOLS}
    for pool in pool_of.values():
        sizes[pool]["groups"] += 1
    with ExitStack() as stack:
        files = {pool: stack.enter_context(open(directory / f"{pool}.jsonl", "wb")) for pool in POOLS}
        for number, line in catalogue.lines(lambda number: bool(chosen[number])):
            pool = pool_of[catalogue.group_of(number)]
            files[pool].write(line)
            sizes[pool]["trajectories"] += 1
            sizes[pool]["turns"] += catalogue.turns[number]
    return sizes
