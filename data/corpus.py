"""Reading the trajectories of a run from files, with every line accounted for."""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import SchemaError, Trajectory
from agentworld.data.trajectory_files import read_trajectories

REASONS_KEPT = 1000


@dataclass
class ReadCount:
    """Lines of all files; read = kept + rejected. `reasons` are "path:line: field: reason", the first 1,000."""

    read: int = 0
    kept: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    def reject(self, reason: str) -> None:
        self.read += 1
        self.rejected += 1
        if len(self.reasons) < REASONS_KEPT:
            self.reasons.append(reason)

    def reject_error(self, error: SchemaError) -> None:
        self.reject(str(error))


def read_corpus(
    paths: Sequence[str | Path], on_bad: str, count: ReadCount, scratch: Path | None = None
) -> Iterator[Trajectory]:
    """Yield the trajectories of files, JSON Lines or Parquet, in order; `count` is complete at the end.

    Ids must be unique over all files, since traces, prompts and draws go by id; a second one is a bad line.

    Args:
        on_bad: "fail" stops at the first bad line, "skip" counts it and goes on.
        scratch: folder of the temporary index of ids; None = the system's (TMPDIR).

    Raises:
        RequestError: a file is missing or cannot be read.
        ContentError: a bad line under "fail" (`path:line: field: reason`), an empty file, or no line that is good.
    """
    for path in paths:
        if not Path(path).is_file():
            raise RequestError(f"data.trajectories: {path}: no such file")
    with _Ids(scratch) as ids:
        for path in paths:
            for trajectory in _read(path, None if on_bad == "fail" else count.reject_error):
                first = ids.first_place(trajectory.id, str(path))
                if first is not None:
                    reason = f"{path}: id: {trajectory.id!r} stands in {first} already; ids are unique"
                    if on_bad == "fail":
                        raise SchemaError(reason)
                    count.reject(reason)
                    continue
                count.read += 1
                count.kept += 1
                yield trajectory
    if not count.kept:
        files = ", ".join(str(path) for path in paths)
        raise ContentError(f"{files}: no usable trajectory in {count.read} lines; the first: {count.reasons[0]}")


def _read(path: str | Path, on_bad: Callable[[SchemaError], None] | None) -> Iterator[Trajectory]:
    try:
        yield from read_trajectories(path, on_bad)
    except OSError as error:
        raise RequestError(f"data.trajectories: {path}: cannot be read: {error.strerror}") from error


class _Ids:
    """Which file each id stands in, on disk."""

    def __init__(self, scratch: Path | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="agentworld-ids-", dir=scratch)
        self._database = sqlite3.connect(Path(self._folder.name, "ids.sqlite3"), isolation_level=None)
        self._database.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE; BEGIN;"
            "CREATE TABLE ids (id TEXT PRIMARY KEY, path TEXT NOT NULL) WITHOUT ROWID;"
        )

    def __enter__(self) -> "_Ids":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._folder.cleanup()

    def first_place(self, name: str, path: str) -> str | None:
        """None for a new id, which is put down; else the path it was seen in first."""
        if self._database.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (name, path)).rowcount:
            return None
        return self._database.execute("SELECT path FROM ids WHERE id = ?", (name,)).fetchone()[0]
