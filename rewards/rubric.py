"""The reference scorer: the five published dimensions, computed from the real observation by fixed rules.

It is not the LLM judge of arXiv:2606.24597 section 3.4.1. It takes that judge's place where no model is at hand: same
five dimensions, same range 1 to 5, same input (only the text of the prediction, beside the truth), but no opinion.

An answer is read as up to three parts, and the truth decides which of them there are:

    echo    the first line, where the first line of the truth restates the action (a terminal shows what is typed);
            the answer has one if its first line is at least half the same
    body    what the environment itself has to say
    state   the last line, where the truth ends in a line that ends like a prompt ($ # % >);
            the answer has one if its last line ends in the same sign and space

Echo and state are easy and long, the body is hard and often short: one similarity over the whole answer would pay a
wrong body nearly as well as a right one. So each dimension looks at one thing:

    format        the shape: number of lines, an echo where there is one, how the last line ends, JSON where JSON is
    factuality    the words of the body: F1 against the truth, and an invented word is worse than a missing one
    consistency   echo and state: does the answer continue this very session
    realism       the characters of the body: trigrams shared with the truth
    quality       the whole answer, word by word and in order: 1 - normalised Levenshtein distance

What holds (tests/test_rubric.py): the truth scores 5 five times and nothing else does; an answer with nothing visible
in it scores 1 five times, and so does any visible answer to a truth without; text added to the truth lowers the mean;
words of praise gain nothing.
"""

import json
import re
from collections import Counter
from dataclasses import astuple, dataclass
from typing import Any

from rapidfuzz.distance import Levenshtein

LOWEST, HIGHEST = 1.0, 5.0
NEAR_MISS = 0.5  # an echo or a state that is not exact earns at most this share
ECHO_LIKENESS = 0.5  # a first line at least this similar to the true echo is the answer's echo
OMISSION = 0.25  # what a body without invented words earns, however much is missing from it

_WORD = re.compile(r"\w+")
_PIECE = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")  # a word or sign with the space before it; the pieces join to the text
_PROMPT = re.compile(r"\n[^\n]*[$#%>] ?$")
_VISIBLE = re.compile(r"\S")


@dataclass(frozen=True)
class RubricScores:
    """One float in [1, 5] a dimension."""

    format: float
    factuality: float
    consistency: float
    realism: float
    quality: float

    @property
    def mean(self) -> float:
        """The mean of the five, in [1, 5]."""
        return sum(astuple(self)) / 5


@dataclass(frozen=True)
class _Parts:
    echo: str
    body: str
    state: str


def reference_scores(prediction: str, reference: str, action: str) -> RubricScores:
    """Score a predicted observation against the real one.

    Args:
        prediction: text inside the prediction tag.
        reference: the real observation.
        action: the action as the trajectory holds it; JSON or plain text.
    """
    if prediction == reference:
        return RubricScores(HIGHEST, HIGHEST, HIGHEST, HIGHEST, HIGHEST)
    if bool(_VISIBLE.search(prediction)) != bool(_VISIBLE.search(reference)):
        return RubricScores(LOWEST, LOWEST, LOWEST, LOWEST, LOWEST)
    typed = _strings(action)
    first_lines = {text.split("\n", 1)[0] for text in typed} - {""}
    has_echo = reference.split("\n", 1)[0] in first_lines
    has_state = bool(_PROMPT.search(reference))
    truth = _parts(reference, has_echo, has_state)
    # The words of an answer without echo, or one that breaks off before its state, must not be taken for either.
    echoes = has_echo and _similarity(prediction.split("\n", 1)[0], truth.echo) >= ECHO_LIKENESS
    answer = _parts(prediction, echoes, has_state and _ending(prediction) == _ending(reference))
    # The echo has used up the words that it restates: `echo apple` may print apple, and that apple is a fact.
    given = _words("\n".join(typed)) - _words(truth.echo)
    return RubricScores(
        format=_scale(_shape(prediction, reference, first_lines)),
        factuality=_scale(_facts(_words(answer.body) - given, _words(truth.body) - given)),
        consistency=_scale(_continuity(answer, truth, has_echo, has_state)),
        realism=_scale(_dice(_trigrams(answer.body), _trigrams(truth.body))),
        quality=_scale(_similarity(prediction, reference)),
    )


