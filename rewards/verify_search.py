"""Verifiers of a search session: the form of the result, repeated queries, leakage of the answer, a memory tool."""

import re
from typing import Any

from agentworld.rewards.json_shape import ABSENT, parsed
from agentworld.rewards.shell_text import normalised
from agentworld.rewards.verdicts import Item, Verdict, compared
from agentworld.rewards.verify_tools import schema

_NOT_FOUND = re.compile(r"Could not find \[(.*?)\]\. Similar: \[.*\]", re.DOTALL)
_PASSAGE = re.compile(r"\(Result (\d+) ?/ ?(\d+)\)")
_HIT = re.compile(r"^\s*(?:\[?(\d+)[.\])])\s+\S", re.MULTILINE)
_ANSWER = re.compile(r"^The reference answer in the simulated world: (.+)$", re.MULTILINE)  # data/simulation.py
_MEMORY = re.compile(r"(?i)memory|memo|note|scratchpad")
_WRITES = re.compile(r"(?i)write|save|store|set|add|create|put|update|append")
_READS = re.compile(r"(?i)read|get|list|load|recall|retrieve|search|open|view")


def structure(item: Item) -> Verdict | None:
    """The kind of result, where it is one with a form: not found (with the title that was asked for), a passage (with
    its counter), no results, a numbered list (with its numbers)."""
    expected = _kind(item.reference)
    if expected == ("text",):
        return None
    return compared("structure", "result", _kind(item.prediction), expected)


def repeated(item: Item) -> Verdict | None:
    """The answer that the same search got before, where the session shows that it still gets it."""
    before = [turn.observation for turn in item.context.history if turn.action == item.action]
    if not before or before[-1] != item.reference:
        return None
    return compared("repeated", "answer", normalised(item.prediction), normalised(item.reference))


def no_leakage(item: Item) -> Verdict | None:
    """The reference answer is not given away: it stands in the prediction only if the session has shown it, or if the
    truth holds it. It applies where the instruction names an answer and neither is so."""
    named = _ANSWER.search(item.context.simulation_instruction)
    if not named:
        return None
    answer = _folded(named[1])
    shown = [item.reference, item.action, *(t.action for t in item.context.history)]
    shown += [turn.observation for turn in item.context.history]
    if len(answer) < 3 or any(_holds(text, answer) for text in shown):
        return None  # shorter than a word, "no" and "42" stand in many honest texts
    if _holds(item.prediction, answer):
        return Verdict("no_leakage", False, "the reference answer stands in it, and the session has not shown it")
    return Verdict("no_leakage", True, "the reference answer is not given away")


def memory(item: Item) -> Verdict | None:
    """What a memory tool was given comes back when it is read, where the truth brings it back."""
    name, _ = _call(item.action)
    if not _MEMORY.search(name) or not _READS.search(name):
        return None
    kept = [value for turn in item.context.history for value in _written(turn.action) if value in item.reference]
    if not kept:
        return None
    lost = [value for value in kept if value not in item.prediction]
    if lost:
        return Verdict("memory", False, f"{len(lost)} of {len(kept)} stored values are missing")
    return Verdict("memory", True, f"all {len(kept)} stored values come back")


def _kind(text: str) -> tuple[str, ...]:
    stripped = text.strip()
    if found := _NOT_FOUND.fullmatch(stripped):
        return "not found", found[1]
    if found := _PASSAGE.match(stripped):
        return "passage", found[1], found[2]
    if re.fullmatch(r"No (?:More )?Results?\.?", stripped):
        return "none", stripped
    numbers = _HIT.findall(text)
    if numbers[:2] == ["1", "2"]:
        return "list", *numbers
    return ("text",)


def _folded(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _holds(text: str, answer: str) -> bool:
    return f" {answer} " in f" {_folded(text)} "


def _call(action: str) -> tuple[str, Any]:
    call = parsed(action)
    if call is ABSENT or not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return "", {}
    return call["name"], call.get("arguments", {})


def _written(action: str) -> list[str]:
    """The texts that a call writes to a memory tool; keys such as "a" that say little are left out."""
    name, arguments = _call(action)
    if not _MEMORY.search(name) or not _WRITES.search(name) or not isinstance(arguments, dict):
        return []
    return [value for value in arguments.values() if isinstance(value, str) and len(value) >= 3]


VERIFIERS = (structure, repeated, no_leakage, memory, schema)
