"""Episodes of AndroidWorld agents (T3A, M3A) as JSON, and the short demonstrations that such agents are shown.

An episode is {"task_name", "goal", "step_records": [{"state": {"ui_elements"}, "action", "agent_data"}],
"final_state"}; a demonstration is {"goal", "observations": [{"ui_elements"}], "actions"}. Both hold the screen as a
list of elements, which is rendered here as one line each.
"""

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.schema import System, Trajectory, Turn

SOURCE = "android-world"
TASK = (
    "An Android phone, seen through its accessibility service. After each action the environment answers the elements "
    "of the screen, one a line: index, class, text and resource, bounds in pixels, properties. An action names an "
    "element by its index on the screen before it."
)
ACTION_SPACE = """\
One JSON object:
{"action_type": "click" | "double_tap" | "long_press", "index": i}
{"action_type": "input_text", "text": text, "index": i}: types into the element and presses Enter
{"action_type": "scroll", "direction": "up" | "down" | "left" | "right", "index": i}: the screen where index is absent
{"action_type": "swipe", "direction": "up" | "down" | "left" | "right"}
{"action_type": "open_app", "app_name": name}
{"action_type": "navigate_home" | "navigate_back" | "keyboard_enter" | "wait"}
{"action_type": "answer", "text": text}: a message to the user, which leaves the screen as it is"""

REFUSED = "the harness did not carry out the action"
EMPTY = "the accessibility service gave no elements"

# The properties that are shown, with the value that is worth a word.
FLAGS = (
    ("clickable", "is_clickable", True),
    ("long_clickable", "is_long_clickable", True),
    ("scrollable", "is_scrollable", True),
    ("editable", "is_editable", True),
    ("checkable", "is_checkable", True),
    ("checked", "is_checked", True),
    ("focusable", "is_focusable", True),
    ("focused", "is_focused", True),
    ("selected", "is_selected", True),
    ("disabled", "is_enabled", False),
    ("invisible", "is_visible", False),
)

_ACTION = re.compile(r"^[ \t]*Action:", re.MULTILINE)


def matches(head: Head) -> bool:
    return isinstance(head.first, dict) and (_is_episode(head.first) or _is_demonstration(head.first))


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """Raises UnusableError where no action of the record changes a screen."""
    if not isinstance(record, dict):
        raise UnusableError("an AndroidWorld episode is a JSON object, this is none")
    if isinstance(record.get("step_records"), list):
        first, turns = _episode(record)
    elif isinstance(record.get("observations"), list) and isinstance(record.get("actions"), list):
        first, turns = _demonstration(record)
    else:
        raise UnusableError('neither "step_records" (an episode) nor "observations" and "actions" (a demonstration)')
    if not turns:
        raise UnusableError("no action with a screen after it: the agent only declared the task done or infeasible")
    task, goal = record.get("task_name"), record.get("goal")
    if not task and isinstance(goal, str) and goal:  # it names people and their numbers: a hash stands for it
        task = sha256(goal.encode("utf-8", "replace")).hexdigest()[:16]
    if not isinstance(task, str):
        raise UnusableError('neither "task_name" nor "goal" is a text, so nothing says which episodes are of one task')
    yield Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}",
        domain="android",
        source=SOURCE,
        split_group=f"{SOURCE}:{task}",
        system=System(task_description=TASK, action_space=ACTION_SPACE, initial_state=first or None),
        turns=turns,
    )


def render(elements: list[Any]) -> str:
    """One line an element, numbered from 0 as the actions number them; texts are quoted as JSON strings.

    `[  3] | android.EditText | text="Ann" desc="Name" res="pkg:id/x" | bounds=[0,10][90,40] | clickable, checked`

    Raises:
        UnusableError: an element is not an object.
    """
    return "\n".join(_line(index, element) for index, element in enumerate(elements))


def _is_episode(record: dict) -> bool:
    steps = record.get("step_records")
    return isinstance(steps, list) and "goal" in record and (not steps or _screen(steps[0]) is not None)


def _is_demonstration(record: dict) -> bool:
    seen = record.get("observations")
    return {"goal", "actions"} <= record.keys() and isinstance(seen, list) and bool(seen) and _list(seen[0]) is not None


