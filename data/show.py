"""`agentworld show`: one trajectory as a person reads it, with what the CPT mask thinks of each turn.

Nothing is decided here. Which turns carry loss comes from `rows.turn_losses`, the drawn turn of RL from
`examples.one_turn`, the sample of SFT from the traces of a run. Text is shown by `visible_text.visible`, never raw.
"""

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz
from rich.cells import chop_cells
from rich.text import Text

from agentworld.data import masking
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.examples import one_turn
from agentworld.data.masking import Statistics
from agentworld.data.rows import CPT_VERSION, RL_VERSION, turn_losses
from agentworld.data.schema import SchemaError, Trace, Trajectory, Turn
from agentworld.data.settings import DataSettings
from agentworld.data.system_prompts import sft_version, system_prompt
from agentworld.data.trajectory_files import read_trajectories
from agentworld.data.visible_text import visible

MASKS = ("cpt", "sft", "rl")
NEAR_IDS = 5  # of an unknown id, in the error
MAX_LINES, MAX_CHARACTERS = 40, 4000  # of one text in the terminal, without --full
MAX_META_CHARACTERS = 200  # of one value of `meta`
MARGIN = "    │ "  # before each line of a trajectory, so that none can pass for one of ours


@dataclass(frozen=True)
class Source:
    """Where a trajectory is shown from, and the settings by which it is masked.

    `in_run`: the settings and the seed are those of the run whose data folder holds the file.
    """

    path: Path
    settings: DataSettings = field(default_factory=DataSettings)
    seed: int = 0
    in_run: bool = False


@dataclass(frozen=True)
class TurnView:
    """One turn and what the CPT mask makes of it. `keep_ratio`: the share of the category's turns that carry loss;
    `kept`: whether this one does in CPT, with the seed and the settings of the source."""

    index: int
    turn: Turn
    category: str
    keep_ratio: float
    kept: bool

    @property
    def statistics(self) -> Statistics:
        """Computed when asked for: counting a whole file needs the category alone."""
        return masking.statistics(self.turn.action, self.turn.observation)

    @property
    def context_only(self) -> str | None:
        """Why the observation is history and never a target; None where it may be one."""
        reason = self.turn.meta.get("context_only")
        return None if reason is None else str(reason)


@dataclass(frozen=True)
class View:
    """A trajectory as one stage renders it.

    `chosen`: the turn that the stage trains on, None where that is every kept turn (cpt) or nothing says (sft outside
    of a run). `traces`: by turn, the thoughts that SFT has for it.
    """

    trajectory: Trajectory
    source: Source
    mask: str
    turns: list[TurnView]
    version: str
    system: str
    chosen: int | None
    traces: dict[int, Trace]


def look(trajectory: Trajectory, source: Source, mask: str | None = None) -> View:
    """The view of a trajectory under one stage's mask.

    Args:
        mask: cpt, sft or rl; None takes the stage whose pool of a run the file is, else cpt.

    Raises:
        ContentError: the traces of the run are damaged.
    """
    mask = mask or (source.path.stem if source.in_run and source.path.stem in MASKS else "cpt")
    traces = _traces(source, trajectory.id) if mask == "sft" else {}
    chosen = min(traces, default=None)
    if mask == "rl" and any(turn.is_target for turn in trajectory.turns):
        chosen = one_turn(trajectory, source.seed)
    versions = {"cpt": CPT_VERSION, "sft": sft_version(trajectory.id, source.seed), "rl": RL_VERSION}
    system = system_prompt(trajectory, versions[mask], source.settings.prompt_set)
    turns = turn_views(trajectory, source)
    return View(trajectory, source, mask, turns, versions[mask], system, chosen, traces)


def turn_views(trajectory: Trajectory, source: Source) -> list[TurnView]:
    """Each turn with its category and whether it carries loss in CPT."""
    losses = turn_losses(trajectory, source.settings.mask, source.seed)
    views = []
    for index, (turn, loss) in enumerate(zip(trajectory.turns, losses, strict=True)):
        category = masking.category(turn.action, turn.observation)
        ratio = source.settings.mask.keep.get(category, 1.0)
        views.append(TurnView(index, turn, category, ratio, loss.trained))
    return views


def find(path: Path, wanted: str | None) -> Trajectory:
    """The trajectory of this id, or the first of the file.

    Raises:
        RequestError: the id is not in the file; names the nearest ones.
        ContentError: a damaged line before it.
    """
    near: list[tuple[float, str]] = []
    for trajectory in read(path):
        if wanted is None or trajectory.id == wanted:
            return trajectory
        score = fuzz.ratio(wanted, trajectory.id) + 100 * (wanted in trajectory.id)
        push = heapq.heappush if len(near) < NEAR_IDS else heapq.heappushpop
        push(near, (score, trajectory.id))
    named = ", ".join(name for _, name in sorted(near, key=lambda item: (-item[0], item[1])))
    assert wanted is not None
    raise RequestError(f"{path}: no trajectory --trajectory {wanted}; near ones: {named}")


def read(path: Path) -> Iterator[Trajectory]:
    """`read_trajectories`, but the error of a file that never held trajectories names the way out."""
    count = 0
    try:
        for trajectory in read_trajectories(path):
            yield trajectory
            count += 1
    except SchemaError as error:
        hint = "" if count else "; `agentworld import` makes trajectories of agent logs"
        raise SchemaError(f"{error}{hint}") from None


