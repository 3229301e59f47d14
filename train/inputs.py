"""What a run reads, looked at before its directory is made or anything in it deleted. Imports no torch."""

from pathlib import Path

from agentworld.data.documents_settings import check_paths, key_of
from agentworld.data.errors import RequestError
from agentworld.rewards import turn_verifiers
from agentworld.rewards.judge_checks import require_judge
from agentworld.rewards.settings import reward_outside_rl
from agentworld.train import stored_model
from agentworld.train.checkpoint import HANDOFF, verify_handoff
from agentworld.train.config import STAGES, Config
from agentworld.train.rollout_limits import require_vllm


def check_inputs(config: Config, weights: bool = True) -> None:
    """Refuse inputs that are not there, before the run directory is made or anything in it deleted. What a resumed run
    started from may be gone."""
    named = [("data.trajectories", path) for path in config.data.trajectories]
    named += [("data.held_out", path) for path in config.data.held_out]
    for key, path in [*named, *(("reward.verifiers", path) for path in config.reward.verifiers)]:
        if not Path(path).is_file():
            raise RequestError(f"{key}: {path} is not a file")
        with open(path, "rb"):  # readable, or an OSError that names it
            pass
    check_paths(config.data.documents)
    if config.stage not in ("data", "cpt"):
        require_judge(config.reward if config.stage in ("all", "rl") else reward_outside_rl(config.reward))
        turn_verifiers.read(config.reward.verifiers)
    if config.stage in ("all", "rl"):
        require_vllm(config.rl.rollout)
    if config.model.path:
        stored_model.require_directory(Path(config.model.path))
        if weights and not config.resume:
            stored_model.require_weights(Path(config.model.path))
    run_dir = Path(config.run.root) / config.run.name
    if config.overwrite and config.run.name:
        _refuse_own_inputs(config, run_dir)
    if config.stage == "cpt" and (run_dir / "base" / "export" / HANDOFF).is_file():
        verify_handoff(run_dir / "base" / "export")
    if config.stage in ("sft", "rl") and config.run.name:
        earlier = STAGES[STAGES.index(config.stage) - 1]
        handoff = run_dir / earlier / "export"
        if (handoff / HANDOFF).is_file():
            verify_handoff(handoff)
        elif not config.model.path:
            raise RequestError(
                f"stage={config.stage} needs the hand-off {handoff}, which is not there; "
                f"run stage={earlier} first, or set model.path"
            )
    if config.stage == "eval" and not any(is_exported(config, run_dir, stage) for stage in STAGES):
        raise RequestError(f"stage=eval: {run_dir} holds no finished export to evaluate")


def _refuse_own_inputs(config: Config, run_dir: Path) -> None:
    """overwrite=true would delete an input that lies in the run itself."""
    inputs = [("data.trajectories", path) for path in config.data.trajectories]
    inputs += [("data.held_out", path) for path in config.data.held_out]
    inputs += [("reward.verifiers", path) for path in config.reward.verifiers]
    inputs += [(f"{key_of(source)}.path", source.path) for source in config.data.documents if source.path]
    if config.model.path:
        inputs.append(("model.path", config.model.path))
    for key, path in inputs:
        if Path(path).resolve().is_relative_to(run_dir.resolve()):
            raise RequestError(f"{key}: {path} lies in {run_dir}, which overwrite=true deletes; copy it first")


def is_exported(config: Config, run_dir: Path, stage: str) -> bool:
    """Whether a stage has been handed over; the base of a run with `model.path` always is."""
    return bool(stage == "base" and config.model.path) or (run_dir / stage / "export" / HANDOFF).is_file()
