"""OSWorld runs with the desktop as a linear accessibility table (tab separated: tag, name, text, class, ...).

A run is one JSON object {"task", "steps": [{"observation": table, "action": code}]}: an observation is the desktop
before its action, and the last step has no action. Each record is read alone, so the tables must stand in the run;
files that hold one table each, and OSWorld's own `traj.jsonl`, which names screenshots only, are refused.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.schema import System, Trajectory, Turn

SOURCE = "osworld"
TASK = (
    "A Linux desktop. After each action the environment answers the accessibility tree of the screen as a table, one "
    "element a line, columns separated by tabs, with their names in its first line; positions and sizes are pixels."
)
ACTION_SPACE = "Python code that moves the mouse and types with pyautogui, such as pyautogui.click(960, 540); or WAIT."

EMPTY = "the accessibility service gave no table"

# OSWorld writes the first header; agents after ComputerRL write the second.
_TABLE = re.compile(r"\s*tag\t(?:name\ttext|text\tposition)\b")
_TASK = re.compile(r"\w+/[0-9a-f]{8}-[0-9a-f-]{27}")
_ENDS = ("DONE", "FAIL")
_LOG = {"step_num", "action_timestamp", "screenshot_file"}


def matches(head: Head) -> bool:
    if head.layout == "text":
        return _TABLE.match(head.text) is not None
    return isinstance(head.first, dict) and (head.first.keys() >= _LOG or _is_run(head.first))


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """Raises UnusableError for a table alone, for a log that names screenshots, and for a run that lacks its tables."""
    if isinstance(record, str):
        raise UnusableError(
            "one accessibility table without an action, so it holds no turn; "
            'put the tables of a run into one JSON object {"task", "steps": [{"observation", "action"}]}'
        )
    if isinstance(record, dict) and record.keys() >= _LOG:
        raise UnusableError(
            "a step of OSWorld's traj.jsonl: it names a screenshot and holds no table, so no observation"
        )
    steps = record.get("steps") if isinstance(record, dict) else None
    if not isinstance(steps, list) or not steps:
        raise UnusableError('no steps: expected {"task", "steps": [{"observation", "action"}]}')
    tables = [_table(number, step) for number, step in enumerate(steps, start=1)]
    turns = _turns(steps, tables)
    if not turns:
        raise UnusableError("no action with a table after it")
    task = record.get("task") if isinstance(record.get("task"), str) else origin.file + origin.where
    known = _TASK.search(task)
    yield Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}",
        domain="os",
        source=SOURCE,
        split_group=f"{SOURCE}:{known[0] if known else task}",
        system=System(task_description=TASK, action_space=ACTION_SPACE, initial_state=tables[0] or None),
        turns=turns,
    )


def _is_run(record: dict) -> bool:
    """A run names its tables or holds them, in its first step already."""
    steps = record.get("steps")
    first = steps[0] if isinstance(steps, list) and steps else None
    if not isinstance(first, dict) or "action" not in first:
        return False
    table = first.get("observation")
    return "observation_file" in first or (isinstance(table, str) and _TABLE.match(table) is not None)


def _table(number: int, step: Any) -> str:
    if not isinstance(step, dict):
        raise UnusableError(f"step {number} is not an object")
    table = step.get("observation")
    if table is None and isinstance(step.get("observation_file"), str):
        raise UnusableError(
            f"step {number} names its table by file ({step['observation_file']}); "
            'each record is read alone, so put the text of the table into "observation"'
        )
    if not isinstance(table, str) or (table.strip() and not _TABLE.match(table)):
        raise UnusableError(f'step {number}: "observation" is not a table that begins with "tag", "name", "text"')
    return table


def _turns(steps: list[dict], tables: list[str]) -> list[Turn]:
    """Action k leads to table k + 1. DONE and FAIL are the agent's verdict and end the run."""
    turns: list[Turn] = []
    for number, (step, table) in enumerate(zip(steps, tables[1:], strict=False), start=1):
        action = step.get("action")
        if isinstance(action, dict):
            action = json.dumps(action, ensure_ascii=False)
        if action is None:
            raise UnusableError(f"step {number} has no action, but a step follows it")
        if not isinstance(action, str):
            raise UnusableError(f"the action of step {number} is neither text nor an object")
        if action.strip() in _ENDS:
            break
        turns.append(Turn(action, table, {} if table.strip() else {"context_only": EMPTY}))
    return turns


FORMAT = Format(SOURCE, "OSWorld runs: steps of accessibility table and pyautogui code", matches, convert)
