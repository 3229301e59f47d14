"""What is asked of the model that writes verifiers, and how its answers are read.

Two questions (arXiv:2606.24597 appendix C): one a trajectory, which sums up what is fixed in it and chooses turns, and
one a chosen turn, which is answered with facts and a program. The instructions are `prompts/verifier_turns.txt` and
`prompts/verifier_code.txt`; all material stands in one JSON object, which no text can leave.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from agentworld.data.examples import Example
from agentworld.data.schema import Trajectory, Turn
from agentworld.rewards.judge_reply import ReplyError
from agentworld.rewards.sandbox import FUNCTION, MODULES
from agentworld.rewards.turn_verifiers import AXES

CHARACTERS_A_TOKEN = 4  # an estimate: the tokenizer of the model is not known
TEXT_CHARACTERS = (8000, 4000, 2000, 1000, 500)  # what a text is shortened to, the first with which all of it fits
LONGEST_CODE = 20_000  # characters
LONGEST_SUMMARY = 8000

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCED = re.compile(r"^```[ \t]*(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class TooLongError(ValueError):
    """A trajectory or a turn that does not fit the budget even with all its texts shortened."""


@dataclass(frozen=True)
class Question:
    """A request as `JudgeClient.ask` takes it; `parse` makes JSON text of a reply or raises ReplyError."""

    system: str
    user: str
    parse: Callable[[str], str]

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]

    @property
    def tokens(self) -> int:
        return (len(self.system) + len(self.user)) // CHARACTERS_A_TOKEN


@cache
def instructions(name: str) -> str:
    """The text of a file of instructions."""
    text = files("agentworld.rewards.prompts").joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return text.replace("{modules}", ", ".join(MODULES))


@cache
def prompt_version() -> str:
    """A hash over both files of instructions, kept with each verifier."""
    both = instructions("verifier_turns") + instructions("verifier_code")
    return hashlib.sha256(both.encode()).hexdigest()[:12]


def turns_question(trajectory: Trajectory, eligible: Sequence[int], budget: int) -> Question:
    """Which turns a program can check.

    Args:
        eligible: turns that may be chosen.
        budget: tokens of the material.

    Raises:
        TooLongError: see there.
    """
    allowed = set(eligible)

    def material(limit: int) -> dict[str, Any]:
        turns = [
            {"turn": number, "eligible": number in allowed} | _turn(turn, limit)
            for number, turn in enumerate(trajectory.turns)
        ]
        return {"world": _world(trajectory, limit), "turns": turns}

    return Question(instructions("verifier_turns"), _fitted(material, budget), _parsed_choice)


def code_question(example: Example, choice: dict[str, Any], summary: dict[str, Any], budget: int) -> Question:
    """The program for one turn; action and truth are never shortened.

    Args:
        choice: the turn's entry of the first answer, with `axis` and `why`.
        summary: `initial_state` and `constraints` of the first answer.

    Raises:
        TooLongError: see there.
    """

    def material(limit: int) -> dict[str, Any]:
        return {
            "world": _world(example.trajectory, limit),
            "found_initial_state": summary["initial_state"],
            "constraints": summary["constraints"],
            "turns_before": [_turn(turn, limit) for turn in example.history],
            "axis": choice["axis"],
            "why": choice["why"],
            "action": example.action,
            "truth": example.observation,
        }

    return Question(instructions("verifier_code"), _fitted(material, budget), _parsed_code)


def _world(trajectory: Trajectory, limit: int) -> dict[str, str]:
    parts = {name: value for name, value in vars(trajectory.system).items() if value}
    return {"domain": trajectory.domain} | {name: _shortened(value, limit) for name, value in parts.items()}


def _turn(turn: Turn, limit: int) -> dict[str, str]:
    return {"action": _shortened(turn.action, limit), "observation": _shortened(turn.observation, limit)}


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _fitted(material: Callable[[int], dict[str, Any]], budget: int) -> str:
    for limit in TEXT_CHARACTERS:
        text = json.dumps(material(limit), ensure_ascii=False, indent=1)
        if len(text) <= budget * CHARACTERS_A_TOKEN:
            return text.encode("utf-8", "replace").decode()  # half an emoji cannot be sent
    raise TooLongError(f"{len(text) // CHARACTERS_A_TOKEN} tokens with every text shortened, more than {budget}")


def _parsed_choice(reply: str) -> str:
    """The first answer: {"initial_state", "constraints", "turns": [{"turn", "axis", "why"}, ...]} as JSON text.

    Raises:
        ReplyError: no such object in the last fenced block of JSON.
    """
    found = _json_block(reply, "turns")
    state, constraints, turns = found.get("initial_state", ""), found.get("constraints", []), found["turns"]
    if not isinstance(turns, list) or not all(_is_choice(turn) for turn in turns):
        raise ReplyError(f"turns must be objects with turn, axis (one of {', '.join(AXES)}) and why")
    if not isinstance(state, str) or not (
        isinstance(constraints, list) and all(isinstance(c, str) for c in constraints)
    ):
        raise ReplyError("initial_state must be a text and constraints a list of texts")
    if len(state) + sum(map(len, constraints)) > LONGEST_SUMMARY:
        raise ReplyError(f"a summary of more than {LONGEST_SUMMARY} characters")
    chosen = [{"turn": turn["turn"], "axis": turn["axis"], "why": str(turn.get("why", ""))[:500]} for turn in turns]
    return json.dumps({"initial_state": state, "constraints": constraints, "turns": chosen})


def _is_choice(turn: Any) -> bool:
    return isinstance(turn, dict) and type(turn.get("turn")) is int and turn.get("axis") in AXES


def _parsed_code(reply: str) -> str:
    """The second answer: {"facts": [...], "code": "..."} as JSON text; `code` is empty where the model declined.

    Raises:
        ReplyError: no facts, or facts without a program that defines the function.
    """
    facts = _json_block(reply, "facts")["facts"]
    if not isinstance(facts, list) or not all(isinstance(fact, str) for fact in facts):
        raise ReplyError("facts must be a list of texts")
    programs = [body for _, body in _blocks(reply) if re.search(rf"^def {FUNCTION}\(", body, re.MULTILINE)]
    if facts and not programs:
        raise ReplyError(f"no fenced block defines {FUNCTION}")
    code = programs[-1] if programs and facts else ""
    if len(code) > LONGEST_CODE:
        raise ReplyError(f"a program of {len(code)} characters")
    return json.dumps({"facts": list(dict.fromkeys(facts)), "code": code})


def _json_block(reply: str, key: str) -> dict[str, Any]:
    """The last fenced block that is a JSON object with this key."""
    for _, body in reversed(_blocks(reply)):
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and key in found:
            return found
    raise ReplyError(f"no fenced block of JSON with {key}")


def _blocks(reply: str) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks after the thinking."""
    text = _THINKING.sub("", reply.replace("\r\n", "\n")).rpartition("</think>")[2]
    return _FENCED.findall(text)
