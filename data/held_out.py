"""Split groups that are kept for evaluation: nothing that shares one is trained on (arXiv:2606.24597 section 4.1).

The files that name them are of three kinds, told by their content:

    rows of AgentWorldBench     their groups are agentworldbench:<task>:<id>
    our own trajectories        their split_group
    text                        one group a line; a line that ends with * is a beginning: android-world:* holds out all
                                tasks of AndroidWorld, wherever they were recorded. Blank lines and # lines are nothing.

Ids of AgentWorldBench do not name the task of the benchmark that a row came from in the words of other logs, so to hold
out the families behind it (AndroidWorld, OSWorld, WebArena, Terminal-Bench, ...) give a text file with their groups.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.formats import agentworldbench, native
from agentworld.data.formats.container import DamagedError, look, records
from agentworld.data.formats.format import Head, Origin, Rejected, UnusableError
from agentworld.data.schema import Trajectory


@dataclass(frozen=True)
class HeldOut:
    """`groups` are whole, `beginnings` are those of the lines with a star, without it."""

    groups: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ()

    def __contains__(self, split_group: str) -> bool:
        return split_group in self.groups or split_group.startswith(self.beginnings)


def read_held_out(paths: Iterable[str | Path]) -> HeldOut:
    """The groups that files name; memory grows with the groups only.

    Raises:
        RequestError: a file is missing or cannot be read.
        ContentError: a file is damaged, of another kind, or names no group. A row is never passed over: what it holds
            out would be trained on.
    """
    groups: set[str] = set()
    beginnings: set[str] = set()
    for path in map(Path, paths):
        try:
            found, starred = _read(path)
        except OSError as error:
            raise RequestError(f"{path}: cannot be read: {error.strerror}") from error
        except DamagedError as error:
            raise ContentError(f"{path}: {error}") from None
        if not found and not starred:
            raise ContentError(f"{path}: names no split group; expected one a line")
        if "" in starred:
            raise ContentError(f"{path}: a line that is only * holds out everything; give the beginning of the groups")
        groups |= found
        beginnings |= starred
    return HeldOut(frozenset(groups), tuple(sorted(beginnings)))


def _read(path: Path) -> tuple[set[str], set[str]]:
    """The groups and the beginnings of one file; only a line of text has a star that means something."""
    head = look(path)
    if head.layout != "text":
        return set(_groups_of_rows(path, head)), set()
    lines = {line.strip() for line in path.read_text(encoding="utf-8-sig").split("\n")}
    named = {line for line in lines if line and not line.startswith("#")}
    starred = {line for line in named if line.endswith("*")}
    return named - starred, {line[:-1] for line in starred}


def _groups_of_rows(path: Path, head: Head) -> Iterator[str]:
    known = next((f for f in (agentworldbench.FORMAT, native.FORMAT) if f.matches(head)), None)
    if known is None:
        raise ContentError(f"{path}: neither rows of AgentWorldBench, nor trajectories, nor one split group a line")
    for record in records(path, head):
        if isinstance(record, Rejected):
            raise ContentError(f"{path}{record.where}: {record.reason}")
        try:
            found = list(known.convert(record.value, Origin(path.name, record.where)))
        except UnusableError as error:
            raise ContentError(f"{path}{record.where}: {error}") from None
        yield from (item.split_group for item in found if isinstance(item, Trajectory))