def _episode(record: dict) -> tuple[str, list[Turn]]:
    """The screen after a step is the one that the next step begins with: it has settled, and the next action's index
    is of it. The list taken right after the action (`after_element_list`) is at times of a screen still in motion."""
    steps = record["step_records"]
    if not steps:
        raise UnusableError("the episode has no steps")
    screens = [_screen(step) for step in steps]
    missing = next((number for number, screen in enumerate(screens, start=1) if screen is None), None)
    if missing:
        raise UnusableError(f"step {missing} has no list of screen elements (state.ui_elements)")
    final = _list(record.get("final_state"))
    after = [*screens[1:], _after(steps[-1]) if final is None else final]
    turns: list[Turn] = []
    skipped = 0
    for step, screen in zip(steps, after, strict=True):
        action = _action(step.get("action"))
        if action is None:  # the model wrote no action: nothing happened on the phone
            skipped += 1
        elif action["action_type"] == "status" or screen is None:
            break
        else:
            data = step.get("agent_data")
            refused = isinstance(data, dict) and data.get("after_element_list", ()) is None
            turns.append(_turn(action, screen, refused, skipped))
            skipped = 0
    return render(screens[0]), turns


def _demonstration(record: dict) -> tuple[str, list[Turn]]:
    screens = [_list(state) for state in record["observations"]]
    if not screens or None in screens:
        raise UnusableError('an entry of "observations" has no list "ui_elements"')
    turns: list[Turn] = []
    for number, (said, screen) in enumerate(zip(record["actions"], screens[1:], strict=False), start=1):
        action = _action(said)
        if action is None:
            raise UnusableError(f'action {number} has no "action_type"')
        if action["action_type"] == "status":
            break
        turns.append(_turn(action, screen, refused=False, skipped=0))
    return render(screens[0]), turns


def _turn(action: dict, screen: list[Any], refused: bool, skipped: int) -> Turn:
    meta: dict[str, Any] = {"steps_without_action_before": skipped} if skipped else {}
    if refused:
        meta["context_only"] = REFUSED
    elif not screen:
        meta["context_only"] = EMPTY
    return Turn(json.dumps(action, ensure_ascii=False), render(screen), meta)


def _action(said: Any) -> dict | None:
    """The JSON object after "Action:", without the reason before it; None where there is none."""
    if isinstance(said, dict):
        return said if isinstance(said.get("action_type"), str) else None
    if not isinstance(said, str):
        return None
    start = -1
    for match in _ACTION.finditer(said):
        if match.end() <= start:  # the same brace follows: it was no action
            continue
        start = said.find("{", match.end())
        if start < 0:
            return None
        try:
            action, _ = json.JSONDecoder().raw_decode(said, start)
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(action, dict) and isinstance(action.get("action_type"), str):
            return action
    return None


def _screen(step: Any) -> list[Any] | None:
    if not isinstance(step, dict):
        return None
    data = step.get("agent_data")
    before = data.get("before_element_list") if isinstance(data, dict) else None
    found = _list(step.get("state"))
    return found if found is not None else before if isinstance(before, list) else None


def _after(step: dict) -> list[Any] | None:
    data = step.get("agent_data")
    after = data.get("after_element_list") if isinstance(data, dict) else None
    return after if isinstance(after, list) else None


def _list(state: Any) -> list[Any] | None:
    elements = state.get("ui_elements") if isinstance(state, dict) else None
    return elements if isinstance(elements, list) else None


def _line(index: int, element: Any) -> str:
    if not isinstance(element, dict):
        raise UnusableError(f"element {index} of a screen is not an object")
    names = [
        ("text", element.get("text")),
        ("desc", element.get("content_description") or element.get("content_desc")),
        ("hint", element.get("hint_text")),
        ("res", element.get("resource_name") or element.get("resource_id")),
    ]
    parts = [
        f"[{index:3d}]",
        str(element.get("class_name") or element.get("class") or "unknown class"),
        " ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}"
            for name, value in names
            if value and isinstance(value, str)
        ),
        _bounds(element.get("bbox_pixels")),
        ", ".join(word for word, key, value in FLAGS if element.get(key) is value),
    ]
    return " | ".join(part for part in parts if part)


def _bounds(box: Any) -> str:
    """Of {"x_min", "x_max", "y_min", "y_max"} or [x_min, y_min, x_max, y_max]."""
    if isinstance(box, dict):
        box = [box.get(key) for key in ("x_min", "y_min", "x_max", "y_max")]
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
        return ""
    return "bounds=[{:.0f},{:.0f}][{:.0f},{:.0f}]".format(*box)


FORMAT = Format(SOURCE, "AndroidWorld episodes: step_records with ui_elements", matches, convert)
