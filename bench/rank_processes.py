"""One process a rank on this host: started and ended together, their memory watched; the line of what they found."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentworld.train.launch import free_port, rank_environment
from bench import process_tree

POLL_SECONDS, SAMPLE_SECONDS = 0.05, 0.5


class RankError(Exception):
    """A rank failed or time ran out; the text says which and what it said last."""


def run(
    arguments: Sequence[Sequence[str]],
    logs: Sequence[Path],
    limit: float,
    environment: Mapping[str, str],
    beside: Sequence[subprocess.Popen[bytes]] = (),
) -> dict[str, float]:
    """Run `python ARGUMENTS` for each rank and wait for all of them; after a failure or the limit end the rest.

    Args:
        arguments: of the interpreter, for each rank; logs: the file for the output of each.
        limit: seconds; environment: variables on top of this process's.
        beside: processes without which the ranks cannot go on.

    Returns:
        The highest seen while they ran, in GiB: `processes`, the anonymous and shared memory of all processes below
        this one together (no mapped files), and `node`, by how much the memory in use on the host had risen.

    Raises:
        RankError: a rank did not end with 0, or not in time, or a process beside them ended.
    """
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    before, processes = _used(), []
    for rank, (command, path) in enumerate(zip(arguments, logs, strict=True)):
        variables = rank_environment({**os.environ, **place, **environment}, rank, len(arguments))
        with path.open("w") as log:
            processes.append(subprocess.Popen([sys.executable, *command], env=variables, stdout=log, stderr=log))
    peaks = {"processes": 0.0, "node": 0.0}
    try:
        reason = _wait(processes, beside, limit, peaks, before)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    if reason or failed:
        # The first that failed by itself: those that waited for it were killed.
        rank = max(failed, key=lambda r: processes[r].returncode != -signal.SIGKILL)
        raise RankError(f"{reason or 'a rank failed'}; rank {rank}: {last_words(logs[rank])}")
    return peaks


def say(line: Mapping[str, Any], out: Path | None) -> None:
    """Print the line of a case as JSON, and add it to a file."""
    text = json.dumps(line)
    print(text, flush=True)
    if out:
        with out.open("a") as file:
            file.write(text + "\n")


def last_words(log: Path) -> str:
    """The last line of an output that names an error, else its last line: NCCL warns after the exception."""
    output = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    return ([text for text in output if "Error: " in text] or output)[-1][:400]


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    beside: Sequence[subprocess.Popen[bytes]],
    limit: float,
    peaks: dict[str, float],
    before: float,
) -> str | None:
    """Until all have ended, or one failed, or time ran out; what went wrong, if anything."""
    end, next_sample = time.monotonic() + limit, 0.0
    while None in (codes := [process.poll() for process in processes]):  # each is asked: a later one may have failed
        if any(codes):
            return "a rank failed"
        if any(process.poll() is not None for process in beside):
            return "a process that the ranks need has ended"
        if time.monotonic() > end:
            return f"not done after {limit:.0f} s"
        if time.monotonic() > next_sample:
            next_sample = time.monotonic() + SAMPLE_SECONDS
            peaks["processes"] = max(peaks["processes"], sum(map(_private, process_tree.below(os.getpid()))))
            peaks["node"] = max(peaks["node"], _used() - before)
        time.sleep(POLL_SECONDS)
    return None


def _private(process: process_tree.Process) -> float:
    """Resident memory of a process in GiB that no file backs; 0 for one that ended."""
    try:
        lines = Path("/proc", str(process.pid), "status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))) / 2**20


def _used() -> float:
    """Memory of the host in use, in GiB; the page cache, which gives way, is not counted."""
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}
    return (sizes["MemTotal"] - sizes["MemAvailable"]) / 2**20
