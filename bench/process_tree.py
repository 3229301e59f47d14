"""The processes below this one, read from /proc (Linux): who is there, what each is, and a kill that hits no other.

After `adopt_orphans` a process whose parents have died becomes a child of this one, so nothing that a run has started
leaves the tree unseen, sessions and daemons included.
"""

import ctypes
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
FOUND_AGAIN_SECONDS = 0.01


@dataclass(frozen=True)
class Process:
    """Two readings are equal if they are of one process; parent, state and name may change between them."""

    pid: int
    started: int  # clock ticks since boot: with the pid, it names one process for good
    parent: int = field(compare=False)
    state: str = field(compare=False)  # one letter; Z: dead, not yet collected
    name: str = field(compare=False)


def adopt_orphans() -> None:
    """Become the new parent of every descendant that loses its own."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl PR_SET_CHILD_SUBREAPER")


def read(pid: int) -> Process | None:
    """The process of this number, None when there is none."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(pid, int(fields[19]), parent=int(fields[1]), state=fields[0], name=name)


def below(root: int) -> list[Process]:
    """Every living descendant of `root`, by rising pid; `root` itself is not among them."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    processes = {process.pid: process for process in found if process is not None}
    members = {root}
    grown = True
    while grown:
        new = {p.pid for p in processes.values() if p.parent in members} - members
        members |= new
        grown = bool(new)
    return [p for pid, p in sorted(processes.items()) if pid in members - {root} and p.state != "Z"]


def is_below(process: Process, root: int) -> bool:
    """Whether `process` is still the one that was read, and descends from `root` or is it."""
    current = read(process.pid)
    if current is None or current.started != process.started or current.state == "Z":
        return False
    while current is not None and current.pid > 1:
        if current.pid == root:
            return True
        current = read(current.parent)
    return False


def kill(process: Process, root: int) -> bool:
    """SIGKILL, only to exactly this process and only while it belongs to the tree of `root`; whether it was sent.

    The descriptor pins the process: if the number has been given away since, the check that follows sees it.
    """
    try:
        pinned = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_below(process, root):
            return False
        signal.pidfd_send_signal(pinned, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(pinned)
    return True


def wait_until_empty(seconds: float) -> list[Process]:
    """Wait until this process has no living descendants; what lives after `seconds` is returned."""
    deadline = time.monotonic() + seconds
    while (left := below(os.getpid())) and time.monotonic() < deadline:
        time.sleep(FOUND_AGAIN_SECONDS)
    collect_orphans()
    return left


def end_all() -> None:
    """Kill every descendant of this process."""
    while left := below(os.getpid()):
        for process in left:
            kill(process, os.getpid())
        time.sleep(FOUND_AGAIN_SECONDS)


def collect_orphans() -> None:
    """Collect the dead children that this process has adopted (call it when it waits for no child of its own)."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def described(process: Process) -> str:
    """What a process is to a run: `command`, `rank 1`, `recorder's worker`, or the name of its program."""
    try:
        arguments = Path("/proc", str(process.pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
        environment = Path("/proc", str(process.pid), "environ").read_bytes().split(b"\0")
    except OSError:  # it has just ended, or belongs to a session without privileges
        return process.name
    text = " ".join(arguments)
    if "agentworld.data.record.worker" in text:
        return "recorder's worker"
    if "agentworld.train.worker" in text:
        rank = next((entry[5:].decode() for entry in environment if entry.startswith(b"RANK=")), "?")
        return f"rank {rank}"
    return "command" if "/agentworld train" in text else process.name
