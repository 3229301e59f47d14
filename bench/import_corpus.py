"""MB/s of raw input of `agentworld import` and the peak memory of its processes, for each format and over all.

    python -m bench.import_corpus CORPUS [--size-mb 100 300] [--format-mb 20] [--repeats 3] [--workers 0] [--redact off]

The files of the folder CORPUS are multiplied in a temporary folder (TMPDIR) until they reach a size: a file of JSON
Lines gets longer, others become more files, `copy-0001/...`, so ids, which come from paths and lines, stay unique. For
each format there is a run with its files alone. Memory that grew with the input would show between two sizes of
--size-mb.

MB/CPU-s is the same work over the processor time of all processes: on a machine with other load it tells what MB/s
cannot. Peak memory is the proportional set size (PSS) of all processes together, read every 0.2 s: pages that processes
share count once. Targets on 2 cores: 20 MB/s without redaction, under 1 GiB for 5 GB. The start of Python and of the
workers is inside the time: about half a second, which the runs of single formats feel.
"""

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from agentworld.data.formats import detect
from agentworld.data.formats.container import DamagedError, look
from agentworld.data.import_units import find_files

MB = 1_000_000
SAMPLE_SECONDS = 0.2
COMMAND = (sys.executable, "-c", "import sys; from agentworld.train.cli import main; sys.exit(main())", "import")
LIBRARIES = ("agentworld", "numpy", "pyte")


@dataclass(frozen=True)
class Source:
    """A file of the corpus; `name` is its path below the corpus."""

    path: Path
    name: str
    is_lines: bool


@dataclass(frozen=True)
class Run:
    """One import: seconds from start to end and of all processors, peak PSS in bytes, the exit code."""

    seconds: float
    cpu_seconds: float
    peak: int
    code: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a folder of raw logs")
    parser.add_argument(
        "--size-mb", type=float, nargs="*", default=[100, 300], help="sizes of the runs over all formats"
    )
    parser.add_argument("--copies", type=int, help="in place of --size-mb: each file so many times")
    parser.add_argument("--format-mb", type=float, default=20, help="size of the run of each format; 0: no such runs")
    parser.add_argument("--formats", nargs="*", metavar="NAME", help="of the single formats, only these")
    parser.add_argument(
        "--max-files", type=int, default=3000, help="of one format; small files do not reach --format-mb"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="0: one a core")
    parser.add_argument("--redact", choices=("on", "off"), default="off", help="the target is without redaction")
    options = parser.parse_args()
    print(machine())
    sources = sources_of(options.corpus)
    everything = [source for found in sources.values() for source in found]
    flags = ("--redact", options.redact, "--workers", str(options.workers))
    print(f"redaction {options.redact}, {options.repeats} repeats")
    print(f"{'format':18} {'files':>6} {'MB':>7} {'MB/s':>7}  {'(spread)':15} {'MB/CPU-s':>8} {'peak MB':>8}")
    for name in sorted(sources):
        if options.format_mb and name and (not options.formats or name in options.formats):
            files = sum(not source.is_lines for source in sources[name])  # lines only get longer
            limit = max(1, options.max_files // files) if files else sys.maxsize
            copies = min(limit, copies_for(sources[name], options.format_mb * MB))
            measure(name, sources[name], copies, flags, options.repeats)
    sizes = [options.copies] if options.copies else [copies_for(everything, size * MB) for size in options.size_mb]
    for copies in sizes:
        measure("all", everything, copies, flags, options.repeats)


def machine() -> str:
    """What a figure depends on, on one line."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    cores = len(os.sched_getaffinity(0))
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"{when}, {cores} cores, load {load}, {platform.platform()}, Python {platform.python_version()}, {versions}"


def sources_of(corpus: Path) -> dict[str, list[Source]]:
    """The files of a corpus by the name of their format; "" holds those of none, which are read as well."""
    found: dict[str, list[Source]] = defaultdict(list)
    for file in find_files([corpus]):
        name, is_lines = "", False
        try:
            head = look(file.path)
        except DamagedError:
            pass
        else:
            known = detect(head)
            name = known.name if known is not None else ""
            is_lines = head.layout == "lines" and known is not None and not known.whole
        found[name].append(Source(file.path, str(file.path.relative_to(corpus)), is_lines))
    return found


def copies_for(sources: Sequence[Source], size: float) -> int:
    """How many copies reach `size` bytes, at least one."""
    return max(1, round(size / sum(source.path.stat().st_size for source in sources)))


def multiply(sources: Sequence[Source], copies: int, folder: Path) -> tuple[int, int]:
    """Write each file `copies` times below `folder`; returns files and bytes."""
    for source in sources:
        if source.is_lines:
            target = folder / "lines" / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            raw = source.path.read_bytes()
            with open(target, "wb") as file:
                for _ in range(copies):
                    file.write(raw if raw.endswith(b"\n") else raw + b"\n")
            continue
        for copy in range(copies):
            target = folder / f"copy-{copy:04}" / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path, target)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def measure(name: str, sources: Sequence[Source], copies: int, flags: Sequence[str], repeats: int) -> None:
    """Print the line of one format."""
    with tempfile.TemporaryDirectory(prefix="agentworld-bench-") as temporary:
        folder = Path(temporary, "raw")
        files, size = multiply(sources, copies, folder)
        runs = [import_once(folder, Path(temporary, "out.jsonl"), flags) for _ in range(repeats)]
    rates = [size / MB / run.seconds for run in runs]
    spread = f"({min(rates):.1f} to {max(rates):.1f})"
    failed = sorted({run.code for run in runs} - {0})
    print(
        f"{name:18} {files:6} {size / MB:7.1f} {statistics.median(rates):7.1f}  {spread:15} "
        f"{size / MB / statistics.median(run.cpu_seconds for run in runs):8.1f} "
        f"{max(run.peak for run in runs) / MB:8.0f}" + (f"   exit code {failed[0]}: nothing kept" if failed else ""),
        flush=True,
    )


def import_once(folder: Path, out: Path, flags: Sequence[str]) -> Run:
    """One import in a process of its own, watched to its end."""
    started, started_cpu, peak = time.perf_counter(), cpu_seconds(), 0
    command = [*COMMAND, str(folder), "--out", str(out), *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(pss(pid) for pid in tree(process.pid)))
            try:
                process.wait(SAMPLE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    return Run(time.perf_counter() - started, cpu_seconds() - started_cpu, peak, process.returncode)


def cpu_seconds() -> float:
    """Of all processes that this one started and that ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it ended
        return []
    return [pid, *(each for child in children for each in tree(child))]


def pss(pid: int) -> int:
    """Proportional set size in bytes; 0 for a process that ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
