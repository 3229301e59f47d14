"""The filters of the paper over one trajectory (arXiv:2606.24597 section 3.1.2), as `agentworld import` applies them.

In this order, so that what one filter mends is not held against the trajectory by the next:

    empty_action         turns      the action is blank
    retry_cycle          turns      a call that could not be understood, before one that could
    undeclared_tool      trajectory (mcp, swe) a call of a tool that the action space does not declare
    environment_failure  trajectory (web, android, os) a missing state, a CAPTCHA, an HTTP or network error page
    unchanged_state      turns      (web, android, os) the state after the action is the one before it
    too_short            trajectory fewer than two turns are left

`meta.context_only` is no reason to drop a turn: what a harness said stays history.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from agentworld.data.environment_failures import GUI_DOMAINS, environment_failure
from agentworld.data.schema import Trajectory, Turn

MIN_TURNS = 2
TOOL_DOMAINS = ("mcp", "swe")
TURN_FILTERS = ("empty_action", "retry_cycle", "unchanged_state")
TRAJECTORY_FILTERS = ("undeclared_tool", "environment_failure", "too_short")
# The turns that are left in a trajectory when it is dropped: with these, turns read = kept + removed.
OF_REJECTED = "of_rejected_trajectories"

# Answers that say nothing else than that the call was not understood, and so was never carried out. Each is a fixed
# text of the named software. Answers about arguments or values ("'path' is a required property") are not among them:
# those are how a tool answers a wrong call, which is what a world model has to learn. Nor is what a command prints.
_NAME = r"['\"`]?[\w./:-]{1,100}['\"`]?"
_OF_A_CALL = re.compile(
    rf"""(?:Error(?:\ executing\ tool\ {_NAME})?:\ )?(?:
        MCP\ error\ -32(?:700|600|601):\ .*                      # JSON-RPC: not JSON, no request, no such method
      | (?:MCP\ error\ -32602:\ )?Unknown\ tool:\ {_NAME}        # MCP SDK for Python, FastMCP
      | (?:MCP\ error\ -32602:\ )?Tool\ {_NAME}\ not\ found\.?   # MCP SDK for TypeScript
      | Unknown\ action\ {_NAME}                                 # tau-bench
      | {_NAME}\ is\ not\ a\ valid\ tool,\ try\ (?:another\ )?one.*    # LangChain, LangGraph
      | Function\ {_NAME}\ not\ found\.                          # AutoGen
    )""",
    re.VERBOSE | re.DOTALL,
)
_OF_A_DOMAIN = {
    "search": re.compile(
        r"Invalid Action\. Valid Actions are .*|Invalid Format: Missing 'Action.*", re.DOTALL
    ),  # ReAct
    "terminal": re.compile(r"Previous response had parsing errors:\n.*", re.DOTALL),  # Terminus
    "web": re.compile(  # BrowserGym
        r"(?:.*\n)?Error of the last action:\n(?:Error: )?(?:ValueError: Received (?:an empty|a multi-)action"
        r"|NameError: Invalid action type).*",
        re.DOTALL,
    ),
}
_LONGEST_REPLY = 4000  # characters of such an answer
# What the formats say of a turn whose action did not fit the harness (browsergym, hotpotqa_react, android_world).
_REFUSED = ("format-error reply of the harness", "the harness did not carry out the action")
_ERROR_HEAD, _AFTER_ERROR = re.compile(r"^Error of the last action:\n", re.MULTILINE), "\n\nAccessibility tree:\n"
_XML_CALL = re.compile(r"<function=([^>\s]{1,200})>")


@dataclass(frozen=True)
class Cleaned:
    """`trajectory` is None where a filter dropped it, and `reason` says why. `turns` counts the turns that went by
    filter, `dropped_by` names the filter of a dropped trajectory."""

    trajectory: Trajectory | None
    turns: Counter[str] = field(default_factory=Counter)
    dropped_by: str = ""
    reason: str = ""


def clean(trajectory: Trajectory) -> Cleaned:
    """Apply all filters, in the order of the table above."""
    gone: Counter[str] = Counter()
    left = trajectory

    def dropped(by: str, reason: str) -> Cleaned:
        gone[OF_REJECTED] = len(left.turns)
        return Cleaned(None, gone, by, reason)

    left, gone["empty_action"] = strip_empty_actions(left)
    left, gone["retry_cycle"] = skip_retry_cycles(left)
    if reason := undeclared_tool(left):
        return dropped("undeclared_tool", reason)
    if reason := environment_failure(left):
        return dropped("environment_failure", reason)
    left, gone["unchanged_state"] = drop_unchanged_states(left)
    if len(left.turns) < MIN_TURNS:
        return dropped("too_short", f"fewer than {MIN_TURNS} turns: {len(left.turns)} of {len(trajectory.turns)} left")
    return Cleaned(left, gone)


def strip_empty_actions(trajectory: Trajectory) -> tuple[Trajectory, int]:
    """Take out turns whose action is blank; returns what is left, maybe without turns, and how many went."""
    return _keeping(trajectory, [bool(turn.action.strip()) for turn in trajectory.turns])


def skip_retry_cycles(trajectory: Trajectory) -> tuple[Trajectory, int]:
    """Take out the turns of "garbage, error, retry": the answer says that the call was not understood (see
    `is_not_understood`), and a turn that was understood follows, however many tries later.

    Such a call changed nothing, so the next turn inherits the history as if it had not been made. In GUI domains that
    is checked: a turn that shows another state than the one before it stays. So does a last try that nothing follows.
    """
    before = trajectory.system.initial_state
    understood = []
    for turn in trajectory.turns:
        state = _state(turn.observation) if trajectory.domain in GUI_DOMAINS else None
        moved = trajectory.domain in GUI_DOMAINS and state != before
        understood.append(moved or not is_not_understood(turn, trajectory.domain))
        before = state
    last = max((place for place, good in enumerate(understood) if good), default=-1)
    return _keeping(trajectory, [good or place > last for place, good in enumerate(understood)])


def is_not_understood(turn: Turn, domain: str) -> bool:
    """Whether the answer says that the call was malformed, unparsable or of an unknown tool, and nothing else."""
    if turn.meta.get("context_only") in _REFUSED:
        return True
    known = _OF_A_DOMAIN.get(domain)
    if known is not None and known.fullmatch(turn.observation):
        return True
    if len(turn.observation) > _LONGEST_REPLY or not _OF_A_CALL.fullmatch(_answer(turn.observation)):
        return False
    return domain in ("mcp", "search") or any(_called(turn.action))


def undeclared_tool(trajectory: Trajectory) -> str | None:
    """Why a trajectory of tools is dropped, or None.

    The action space declares tools where it holds JSON objects with a name, one or a list of them a line. Without any,
    and for actions that are no calls (command lines), nothing is declared and nothing is dropped.
    """
    if trajectory.domain not in TOOL_DOMAINS:
        return None
    declared = {name for line in trajectory.system.action_space.split("\n") for name in _names(line)}
    if not declared:
        return None
    for turn in trajectory.turns:
        for name in _called(turn.action):
            if name not in declared:
                return f"calls {name}, which is none of the {len(declared)} tools of its action space"
    return None


def drop_unchanged_states(trajectory: Trajectory) -> tuple[Trajectory, int]:
    """Take out the turns of GUI domains after which the state is, character for character, the one before.

    The state before the first turn is the initial state, where it is known. Turns that are context only stay.
    """
    if trajectory.domain not in GUI_DOMAINS:
        return trajectory, 0
    before = [trajectory.system.initial_state, *(turn.observation for turn in trajectory.turns)]
    changed = [
        turn.observation != state or "context_only" in turn.meta
        for turn, state in zip(trajectory.turns, before, strict=False)
    ]
    return _keeping(trajectory, changed)


def _keeping(trajectory: Trajectory, keep: list[bool]) -> tuple[Trajectory, int]:
    if all(keep):
        return trajectory, 0
    turns = [turn for turn, kept in zip(trajectory.turns, keep, strict=True) if kept]
    return replace(trajectory, turns=turns), len(keep) - len(turns)


def _state(observation: str) -> str:
    """The state that an observation shows, without the error of the last action."""
    parts, place = [], 0
    while head := _ERROR_HEAD.search(observation, place):
        end = observation.find(_AFTER_ERROR, head.end())
        if end < 0:
            break
        parts.append(observation[place : head.start()])
        place = end + 2
    return "".join([*parts, observation[place:]])


def _answer(observation: str) -> str:
    """The text of an answer; of an MCP result in JSON that is an error, the text of its parts."""
    text = observation.strip()
    if not text.startswith("{") or '"isError"' not in text:
        return text
    result = _parsed(text)
    if not isinstance(result, dict) or result.get("isError") is not True or not isinstance(result.get("content"), list):
        return text
    parts = [part.get("text") for part in result["content"] if isinstance(part, dict)]
    return "\n".join(part for part in parts if isinstance(part, str)).strip()


def _called(action: str) -> Iterator[str]:
    """The tools that an action calls: JSON `{"name": ...}`, or `<function=NAME>`."""
    yield from _names(action)
    yield from _XML_CALL.findall(action) if action.lstrip().startswith("<function=") else ()


def _names(text: str) -> Iterator[str]:
    """The names of a JSON object or of a list of them; of a definition in OpenAI's form, that of its function."""
    if text.lstrip()[:1] not in ("{", "["):
        return
    value = _parsed(text)
    for item in value if isinstance(value, list) else [value]:
        item = item.get("function", item) if isinstance(item, dict) else None
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            yield item["name"]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
