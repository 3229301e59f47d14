"""Proof of a reward on gold: the truth scores the maximum, and each corruption of it that changes the text scores less.

The corruptions are fixed; where one has a choice (which line, which letter) it is drawn by a hash of the turn, so that
a second proof is the same.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from agentworld.data import draws
from agentworld.data.examples import Example
from agentworld.data.render import Prediction
from agentworld.data.system_prompts import EVALUATION_VERSION, system_prompt
from agentworld.rewards.hybrid import RUBRIC_SCALE
from agentworld.rewards.judge_prompt import messages_of
from agentworld.rewards.outcomes import Completion, Outcome
from agentworld.rewards.rubric import HIGHEST
from agentworld.rewards.verdicts import context_of

MAXIMUM = RUBRIC_SCALE * HIGHEST
PROMPT_SET = "brief"  # of the system prompt that a judge reads
PRAISE = "The operation completed successfully with all fields correctly populated."

_WORD = re.compile(r"[A-Za-z]{3,}")
_NUMBER = re.compile(r"\d+")
_KEY = re.compile(r'"([^"\\\n]+)"(\s*:)')


def _typo(example: Example) -> str:
    """Two neighbouring letters of a word change places, or one is doubled where they are the same."""
    text = example.observation
    found = _chosen(_WORD.finditer(text), "typo", example)
    if found is None:
        return text
    one, other = found[0][0], found[0][1]
    return text[: found.start()] + (other + one if one != other else one * 3) + text[found.start() + 2 :]


def _dropped_line(example: Example) -> str:
    lines = example.observation.split("\n")
    if len(lines) > 1:
        del lines[draws.choice(len(lines), "corruption", 0, "line", example.key)]
    return "\n".join(lines)


def _wrong_number(example: Example) -> str:
    found = _chosen(_NUMBER.finditer(example.observation), "number", example)
    if found is None:
        return example.observation
    digit = str((int(found[0][-1]) + 1) % 10)
    return example.observation[: found.end() - 1] + digit + example.observation[found.end() :]


def _stale_state(example: Example) -> str:
    """What the environment answered before; the truth itself at the first turn."""
    return example.history[-1].observation if example.history else example.observation


def _renamed_key(example: Example) -> str:
    text = example.observation
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    found = _chosen(_KEY.finditer(text), "key", example)
    return text if found is None else f'{text[: found.start()]}"{found[1]}_2"{found[2]}{text[found.end() :]}'


def _praise_added(example: Example) -> str:
    return f"{example.observation}\n{PRAISE}"


def _truncated(example: Example) -> str:
    return example.observation[: len(example.observation) // 2]


def _empty(example: Example) -> str:
    return ""


CORRUPTIONS: dict[str, Callable[[Example], str]] = {
    "typo": _typo,
    "dropped line": _dropped_line,
    "wrong number": _wrong_number,
    "stale state": _stale_state,
    "renamed key": _renamed_key,
    "praise added": _praise_added,
    "truncated": _truncated,
    "empty": _empty,
}


@dataclass(frozen=True)
class Version:
    """The truth of a turn, or a corruption of it, to be rewarded as a prediction. `key`: of the turn."""

    domain: str
    name: str
    key: str
    completion: Completion


def versions(examples: Iterable[Example]) -> Iterator[Version]:
    """The truth of each turn, as "truth", and every corruption that changes it."""
    for example in examples:
        context = context_of(example.domain, example.history, example.trajectory.system)
        system = system_prompt(example.trajectory, EVALUATION_VERSION["rl"], PROMPT_SET)
        messages = messages_of(system, example.history, example.action)
        for name, text in _texts(example):
            prediction = Prediction(text, None, ended=True, tag_valid=True)
            rest = (example.observation, example.action, example.deterministic, example.domain, messages, None, context)
            yield Version(example.domain, name, example.key, Completion(prediction, *rest))


@dataclass
class Proof:
    """What became of one corruption (or, as "truth", of the truth) in one domain. `margins`: the maximum minus the
    reward, one a turn whose text it changed. `failed`: keys of turns on which the reward does not hold. `unjudged`: of
    those that have no reward, since a judge failed."""

    margins: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)


def prove(rewarded: Iterable[tuple[Version, Outcome]]) -> dict[tuple[str, str], Proof]:
    """What became of the truth and every corruption, by (domain, name); "truth" has the margin that must be 0."""
    proofs: dict[tuple[str, str], Proof] = {}
    for version, outcome in rewarded:
        proof = proofs.setdefault((version.domain, version.name), Proof())
        if outcome.total is None:
            proof.unjudged.append(version.key)
            continue
        margin = MAXIMUM - outcome.total
        proof.margins.append(margin)
        holds = abs(margin) < 1e-9 if version.name == "truth" else margin > 1e-9
        if not holds:
            proof.failed.append(version.key)
    return proofs


def _texts(example: Example) -> Iterator[tuple[str, str]]:
    yield "truth", example.observation
    for name, corrupt in CORRUPTIONS.items():
        text = corrupt(example)
        if text != example.observation:
            yield name, text


def _chosen(matches: Iterable[re.Match[str]], name: str, example: Example) -> re.Match[str] | None:
    found = list(matches)
    return found[draws.choice(len(found), "corruption", 0, name, example.key)] if found else None
