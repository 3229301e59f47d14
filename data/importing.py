"""`agentworld import`: raw logs of any known format to one file of trajectories, with every record accounted for.

Work is cut into units: a file, or a range of the lines of a large JSON Lines file. Units are converted by all cores,
each into a part of its own, and the parts are joined in order: the output is the same bytes whatever the number of
workers, and the outputs of the shards of one import, joined in order, are the output of the whole. Of trajectories with
one id only the first is kept; shards do not know the ids of each other.

What a format gives passes the filters of the paper (`cleaning`) and loses personal data and secrets (`redaction`), but
for the rows of a benchmark: their scores compare with those of others only if they stay as they are.
"""

import ctypes
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from agentworld.data import cleaning, redaction
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.formats import FORMATS, agentworldbench, by_name, detect
from agentworld.data.formats.container import DamagedError, Record, lines, look, records
from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.import_units import Unit, is_same_file, search, shard_of, units_of
from agentworld.data.ordered_map import ordered_map
from agentworld.data.schema import Trajectory, to_dict
from agentworld.data.unicode_text import without_lone_surrogates

REASONS_KEPT = 1000  # of a file, in the report; all are counted
DIGEST_BYTES = 16  # of an id: two of 10^9 are the same with probability 10^-21
SKIPPED_KEPT = 1000  # entries of folders that are no files, in the report; all are counted
SHOWN_REASONS = 10  # on the screen
SEEN_CHARACTERS = 80  # of an unknown file, in the error
UNITS_AHEAD = 256  # given to the workers beyond the one that is waited for
STOPPED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
EVALUATION_SOURCES = (agentworldbench.SOURCE,)
# What an adapter stumbles over in a record that is not quite what it takes it for.
MISFITS = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)

NUMBERS = ("read", "kept", "rejected", "turns", "turns_read", "replaced_surrogates")
COUNTERS = {  # of a file, with the names that each may hold
    "turns_removed": (*cleaning.TURN_FILTERS, cleaning.OF_REJECTED),
    "filtered": cleaning.TRAJECTORY_FILTERS,
    "redacted": redaction.KINDS,
}


@dataclass
class FileCount:
    """One file of the report; read = kept + rejected, turns_read = turns + all of turns_removed."""

    path: str
    format: str | None
    read: int = 0
    kept: int = 0
    rejected: int = 0
    turns: int = 0
    turns_read: int = 0
    replaced_surrogates: int = 0
    turns_removed: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    reasons: list[dict[str, str]] = field(default_factory=list)
    first_bad: dict[str, str] | None = None  # of what no filter rejected: damage, records that give nothing

    def reject(self, where: str, reason: str, dropped_by: str | None = None) -> None:
        self.read += 1
        self.rejected += 1
        entry = {"where": where, "reason": reason}
        if dropped_by is not None:
            self.filtered[dropped_by] += 1
        elif self.first_bad is None:
            self.first_bad = entry
        if len(self.reasons) < REASONS_KEPT:
            self.reasons.append(entry)

    def add(self, other: "FileCount") -> None:
        """Take in the count of a later unit of the same file."""
        for name in NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in COUNTERS:
            getattr(self, name).update(getattr(other, name))
        self.reasons += other.reasons[: REASONS_KEPT - len(self.reasons)]
        self.first_bad = self.first_bad or other.first_bad


def import_files(
    paths: Sequence[Path],
    out: Path,
    format_name: str = "auto",
    on_bad: str = "skip",
    shard: tuple[int, int] = (0, 1),
    workers: int = 0,
    say: Callable[[str], None] = print,
    filters: bool = True,
    redact: bool = True,
    report_to: Path | None = None,
) -> dict[str, Any]:
    """Import files and folders into `out`, which appears when it is whole, and return the report.

    Args:
        format_name: "auto" recognises each file by its content.
        on_bad: "skip" counts a record that gives nothing and goes on, "fail" stops at the first. What a filter drops is
            not bad.
        shard: (i, n): the i-th of n consecutive parts of the work, i from 0.
        workers: processes; 0 = one a core.
        filters, redact: see `cleaning` and `redaction`.
        report_to: where the report is written too, also when nothing is kept.

    Raises:
        RequestError: a path that is not there, an unknown format name, a named file of no known format, an output that
            would replace an input or is no regular file.
        ContentError: no trajectory was kept, or a record under "fail".
    """
    try:
        with _stopping_workers():
            return _import(paths, out, format_name, on_bad, shard, workers, say, filters, redact, report_to)
    except BrokenProcessPool:
        raise ContentError(
            "a worker was killed, often for a lack of memory; fewer --workers need less, each reads whole objects"
        ) from None
    except OSError as error:  # for example a full disk
        if error.filename is None and error.strerror is not None:
            error.filename = str(out)
        raise


