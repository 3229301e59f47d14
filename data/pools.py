"""The pools of a preparation as files, and the samples that traces make of two of them."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from agentworld.data.errors import ContentError
from agentworld.data.schema import Trajectory, parse_line
from agentworld.data.sft_samples import SftSample, Teacher, TeacherCount, choose_samples, samples_of

TRACES = "traces.jsonl"
NO_TRACES = (
    "it reads shell commands typed as a JSON list of one keystrokes entry, with echo, output and prompt in the "
    "observation; other logs train with stage=cpt, data.split.sft=0 and its share added to data.split.cpt (and "
    "overwrite=true where this run was begun): CPT needs no traces"
)


def lines_of(directory: Path, pool: str) -> Iterator[bytes]:
    """The lines of <pool>.jsonl; an empty pool is an empty file."""
    with open(directory / f"{pool}.jsonl", "rb") as file:
        yield from file


def trajectories_of(directory: Path, pool: str) -> Iterator[Trajectory]:
    return map(parse_line, lines_of(directory, pool))


def write_traces(seed: int, teacher: Teacher, directory: Path) -> dict[str, TeacherCount]:
    """Write the traces of the sft pool, then those of the eval pool, and count what the teacher did.

    Raises:
        ContentError: no turn of the sft pool was answered as the environment did.
    """
    counts = {"sft": TeacherCount(), "eval": TeacherCount()}
    with open(directory / TRACES, "w", encoding="utf-8") as file:
        for pool, count in counts.items():
            for sample in choose_samples(trajectories_of(directory, pool), teacher, seed, count):
                row = {"key": sample.example.key, **asdict(sample.trace)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            if pool == "sft" and count.trajectories and not count.samples:
                raise ContentError(
                    f"sft: no trace is left: of {count.turns} turns the teacher answered {count.answered}, none of "
                    f"them as the environment did; {NO_TRACES}"
                )
    return counts


def samples(directory: Path, counts: dict[str, TeacherCount], pool: str) -> Iterator[SftSample]:
    """The samples of a pool, from its file and that of the traces."""
    start = 0 if pool == "sft" else counts["sft"].samples
    return samples_of(trajectories_of(directory, pool), directory / TRACES, start, counts[pool].samples)
