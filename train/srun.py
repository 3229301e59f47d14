"""The ranks of a stage as the tasks of one `srun`, inside a job of slurm/stage.sbatch.

Measured with SLURM 22.05: SIGUSR1 to srun reaches every task once; SIGTERM makes it kill them at once, and SIGINT asks
for a second one. So every request to stop is passed on as SIGUSR1. A preemption with a grace time sends SIGTERM to the
tasks themselves and nothing to this process.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from agentworld.train.stop import LAUNCHER

# From the end of the first task, failed or not, to the kill of the others: those of a failed one must not hold their
# GPUs for long, and rank 0, which may take 60 s to tell W&B that a stopped stage has ended, must not be cut.
WAIT_SECONDS = 120
STOPPED = 3
PARENT = "AGENTWORLD_PARENT"  # with it a rank would die at once: launch.die_with_parent


def is_launcher() -> bool:
    """Whether the ranks of this process are to be tasks of srun."""
    return os.environ.get(LAUNCHER) == "srun"


class Step(subprocess.Popen[bytes]):
    """An `srun` that behaves as a rank does: it takes any stop signal, and its exit is that of the tasks."""

    def send_signal(self, sig: int) -> None:
        super().send_signal(sig if sig == signal.SIGKILL else signal.SIGUSR1)

    def poll(self) -> int | None:
        """The highest exit code of the tasks; -N when a task was killed by signal N (128 + N to srun). A task that
        SIGTERM or SIGUSR1 killed was asked to stop before it could listen: it has stopped."""
        code = super().poll()
        if code is None or code <= 128:
            return code
        return STOPPED if code - 128 in (signal.SIGTERM, signal.SIGUSR1) else 128 - code


def start(program: Sequence[str], nproc: int, log_dir: Path, environment: Mapping[str, str]) -> Step:
    """Run `program` as `nproc` tasks, the same number on each of the first nodes of the job.

    Args:
        log_dir: ranks other than the first append to `log_dir`/rank<r>.log.
    """
    nodes = min(nproc, int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))
    options = [
        *(f"--nodes={nodes}", f"--ntasks={nproc}", f"--ntasks-per-node={nproc // nodes}"),
        "--distribution=block",  # ranks that follow each other share a node, as an expert-parallel group needs
        *(f"--wait={WAIT_SECONDS}", "--kill-on-bad-exit=0"),  # the ranks of a clean stop exit with 3, not all at once
        "--export=ALL",
    ]
    words = ["srun", *options, "bash", str(wrapper()), str(log_dir), *program]
    kept = {name: value for name, value in environment.items() if name != PARENT}  # a task's parent is slurmstepd
    return Step(words, env=kept, stdin=subprocess.DEVNULL, start_new_session=True)


def wrapper() -> Path:
    """The script that turns SLURM's variables of a task into those of a rank."""
    return Path(str(files("agentworld.slurm").joinpath("env.sh")))
