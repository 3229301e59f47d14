"""Runs verifiers that a model wrote: untrusted Python, away from files, network and other processes.

A verifier is Python source that defines `verify(prediction: str) -> bool`; it gets the text inside the prediction's tag
and nothing else. What it may do and how it is held stands in `sandbox_worker.py`: namespaces around an empty read-only
file system, a short list of system calls, limits of time and memory, and a fresh process for each call. All of it or
none: where the system does not permit the isolation, `UnavailableError` says so and nothing is run.

One process is started for a share of the tasks, at most `workers` at once. A call ends in True, in False, or in a text
that says why there is no verdict; no verifier can make `run` raise or hang.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from agentworld.data.errors import RequestError
from agentworld.rewards import sandbox_worker

MODULES = sandbox_worker.MODULES  # what a verifier may import
START_SECONDS = 30.0  # allowed for the start of a process on a machine under load, beside the time of its tasks
FUNCTION = "verify"
_LIBRARIES = ("LD_LIBRARY_PATH",)  # a Python of an environment module may not start without; the worker forgets it

Answer = bool | str  # the verdict, or why there is none


class UnavailableError(RequestError):
    """The system does not permit the isolation; the text says what failed and the way out."""


@dataclass(frozen=True)
class Limits:
    """`seconds` of one call, on the wall's clock; `batch_seconds` of all calls of one task; `memory_bytes` of address
    space of one call, interpreter included; `stop`: a task is not asked any more after a call without a verdict."""

    seconds: float = 5.0
    batch_seconds: float = 30.0
    memory_bytes: int = 512 << 20
    stop: bool = False


@dataclass(frozen=True)
class Task:
    """One verifier and the predictions that it is asked about."""

    source: str
    predictions: Sequence[str]


def run(tasks: Sequence[Task], limits: Limits = Limits(), workers: int = 4) -> list[list[Answer]]:
    """The answer of each task's verifier to each of its predictions, in order.

    Args:
        workers: processes at once; a task is never divided among them.

    Raises:
        UnavailableError: the isolation is not permitted here.
    """
    count = max(1, min(workers, len(tasks)))
    if not tasks:
        return []
    with ThreadPoolExecutor(count) as pool:  # a thread outlives its process, which dies with the thread that made it
        shares = list(pool.map(lambda first: _run_share(tasks[first::count], limits), range(count)))
    return [shares[number % count][number // count] for number in range(len(tasks))]


def require() -> None:
    """Try the sandbox once.

    Raises:
        UnavailableError: see `run`.
    """
    source = f"def {FUNCTION}(prediction):\n    return prediction == 'yes'\n"
    found = run([Task(source, ("yes", "no"))], workers=1)
    if found != [[True, False]]:
        raise UnavailableError(f"the sandbox of verifiers does not work here: {found[0][0]}")


def _run_share(tasks: Sequence[Task], limits: Limits) -> list[list[Answer]]:
    # No environment but a fixed order of sets; -P -s -S is -I without its refusal of that one variable.
    command = [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", str(Path(sandbox_worker.__file__))]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PYTHONHASHSEED": "0"} | {name: os.environ[name] for name in _LIBRARIES if name in os.environ},
        start_new_session=True,
    )
    spent = sum(min(limits.batch_seconds, limits.seconds * len(task.predictions)) for task in tasks)
    try:
        out, err = process.communicate(request_of(tasks, limits), START_SECONDS + spent)
    except subprocess.TimeoutExpired:
        process.kill()  # the keeper dies with it, and with the keeper every process of its namespace
        out, err = process.communicate()
    finally:
        process.kill()
    return _answers(tasks, out.decode(), err.decode("utf-8", "replace"))


def request_of(tasks: Sequence[Task], limits: Limits) -> bytes:
    """What the worker reads."""
    parts = [sandbox_worker.message(asdict(limits))]
    for task in tasks:
        parts.append(sandbox_worker.message((task.source, len(task.predictions))))
        parts += map(sandbox_worker.message, task.predictions)
    return b"".join(parts)


def _answers(tasks: Sequence[Task], out: str, err: str) -> list[list[Answer]]:
    """The lines of the worker; tasks whose line is missing, since it was killed or died, have no verdict."""
    found = [json.loads(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]
    if found and isinstance(found[0], dict):
        raise UnavailableError(
            f"verifiers written by a model run in a sandbox only, which this system does not permit "
            f"({found[0]['failed']}); it needs Linux on x86-64 or AArch64 with user namespaces (in a container: leave "
            "to make them; Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0), or leave reward.verifiers empty"
        )
    why = "the sandbox ended early" + (f": {err.strip().splitlines()[-1][:200]}" if err.strip() else "")
    return found + [[why] * len(task.predictions) for task in tasks[len(found) :]]
