"""A trajectory as one HTML page: every token of a stage's row, coloured by whether it is trained, without any script.

The ids come from `Renderer.conversation` and `Renderer.final_turn` and are only cut at the starts of messages. Text
cannot become markup: each token is escaped, hidden characters are named (`visible_text`), and the page's own policy
forbids scripts and the network. In SFT and RL a turn is chosen by its anchor, and style sheets alone show what the
model sees there: the earlier turns and its action, then what carries loss.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from string import Template

from transformers import PreTrainedTokenizerFast

from agentworld.data.outputs import replacing
from agentworld.data.render import OPEN_TAG, Renderer
from agentworld.data.rows import cpt_document, turn_losses
from agentworld.data.schema import Trajectory
from agentworld.data.sft_samples import holds_tag
from agentworld.data.show import Source, TurnView, View, describe, describe_meta, facts, role_of
from agentworld.data.show_tokens import Pen
from agentworld.data.system_prompts import system_prompt
from agentworld.data.tokenizer import load_tokenizer, train_tokenizer
from agentworld.data.trajectory_files import read_trajectories
from agentworld.data.visible_text import visible

TRAINING_CHARACTERS = 2_000_000  # of the file, for a tokenizer of its own: a second of work
OPEN_CHARACTERS = 1500  # of a system prompt that is shown unfolded

_TEMPLATE = Path(__file__).parent / "show.html"


_LEGEND = {
    "cpt": '<span class="trained">carries loss</span> <span>context, no loss</span>',
    "sft": '<span class="trained">carries loss at the chosen turn</span> <span>context, no loss</span>',
    "rl": '<span class="reference">what really came at the chosen turn</span> <span>context, no loss</span>',
}
_HELP = {
    "cpt": "The model reads every token of the conversation and learns to write the coloured ones.",
    "sft": "Choose a turn in the table. The page then ends there: what stands above is what the model reads, and it "
    "learns to write the coloured tokens. Later turns are hidden, as they are from the model.",
    "rl": "Choose a turn in the table. The page then ends there: what stands above is what the model reads before it "
    "answers. The tokens of its own answer carry the loss; the framed text is what really came, to which the reward "
    "compares the answer. Later turns are hidden, as they are from the model.",
}


@dataclass(frozen=True)
class Message:
    """One message of a row in tokens. `lead` opens it, `body` is its text, `end` closes it, `gap` stands before the
    next message (empty after the last). `trained`: body and end carry the loss."""

    lead: list[int]
    body: list[int]
    end: int
    gap: list[int]
    trained: bool

    @property
    def tokens(self) -> int:
        return len(self.lead) + len(self.body) + 1 + len(self.gap)


@dataclass(frozen=True)
class Target:
    """What SFT adds around the observation of its turn: ids from the start of the thought to the tag, and the tag's
    end."""

    before: list[int]
    after: list[int]


def choose_tokenizer(path: Path | None, trajectory: Trajectory, source: Source) -> tuple[PreTrainedTokenizerFast, str]:
    """The tokenizer to show with, and what to call it: that of a directory, of the run, or one trained on the file.

    Raises:
        RequestError, ContentError: `path` holds no tokenizer that can be used.
    """
    if path is not None:
        return load_tokenizer(path), f"tokenizer of {path}"
    of_run = source.path.parent / "tokenizer"
    if source.in_run and of_run.is_dir():
        return load_tokenizer(of_run), "tokenizer of the run"
    size = source.settings.tokenizer_vocab_size
    tokenizer = train_tokenizer(_texts(trajectory, source), size, source.settings.tokenizer_units)
    said = f"byte-level BPE of {len(tokenizer):,} tokens, trained on this file; --tokenizer shows a model's own"
    return tokenizer, said


def _texts(shown: Trajectory, source: Source) -> Iterator[str]:
    """The texts of the trajectory that is shown, then of the file from its beginning, up to TRAINING_CHARACTERS."""
    left = TRAINING_CHARACTERS
    for trajectory in chain([shown], read_trajectories(source.path)):
        yield from ("system\n", "user\n", "assistant\n")
        yield system_prompt(trajectory, "v1", source.settings.prompt_set)[:left]
        for text in chain.from_iterable((turn.action, turn.observation) for turn in trajectory.turns):
            yield text[: max(0, left)]
            left -= len(text)
        if left <= 0:
            return


def messages_of(view: View, renderer: Renderer) -> list[Message]:
    """The messages of the trajectory's row: the system prompt, then an action and an observation for each turn.

    CPT's row comes from `rows.cpt_document`. In SFT and RL it is the history that the last turn would leave, of which
    the ids of each prompt are a prefix.
    """
    if view.mask == "cpt":
        losses = turn_losses(view.trajectory, view.source.settings.mask, view.source.seed)
        row, _ = cpt_document(view.trajectory, losses, renderer, view.source.settings, view.source.seed)
    else:
        row = renderer.conversation(view.system, view.trajectory.turns, [False] * len(view.turns))
    starts = [place for place, token in enumerate(row.input_ids) if token == renderer.start_id]
    assert len(starts) == 1 + 2 * len(view.turns), "text became a control token"
    lead_tokens = {role: 1 + len(renderer.encode(f"{role}\n")) for role in ("system", "user", "assistant")}
    roles = ["system", *("user", "assistant") * len(view.turns)]
    found = []
    for role, start, stop in zip(roles, starts, [*starts[1:], len(row.input_ids)], strict=True):
        end = row.input_ids.index(renderer.end_id, start, stop)
        body = start + lead_tokens[role]
        flags = set(row.trained[body : end + 1])
        assert len(flags) == 1 and not any(row.trained[start:body] + row.trained[end + 1 : stop])
        ids = row.input_ids
        found.append(Message(ids[start:body], ids[body:end], ids[end], ids[end + 1 : stop], flags.pop()))
    return found


def target_of(view: View, item: TurnView, renderer: Renderer) -> Target:
    """What SFT trains around the observation of a turn, from `Renderer.final_turn`; the thought is that of the run's
    trace, empty where there is none."""
    thinking = view.traces[item.index].thinking if item.index in view.traces else ""
    prompt = len(renderer.prompt("", [item.turn], 0))
    ids = renderer.final_turn("", [item.turn], 0, thinking, item.turn.observation).input_ids[prompt:]
    before = ids.index(renderer.end_think_id) + 1 + len(renderer.encode(f"\n\n{OPEN_TAG}"))
    observed = before + len(renderer.encode(item.turn.observation))
    return Target(ids[:before], ids[observed:-1])


def page(view: View, renderer: Renderer, tokenizer_name: str, full: bool = False) -> str:
    """The whole page. `full` writes every token; else long texts lose their middle, with a note."""
    pen = Pen(renderer.tokenizer, full)
    system, *messages = messages_of(view, renderer)
    turns, read = [], system.tokens
    for item, action, observation in zip(view.turns, messages[::2], messages[1::2], strict=True):
        target = target_of(view, item, renderer) if view.mask == "sft" else Target([], [])
        prompt = read + action.tokens + len(observation.lead)
        turns.append(_turn(view, item, (action, observation), target, prompt, pen))
        read += action.tokens + observation.tokens
    trained = sum(len(message.body) + 1 for message in messages if message.trained)
    title, about, carries = facts(view)
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=_plain(title),
        about=_plain(about),
        carries=_plain(carries),
        tokens=_plain(f"{read:,} tokens" + (f", {trained:,} carry loss" if view.mask == "cpt" else "")),
        limit=_plain(_limit(view, "cpt_row_tokens", read, "split into rows") if view.mask == "cpt" else ""),
        tokenizer=_plain(tokenizer_name),
        stage="cpt" if view.mask == "cpt" else f"{view.mask} pick",
        help=_plain(_HELP[view.mask]),
        legend=_LEGEND[view.mask],
        rows="\n".join(_row(view, item) for item in view.turns),
        version=_plain(f"{view.version} of set {view.source.settings.prompt_set}, {system.tokens:,} tokens"),
        open="open" if len(view.system) < OPEN_CHARACTERS else "",
        system=pen.span(system.lead, "context")
        + pen.text(system.body, "context")
        + pen.span([system.end, *system.gap], "context"),
        turns="\n".join(turns),
    )


def _row(view: View, item: TurnView) -> str:
    """A line of the table of turns."""
    s = item.statistics
    state = _label(view, item)
    numbers = (f"{n:.2f}" for n in (s.overlap, s.novelty, s.jaccard, s.ratio, item.keep_ratio))
    cells = [f'<a href="#turn-{item.index}">#{item.index}</a>', item.category, *numbers]
    cells += [_plain(state), f"{len(item.turn.action):,}", f"{len(item.turn.observation):,}"]
    cells += [f'<span class="{_meta_class(item)}">{_plain(describe_meta(item.turn.meta))}</span>']
    return f'<tr class="{_state(view, item)}"><td>' + "</td><td>".join(cells) + "</td></tr>"


def _label(view: View, item: TurnView) -> str:
    """What a turn is to the stage. Where a reader chooses the turn, history and future depend on the choice."""
    return role_of(view, item)[0] if view.mask == "cpt" or item.index == view.chosen else ""


def _state(view: View, item: TurnView) -> str:
    return "on" if (item.kept if view.mask == "cpt" else item.index == view.chosen) else "off"


def _meta_class(item: TurnView) -> str:
    return "warning" if item.context_only is not None else "about"


def _turn(view: View, item: TurnView, messages: tuple[Message, Message], target: Target, prompt: int, pen: Pen) -> str:
    """One turn: its heading, the action, the observation as history and as target."""
    action, observation = messages
    answer = len(target.before) + len(observation.body) + len(target.after) + 1
    last = view.turns[-1].index
    drawn = " drawn" if item.index == (last if view.chosen is None else view.chosen) else ""
    colour = ("trained" if observation.trained else "context") if view.mask == "cpt" else "obs"
    state = _label(view, item)
    meta = describe_meta(item.turn.meta)
    shown = (
        pen.span(observation.lead, "context")
        + pen.text(target.before, "trained answer")
        + pen.text(observation.body, colour)
        + pen.span(target.after, "trained answer")
        + pen.span([observation.end], colour)
        + pen.span(observation.gap, "context after")
    )
    around = [(n, name) for n, name in ((item.index - 1, "←"), (item.index + 1, "→")) if 0 <= n <= last]
    return "\n".join(
        [
            f'<section class="turn {_state(view, item)}{drawn}" id="turn-{item.index}">',
            f'<h2><a href="#turn-{item.index}">turn #{item.index}</a> <b>{item.category}</b> <b>{_plain(state)}</b>',
            *(f'<a class="step" href="#turn-{n}">{name} #{n}</a>' for n, name in around),
            "</h2>",
            f'<p class="numbers">{_plain(describe(item).replace("  ", " · "))}</p>',
            f'<p class="{_meta_class(item)}">{_plain(meta)}</p>' if meta else "",
            f'<p class="reads">{_plain(_reads(view, item, prompt, answer))}</p>' if view.mask != "cpt" else "",
            f"<h3>action <small>user message, {action.tokens:,} tokens</small></h3>",
            f'<div class="text">{pen.span(action.lead, "context")}{pen.text(action.body, "context")}'
            f"{pen.span([action.end, *action.gap], 'context')}</div>",
            f"<h3>observation <small>assistant message, {observation.tokens:,} tokens</small></h3>",
            f'<div class="text">{shown}</div>',
            "</section>",
        ]
    )


def _reads(view: View, item: TurnView, prompt: int, answer: int) -> str:
    """What the model reads and writes at a turn, and whether the stage has room for it."""
    said = f"At this turn the model reads {prompt:,} tokens"
    tag = (
        " The observation holds the answer's tag: the stage leaves it out." if holds_tag(item.turn.observation) else ""
    )
    if view.mask == "rl":
        limit = _limit(view, "rl_prompt_tokens", prompt, "dropped")
        return f"{said} and answers{limit}. The framed text is what really came; the model never reads it here.{tag}"
    limit = _limit(view, "sft_row_tokens", prompt + answer, "dropped")
    thought = "" if item.index in view.traces else " No trace is known for this turn: its thought is left empty."
    return f"{said} and learns to write {answer:,}{limit}.{thought}{tag}"


def _limit(view: View, key: str, tokens: int, fate: str) -> str:
    """A remark where a run's limit in tokens is passed."""
    limit = getattr(view.source.settings, key)
    return f"; more than data.{key}={limit:,}: {fate}" if view.source.in_run and tokens > limit else ""


def _plain(text: str) -> str:
    """A text of ours, with whatever names it holds."""
    return escape(visible(text, False))


def write(path: Path, text: str) -> None:
    """Write the page."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
