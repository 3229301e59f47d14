"""One sbatch script a stage, from `stage.sbatch` and the settings of the site, and their submission as a chain.

Nothing here knows the pipeline: a job is the command `agentworld train` with other overrides, in a shell that passes
signals on. So the scripts can be read, checked by shellcheck, and submitted by hand.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from agentworld.slurm.settings import ClusterSettings

# Given anew to each job, or done once by the submission.
REPLACED = ("stage", "nproc", "resume", "overwrite", "run.name", "run.root")
PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@%-]+")


class SubmissionError(Exception):
    """sbatch refused a job; the text names the jobs that were submitted before it. `said`: what sbatch printed."""

    def __init__(self, text: str, said: str) -> None:
        super().__init__(text)
        self.said = said


@dataclass(frozen=True)
class Job:
    """One stage of a run, as SLURM sees it."""

    stage: str
    script: Path
    log: str  # with %j where SLURM writes the number of the job


def write_scripts(
    settings: ClusterSettings, stages: Sequence[str], run_dir: Path, overrides: Sequence[str]
) -> list[Job]:
    """Write `<run_dir>/slurm/<stage>.sbatch` for every stage.

    Args:
        run_dir: absolute; its name and its parent become `run.name` and `run.root` of the jobs.
        overrides: of `agentworld submit`; what each job sets itself is left out.
    """
    folder = run_dir / "slurm"
    folder.mkdir(exist_ok=True)
    jobs = [Job(stage, folder / f"{stage}.sbatch", str(folder / f"{stage}-%j.log")) for stage in stages]
    for job in jobs:
        job.script.write_text(render(settings, job, run_dir, overrides), encoding="utf-8")
    return jobs


def render(settings: ClusterSettings, job: Job, run_dir: Path, overrides: Sequence[str]) -> str:
    """The text of a job's script."""
    kept = [text for text in overrides if text.partition("=")[0] not in REPLACED]
    ours = [f"stage={job.stage}", f"run.name={run_dir.name}", f"run.root={run_dir.parent}", "resume=true"]
    words = ["agentworld", "train", *kept, *ours, f"nproc={settings.nodes * settings.tasks_per_node}"]
    values = {
        "TITLE": f"Stage {job.stage} of the run {run_dir.name}.",
        "STAGE": job.stage,
        "DIRECTIVES": "\n#SBATCH ".join(directives(settings, job, run_dir)),
        "BIN": shlex.quote(str(Path(sys.executable).parent)),
        "SETUP": "\n".join(settings.setup),
        "RUN_DIR": shlex.quote(str(run_dir)),
        "REQUEUE": "true" if settings.requeue else "false",
        "COMMAND": " \\\n  ".join([shlex.join(words[:2]), *map(shlex.quote, words[2:])]),
    }
    template = files("agentworld.slurm").joinpath("stage.sbatch").read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], template)  # in one pass: values are never searched


def directives(settings: ClusterSettings, job: Job, run_dir: Path) -> list[str]:
    """The sbatch options of a job. Preparation is one task without GPUs, on as many cores as a node's ranks have."""
    alone = job.stage == "data"
    cores = settings.cpus_per_task
    if alone:
        cores = settings.tasks_per_node * max(1, settings.cpus_per_task)
    options = {
        "job-name": f"{run_dir.name}-{job.stage}",
        "output": str(run_dir / "slurm").replace("%", "%%") + f"/{job.stage}-%j.log",
        "open-mode": "append",  # a job that is queued again goes on in its log
        "chdir": str(Path.cwd()),  # paths of the overrides may be relative to it
        "nodes": 1 if alone else settings.nodes,
        "ntasks-per-node": 1 if alone else settings.tasks_per_node,
        "cpus-per-task": cores,
        "gpus-per-node": 0 if alone else settings.gpus_per_node,
        "mem": settings.memory,
        "time": settings.time,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        # B: to the script, so that preparation and the seconds between two steps are covered as well.
        "signal": f"B:USR1@{settings.signal_seconds}" if settings.signal_seconds else "",
    }
    lines = [f"--{name}={_quoted(str(value))}" for name, value in options.items() if value]
    return [*lines, "--requeue" if settings.requeue else "--no-requeue", *settings.extra]


def command(job: Job, after: str | None) -> list[str]:
    """The sbatch command of a job that starts when the job `after` has ended with 0, and is cancelled otherwise."""
    dependency = [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"] if after else []
    return ["sbatch", "--parsable", *dependency, str(job.script)]


def shell_lines(jobs: Sequence[Job]) -> list[str]:
    """The submission as lines of shell, for a person to read or to run."""
    lines = []
    for number, job in enumerate(jobs):
        words = command(job, f"${jobs[number - 1].stage}" if number else None)
        texts = [f'"{word}"' if "$" in word and word.startswith("--") else shlex.quote(word) for word in words]
        lines.append(f"{job.stage}=$({' '.join(texts)})")
    return lines


def submit(jobs: Sequence[Job]) -> list[str]:
    """Submit the jobs, each after the one before it, and return their numbers.

    Raises:
        SubmissionError: sbatch refused one; those before it are submitted.
    """
    numbers: list[str] = []
    for job in jobs:
        done = subprocess.run(
            command(job, numbers[-1] if numbers else None), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        number = done.stdout.strip().partition(";")[0]  # number;cluster where there are several clusters
        if done.returncode != 0 or not number:
            said = done.stderr.strip() or f"nothing; exit code {done.returncode}"
            raise SubmissionError(_refusal(job, jobs, numbers), said)
        numbers.append(number)
    return numbers


def _refusal(job: Job, jobs: Sequence[Job], numbers: Sequence[str]) -> str:
    before = ", ".join(f"{earlier.stage} {number}" for earlier, number in zip(jobs, numbers, strict=False))
    way_out = f"scancel {' '.join(numbers)}, and submit" if numbers else "submit"
    return (
        f"sbatch refused {job.script}; submitted before it: {before or 'nothing'}; mend the cluster settings, "
        f"{way_out} again with resume=true; sbatch said:"
    )


def _quoted(value: str) -> str:
    """A value on an #SBATCH line, which sbatch reads much as a shell does."""
    if PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
