"""report.json and the table in the terminal: what each stage changed, beside two predictors that know nothing.

    <run>/<stage>/evaluation.json   read, one a stage (written by `evaluate.py`)
    <run>/baselines.json            read, {name: fidelity}
    <run>/report.json               written

A stage that was not evaluated is left out of the report.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from agentworld.data.errors import ContentError, RequestError
from agentworld.train.compose import load_recipe
from agentworld.train.config import STAGES
from agentworld.train.fidelity import paired_difference
from agentworld.train.run_directory import write_json

STAGE_KEYS = ("stage", "steps", "seconds", "tokens", "form", "heldout_loss", "fidelity")
REWARD_KEYS = ("mean", "standard_error", "n", "draws", "greedy_mean")
EXAMPLES = 3
MAX_LINES = 8  # of one example's observation
MAX_LINE_CHARS = 160
NOTHING = "-"

# heading (a table of 100 columns has room for six signs) and key of `fidelity`
_MEASURES: tuple[tuple[str, str], ...] = (
    ("exact\nmatch", "exact_match"),
    ("exact\ndeterm.", "exact_match_deterministic"),
    ("edit\nsimil.", "edit_similarity"),
    ("token\nf1", "token_f1"),
    ("format\nvalid", "format_valid"),
)


def build(run_dir: str | Path) -> dict[str, Any]:
    """The report of a run from the evaluations that it holds.

    Returns:
        {"run", "recipe", "seed", "stages": [...], "baselines": {name: fidelity}, "held_out": {...}, "paired": [...],
        "one_reward": bool, "examples": [...]}. `held_out` says which turns every stage predicted: {"turns",
        "earlier_turn", "too_long", "prompt_tokens"}, see `held_out_turns`; null for evaluations of an older version.
        `stages` in the order base, cpt, sft, rl. `paired` compares the RL reward of two stages on the same prompts,
        each {"after", "before", "mean", "standard_error", "n"}; `one_reward` is false where settings of the reward
        changed between evaluations, and their means do not compare. `examples` are the first three of the last stage.

    Raises:
        RequestError: `run_dir` is no run directory.
        ContentError: no stage is evaluated yet, or a file is damaged; names the file.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise RequestError(f"{run_dir}: no such run directory")
    config = load_recipe(run_dir)
    evaluations = [_read(path) for stage in STAGES if (path := run_dir / stage / "evaluation.json").exists()]
    if not evaluations:
        raise ContentError(f"{run_dir}: no stage has an evaluation.json yet; run `agentworld train` on it first")
    baselines = run_dir / "baselines.json"
    last = evaluations[-1]
    return {
        "run": run_dir.resolve().name,
        "recipe": config.recipe,
        "seed": config.seed,
        "stages": [_stage(evaluation) for evaluation in evaluations],
        "baselines": _read_json(baselines) if baselines.exists() else {},
        "held_out": last.get("held_out"),
        "paired": _paired(evaluations),
        "one_reward": len({_reward_settings(e) for e in evaluations if e["reward"] is not None}) <= 1,
        "examples": [{"stage": last["stage"], **example} for example in last["examples"][:EXAMPLES]],
    }


def write(run_dir: str | Path) -> dict[str, Any]:
    """Build the report, write it to `<run_dir>/report.json` in one step, and return it. Raises as `build`."""
    report = build(run_dir)
    write_json(Path(run_dir) / "report.json", report)
    return report


def render(report: Mapping[str, Any]) -> Group:
    """The report for a terminal of 100 columns or more: the table, how to read it, and the examples."""
    title = Text(f"{report['run']}  (recipe {report['recipe']}, seed {report['seed']})", style="bold")
    parts = [title, _table(report), *_notes(report)]
    for number, example in enumerate(report["examples"], start=1):
        parts += [Text(), *_example(number, example)]
    return Group(*parts)


def held_out_turns(counts: Mapping[str, int]) -> str:
    """How many held-out turns are evaluated, and what the limit of the prompt has changed, in one sentence.

    Args:
        counts: `turns` that are evaluated, one a trajectory; of these, `earlier_turn` stand for a later turn of their
            trajectory that does not fit `prompt_tokens`; of `too_long` trajectories none fits.
    """
    limit = f"the limit of {counts['prompt_tokens']:,} prompt tokens (eval.prompt_tokens)"
    moved, left_out = counts["earlier_turn"], counts["too_long"]
    changes = [f"of {moved:,} trajectories an earlier turn is taken"] if moved else []
    changes += [f"{left_out:,} trajectories have no turn that fits and are left out"] if left_out else []
    return f"{counts['turns']:,} held-out turns" + (f"; for {limit}, {', '.join(changes)}" if changes else "")


def _read(path: Path) -> dict[str, Any]:
    content = _read_json(path)
    missing = [
        key for key in (*STAGE_KEYS, "reward", "examples") if not isinstance(content, dict) or key not in content
    ]
    if missing:
        raise ContentError(f"{path}: lacks {', '.join(missing)}; delete it and evaluate the stage again")
    return content


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ContentError(f"{path}: not JSON ({error}); delete it and evaluate the stage again") from None


