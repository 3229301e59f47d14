"""A run from recipe to report: prepare the data, run each stage in its own processes, verify each hand-off, report.

Nothing here trains. A stage is `python -m agentworld.train.worker RUN_DIR STAGE` on every rank, with STAGE one of base,
cpt, sft, pilot, rl and evaluate:<stage>. What is whole is not done again: prepared data, an export that verifies, an
evaluation of that very export. So a run that was stopped anywhere is continued by the same command and `resume=true`.
"""

import json
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from agentworld.data import prepare
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.preparation_report import format_report
from agentworld.data.tokenizer import load_tokenizer
from agentworld.rewards import sandbox, turn_verifiers
from agentworld.rewards.judge_checks import silent_judges
from agentworld.train import pilot_groups, prompt_stream, report, srun
from agentworld.train.checkpoint import HANDOFF, sha256_file, verify_handoff
from agentworld.train.config import STAGES, Config
from agentworld.train.contradictions import validate_processes
from agentworld.train.inputs import check_inputs, is_exported
from agentworld.train.launch import STOPPED, Outcome, launch, visible_gpus
from agentworld.train.positions import require_positions
from agentworld.train.run_directory import open_run, parent_of
from agentworld.train.screen import screen
from agentworld.train.stop import STOP_FILE
from agentworld.train.traces import scripted_teacher

EVALUATE = "evaluate:"
PILOT = "pilot"


def run(config: Config, overrides: Sequence[str] = ()) -> int:
    """Carry out `config.stage` of a run and return the exit code: 0 done, 1 failed, 2 wrong request, 3 stopped.

    Args:
        overrides: the command line that `config` was composed from, for run.json and for continuing the run.

    Raises:
        RequestError: before anything is made or deleted.
        ContentError: the data cannot be used, or a hand-off is damaged.
    """
    gpus = visible_gpus() if config.engine.device == "auto" else 0
    nproc = config.nproc or max(1, gpus)
    if nproc > gpus > 0 and not srun.is_launcher():
        raise RequestError(
            f"nproc={nproc}, and {gpus} GPUs are visible here: set nproc={gpus}, submit to several nodes with "
            "`agentworld submit`, or train on the CPU with engine.device=cpu"
        )
    validate_processes(config, nproc)
    check_inputs(config)
    require_positions(config)
    if config.reward.verifiers and config.stage not in ("data", "cpt"):
        sandbox.require()  # here and on the ranks: `plan` and `submit` may stand on a machine that runs no verifier
    environment = {} if gpus else {"DS_ACCELERATOR": "cpu"}
    with open_run(config, ["agentworld", "train", *overrides]) as run_dir, _signals_interrupt():
        (run_dir / STOP_FILE).unlink(missing_ok=True)  # it stopped the start before this one
        _say(f"run {run_dir}")
        if config.engine.device == "auto" and not gpus:
            _say("no GPU is visible: this run trains on the CPU (engine.device=cpu says that it is meant to)")
        if config.stage in ("all", "sft", "rl"):
            for line in silent_judges(config.reward):
                _say(line)
        try:
            code = _carry_out(config, run_dir, nproc, environment)
        except KeyboardInterrupt:
            code = STOPPED
        if code == STOPPED:
            _say(f"stopped; continue with:\n  {_continuation(config, overrides)}")
        return code


def _carry_out(config: Config, run_dir: Path, nproc: int, environment: dict[str, str]) -> int:
    _prepare(config, run_dir)
    _require_prompts(config, run_dir)
    steps = _steps(config, run_dir)
    for number, step in enumerate(steps, start=1):
        if _is_done(config, run_dir, step):
            _say(f"[{number}/{len(steps)}] {_heading(config, step)}: done before")
            continue
        _say(f"[{number}/{len(steps)}] {_heading(config, step)}")
        folder = run_dir / ("rl" if step == PILOT else step.removeprefix(EVALUATE))
        ranks = 1 if step == "base" else nproc
        outcome = launch(["-m", "agentworld.train.worker", str(run_dir), step], ranks, folder, environment)
        if outcome.code == 0 and (run_dir / STOP_FILE).exists():
            outcome = Outcome(STOPPED)
        if outcome.code != 0:
            _explain(step, folder, outcome)
            return outcome.code
        if step in STAGES:
            verify_handoff(run_dir / step / "export")
    if steps:
        screen().print(report.render(report.write(run_dir)))
    return 0


def _prepare(config: Config, run_dir: Path) -> None:
    """Fill <run>/data unless a complete one is there."""
    out = run_dir / "data"
    if prepare.is_prepared(out):
        return
    _say("data: incomplete or altered, prepared again" if out.exists() else "data")
    tokenizer = load_tokenizer(config.model.path) if config.model.path else None
    summary = prepare.prepare(config.data, config.seed, out, scripted_teacher, tokenizer, _say)
    _say(format_report(summary))


def _steps(config: Config, run_dir: Path) -> list[str]:
    """The workers of `config.stage`, in order. With `model.path` there is no base model to build."""
    if config.stage == "data":
        return []
    if config.stage == "eval":
        return [f"{EVALUATE}{stage}" for stage in STAGES if is_exported(config, run_dir, stage)]
    stages = {"all": STAGES, "cpt": ("base", "cpt")}.get(config.stage, (config.stage,))
    steps = [step for stage in stages for step in (stage, f"{EVALUATE}{stage}")]
    if "rl" in stages and config.rl.pilot_completions:
        steps.insert(steps.index("rl"), PILOT)
    return [step for step in steps if step != "base" or not config.model.path]