def _import(
    paths: Sequence[Path],
    out: Path,
    format_name: str,
    on_bad: str,
    shard: tuple[int, int],
    workers: int,
    say: Callable[[str], None],
    filters: bool,
    redact: bool,
    report_to: Path | None,
) -> dict[str, Any]:
    chosen = None if format_name == "auto" else by_name(format_name)
    outputs = {"--out": out} if report_to is None else {"--out": out, "--report": report_to}
    _check_outputs(paths, outputs)
    files, skipped = search(paths, left_out=list(outputs.values()))
    units = shard_of(list(chain.from_iterable(units_of(file, chosen) for file in files)), shard)
    counts: dict[str, FileCount] = {}
    temporary = tempfile.mkdtemp(prefix=".agentworld-import-", dir=out.parent)
    try:
        processes = min(workers or len(os.sched_getaffinity(0)), max(1, len(units)))
        name = None if chosen is None else chosen.name
        convert = partial(_convert_numbered, folder=temporary, chosen=name, filters=filters, redact=redact)
        with closing(ordered_map(convert, enumerate(units), processes, ahead=UNITS_AHEAD)) as counted:
            for done, (unit, count) in enumerate(zip(units, counted, strict=True), start=1):
                _check(unit, count, on_bad)
                counts[count.path].add(count) if count.path in counts else counts.update({count.path: count})
                if done % 100 == 0 or done == len(units):
                    say(f"import: {done}/{len(units)} parts, {sum(c.kept for c in counts.values())} trajectories")
        parts = [Path(temporary, f"{number:06}") for number in range(len(units))]
        for number, twice in _repeated(parts).items():
            of_file = counts[units[number].file.name]
            count = FileCount(of_file.path, of_file.format)
            _drop_lines(parts[number], twice, count)
            _check(units[number], count, on_bad)
            of_file.add(count)
        report = _report(list(counts.values()), skipped)
        if report_to is not None:
            write_report(report, report_to)
        if report["totals"]["kept"] == 0 and (units or shard[1] == 1):
            raise ContentError(_nothing_kept(report))
        if not units:
            say(f"import: shard {shard[0]}/{shard[1]} has no part of the work; {out} is empty")
        whole = Path(temporary) / "whole"
        with open(whole, "wb") as joined:
            for part in parts:
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, joined)
            joined.flush()
            os.fsync(joined.fileno())
        whole.replace(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def _is_output(path: Path) -> bool:
    """Whether a file is what an import wrote: nothing, trajectories or a report."""
    if path.stat().st_size == 0:
        return True
    try:
        head = look(path)
    except (DamagedError, OSError):
        return False
    known = detect(head)
    is_report = isinstance(head.first, dict) and {"files", "totals"} <= head.first.keys()
    return is_report or (known is not None and known.name == "agentworld")


@contextmanager
def _stopping_workers() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the workers at once, whatever they do, and interrupt this process."""
    own = os.getpid()

    def stop(*_: Any) -> None:
        if os.getpid() != own:  # a worker that was just forked
            os._exit(1)
        for worker in multiprocessing.active_children():
            if worker.pid not in others:
                worker.terminate()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    others = {worker.pid for worker in multiprocessing.active_children()}
    before = {number: signal.getsignal(number) for number in STOPPED_BY}
    taken = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]  # nohup ignores
    try:
        for number in taken:
            signal.signal(number, stop)
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


@cache
def _as_worker() -> None:
    """Once in each worker: end by SIGTERM without a word, leave Ctrl-C to the parent, and die with it (Linux)."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if not parent.is_alive():  # it died before the line above
            os.kill(os.getpid(), signal.SIGKILL)


def _check_outputs(paths: Sequence[Path], outputs: dict[str, Path]) -> None:
    """Refuse, before any work, outputs that cannot be written or would replace what is read."""
    for name, path in outputs.items():
        folder = path.absolute().parent
        if path.is_dir():
            raise RequestError(f"{name} {path}: a folder; name a file")
        if path.exists() and not path.is_file():
            raise RequestError(f"{name} {path}: not a regular file; the output replaces what it names")
        if not folder.is_dir():
            raise RequestError(f"{name} {path}: the folder {folder} does not exist; make it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise RequestError(f"{name} {path}: the folder {folder} cannot be written")
        for other in paths:
            if is_same_file(path, other):
                raise RequestError(f"{name} {path}: the input {other} itself, which would be replaced; name another")
            if path.exists() and path.resolve().is_relative_to(other.resolve()) and not _is_output(path):
                raise RequestError(f"{name} {path}: a log below {other}, which would be replaced; name another")
    if len(outputs) == 2 and is_same_file(*outputs.values()):
        raise RequestError(f"--out and --report are one file, {outputs['--out']}; name two")


def _convert_numbered(
    numbered: tuple[int, Unit], folder: str, chosen: str | None, filters: bool, redact: bool
) -> FileCount:
    _as_worker()
    number, unit = numbered
    return _convert_unit(unit, Path(folder, f"{number:06}"), chosen, filters, redact)


def _convert_unit(unit: Unit, part: Path, chosen: str | None, filters: bool, redact: bool) -> FileCount:
    """Convert one unit into the file `part`, in a worker process."""
    count = FileCount(unit.file.name, chosen)
    with (
        open(part, "w", encoding="utf-8") as out,
        open(f"{part}.places", "w") as places,
        open(f"{part}.ids", "wb") as ids,
    ):
        try:
            head = look(unit.file.path)
        except DamagedError as error:
            count.reject(unit.file.name, str(error))
            return count
        except OSError as error:
            count.reject(unit.file.name, _unreadable(error))
            return count
        known = by_name(chosen) if chosen is not None else detect(head)
        if known is None:
            return count
        count.format = known.name
        for where, item in converted(unit, head, known):
            if isinstance(item, Rejected):
                count.reject(where, item.reason)
                continue
            of_item, line = _line(where, item, filters, redact)
            count.add(of_item)
            if line:
                out.write(line)
                places.write(json.dumps(where) + "\n")
                ids.write(_digest(item.id))
    return count


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


def _repeated(parts: Sequence[Path]) -> dict[int, set[int]]:
    """By part, the lines (from 0) whose id an earlier line has, in this part or in one before it."""
    ids = [np.frombuffer(Path(f"{part}.ids").read_bytes(), dtype=[("a", "<u8"), ("b", "<u8")]) for part in parts]
    ends = np.cumsum([len(of_part) for of_part in ids])
    joined = np.concatenate(ids) if ids else np.empty(0, dtype=[("a", "<u8"), ("b", "<u8")])
    order = np.lexsort((joined["b"], joined["a"]))  # stable: the first of equal ids stays first
    again = np.flatnonzero(joined[order][1:] == joined[order][:-1]) + 1
    repeated: dict[int, set[int]] = {}
    for place in np.sort(order[again]):
        number = int(np.searchsorted(ends, place, side="right"))
        repeated.setdefault(number, set()).add(int(place - (ends[number] - len(ids[number]))))
    return repeated


def _drop_lines(part: Path, dropped: set[int], count: FileCount) -> None:
    """Take lines out of a part; `count` gets them as rejected, and less as kept."""
    left = Path(f"{part}.left")
    with (
        open(part, encoding="utf-8", newline="\n") as lines,
        open(f"{part}.places") as places,
        open(left, "w", encoding="utf-8", newline="\n") as out,
    ):
        for number, (line, where) in enumerate(zip(lines, places, strict=True)):
            if number not in dropped:
                out.write(line)
                continue
            row = json.loads(line)
            count.reject(json.loads(where), f"an earlier trajectory has the id {row['id']!r}")
            count.read -= 1  # it is counted as read already
            count.kept -= 1
            count.turns -= len(row["turns"])
            count.turns_removed[cleaning.OF_REJECTED] += len(row["turns"])
    left.replace(part)


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
        if known.whole and head.layout in ("array", "lines"):
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


def _check(unit: Unit, count: FileCount, on_bad: str) -> None:
    if count.first_bad is not None and on_bad == "fail":
        first = count.first_bad
        raise ContentError(f"{first['where']}: {first['reason']}; --on-bad skip counts such records and goes on")
    if count.format is None and count.read == 0 and unit.file.named:
        known = ", ".join(f"{known.name} ({known.about})" for known in FORMATS)
        with open(unit.file.path, "rb") as file:
            seen = file.read(SEEN_CHARACTERS).decode("utf-8", "replace")
        raise RequestError(f"{unit.file.path} is of no known format; it begins with {seen!r}. Known: {known}")


def _report(counts: Sequence[FileCount], skipped: list[dict[str, str]]) -> dict[str, Any]:
    files = [
        {
            "path": count.path,
            "format": count.format,
            "read": count.read,
            "kept": count.kept,
            "turns_read": count.turns_read,
            "turns_kept": count.turns,
            "rejected_count": count.rejected,
            **{name: _named(getattr(count, name), names) for name, names in COUNTERS.items()},
            "rejected": count.reasons,
        }
        for count in counts
    ]
    totals: dict[str, Any] = {name: sum(getattr(count, name) for count in counts) for name in NUMBERS}
    totals["turns_kept"] = totals["turns"]
    for name, names in COUNTERS.items():
        totals[name] = _named(sum((getattr(count, name) for count in counts), Counter()), names)
    totals["unrecognised_files"] = sum(count.format is None and count.read == 0 for count in counts)
    totals["skipped"] = len(skipped)
    return {"files": files, "skipped": skipped[:SKIPPED_KEPT], "totals": totals}


def _named(counter: Counter[str], names: Sequence[str]) -> dict[str, int]:
    """Every name with its count, zeros included, in a fixed order."""
    assert counter.keys() <= set(names), f"{set(counter) - set(names)} is in no report"
    return {name: counter[name] for name in names}


def write_report(report: dict[str, Any], path: Path) -> None:
    """The report as JSON, whole or not at all."""
    text, _ = without_lone_surrogates(json.dumps(report, indent=1, ensure_ascii=False))
    temporary = path.parent / f".agentworld-report-{os.getpid()}"
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def summary(report: dict[str, Any], out: Path) -> str:
    """The totals, and a line for each format and each frequent reason, for the screen."""
    totals = report["totals"]
    rows = [f"{out}: {totals['kept']} trajectories, {totals['turns']} turns; {totals['rejected']} of {totals['read']} "
            f"records rejected, {totals['unrecognised_files']} files of no known format"]  # fmt: skip
    if totals["skipped"]:
        first = report["skipped"][0]
        rows.append(f"  {totals['skipped']} entries of folders skipped, the first {first['path']}: {first['reason']}")
    by_format: dict[str, list[int]] = {}
    for file in report["files"]:
        if file["format"] is not None:
            entry = by_format.setdefault(file["format"], [0, 0, 0])
            for place, value in enumerate((1, file["kept"], file["rejected_count"])):
                entry[place] += value
    for name, (files, kept, rejected) in sorted(by_format.items()):
        rows.append(f"  {name:20} {files:6} files {kept:8} kept {rejected:8} rejected")
    removed = {f"{name} turns": n for name, n in totals["turns_removed"].items() if name != cleaning.OF_REJECTED}
    for title, counts in (("filters", {**totals["filtered"], **removed}), ("redacted", totals["redacted"])):
        rows.append(f"  {title}: " + (", ".join(f"{n} {name}" for name, n in counts.items() if n) or "nothing"))
    reasons = Counter(entry["reason"] for file in report["files"] for entry in file["rejected"])
    rows += [f"  {count:6} x {reason}" for reason, count in reasons.most_common(SHOWN_REASONS)]
    return "\n".join(rows)


def _nothing_kept(report: dict[str, Any]) -> str:
    reasons = [entry for file in report["files"] for entry in file["rejected"]]
    seen = f"{len(report['files'])} files, {report['totals']['read']} records"
    if not reasons:
        return f"no trajectory in {seen}: {report['totals']['unrecognised_files']} files are of no known format"
    return f"no trajectory in {seen}; the first reason: {reasons[0]['where']}: {reasons[0]['reason']}"