def _scale(share: float) -> float:
    return LOWEST + (HIGHEST - LOWEST) * share


def _strings(action: str) -> list[str]:
    """The texts an action hands to the environment: the string values of a JSON action, else the action itself."""
    try:
        value = json.loads(action)
    except (ValueError, RecursionError):
        return [action]
    found: list[str] = []
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found


def _parts(text: str, has_echo: bool, has_state: bool) -> _Parts:
    echo, body, state = "", text, ""
    if has_echo:
        echo, _, body = body.partition("\n")
    if has_state:
        body, _, state = body.rpartition("\n")
    return _Parts(echo, body, state)


def _shape(prediction: str, reference: str, first_lines: set[str]) -> float:
    """Mean over the traits that apply; echo and JSON apply where either text has them."""
    lines = prediction.count("\n") + 1, reference.count("\n") + 1
    traits = [min(lines) / max(lines), float(_ending(prediction) == _ending(reference))]
    for of_prediction, of_reference in (
        (prediction.split("\n", 1)[0] in first_lines, reference.split("\n", 1)[0] in first_lines),
        (_is_json(prediction), _is_json(reference)),
    ):
        if of_prediction or of_reference:
            traits.append(float(of_prediction == of_reference))
    return sum(traits) / len(traits)


def _ending(text: str) -> str:
    """How the last line ends: its closing sign, if any, and the space behind it: `$ ` of a prompt, `}` of an object."""
    line = text.rpartition("\n")[2]
    seen = line.rstrip()
    sign = seen[-1:] if not _WORD.match(seen[-1:]) else ""
    return sign + line[len(seen) :]


def _is_json(text: str) -> bool:
    """Whether the text is a JSON object or array."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _facts(answer: Counter[str], truth: Counter[str]) -> float:
    """F1 of two multisets of words, mixed with the share of the answer's words that are not invented.

    A truth without words of its own wants an answer without: 1 if so, else 0.
    """
    shared = (answer & truth).total()
    if not truth:
        return 1.0 if not answer else 0.0
    f1 = 2 * shared / (answer.total() + truth.total())
    not_invented = shared / answer.total() if answer else 1.0
    return (1 - OMISSION) * f1 + OMISSION * not_invented


def _continuity(answer: _Parts, truth: _Parts, has_echo: bool, has_state: bool) -> float:
    """Mean agreement of the parts that the truth has; a truth of one line that is no echo is compared whole."""
    pairs = [(answer.echo, truth.echo)] if has_echo else []
    if has_state:
        pairs.append((answer.state, truth.state))
    return sum(_agreement(*pair) for pair in pairs or [(answer.body, truth.body)]) / max(1, len(pairs))


def _agreement(answer: str, truth: str) -> float:
    if answer == truth:
        return 1.0
    return NEAR_MISS * _similarity(answer, truth)


def _similarity(answer: str, truth: str) -> float:
    """1 - Levenshtein distance / longer length, counted in words and signs; two empty texts agree."""
    return Levenshtein.normalized_similarity(_PIECE.findall(answer), _PIECE.findall(truth))


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text))


def _trigrams(text: str) -> Counter[str]:
    """Multiset of character trigrams with one mark at each end, so that a single character has one; "" has none."""
    marked = f"\x02{text}\x03" if text else ""
    return Counter(marked[i : i + 3] for i in range(len(marked) - 2))


def _dice(answer: Counter[str], truth: Counter[str]) -> float:
    """2 |A and B| / (|A| + |B|) of two multisets; two empty ones agree."""
    total = answer.total() + truth.total()
    return 2 * (answer & truth).total() / total if total else 1.0
