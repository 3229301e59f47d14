"""Verifiers of tool calls (MCP) and of software engineering: JSON, kind of error, exit status, files after an edit."""

import re
from typing import Any

from agentworld.rewards.json_shape import ABSENT, declared_validator, differences, meets, parsed, shape_validator
from agentworld.rewards.shell_text import error_classes, normalised
from agentworld.rewards.verdicts import Item, Verdict, compared, without
from agentworld.rewards.verify_terminal import status

_FAILURE = re.compile(r"(?i)\s*(?:error|exception|traceback|failed|failure|invalid|tool call failed)\b")
_EDITS = re.compile(
    r"(?:^|[>\s\"'])(?:str_replace\w*|edit|insert|create|sed\s+-i|apply_patch|write_file)(?=$|[<\s\"':])"
)
_NUMBERED = re.compile(r"^ *(\d+)(?:\t|:)(.*)$", re.MULTILINE)


def json_equal(item: Item) -> Verdict | None:
    """Equality with the truth but for volatile fields, where the truth is JSON and deterministic."""
    expected = parsed(item.reference)
    if item.deterministic is not True or expected is ABSENT:
        return None
    found = parsed(item.prediction)
    if found is ABSENT:
        return Verdict("json_equal", False, "no JSON object or array, the truth is one")
    known = "\n".join([item.action, *(turn.observation for turn in item.context.history)])
    return without("json_equal", differences(found, expected, known), "JSON values")


def text_equal(item: Item) -> Verdict | None:
    """Equality of texts that are not JSON, on deterministic turns, after the normalisation of `shell_text`."""
    if item.deterministic is not True or parsed(item.reference) is not ABSENT:
        return None
    return compared("text_equal", "text", normalised(item.prediction), normalised(item.reference))


def schema(item: Item) -> Verdict | None:
    """The answer has the schema that the tool declares, or else the shape of the truth, where the truth is JSON."""
    if parsed(item.reference) is ABSENT:
        return None
    found = parsed(item.prediction)
    if found is ABSENT:
        return Verdict("schema", False, "no JSON object or array, the truth is one")
    validator = declared_validator(item.context.action_space, _tool(item.action))
    by = "the declared schema"
    # The truth is the measure where it does not have what was declared (an error message does not).
    if validator is None or not meets(validator, parsed(item.reference)) or meets(validator, found) is None:
        validator, by = shape_validator(item.reference), "the shape of the truth"
    if meets(validator, found):
        return Verdict("schema", True, f"has {by}")
    wrong = next(validator.iter_errors(found))
    return Verdict("schema", False, f"{wrong.json_path} breaks {by} ({wrong.validator})")


def error_type(item: Item) -> Verdict | None:
    """Failure or success, and the kinds of error, where the truth is a failure or names a kind of error."""
    expected = _failure(item.reference)
    if expected == (False, frozenset()):
        return None
    found = _failure(item.prediction)
    if found[0] != expected[0]:
        words = ("succeeds", "fails")
        return Verdict("error_type", False, f"{words[found[0]]}, in truth it {words[expected[0]]}")
    return compared("error_type", "errors", sorted(found[1]), sorted(expected[1]))


def edited_lines(item: Item) -> Verdict | None:
    """The lines that an edit put into a file, at their numbers, where the truth shows them behind line numbers."""
    if not _EDITS.search(item.action):
        return None
    new = {line.strip() for line in item.action.replace("\\n", "\n").split("\n")} - {""}
    shown = {(number, text.rstrip()) for number, text in _NUMBERED.findall(item.reference) if text.strip() in new}
    if not shown:
        return None
    found = {(number, text.rstrip()) for number, text in _NUMBERED.findall(item.prediction)}
    lost = [f"line {number}" for number, _ in sorted(shown - found)]
    return without("edited_lines", lost, "lines that the edit wrote")


def _tool(action: str) -> str:
    call = parsed(action)
    return str(call.get("name", "")) if isinstance(call, dict) else ""


def _failure(text: str) -> tuple[bool, frozenset[str]]:
    value: Any = parsed(text)
    if isinstance(value, dict):
        failed = value.get("isError") is True or bool(value.get("error")) or value.get("success") is False
    else:
        failed = bool(_FAILURE.match(text))
    return failed, error_classes(text)


MCP_VERIFIERS = (json_equal, text_equal, schema, error_type)
SWE_VERIFIERS = (json_equal, text_equal, schema, error_type, status, edited_lines)
