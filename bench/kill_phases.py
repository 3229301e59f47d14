"""The phases of a run in which `kill_matrix` kills it: how each is seen from outside, and what a run that is about to
enter it has on its disk.

A phase is seen in the run directory and in the command's output; nothing in the pipeline knows of it.
"""

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentworld.train.checkpoint import COMPLETE, PREFIX

STAGES = ("base", "cpt", "sft", "rl")
TRAINED = STAGES[1:]
# The smoke recipe at a size that trains in seconds, with several saves a stage; RL's saves of odd steps fall inside a
# rollout.
STEPS = {"cpt": 20, "sft": 10, "rl": 8}
SAVE_STEPS = {"cpt": 6, "sft": 4, "rl": 3}
SESSIONS = 70
SETTINGS = [
    "recipe=smoke", f"data.record.count={SESSIONS}", "data.tokenizer_vocab_size=500", "data.cpt_row_tokens=512",
    "data.split.cpt=0.4", "data.split.sft=0.25", "data.split.rl=0.2", "data.split.eval=0.15",
    "model.architecture.hidden_size=64", "model.architecture.moe_intermediate_size=32",
    "cpt.warmup_steps=2", "cpt.rows_per_device=2", "sft.warmup_steps=2", "rl.warmup_steps=1",
    "rl.prompts_per_rollout=2", "rl.num_generations=4", "rl.mini_batches=2", "rl.completions_per_device=2",
    "rl.max_completion_tokens=24", "eval.examples=8", "eval.reward_examples=4", "eval.max_new_tokens=24",
    *(f"{stage}.max_steps={steps}" for stage, steps in STEPS.items()),
    *(f"{stage}.save_steps={steps}" for stage, steps in SAVE_STEPS.items()),
]  # fmt: skip
BEFORE, INSIDE, AFTER = "before", "inside", "after"


@dataclass(frozen=True)
class Phase:
    """`kind`: recording, preparation, start, training, save, export, evaluation or report. `stage`: of the five in the
    middle. `step`: of a save."""

    kind: str
    stage: str = ""
    step: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, (self.stage, self.kind, str(self.step or ""))))


def saved_steps(stage: str) -> list[int]:
    """The steps after which a stage saves: every `save_steps` and the last."""
    return sorted({*range(SAVE_STEPS[stage], STEPS[stage] + 1, SAVE_STEPS[stage]), STEPS[stage]})


def every_phase() -> list[Phase]:
    """Each phase of a run, in its order."""
    phases = [Phase("recording"), Phase("preparation")]
    for stage in STAGES:
        phases.append(Phase("start", stage))
        if stage in TRAINED:
            phases.append(Phase("training", stage))
            phases += [Phase("save", stage, step) for step in saved_steps(stage)]
            phases.append(Phase("export", stage))
        phases.append(Phase("evaluation", stage))
    return [*phases, Phase("report")]


def _class_of(phase: Phase) -> tuple[str, str]:
    """What must be killed at least once: starts and evaluations of any stage count as one."""
    return phase.kind, phase.stage if phase.kind in ("training", "save", "export") else ""


def schedule(kills: int, seed: int) -> list[Phase]:
    """`kills` phases in the order of a run: one of each class, then classes at random; with fewer kills than classes a
    random part of the classes. Which stage or save of its class is random too."""
    rng = random.Random(seed)
    phases = every_phase()
    classes = list(dict.fromkeys(map(_class_of, phases)))
    chosen = rng.sample(classes, min(kills, len(classes)))
    chosen += rng.choices(classes, k=kills - len(chosen))
    drawn = [rng.choice([phase for phase in phases if _class_of(phase) == wanted]) for wanted in chosen]
    return sorted(drawn, key=phases.index)


def position(phase: Phase, run: Path, output: str) -> str:
    """Whether a run is BEFORE, INSIDE or AFTER a phase, by its directory and what it has printed so far."""
    if phase.kind == "recording":
        recorded = (run / "data").exists() or any(run.glob(".data.tmp-*/recorded.jsonl"))
        return _position(any(run.glob(".data.tmp-*")), recorded)
    if phase.kind == "preparation":
        return _position(any(run.glob(".data.tmp-*")), (run / "data").exists())
    if phase.kind == "report":
        return _position("] evaluate rl\n" in output, "Greedy predictions of" in output)
    folder = run / phase.stage
    exporting, exported = (folder / ".export.tmp").exists(), (folder / "export").exists()
    logged = (folder / "metrics.jsonl").exists()
    if phase.kind == "start":
        return _position(f"] {phase.stage}: " in output, logged or exporting or exported)
    if phase.kind == "training":
        return _position(logged, exporting or exported)
    if phase.kind == "export":
        return _position(exporting, exported)
    if phase.kind == "evaluation":
        return _position(f"] evaluate {phase.stage}\n" in output, (folder / "evaluation.json").exists())
    assert phase.kind == "save", phase
    written, name = folder / "checkpoints", f"{PREFIX}{phase.step}"
    begun = (written / ".unfinished" / name).exists() or (written / name).exists()
    return _position(begun, (written / name / COMPLETE).exists())


def _position(begun: bool, ended: bool) -> str:
    return AFTER if ended else INSIDE if begun else BEFORE


def cut_back(finished: Path, run: Path, phase: Phase) -> None:
    """Make `run` what an uninterrupted run has on its disk right before `phase`, from a finished run.

    Both directories stood at the same path when they were made, so the paths inside agree.
    """
    shutil.rmtree(run, ignore_errors=True)
    if phase.kind in ("recording", "preparation"):
        return
    shutil.copytree(finished, run, symlinks=True)
    (run / "report.json").unlink()
    if phase.kind == "report":
        return
    later = list(STAGES[STAGES.index(phase.stage) :])
    if phase.stage == "base":
        (run / "baselines.json").unlink()
    if phase.kind == "evaluation":
        (run / phase.stage / "evaluation.json").unlink()
        later = later[1:]
    for stage in later:
        shutil.rmtree(run / stage)
        for tracked in run.glob(f"wandb/offline-run-*-{stage}-*"):
            shutil.rmtree(tracked)
    for link in (run / "wandb").glob("*"):  # wandb's latest-run and debug logs of a stage that is gone
        if link.is_symlink() and not link.exists():
            link.unlink()


def verbs(phase: Phase) -> tuple[str, str]:
    """`stage=` of the start that is killed and of the next one: as much of the run as the phase can spoil.

    What follows a stage reads its export and the data only, so equal exports are equal continuations.
    """
    if phase.kind in ("recording", "preparation"):
        return "data", "all"
    if phase.kind == "report":
        return "all", "all"
    return (phase.stage, phase.stage) if phase.stage != "base" else ("cpt", "cpt")


def stages_done(verb: str) -> tuple[str, ...]:
    """The stages that a run has after `stage=verb`."""
    return STAGES if verb == "all" else STAGES[: STAGES.index(verb) + 1]


def whole_checkpoint(folder: Path) -> int:
    """The step of the newest checkpoint of a stage whose files are all there with the sizes that it lists, 0 if none.

    Read here without the pipeline's own functions, whose choice is under test.
    """
    steps = [0]
    for checkpoint in (folder / "checkpoints").glob(f"{PREFIX}*"):
        try:
            sizes = json.loads((checkpoint / COMPLETE).read_text())
            if all((checkpoint / name).stat().st_size == size for name, size in sizes.items()):
                steps.append(int(checkpoint.name.removeprefix(PREFIX)))
        except (OSError, ValueError):
            continue
    return max(steps)
