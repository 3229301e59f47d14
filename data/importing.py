"""`agentworld import`: raw logs of any known format to one file of trajectories, with every record accounted for.

Work is cut into units: a file, or a range of the lines of a large JSON Lines file. Units are converted by all cores,
each into a part of its own, and the parts are joined in order: the output is the same bytes whatever the number of
workers, and the outputs of the shards of one import, joined in order, are the output of the whole. Of trajectories with
one id only the first is kept; shards do not know the ids of each other.

What a format gives passes the filters of the paper (`cleaning`) and loses personal data and secrets (`redaction`), but
for the rows of a benchmark: their scores compare with those of others only if they stay as they are.
"""

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from agentworld.data import cleaning
from agentworld.data.conversion import convert_numbered
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.formats import FORMATS, by_name, detect
from agentworld.data.formats.container import DamagedError, look
from agentworld.data.import_report import FileCount, make_report, nothing_kept, write_report
from agentworld.data.import_units import Unit, is_same_file, search, shard_of, units_of
from agentworld.data.ordered_map import ordered_map

SEEN_CHARACTERS = 80  # of an unknown file, in the error
UNITS_AHEAD = 256  # given to the workers beyond the one that is waited for
STOPPED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        convert = partial(convert_numbered, folder=temporary, chosen=name, filters=filters, redact=redact)
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
        report = make_report(list(counts.values()), skipped)
        if report_to is not None:
            write_report(report, report_to)
        if report["totals"]["kept"] == 0 and (units or shard[1] == 1):
            raise ContentError(nothing_kept(report))
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


def _check(unit: Unit, count: FileCount, on_bad: str) -> None:
    if count.first_bad is not None and on_bad == "fail":
        first = count.first_bad
        raise ContentError(f"{first['where']}: {first['reason']}; --on-bad skip counts such records and goes on")
    if count.format is None and count.read == 0 and unit.file.named:
        known = ", ".join(f"{known.name} ({known.about})" for known in FORMATS)
        with open(unit.file.path, "rb") as file:
            seen = file.read(SEEN_CHARACTERS).decode("utf-8", "replace")
        raise RequestError(f"{unit.file.path} is of no known format; it begins with {seen!r}. Known: {known}")
