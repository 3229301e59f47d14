"""`agentworld submit`: what `agentworld train` checks and makes before it works, then the work as SLURM jobs."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from agentworld.data.errors import RequestError
from agentworld.data.visible_text import visible
from agentworld.rewards.judge_checks import check_stop
from agentworld.slurm import submit as slurm
from agentworld.train.compose import compose
from agentworld.train.contradictions import validate_processes
from agentworld.train.inputs import check_inputs
from agentworld.train.positions import require_positions
from agentworld.train.run_directory import open_run

CHAIN = ("data", "cpt", "sft", "rl")  # the jobs of stage=all; the model to start from is built by the one of cpt


def submit(overrides: Sequence[str]) -> int:
    """Make the run directory, write its scripts and submit them; return the exit code: 0 done, 1 sbatch refused a job.

    Args:
        overrides: those of `agentworld train`, and `dry_run=true` to write the scripts only.

    Raises:
        RequestError: before anything is made or deleted.
    """
    dry_run, overrides = _take_dry_run(overrides)
    if any(text.startswith("nproc=") for text in overrides):
        raise RequestError("nproc is for one machine; a submitted run takes cluster.nodes x cluster.tasks_per_node")
    config = compose([*overrides, "nproc=0"])  # a recipe's own is for one machine, too
    config.nproc = config.cluster.nodes * config.cluster.tasks_per_node
    validate_processes(config, config.nproc)
    check_inputs(config)
    require_positions(config)
    check_stop(config.reward, config.cluster.signal_seconds)
    if not dry_run and shutil.which("sbatch") is None:
        raise RequestError("there is no sbatch on PATH; submit on a login node of the cluster, or add dry_run=true")
    stages = CHAIN if config.stage == "all" else (config.stage,)
    # The jobs take the lock of the run, and the first may start at once: this process gives it back before.
    with open_run(config, ["agentworld", "submit", *overrides]) as run_dir:
        run_dir = run_dir.resolve()
        jobs = slurm.write_scripts(config.cluster, stages, run_dir, overrides)
    print(f"run {run_dir}", flush=True)
    if dry_run:
        return _show(jobs, run_dir, overrides)
    try:
        numbers = slurm.submit(jobs)
    except slurm.SubmissionError as error:
        print(f"agentworld: error: {error}\n{visible(error.said)}", file=sys.stderr)
        return 1
    for job, number in zip(jobs, numbers, strict=True):
        print(f"{job.stage:5s} job {number}  {job.script}")
    logs = [job.log.replace("%j", number) for job, number in zip(jobs, numbers, strict=True)]
    print(f"follow:\n  squeue --jobs={','.join(numbers)}\n  {shlex.join(['tail', '-F', *logs])}")
    return 0


def _show(jobs: Sequence[slurm.Job], run_dir: Path, overrides: Sequence[str]) -> int:
    kept = [text for text in overrides if text.partition("=")[0] not in ("run.name", "resume", "overwrite")]
    again = shlex.join(["agentworld", "submit", *kept, f"run.name={run_dir.name}", "resume=true"])
    print("not submitted; these commands do it:", *slurm.shell_lines(jobs), sep="\n  ")
    print(f"or:\n  {again}")
    return 0


def _take_dry_run(overrides: Sequence[str]) -> tuple[bool, list[str]]:
    given = [text.partition("=")[2].lower() for text in overrides if text.startswith("dry_run=")]
    for value in given:
        if value not in ("true", "false"):
            raise RequestError(f"dry_run: expected true or false, found {value!r}")
    return bool(given) and given[-1] == "true", [text for text in overrides if not text.startswith("dry_run=")]