def _stage(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    reward = evaluation["reward"]
    stage = {key: evaluation[key] for key in STAGE_KEYS}
    return {**stage, "reward": None if reward is None else {key: reward[key] for key in REWARD_KEYS}}


def _paired(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each stage that has per-prompt rewards against the one before it; prompts are the same and in the same order.
    Rewards of other settings, as after `stage=rl overwrite=true reward.key=value`, are not compared."""
    rewarded = [e for e in evaluations if e["reward"] is not None and e["reward"].get("per_prompt")]
    compared = []
    for before, after in pairwise(rewarded):
        rewards = after["reward"]["per_prompt"], before["reward"]["per_prompt"]
        if len(rewards[0]) == len(rewards[1]) and _reward_settings(before) == _reward_settings(after):
            compared.append({"after": after["stage"], "before": before["stage"], **paired_difference(*rewards)})
    return compared


def _reward_settings(evaluation: Mapping[str, Any]) -> str | None:
    """A hash of the settings of its reward; None where it has none, or is of a version that did not write it."""
    return (evaluation["reward"] or {}).get("settings_sha256")


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("stage")
    table.add_column("form")
    for heading in ("steps", "time\n(s)", "held-out\nloss", *(heading for heading, _ in _MEASURES)):
        table.add_column(heading, justify="right")
    table.add_column("RL reward\nmean ± se (greedy)", justify="right", no_wrap=True)
    for stage in report["stages"]:
        measures = [_number(stage["fidelity"][key], "{:.3f}") for _, key in _MEASURES]
        figures = [_number(stage["steps"], "{:,}"), _number(stage["seconds"], "{:,.0f}")]
        loss = _number(stage["heldout_loss"], "{:.3f}")
        table.add_row(stage["stage"], stage["form"], *figures, loss, *measures, _reward(stage["reward"]))
    table.add_section()
    for name, fidelity in report["baselines"].items():
        measures = [_number(fidelity[key], "{:.3f}") for _, key in _MEASURES]
        label = name.removesuffix("_observation").replace("_", " ")
        table.add_row(label, *[NOTHING] * 4, *measures, NOTHING, style="dim")
    return table


def _reward(reward: Mapping[str, Any] | None) -> str:
    if reward is None or reward["mean"] is None:
        return NOTHING
    error, greedy = _number(reward["standard_error"], "{:.2f}"), _number(reward["greedy_mean"], "{:.2f}")
    return f"{reward['mean']:.2f} ± {error} ({greedy})"


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)


def _notes(report: Mapping[str, Any]) -> list[Text]:
    turns = _listed(sorted({stage["fidelity"]["n"] for stage in report["stages"]}))
    held_out = f"{turns} held-out turns" if report["held_out"] is None else held_out_turns(report["held_out"])
    notes = [
        f"Greedy predictions of {held_out}.",
        "exact determ.: exact match where the answer follows from the session alone.",
    ]
    if report["baselines"]:
        notes[-1] += " copy last: the observation before; most frequent: that of the training pools."
    absent = [] if any(stage["stage"] == "base" for stage in report["stages"]) else ["base"]
    absent += [] if report["baselines"] else ["copy last", "most frequent"]
    if absent:
        notes.append(f"No row for {', '.join(absent)}: the base was not evaluated in this run; stage=eval does it.")
    sizes = sorted({(s["reward"]["n"], s["reward"]["draws"]) for s in report["stages"] if s["reward"] is not None})
    prompts = _listed([f"{n} held-out prompts x {draws} draws" for n, draws in sizes])
    if sizes:
        notes.append(
            f"RL reward (0 to 25): {prompts} sampled at temperature 1, mean and standard error over prompts; in "
            "brackets the greedy answers to the same prompts."
        )
    if not report["one_reward"]:
        notes.append(
            "The stages were rewarded by different settings of reward: their RL rewards do not compare; stage=eval "
            "resume=true with the run.name and the keys of this run evaluates all by its present ones."
        )
    for pair in report["paired"]:
        difference = f"{_number(pair['mean'], '{:+.2f}')} ± {_number(pair['standard_error'], '{:.2f}')}"
        notes.append(f"{pair['after']} - {pair['before']}: {difference} RL reward (paired over {pair['n']} prompts)")
    return [Text(), *map(Text, notes)]


def _listed(values: Sequence[Any]) -> str:
    return " / ".join(str(value) for value in values)


def _example(number: int, example: Mapping[str, Any]) -> list[Text | Table]:
    """One example: the action, then truth and prediction side by side."""
    right = example["prediction"] == example["truth"]
    verdict = Text("equal", style="green") if right else Text("different", style="red")
    if example.get("tag_valid") is False:
        verdict.append(", no valid tag")
    heading = Text.assemble((f"example {number}", "bold"), f" {example['key']} after {example['stage']}: ", verdict)
    action = Text(f"action  {_visible(example['action'], lines=2)}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for heading_of_column in ("truth", "prediction"):
        table.add_column(heading_of_column, overflow="fold", ratio=1)
    table.add_row(*(Text(_visible(example[key], lines=MAX_LINES)) for key in ("truth", "prediction")))
    return [heading, action, table]


def _visible(text: str, lines: int) -> str:
    """The text with control characters escaped and line ends kept, cut at `lines` lines and at long lines."""
    rows = text.split("\n")
    shown = [_cut(_escape(row)) for row in rows[:lines]]
    if len(rows) > lines:
        shown.append(f"... ({len(rows) - lines} more lines)")
    return "\n".join(shown) if text else "(empty)"


def _escape(line: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}... ({len(line) - MAX_LINE_CHARS} more)"
