"""What a judge answered, as scores or as a choice: tolerant of form, strict about content.

A judge is asked for `<final_evaluation>{"format": 4, ...}</final_evaluation>`, of a pair for `{"winner": "A"}` in that
place. Models wrap that in thoughts and fences, write Python instead of JSON, or box the letter. All of this is read; a
score that is missing, no number or out of range, and a winner other than A, B or tie, are not guessed: the whole reply
is refused, and the judge is asked again.
"""

import ast
import json
import math
import re
import warnings
from dataclasses import fields
from typing import Any

from agentworld.rewards.preference import CHOICES
from agentworld.rewards.rubric import HIGHEST, LOWEST, RubricScores

DIMENSIONS = tuple(field.name for field in fields(RubricScores))
OPEN, CLOSE = "<final_evaluation>", "</final_evaluation>"
BOX = "\\boxed{"
LONGEST_BLOCK = 20_000  # characters: a longer one is no evaluation, and could exhaust a parser

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"\A```\w*\s*(.*?)\s*(?:```)?\Z", re.DOTALL)
_STYLED = re.compile(r"\A\\(?:text|textbf|mathbf|mathrm)\{(.*)\}\Z", re.DOTALL)
_NAMED = re.compile(r"(?:the\s+)?(?:candidate|answer|option|observation)\s+(?=[ab]\Z)", re.IGNORECASE)


class ReplyError(ValueError):
    """The reply holds no evaluation that can be used; the text says why."""


def parse_reply(reply: str) -> RubricScores:
    """The scores of a reply.

    Thinking is removed first. The last `<final_evaluation>` counts, even if it is damaged and one before it is not: an
    earlier one may be a quotation. Without the tag, the reply must be the object and nothing else. A value is a number
    from 1 to 5, or an object that holds it as `score`.

    Raises:
        ReplyError: no block, no object, a dimension missing or named twice, a value that is no number from 1 to 5.
    """
    text = _without_thinking(reply)
    _, tag, block = text.rpartition(OPEN)
    block = (block.partition(CLOSE)[0] if tag else text).strip()
    block = _FENCE.sub(r"\1", block)
    if tag:  # words beside the object
        start, end = block.find("{"), block.rfind("}")
        block = block[start : end + 1] if start >= 0 else block
    if not block:
        raise ReplyError("no evaluation in the reply")
    if len(block) > LONGEST_BLOCK:
        raise ReplyError(f"an evaluation of {len(block)} characters")
    found = _object(block)
    return RubricScores(**{name: _score(name, found) for name in DIMENSIONS})


def parse_choice(reply: str) -> str:
    """The choice of a reply about a pair: one of `CHOICES`.

    The last `<final_evaluation>` or `\\boxed{}` counts, whichever stands later, even if it is damaged and one before it
    is not. It holds the letter, or an object with the letter as `winner`. Without either, the reply must be that and
    nothing else.

    Raises:
        ReplyError: no such answer, one that is not closed, a winner other than A, B or tie.
    """
    text = _without_thinking(reply)
    tag, box = text.rfind(OPEN), text.rfind(BOX)
    if box > tag:
        block, closed = _boxed(text[box + len(BOX) :])
    elif tag >= 0:
        block, closed, _ = text[tag + len(OPEN) :].partition(CLOSE)
    else:
        block, closed = text, "the end of the reply"
    block = _FENCE.sub(r"\1", block.strip())
    if len(block) > LONGEST_BLOCK:
        raise ReplyError(f"an evaluation of {len(block)} characters")
    if "{" in block and not _STYLED.match(block):
        words_beside = max(box, tag) >= 0
        found = _object(block[block.find("{") : block.rfind("}") + 1] if words_beside else block)
        if "winner" not in found:
            raise ReplyError("the evaluation has no winner")
        return _choice(found["winner"])
    if not closed:
        raise ReplyError("the evaluation is not closed")
    return _choice(block)


def _without_thinking(reply: str) -> str:
    text = _THINKING.sub("", reply)
    return text.rpartition("</think>")[2]  # some servers send the end of the thought only


def _boxed(text: str) -> tuple[str, str]:
    """What stands up to the brace that closes a box, and that brace, or "" where none does."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:place], "}"
    return text, ""


def _choice(value: Any) -> str:
    if not isinstance(value, str):
        raise ReplyError("the winner is no text")
    word = _STYLED.sub(r"\1", value.strip()).strip().strip("*_`'\".").strip()
    word = _NAMED.sub("", word)
    for choice in CHOICES:
        if word.lower() == choice.lower():
            return choice
    raise ReplyError(f"the winner is none of {', '.join(CHOICES)}")


def _object(block: str) -> dict[str, Any]:
    """JSON, or a Python literal: the same with single quotes and trailing commas. Keys in lower case."""
    try:
        value = json.loads(block, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ReplyError):
            raise
        value = _literal(block)
    if not isinstance(value, dict):
        raise ReplyError("the evaluation is no object")
    return _without_duplicates([(str(key).lower(), entry) for key, entry in value.items()])


def _literal(block: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of "\d" inside a reason
            tree = ast.parse(block, mode="eval").body
            if isinstance(tree, ast.Dict):
                _without_duplicates([(key.value, None) for key in tree.keys if isinstance(key, ast.Constant)])
            return ast.literal_eval(tree)
    except ReplyError:
        raise
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ReplyError("the evaluation is neither JSON nor nearly so") from None


def _without_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dictionary of the pairs; of a name given twice nobody knows which value is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ReplyError("the evaluation names a key twice")
    return found


def _score(name: str, found: dict[str, Any]) -> float:
    if name not in found:
        raise ReplyError(f"the evaluation has no {name}")
    value = found[name]
    if isinstance(value, dict):
        value = value.get("score")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReplyError(f"{name} is no number")
    if not math.isfinite(value) or not LOWEST <= value <= HIGHEST:
        raise ReplyError(f"{name} is not from {LOWEST:g} to {HIGHEST:g}")
    return float(value)
