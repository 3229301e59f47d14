"""What would stop a run later, looked for before anything is spent. Imports no torch."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.pools import NO_TRACES
from agentworld.data.sft_samples import TeacherCount, choose_samples
from agentworld.data.trajectory_files import read_trajectories, rows_in
from agentworld.train import stored_model
from agentworld.train.config import Config
from agentworld.train.contradictions import validate_processes
from agentworld.train.inputs import check_inputs
from agentworld.train.memory import stages_of
from agentworld.train.positions import require_positions
from agentworld.train.traces import scripted_teacher

COUNTED_BYTES = 2 << 30  # of trajectories whose lines are counted; more would take longer than a plan may
TAUGHT = 2000  # trajectories that the teacher is tried on


@dataclass(frozen=True)
class Check:
    """One thing that a run needs. `detail` says what was found, or the reason and the way out."""

    name: str
    passed: bool
    detail: str


def checks(config: Config, ranks: int, disk_bytes: int) -> list[Check]:
    """Every check, in the order in which a run would fail. `disk_bytes` is what the run may write in all."""
    named: list[tuple[str, Callable[[], str]]] = [
        ("processes", lambda: _processes(config, ranks)),
        ("inputs", lambda: _inputs(config)),
        ("model", lambda: _model(config)),
        ("context", lambda: require_positions(config)),
        ("run name", lambda: _run_name(config)),
        ("SFT traces", lambda: _traces(config)),
        ("RL prompts", lambda: _rl_prompts(config)),
        ("disk", lambda: _disk(config, disk_bytes)),
    ]
    return [_checked(name, check) for name, check in named]


def files_read(config: Config) -> list[dict[str, str | int | None]]:
    """Key, path and bytes (None: not there) of what the run reads."""
    named = [("data.trajectories", path) for path in config.data.trajectories]
    named += [("data.held_out", path) for path in config.data.held_out]
    named += [("reward.verifiers", path) for path in config.reward.verifiers]
    named += [("data.documents", source.path) for source in config.data.documents if source.path]
    if config.model.path:
        named.append(("model.path", config.model.path))
    return [{"key": key, "path": path, "bytes": _bytes(Path(path))} for key, path in named]


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except (RequestError, ContentError) as error:
        return Check(name, False, str(error))
    except OSError as error:
        return Check(name, False, f"{error.filename}: {error.strerror}")


def _processes(config: Config, ranks: int) -> str:
    submitted = config.cluster.nodes * config.cluster.tasks_per_node
    if submitted not in (1, ranks):
        raise RequestError(
            f"nproc={ranks}, and a submitted run takes cluster.nodes x cluster.tasks_per_node = {submitted}; set both"
        )
    validate_processes(config, ranks)
    return f"{ranks} processes divide the batches and the experts"


def _inputs(config: Config) -> str:
    check_inputs(config, weights=False)  # a check of their own
    count = len(config.data.trajectories)
    return f"{count} files of trajectories can be read" if count else f"{config.data.record.count} sessions to record"


def _model(config: Config) -> str:
    return stored_model.require_weights(Path(config.model.path)) if config.model.path else "built with random weights"


def _run_name(config: Config) -> str:
    name = config.run.name
    directory = Path(config.run.root) / name
    if name and directory.exists() and not (config.resume or config.overwrite):
        raise RequestError(
            f"{directory} exists; continue it with resume=true, delete it with overwrite=true, or choose another "
            "run.name"
        )
    return f"{directory} is free" if name and not directory.exists() else str(directory) if name else "a new name"


def _traces(config: Config) -> str:
    """The scripted teacher on the first trajectories: preparation ends where it answers no turn of the SFT pool."""
    if "sft" not in stages_of(config):
        return "no SFT in this run"
    if not config.data.trajectories:
        return "the teacher knows the sessions that are recorded"
    tried = 0
    for path in config.data.trajectories:
        if not Path(path).is_file():
            return f"{path} is not one file, and is not looked into here"
        for trajectory in read_trajectories(path, on_bad=lambda error: None):
            if tried == TAUGHT:
                return f"none for the first {TAUGHT} trajectories, the others were not tried"
            tried += 1
            if any(choose_samples([trajectory], scripted_teacher, config.seed, TeacherCount())):
                return f"the teacher answers turns of these trajectories, first of number {tried}"
    raise RequestError(f"of {tried} trajectories the teacher answers no turn as the environment did; {NO_TRACES}")


def _rl_prompts(config: Config) -> str:
    """A rollout takes different prompts; before filters, as many trajectories as the RL pool gets."""
    if "rl" not in stages_of(config):
        return "no RL in this run"
    data, needed = config.data, config.rl.prompts_per_rollout
    count = data.record.count
    if data.trajectories:
        if sum(_bytes(Path(path)) or 0 for path in data.trajectories) > COUNTED_BYTES:
            return "the trajectories are too large to be counted here"
        count = sum(rows_in(Path(path)) for path in data.trajectories)
    pool = int(count * data.split.rl)
    if pool < needed:
        raise RequestError(
            f"{count} trajectories x data.split.rl={data.split.rl} give {pool} prompts, a rollout takes "
            f"rl.prompts_per_rollout={needed}; give more trajectories, or lower it"
        )
    return f"about {pool} prompts before filters, a rollout takes {needed}"


def _disk(config: Config, needed: int) -> str:
    root = Path(config.run.root).absolute()
    while not root.exists():
        root = root.parent
    free = shutil.disk_usage(root).free
    if free < needed:
        raise RequestError(
            f"{root}: {free / 2**30:.0f} GiB free, the run may write {needed / 2**30:.0f} GiB; set run.root, or lower "
            "save_total_limit of the stages"
        )
    return f"{free / 2**30:.0f} GiB free at {root}"


def _bytes(path: Path) -> int | None:
    if path.is_file():
        return path.stat().st_size
    if path.is_dir():
        return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
    return None
