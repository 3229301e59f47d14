"""The settings of a site, the `cluster` group of a recipe. An empty text, an empty list or 0 gives no such line in the
scripts, so the site's own default holds."""

import re
from dataclasses import dataclass, field


@dataclass
class ClusterSettings:
    partition: str = ""
    account: str = ""
    qos: str = ""
    nodes: int = 1
    gpus_per_node: int = 8
    tasks_per_node: int = 8  # ranks of a node, one `srun` task each; with GPUs at most one a GPU
    cpus_per_task: int = 0  # cores of a rank, and its threads; 0 = the site's default, one
    memory: str = ""  # of a node, for example 500G
    time: str = ""  # limit of one start of a job: minutes, H:MM:SS or D-HH:MM:SS; empty = the partition's
    signal_seconds: int = 300  # before the limit the ranks are told to save and the job is queued again; 0 = never
    requeue: bool = True  # queue a job again when a time limit, a preemption or a lost node ended it
    setup: list[str] = field(default_factory=list)  # shell lines before the command: module loads, exports
    extra: list[str] = field(default_factory=list)  # raw sbatch options, for example --constraint=h200


def seconds(time: str) -> int:
    """Seconds of a SLURM time limit: M, M:SS, H:MM:SS, D-H, D-H:MM or D-H:MM:SS (man sbatch, --time).

    Raises:
        ValueError: `time` has none of these forms.
    """
    if not re.fullmatch(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}", time):
        raise ValueError(f"{time!r} is no time limit; write minutes, H:MM:SS or D-HH:MM:SS")
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, secs = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:
        hours, (minutes, secs) = 0, [*parts, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs
