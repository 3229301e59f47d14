"""Which proposed verifiers are kept: the truth passes, damaged truths fail, and the rubric agrees on rollouts.

A proposal names its facts: pieces of the truth without which an answer is wrong. Rules, in this order:

    facts        at least one; each a piece of the truth of two characters or more
    truth        verify(truth) is True
    damage       verify(text) is False for the observation before, where it is another, and for each text that lacks a
                 fact: the truth with one fact damaged (left out; a digit changed; two letters changed), every
                 corruption of rewards/corruptions.py, and up to four other observations of the trajectory. A corruption
                 elsewhere leaves all facts standing, and what the verifier says of it is free: it tests one thing.
    no failure   none of these calls ends without a verdict
    rollouts     where predictions of the turn are given: the share on which the verdict equals the label is at least
                 `agreement`. Label yes: the rubric's mean is at least `rubric_yes`, of 1 to 5.

A verifier that says yes to everything fails at `damage`: the empty text lacks every fact.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentworld.data.errors import ContentError
from agentworld.data.examples import Example
from agentworld.data.render import parse_text, without_end
from agentworld.rewards import sandbox
from agentworld.rewards.corruptions import CORRUPTIONS
from agentworld.rewards.hybrid import RUBRIC_SCALE
from agentworld.rewards.predictions import read_rows
from agentworld.rewards.rubric import reference_scores
from agentworld.rewards.sandbox import Answer, Task
from agentworld.rewards.turn_verifiers import LIMITS

CHECKED = replace(LIMITS, stop=True)
SHORTEST_FACT = 2  # characters that are not blank
OTHER_OBSERVATIONS = 4

_DIGIT = re.compile(r"\d")
_LETTERS = re.compile(r"[^\W\d_]{2}")


@dataclass(frozen=True)
class Proposal:
    """What the model wrote for one turn."""

    example: Example
    axis: str
    facts: tuple[str, ...]
    code: str


@dataclass(frozen=True)
class Rollout:
    """The text of one prediction of a turn, and whether the rubric takes it for right."""

    text: str
    label: bool


@dataclass
class Rollouts:
    """Predictions by (key, truth). `unusable`: rows of broken form, or without a reward since a judge failed."""

    by_turn: dict[tuple[str, str], list[Rollout]] = field(default_factory=dict)
    rows: int = 0
    unusable: int = 0

    def of(self, example: Example) -> list[Rollout]:
        return self.by_turn.get((example.key, example.observation), [])


@dataclass(frozen=True)
class Checked:
    """`reason` is "" for a verifier that is kept, else the class of the fault, and `detail` says more. `rollouts` and
    `agreed`: how many predictions of the turn there were, and on how many the rubric agreed."""

    reason: str
    detail: str = ""
    rollouts: int = 0
    agreed: int = 0


def read_rollouts(path: Path, form: str, rubric_yes: float) -> Rollouts:
    """Predictions as `agentworld score` reads or writes them; what was scored keeps its rubric, a judge's included, and
    what was not is scored by the reference scorer.

    Raises:
        RequestError, ContentError: the file cannot be read; a row lacks a field.
    """
    found = Rollouts()
    for where, row in read_rows(path):
        found.rows += 1
        texts = ("action", "truth", "prediction")
        if not {"id", "turn"} <= row.keys() or not all(isinstance(row.get(name), str) for name in texts):
            raise ContentError(f"{where}: a rollout needs id, turn, and the texts action, truth and prediction")
        raw = without_end(row["prediction"])
        tagged = form == "tagged"
        prediction = parse_text(raw, bool(row.get("ended", True)), tagged)
        broken = tagged and not (prediction.tag_valid and prediction.ended)
        rubric = row.get("rubric", ...)
        if isinstance(row.get("scores"), dict) and "win" in row["scores"]:
            raise ContentError(f"{where}: scored by a judge of pairs, whose rubric has no threshold; use reward judge")
        if broken or not isinstance(rubric, int | float | type(...)):
            found.unusable += 1
            continue
        if rubric is ...:
            rubric = RUBRIC_SCALE * reference_scores(prediction.text, row["truth"], row["action"]).mean
        rollout = Rollout(prediction.text, rubric / RUBRIC_SCALE >= rubric_yes)
        found.by_turn.setdefault((f"{row['id']}#{row['turn']}", row["truth"]), []).append(rollout)
    return found


def check(proposals: Sequence[Proposal], rollouts: Rollouts, agreement: float) -> list[Checked]:
    """What becomes of each proposal, in order. All programs run in the sandbox, several at once."""
    outcomes = [_facts_fault(proposal) for proposal in proposals]
    open_ones = [number for number, outcome in enumerate(outcomes) if outcome is None]
    asked = [_texts(proposals[number], rollouts) for number in open_ones]
    tasks = [Task(proposals[number].code, texts) for number, texts in zip(open_ones, asked, strict=True)]
    for number, texts, answers in zip(open_ones, asked, sandbox.run(tasks, CHECKED), strict=True):
        said = dict(zip(texts, answers, strict=True))
        outcomes[number] = _checked(proposals[number], rollouts, said, agreement)
    return [outcome for outcome in outcomes if outcome is not None]


def damaged(proposal: Proposal) -> list[tuple[str, str]]:
    """Texts to which the verifier must say no, each with the name of its damage."""
    example, truth = proposal.example, proposal.example.observation
    others = [turn.observation for turn in example.trajectory.turns if turn.observation != truth]
    found = [(name, corrupt(example)) for name, corrupt in CORRUPTIONS.items()]
    found += [("another turn", text) for text in others[:OTHER_OBSERVATIONS]]
    for fact in proposal.facts:
        found += [(f"{name} in a fact", truth.replace(fact, text)) for name, text in _damages(fact)]
    stale = found[list(CORRUPTIONS).index("stale state")][1]
    return [
        (name, text)
        for name, text in found
        if text != truth and (text == stale or any(fact not in text for fact in proposal.facts))
    ]


def _damages(fact: str) -> Iterable[tuple[str, str]]:
    """A fact left out, with a digit changed, and with two neighbouring letters changed about (or one doubled)."""
    yield "gap", ""
    if digits := list(_DIGIT.finditer(fact)):
        last = digits[-1]
        yield "wrong number", f"{fact[: last.start()]}{(int(last[0]) + 1) % 10}{fact[last.end() :]}"
    if pair := _LETTERS.search(fact):
        one, other = pair[0]
        yield "typo", fact[: pair.start()] + (other + one if one != other else one * 3) + fact[pair.end() :]


def _facts_fault(proposal: Proposal) -> Checked | None:
    if not proposal.facts:
        return Checked("declined")
    for fact in proposal.facts:
        if len(fact.strip()) < SHORTEST_FACT:
            return Checked("a fact too short", repr(fact))
        if fact not in proposal.example.observation:
            return Checked("a fact that is not in the truth", repr(fact[:80]))
    return None


def _texts(proposal: Proposal, rollouts: Rollouts) -> tuple[str, ...]:
    """All different texts that the verifier is asked about, the truth first."""
    texts = [proposal.example.observation, *(text for _, text in damaged(proposal))]
    return tuple(dict.fromkeys([*texts, *(rollout.text for rollout in rollouts.of(proposal.example))]))


def _checked(proposal: Proposal, rollouts: Rollouts, said: dict[str, Answer], agreement: float) -> Checked:
    truth = said[proposal.example.observation]
    if not isinstance(truth, bool):
        return Checked("no verdict on the truth", truth)
    if not truth:
        return Checked("the truth fails")
    for name, text in damaged(proposal):
        if not isinstance(said[text], bool):
            return Checked("no verdict on a damaged truth", f"{name}: {said[text]}")
        if said[text]:
            return Checked("a damaged truth passes", name)
    given = rollouts.of(proposal.example)
    verdicts = [said[rollout.text] for rollout in given]
    if silent := next((verdict for verdict in verdicts if not isinstance(verdict, bool)), None):
        return Checked("no verdict on a rollout", silent, len(given))
    agreed = sum(verdict == rollout.label for verdict, rollout in zip(verdicts, given, strict=True))
    if given and agreed < agreement * len(given):
        return Checked("the rubric disagrees", f"{agreed} of {len(given)} rollouts", len(given), agreed)
    return Checked("", "", len(given), agreed)
