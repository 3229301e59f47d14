"""Start the ranks of a stage, pass signals on, and turn their exits into one. Imports no torch.

On this node each rank is a process of its own; in a SLURM job all are the tasks of one `srun` (`srun.py`).

torchrun is not used: it kills its workers 30 s after SIGTERM and orphans them on SIGUSR1, and a checkpoint may take
longer. Here each rank runs in its own session, so Ctrl-C reaches it once, through the parent; it dies when the parent
is killed (`die_with_parent`).

    SIGINT, SIGTERM, SIGUSR1    passed on to every rank, which finishes its step, saves and exits with 3
    a second SIGINT or SIGTERM  the ranks are killed; `resume=true` continues from the checkpoint before
"""

import ctypes
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentworld.train import srun
from agentworld.train.srun import PARENT

FAILED, WRONG_REQUEST, STOPPED = 1, 2, 3
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL for the ranks that outlive a failed one
SAME_REQUEST_SECONDS = 1.0  # a shell and a wrapper may both deliver one Ctrl-C
POLL_SECONDS = 0.05
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Outcome:
    """`code`: 0 done, 1 failed, 2 wrong request, 3 stopped by a signal. `rank`: the first that failed, None where srun
    does not tell; `killed_by`: the signal that ended it, None for one that exited by itself."""

    code: int
    rank: int | None = None
    killed_by: int | None = None


def launch(arguments: Sequence[str], nproc: int, log_dir: Path, environment: Mapping[str, str]) -> Outcome:
    """Run `python ARGUMENTS` once a rank and wait for all of them.

    Args:
        arguments: of the interpreter, for example ["-m", "agentworld.train.worker", RUN_DIR, "cpt"].
        nproc: number of ranks. Rank 0 shares this terminal; the others append to `log_dir`/rank<r>.log.
        environment: variables that go on top of this process's; `rank_environment` adds those of the rank.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    log_dir.mkdir(parents=True, exist_ok=True)
    shared = {**_defaults(), **os.environ, **environment}
    with ExitStack() as stack:
        requests = stack.enter_context(_stop_requests())
        try:
            if srun.is_launcher():
                ranks.append(srun.start([sys.executable, *arguments], nproc, log_dir, shared))
                return replace(_wait(ranks, requests), rank=None)
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            for rank in range(nproc):
                log = None if rank == 0 else stack.enter_context(open(log_dir / f"rank{rank}.log", "ab"))
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, *arguments],
                        env=rank_environment(shared, rank, nproc),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
            return _wait(ranks, requests)
        finally:
            _kill(ranks)


def rank_environment(shared: Mapping[str, str], rank: int, nproc: int) -> dict[str, str]:
    """The variables from which torch.distributed and DeepSpeed read their place; all are needed, for one rank too."""
    environment = {**_defaults(), "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // nproc)), **shared}
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": nproc, "LOCAL_WORLD_SIZE": nproc, PARENT: os.getpid()}
    return {**environment, **{name: str(value) for name, value in place.items()}}


def _defaults() -> dict[str, str]:
    """Variables of a rank that the user's own ones replace."""
    # Threads of GNU OpenMP spin at barriers: beside one other busy process on 2 cores two threads of the tiny model
    # fell from 4,800 to 270 tokens/s. Spinning briefly costs nothing alone (4,900).
    return {"GOMP_SPINCOUNT": "3000", "TOKENIZERS_PARALLELISM": "false"}


def die_with_parent() -> None:
    """Called by a rank at its start: ask the kernel to kill it when the process that launched it dies (Linux)."""
    if sys.platform != "linux" or PARENT not in os.environ:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def visible_gpus() -> int:
    """GPUs that torch sees (CUDA_VISIBLE_DEVICES holds), asked of another process: torch stays out of this one."""
    if shutil.which("nvidia-smi") is None:
        return 0
    question = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    return int(answer.stdout) if answer.returncode == 0 else 0


def free_port() -> int:
    """A TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _Requests:
    """The stop signals that this process received. The handler only takes notes and `_wait` acts on them: a handler
    that waits for a process may interrupt, and then lock out, the wait that is already going on."""

    def __init__(self) -> None:
        self.signum: int | None = None  # the first one
        self.insisted = False  # a second one, later
        self._since = 0.0

    def __call__(self, signum: int, frame: object) -> None:
        if self.signum is None:
            self.signum, self._since = signum, time.monotonic()
        elif signum != signal.SIGUSR1 and time.monotonic() - self._since > SAME_REQUEST_SECONDS:
            self.insisted = True


@contextmanager
def _stop_requests() -> Iterator[_Requests]:
    requests = _Requests()
    before = {signum: signal.signal(signum, requests) for signum in FORWARDED}
    try:
        yield requests
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _wait(ranks: list[subprocess.Popen[bytes]], requests: _Requests) -> Outcome:
    forwarded = False
    failed: int | None = None  # the first rank that failed
    deadline = math.inf
    while True:
        codes = [rank.poll() for rank in ranks]
        if failed is None:
            failed = _first_failed(codes, requests)
            if failed is not None:
                _signal(ranks, signal.SIGTERM)
                deadline = time.monotonic() + GRACE_SECONDS
        if None not in codes:
            break
        if requests.signum is not None and failed is None and not forwarded:
            _signal(ranks, requests.signum)
            forwarded = True
        if requests.insisted or time.monotonic() > deadline:
            _kill(ranks)
        time.sleep(POLL_SECONDS)
    if failed is not None:
        code = codes[failed]
        assert code is not None
        return Outcome(code if code in (FAILED, WRONG_REQUEST) else FAILED, failed, -code if code < 0 else None)
    stopped = requests.signum is not None or STOPPED in codes  # asked too late for the stage: the run stops after it
    return Outcome(STOPPED if stopped else 0)


def _first_failed(codes: Sequence[int | None], requests: _Requests) -> int | None:
    """The lowest rank whose exit is neither done, nor stopped, nor the death that a requested stop brings."""
    expected = {None, 0, STOPPED}
    if requests.signum is not None:
        expected.add(-requests.signum)
    if requests.insisted:
        expected.add(-signal.SIGKILL)
    return next((rank for rank, code in enumerate(codes) if code not in expected), None)


def _signal(ranks: list[subprocess.Popen[bytes]], signum: int) -> None:
    for rank in ranks:
        rank.send_signal(signum)  # does nothing for one that has exited


def _kill(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Kill every rank that still runs, with the processes of its session."""
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