def _weights(config: Config, run_dir: Path, stage: str) -> Path:
    """The directory that holds the model of a stage: its export, or `model.path` for the base of a run that has one."""
    return Path(config.model.path) if stage == "base" and config.model.path else run_dir / stage / "export"


def _is_done(config: Config, run_dir: Path, step: str) -> bool:
    """Whether an earlier start of the run has finished this step.

    Raises:
        ContentError: an export that was finished is damaged.
    """
    if step == PILOT:
        if is_exported(config, run_dir, "rl"):  # it has served its purpose, whatever has changed since
            return True
        done = pilot_groups.is_done(config, run_dir, parent_of("rl", config, run_dir))
        if not done and any((run_dir / "rl" / "checkpoints").glob("checkpoint-*")):
            raise ContentError(
                f"{pilot_groups.directory(run_dir)} is of another start of RL or of other files of reward.verifiers, "
                "and RL has begun from it; put those files back, or start RL anew with stage=rl overwrite=true"
            )
        return done
    stage = step.removeprefix(EVALUATE)
    weights = _weights(config, run_dir, stage)
    if not is_exported(config, run_dir, stage):
        return False
    if step == stage:
        verify_handoff(weights)
        return True
    evaluation = run_dir / stage / "evaluation.json"
    if config.stage == "eval" or not evaluation.is_file():  # stage=eval asks for it again
        return False
    handoff = weights / HANDOFF  # a foreign model.path may have none
    try:
        evaluated = json.loads(evaluation.read_text()).get("handoff_sha256")
    except json.JSONDecodeError:
        return False  # damaged: evaluate again
    return evaluated == (sha256_file(handoff) if handoff.is_file() else None)


def _require_prompts(config: Config, run_dir: Path) -> None:
    """A rollout takes `rl.prompts_per_rollout` different prompts; with fewer the trainer would take no step. What the
    prompts say against `rl.domain_weights` and `reward.verifiers` is found here, before CPT, SFT and a pilot."""
    if config.stage not in ("all", "rl"):
        return
    count = json.loads((run_dir / "data" / "report.json").read_text())["rl"]
    if count["kept"] < config.rl.prompts_per_rollout:
        raise ContentError(
            f"rl: {count['kept']} of {count['given']} prompts are left, {count['too_long']} are longer than "
            f"data.rl_prompt_tokens={config.data.rl_prompt_tokens} (the shortest has {count['shortest_tokens']}); a "
            f"rollout takes rl.prompts_per_rollout={config.rl.prompts_per_rollout}; give more trajectories, raise "
            "data.split.rl or data.rl_prompt_tokens, or lower rl.prompts_per_rollout"
        )
    path = run_dir / "data" / "prompts" / "rl.parquet"
    if config.rl.domain_weights:
        domains = pq.read_table(path, columns=["domain"])["domain"].to_pylist()
        prompt_stream.require_domains(config.rl.domain_weights, domains, config.rl.prompts_per_rollout)
    if config.reward.verifiers:
        turns = pq.read_table(path, columns=["prompt", "observation"]).to_pydict()
        verifiers = turn_verifiers.read(config.reward.verifiers)
        covered = verifiers.coverage(zip(turns["prompt"], turns["observation"], strict=True))
        _say(f"RL prompts    {covered}")


def _heading(config: Config, step: str) -> str:
    if step == "base":
        return f"base: {config.model.path or 'a model with random weights'}"
    if step.startswith(EVALUATE):
        return f"evaluate {step.removeprefix(EVALUATE)}"  # the worker knows how many held-out turns fit, and says it
    if step == PILOT:
        return f"pilot: {config.rl.pilot_completions} completions of each RL prompt"
    return f"{step}: {getattr(config, step).max_steps} steps"


def _explain(step: str, folder: Path, outcome: Outcome) -> None:
    if outcome.code in (0, STOPPED):
        return
    if outcome.rank is None:  # srun gives the others a signal, too: its own lines say which task ended first
        what, where = "failed", f"srun names the task above; its error stands above or in {folder}/rank<task>.log"
    else:
        what = f"failed on rank {outcome.rank}"
        where = (
            "its error stands above" if outcome.rank == 0 else f"its error stands in {folder}/rank{outcome.rank}.log"
        )
        if outcome.killed_by is not None:
            where = f"it was killed by signal {outcome.killed_by} (9: often a lack of memory); resume=true continues"
    print(f"agentworld: error: {step} {what}; {where}", file=sys.stderr, flush=True)


def _continuation(config: Config, overrides: Sequence[str]) -> str:
    """The command that continues the run."""
    kept = [text for text in overrides if text.partition("=")[0] not in ("run.name", "resume", "overwrite")]
    return shlex.join(["agentworld", "train", *kept, f"run.name={config.run.name}", "resume=true"])


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Outside the stages, SIGTERM and SIGUSR1 end the work as Ctrl-C does, the first of them; `launch` has its own way
    while ranks run."""
    before = {signum: signal.signal(signum, _interrupt) for signum in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _interrupt(signum: int, frame: object) -> None:
    for other in (signal.SIGTERM, signal.SIGUSR1):  # SLURM may send both: the second must not cut the way out
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, flush=True)
