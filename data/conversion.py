"""One unit of an import, in a worker process: its records become trajectories, cleaned and redacted, in a part.

Beside the part lie the places of its trajectories and the hashes of their ids, for those who join the parts.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

from agentworld.data import cleaning, redaction
from agentworld.data.filters import EVALUATION_SOURCES
from agentworld.data.formats import by_name, detect
from agentworld.data.formats.container import DamagedError, Record, lines, look, records
from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.import_report import FileCount
from agentworld.data.import_units import Unit
from agentworld.data.import_work import SUFFIXES, HashedFile, finish_part
from agentworld.data.schema import Trajectory, to_dict
from agentworld.data.unicode_text import without_lone_surrogates

SEEN_CHARACTERS = 80  # of a file of no known format, in the report and in the error
DIGEST_BYTES = 16  # of an id: two of 10^9 are the same with probability 10^-21
PR_SET_PDEATHSIG = 1  # linux/prctl.h
# What an adapter stumbles over in a record that is not quite what it takes it for.
MISFITS = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)


def convert_numbered(
    numbered: tuple[int, Unit], folder: str, chosen: str | None, filters: bool, redact: bool
) -> FileCount:
    number, unit = numbered
    return _convert_unit(unit, Path(folder, f"{number:06}"), chosen, filters, redact)


def _convert_unit(unit: Unit, part: Path, chosen: str | None, filters: bool, redact: bool) -> FileCount:
    """Convert one unit into the files of `part`, in a worker process."""
    count = FileCount(unit.file.name, chosen)
    with ExitStack() as opened:
        files = {suffix: HashedFile(opened.enter_context(open(f"{part}{suffix}", "wb"))) for suffix in SUFFIXES}
        _convert(unit, count, files, chosen, filters, redact)
    finish_part(part, count, files)
    return count


def _convert(
    unit: Unit, count: FileCount, files: dict[str, HashedFile], chosen: str | None, filters: bool, redact: bool
) -> None:
    try:
        head = look(unit.file.path)
    except DamagedError as error:
        count.reject(unit.file.name, str(error))
        return
    except OSError as error:
        count.reject(unit.file.name, _unreadable(error))
        return
    known = by_name(chosen) if chosen is not None else detect(head)
    if known is None:
        count.begins_with = head.text[:SEEN_CHARACTERS]
        return
    count.format = known.name
    for where, item in converted(unit, head, known):
        if isinstance(item, Rejected):
            count.reject(where, item.reason)
            continue
        of_item, line = _line(where, item, filters, redact)
        count.add(of_item)
        if line:
            files[""].write(line.encode())
            files[".places"].write(json.dumps(where).encode() + b"\n")
            files[".ids"].write(_digest(item.id))


def _digest(name: str) -> bytes:
    """Of an id as it is written."""
    return blake2b(without_lone_surrogates(name)[0].encode(), digest_size=DIGEST_BYTES).digest()


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _line(where: str, trajectory: Trajectory, filters: bool, redact: bool) -> tuple[FileCount, str]:
    """The line of one trajectory, or "" where it is rejected, and its count."""
    count = FileCount("", None, turns_read=len(trajectory.turns))
    try:
        kept = _cleaned(trajectory, count, filters, redact)
        if kept is None:
            return count, ""
        row = json.dumps(to_dict(kept), ensure_ascii=False, allow_nan=False)
        text, count.replaced_surrogates = without_lone_surrogates(row)
    except MISFITS as error:  # a meta that holds NaN, is nested too deep, ...
        count = FileCount("", None, turns_read=len(trajectory.turns))
        count.turns_removed[cleaning.OF_REJECTED] = len(trajectory.turns)
        count.reject(where, f"cannot be written: {type(error).__name__}: {error}")
        return count, ""
    count.read, count.kept, count.turns = 1, 1, len(kept.turns)
    return count, text + "\n"


def _cleaned(trajectory: Trajectory, count: FileCount, filters: bool, redact: bool) -> Trajectory | None:
    """What filters and redaction leave, counted; None where a filter dropped the trajectory."""
    if trajectory.source in EVALUATION_SOURCES:
        return trajectory
    if filters:
        cleaned = cleaning.clean(trajectory)
        count.turns_removed.update(cleaned.turns)
        if cleaned.trajectory is None:
            count.reject(trajectory.id, cleaned.reason, cleaned.dropped_by)
            return None
        trajectory = cleaned.trajectory
    if redact:
        trajectory, replaced = redaction.redact(trajectory)
        count.redacted.update(replaced)
    return trajectory


def converted(unit: Unit, head: Head, known: Format) -> Iterator[tuple[str, Trajectory | Rejected]]:
    """The trajectories of a unit and what gives none, each after its place."""
    name = unit.file.name
    path = unit.file.path
    try:
        found = lines(path, unit.start, unit.end, unit.number) if unit.is_part else records(path, head)
        if known.whole and head.layout in ("array", "lines", "stream"):
            found = _together(list(found))
        for record in found:
            if isinstance(record, Rejected):
                yield name + record.where, record
            else:
                yield from _of_record(record, name, known)
    except OSError as error:  # it vanished, or the disk fails in the middle
        yield name, Rejected("", _unreadable(error))


def _of_record(record: Record, name: str, known: Format) -> Iterator[tuple[str, Trajectory | Rejected]]:
    where = name + record.where
    try:
        for item in known.convert(record.value, Origin(name, record.where)):
            yield (where + item.where if isinstance(item, Rejected) else where), item
    except UnusableError as error:
        yield where, Rejected("", str(error))
    except MISFITS as error:
        yield where, Rejected("", f"not a record that {known.name} can read: {type(error).__name__}: {error}")


def _together(found: list[Record | Rejected]) -> Iterator[Record | Rejected]:
    yield from (item for item in found if isinstance(item, Rejected))
    yield Record("", [item.value for item in found if isinstance(item, Record)])
