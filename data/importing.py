"""`agentworld import`: raw logs of any known format to one file of trajectories, with every record accounted for.

Work is cut into units: a file, or a range of the lines of a large JSON Lines file. Units are converted by all cores,
each into a part of its own (`import_work`), and the parts are joined in order (`import_joining`): the output is the
same bytes whatever the number of workers and of interruptions, and the outputs of the shards of one import, joined in
order, are the output of the whole (in Parquet: read in order, they give its trajectories). Of trajectories with one id
only the first is kept; shards do not know the ids of each other, so that who reads two of them has to look.

What a format gives passes the filters of the paper (`cleaning`) and loses personal data and secrets (`redaction`), but
for the rows of a benchmark: their scores compare with those of others only if they stay as they are.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from agentworld.data import import_units
from agentworld.data.conversion import convert_numbered
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.formats import FORMATS, by_name, detect
from agentworld.data.formats.container import DamagedError, look
from agentworld.data.formats.format import Format
from agentworld.data.import_joining import count_repeated, join, repeated_ids
from agentworld.data.import_report import FileCount, make_report, nothing_kept, write_report
from agentworld.data.import_units import Unit, search, shard_of, units_of
from agentworld.data.import_work import Work, count_of, make_plan, working_folder
from agentworld.data.ordered_map import ordered_map
from agentworld.data.outputs import require_outputs
from agentworld.data.trajectory_files import holds_trajectories, is_parquet_name

UNITS_AHEAD = 256  # given to the workers beyond the one that is waited for
STOPPED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Request:
    """What `import_files` was asked for; `chosen` None recognises each file."""

    paths: Sequence[Path]
    out: Path
    chosen: Format | None
    on_bad: str
    shard: tuple[int, int]
    workers: int
    say: Callable[[str], None]
    filters: bool
    redact: bool
    report_to: Path | None
    resume: bool

    def flags(self) -> dict[str, str]:
        """Those that the parts depend on, as the command has them."""
        return {
            "--format": "auto" if self.chosen is None else self.chosen.name,
            "--shard": "{}/{}".format(*self.shard),
            "--filters": "on" if self.filters else "off",
            "--redact": "on" if self.redact else "off",
        }


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
    resume: bool = False,
) -> dict[str, Any]:
    """Import files and folders into `out`, which appears when it is whole, and return the report.

    Args:
        out: written as Parquet if it ends with `.parquet`, else as JSON Lines (`trajectory_files`).
        format_name: "auto" recognises each file by its content.
        on_bad: "skip" counts a record that gives nothing and goes on, "fail" stops at the first. What a filter drops is
            not bad.
        shard: (i, n): the i-th of n consecutive parts of the work, i from 0.
        workers: processes; 0 = one a core.
        filters, redact: see `cleaning` and `redaction`.
        report_to: where the report is written too, also when nothing is kept and when "fail" stops.
        resume: go on with the parts that a killed or interrupted import to `out` finished; starts where there are none.

    Raises:
        RequestError: a path that is not there, an unknown format name, a named file of no known format, an output that
            would replace an input or is no regular file, or that another import writes; under `resume`, files or flags
            other than those of the stopped import.
        ContentError: no trajectory was kept, or a record under "fail".
    """
    chosen = None if format_name == "auto" else by_name(format_name)
    request = Request(paths, out, chosen, on_bad, shard, workers, say, filters, redact, report_to, resume)
    try:
        with _stopping_workers():
            return _import(request)
    except BrokenProcessPool:
        raise ContentError(
            "a worker was killed, often for a lack of memory; fewer --workers need less, each reads whole objects"
        ) from None
    except OSError as error:  # for example a full disk
        if error.filename is None and error.strerror is not None:
            error.filename = str(out)
        raise


def _import(request: Request) -> dict[str, Any]:
    out, report_to = request.out, request.report_to
    outputs = {"--out": out} if report_to is None else {"--out": out, "--report": report_to}
    _check_outputs(request.paths, outputs)
    files, skipped = search(request.paths, left_out=list(outputs.values()))
    units = shard_of(list(chain.from_iterable(units_of(file, request.chosen) for file in files)), request.shard)
    plan = make_plan(out, files, request.flags(), import_units.UNIT_BYTES)
    counts: dict[str, FileCount] = {}
    with working_folder(out, plan, len(units), request.resume, request.say) as work:
        try:
            _convert_all(request, units, work, counts)
            parts = [work.part(number) for number in range(len(units))]
            repeated = repeated_ids(parts)
            for number, lines in repeated.items():
                of_file = counts[units[number].file.name]
                count = FileCount(of_file.path, of_file.format)
                count_repeated(parts[number], lines, count)
                _check(units[number], count, request.on_bad)
                of_file.add(count)
            if not any(count.kept for count in counts.values()) and (units or request.shard[1] == 1):
                raise ContentError(nothing_kept(make_report(list(counts.values()), skipped)))
        except ContentError as error:
            if report_to is not None:
                write_report(make_report(list(counts.values()), skipped, stopped=str(error)), report_to)
            raise
        if not units:
            request.say(f"import: shard {request.shard[0]}/{request.shard[1]} has no part of the work; {out} is empty")
        whole = work.folder / ("whole.parquet" if is_parquet_name(out) else "whole.jsonl")
        written = join(parts, repeated, whole)
        report = make_report(list(counts.values()), skipped, {"path": out.name, **written})
        if report_to is not None:
            write_report(report, report_to)
        whole.replace(out)
    return report


def _convert_all(request: Request, units: Sequence[Unit], work: Work, counts: dict[str, FileCount]) -> None:
    """Make the parts that are not finished; `counts` gets those of all, by file, in the order of the units.

    Raises:
        ContentError: a bad record, under "fail"; `counts` has it.
    """
    left = [(number, unit) for number, unit in enumerate(units) if number not in work.finished]
    processes = min(request.workers or len(os.sched_getaffinity(0)), max(1, len(left)))
    name = None if request.chosen is None else request.chosen.name
    convert = partial(
        convert_numbered, folder=str(work.folder), chosen=name, filters=request.filters, redact=request.redact
    )
    with closing(ordered_map(convert, left, processes, UNITS_AHEAD)) as converted:
        for number, unit in enumerate(units):
            count = count_of(work.part(number)) if number in work.finished else next(converted)
            counts[count.path].add(count) if count.path in counts else counts.update({count.path: count})
            _check(unit, count, request.on_bad)
            if (number + 1) % 100 == 0 or number + 1 == len(units):
                kept = sum(count.kept for count in counts.values())
                request.say(f"import: {number + 1}/{len(units)} parts, {kept} trajectories")


def _is_output(path: Path) -> bool:
    """Whether a file is what an import wrote: nothing, trajectories or a report."""
    if path.stat().st_size == 0 or holds_trajectories(path):
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
    require_outputs(outputs, paths)
    for name, path in outputs.items():
        for other in paths:
            if path.exists() and path.resolve().is_relative_to(other.resolve()) and not _is_output(path):
                raise RequestError(f"{name} {path}: a log below {other}, which would be replaced; name another")


def _check(unit: Unit, count: FileCount, on_bad: str) -> None:
    if count.first_bad is not None and on_bad == "fail":
        first = count.first_bad
        raise ContentError(f"{first['where']}: {first['reason']}; --on-bad skip counts such records and goes on")
    if count.is_unrecognised and unit.file.named:
        known = ", ".join(f"{known.name} ({known.about})" for known in FORMATS)
        seen = count.begins_with
        raise RequestError(f"{unit.file.path} is of no known format; it begins with {seen!r}. Known: {known}")