def _traces(source: Source, trajectory_id: str) -> dict[int, Trace]:
    """The traces of a trajectory that the run around the file trains SFT on, by turn."""
    path = source.path.parent / "traces.jsonl"
    if not source.in_run or not path.is_file():
        return {}
    found = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                name, _, index = row["key"].rpartition("#")
                if name == trajectory_id:
                    found[int(index)] = Trace(row["family"], row["thinking"], row["prediction"])
            except (ValueError, KeyError, TypeError) as error:
                raise ContentError(f"{path}:{number}: not a trace: {error}; prepare the run again") from None
    return found


def terminal_lines(view: View, full: bool = False, width: int | None = None) -> Iterator[Text]:
    """The view line by line, styled for a terminal; `plain` of each line is what a pipe gets.

    Args:
        full: no text is cut.
        width: columns; longer lines of a text are folded behind their margin. None folds nothing.
    """
    for line in facts(view):
        yield Text(line, style="bold" if line.startswith("trajectory ") else "")
    yield Text()
    yield Text(f"system prompt {view.version} of set {view.source.settings.prompt_set}", style="bold cyan")
    yield from _body(view.system, full, width)
    for item in view.turns:
        yield Text()
        yield _heading(view, item)
        yield Text(f"  {describe(item)}")
        if meta := describe_meta(item.turn.meta):
            yield Text(f"  {meta}", style="yellow" if item.context_only is not None else "")
        if (trace := view.traces.get(item.index)) is not None:
            yield Text("  thought (carries loss)", style="green")
            yield from _body(trace.thinking, full, width)
        yield Text("  action", style="cyan")
        yield from _body(item.turn.action, full, width)
        yield Text("  observation", style="cyan")
        yield from _body(item.turn.observation, full, width)


def facts(view: View) -> list[str]:
    """What a reader needs before the turns: the trajectory, the mask, what carries loss and why."""
    trajectory, source = view.trajectory, view.source
    settings = "settings of the run" if source.in_run else "default settings"
    named = {"domain": trajectory.domain, "source": trajectory.source, "split group": trajectory.split_group}
    about = [f"{key} {visible(value, False)}" for key, value in named.items()]
    return [
        f"trajectory {visible(trajectory.id, False)}",
        ", ".join([*about, f"{len(view.turns)} turns"]),
        f"mask {view.mask}, seed {source.seed}, {settings}: {what_carries_loss(view)}",
    ]


def what_carries_loss(view: View) -> str:
    """In one sentence, which tokens of the trajectory the stage is trained on."""
    if view.mask == "cpt":
        kept = [item for item in view.turns if item.kept]
        characters = sum(len(item.turn.observation) for item in kept)
        total = sum(len(item.turn.observation) for item in view.turns)
        off = "" if view.source.settings.mask.enabled else " (data.mask.enabled=false: the mask masks nothing)"
        said = f"{len(kept)} of {len(view.turns)} observations carry loss, {characters:,} of {total:,} characters{off}"
        return said
    if view.mask == "rl" and view.chosen is None:
        return "no turn may be predicted: all are history only"
    if view.mask == "rl":
        return f"turn #{view.chosen} is drawn; what the model answers there carries loss, never the text shown here"
    if view.chosen is None:
        return "one turn with a trace would carry loss, its thought and its observation; there are no traces here"
    return f"turn #{view.chosen} is the sample; its thought and its observation carry loss"


def _heading(view: View, item: TurnView) -> Text:
    state, style = role_of(view, item)
    return Text(f"turn #{item.index}  {item.category}  {state}", style=f"bold {style}")


def role_of(view: View, item: TurnView) -> tuple[str, str]:
    """What a turn is to the stage, in words, and the colour of it."""
    if view.mask == "cpt":
        return ("carries loss", "green") if item.kept else ("context, no loss", "bright_black")
    if view.chosen is None:
        return "", "green"
    if item.index == view.chosen:
        return ("sample" if view.mask == "sft" else "drawn: the model answers here"), "green"
    return ("history" if item.index < view.chosen else "not seen"), "bright_black"


def describe(item: TurnView) -> str:
    """The statistics of a turn in one line; see `masking.Statistics`."""
    s = item.statistics
    return (
        f"overlap {s.overlap:.2f}  novelty {s.novelty:.2f}  Jaccard {s.jaccard:.2f}  "
        f"length ratio {s.ratio:.2f}  keep ratio {item.keep_ratio:.2f}"
    )


def describe_meta(meta: dict[str, Any]) -> str:
    """The meta of a turn in one line, long values cut."""
    shown = []
    for key, value in meta.items():
        text = visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), False)
        more = len(text) - MAX_META_CHARACTERS
        shown.append(f"{visible(key, False)}: {text[:MAX_META_CHARACTERS]}" + (f"… {more} more" if more > 0 else ""))
    return ", ".join(shown)


def _body(text: str, full: bool, width: int | None) -> Iterator[Text]:
    """A text of the trajectory behind its margin, escaped, cut with a note unless `full`."""
    shown, left = (text, 0) if full else cut(text)
    if text == "":
        yield Text("    (empty)", style="italic bright_black")
        return
    for line in visible(shown).split("\n"):
        for piece in chop_cells(line, max(1, width - len(MARGIN))) if width and line else [line]:
            yield Text.assemble((MARGIN, "bright_black"), piece)
    if left:
        yield Text(f"    … {left:,} of {len(text):,} characters left out; --full shows all", style="italic yellow")


def cut(text: str) -> tuple[str, int]:
    """The first MAX_LINES lines and MAX_CHARACTERS characters of a text, and how many characters were left out."""
    shown = "\n".join(text.split("\n", MAX_LINES)[:MAX_LINES])[:MAX_CHARACTERS]
    return shown, len(text) - len(shown)
