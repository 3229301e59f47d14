"""A stop that loses nothing: signals and a stop file become one flag, read where a checkpoint can be written.

SIGINT, SIGTERM and SIGUSR1 (SLURM's warning before a time limit) set the flag; the second signal ends the process at
once, except in a task of srun: SLURM may send SIGTERM beside the SIGUSR1 of `launch.py`, and insists with SIGKILL.
A file named `stop` in the run directory does the same as a signal, for those who cannot send one.
"""

import os
import signal
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
STOP_FILE = "stop"
LAUNCHER = "AGENTWORLD_LAUNCHER"  # `srun` in the jobs of slurm/stage.sbatch
_requested = False


class StoppedError(Exception):
    """The work stopped on request after writing what it needs to continue; the command's exit code is 3."""


def install() -> None:
    """Take over the stop signals of this process."""
    for number in SIGNALS:
        signal.signal(number, _request)


def requested(run_dir: Path | None = None) -> bool:
    """Whether this process was asked to stop; ranks agree among themselves in `trainers.StopCallback`."""
    return _requested or (run_dir is not None and (run_dir / STOP_FILE).exists())


def _request(number: int, frame: FrameType | None) -> None:
    global _requested
    _requested = True
    if os.environ.get(LAUNCHER) != "srun":
        for other in SIGNALS:
            signal.signal(other, signal.SIG_DFL)
