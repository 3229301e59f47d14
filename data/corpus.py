"""Reading the trajectories of a run from files, with every line accounted for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import SchemaError, Trajectory, read_jsonl


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
        if len(self.reasons) < 1000:
            self.reasons.append(reason)

    def reject_error(self, error: SchemaError) -> None:
        self.reject(str(error))


def read_corpus(paths: Sequence[str | Path], on_bad: str) -> tuple[list[Trajectory], ReadCount]:
    """Read the trajectories of JSONL files in order.

    Ids must be unique over all files, since traces, prompts and draws go by id; a second one is a bad line.

    Args:
        on_bad: "fail" stops at the first bad line, "skip" counts it and goes on.

    Raises:
        RequestError: a file is missing or cannot be read.
        ContentError: a bad line under "fail" (`path:line: field: reason`), an empty file, or no line that is good.
    """
    for path in paths:
        if not Path(path).is_file():
            raise RequestError(f"data.trajectories: {path}: no such file")
    count = ReadCount()
    source_of: dict[str, str] = {}
    trajectories: list[Trajectory] = []
    for path in paths:
        for trajectory in _read(path, None if on_bad == "fail" else count.reject_error):
            if trajectory.id in source_of:
                reason = f"{path}: id: {trajectory.id!r} stands in {source_of[trajectory.id]} already; ids are unique"
                if on_bad == "fail":
                    raise SchemaError(reason)
                count.reject(reason)
                continue
            source_of[trajectory.id] = str(path)
            trajectories.append(trajectory)
            count.read += 1
            count.kept += 1
    if not trajectories:
        files = ", ".join(str(path) for path in paths)
        raise ContentError(f"{files}: no usable trajectory in {count.read} lines; the first: {count.reasons[0]}")
    return trajectories, count


def _read(path: str | Path, on_bad: Callable[[SchemaError], None] | None) -> Iterator[Trajectory]:
    try:
        yield from read_jsonl(path, on_bad)
    except OSError as error:
        raise RequestError(f"data.trajectories: {path}: cannot be read: {error.strerror}") from error
