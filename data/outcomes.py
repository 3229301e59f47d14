"""What can be said about the result of a turn in one sentence, short of the result itself.

Rules read the real observation: which error it reports, how many entries, lines or elements it has, which kind of value
it is. They hold of every text that they are said of; where none holds, nothing is said. At most QUOTED characters of an
observation appear in a sentence, and never all of it. They are the material of `agentworld.data.simulation`.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from agentworld.data.schema import Trajectory

QUOTED = 60  # characters: a title or a label, not a sentence
MEMBERS = 6  # names of a JSON object that are listed

# Line endings of the C library and of bash, and how a person puts them.
_REASONS = {
    "Permission denied": "permission is denied",
    "Operation not permitted": "the operation is not permitted",
    "No such file or directory": "a file or directory does not exist",
    "command not found": "the command is not found",
    "Is a directory": "a directory stands where a file is due",
    "Not a directory": "a file stands where a directory is due",
    "File exists": "the name exists already",
    "Directory not empty": "a directory is not empty",
    "Read-only file system": "the file system is read-only",
    "Connection refused": "the connection is refused",
}
_REASON = re.compile(rf"^[\w./+ -]+: .*?({'|'.join(_REASONS)})\)?\r?$", re.MULTILINE)
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\r?\n(?:[ \t].*\n|\r?\n)+([A-Za-z_][\w.]*)", re.MULTILINE
)
_PYTEST = re.compile(r"^=+ ((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s.*=+\r?$", re.MULTILINE)
_UNITTEST = re.compile(r"^Ran (\d+) tests? in [\d.]+s\s+^(OK|FAILED)", re.MULTILINE)
_WRAPPED = re.compile(r"<returncode>(-?\d+)</returncode>\n<output>\n(.*)</output>\s*", re.DOTALL)
_EXIT = re.compile(r"Exit code: (?:Error: Exit code )?(\d+)\n")
_LONG_ENTRY = re.compile(r"^[-dlcbps][rwxsStT-]{9}[.+]? ", re.MULTILINE)
_NAME = re.compile(rf"[\w.-]{{1,{QUOTED}}}")
_ERROR_TEXT = re.compile(r"\s*(?:Error\b|Failed\b|Input validation error)")
_LABEL = re.compile(r' \| (?:text|desc)="((?:[^"\\\n]|\\.)+)"')
_TITLE = re.compile(r"^- Tab \d+ \(active\)\n  - Title: (.+)$", re.MULTILINE)
_WEB_ERROR = re.compile(r"^Error of the last action:\n(?:Error: )?(\w+)", re.MULTILINE)


def outcome(trajectory: Trajectory, index: int) -> str | None:
    """One sentence on the result of `turns[index]`, or None. Depends on the turns up to it and the initial state."""
    turn = trajectory.turns[index]
    before = trajectory.turns[index - 1].observation if index else trajectory.system.initial_state or ""
    return _RULES[trajectory.domain](turn.action, turn.observation, before)


def _shell(action: str, observation: str, before: str) -> str | None:
    """Terminal and software tasks. What stands in any text is tried before what needs the output alone."""
    if found := _TRACEBACK.findall(observation):
        return f"the output holds a Python traceback, of type {found[-1][:QUOTED]}."
    if found := _REASON.findall(observation):
        return f"an error is reported: {_REASONS[found[0]]}."
    if found := _PYTEST.findall(observation):
        return f"the test run ends with {found[-1][:QUOTED]}."
    if found := _UNITTEST.findall(observation):
        return f"{found[-1][0]} tests are run, and the run {'passes' if found[-1][1] == 'OK' else 'fails'}."
    wrapped = _WRAPPED.fullmatch(observation)
    status = wrapped or _EXIT.match(observation)
    if status and status[1] != "0":
        return f"the command ends with exit status {status[1]}."
    typed = _typed(action)
    if wrapped:
        output: str | None = wrapped[2]
    elif action.lstrip().startswith("<function="):
        return _tagged(observation)
    elif status:
        return None
    else:
        output = observation if typed is None else _between(typed, observation, before)
    return None if output is None else _printed(action if typed is None else typed, output)


def _tagged(observation: str) -> str:
    """Of a call in tags: both streams of a command, or what an editor answers."""
    _, both, streams = observation.partition("[STDOUT]\n")
    if both:
        return _printed("", streams.replace("[STDERR]\n", ""))
    return f"the tool answers with {_count(len(_filled(observation)), 'line')}, not counting blank ones."


def _filled(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _typed(action: str) -> str | None:
    """All keystrokes of a JSON action; None for a bare command line."""
    try:
        steps = json.loads(action) if action.lstrip().startswith("[") else None
    except (ValueError, RecursionError):  # a test command such as [ -f x ]
        return None
    if not isinstance(steps, list) or not all(
        isinstance(s, dict) and isinstance(s.get("keystrokes"), str) for s in steps
    ):
        return None
    return "".join(step["keystrokes"] for step in steps)


def _between(typed: str, observation: str, before: str) -> str | None:
    """The output between the echo of one command line and the prompt that the last observation ended with; None where
    either is not found, so that nothing is said of text whose borders are unknown."""
    prompt = before.rsplit("\n", 1)[-1]
    first, newline, rest = observation.partition("\n")
    one_line = typed.endswith("\n") and typed[:-1].isprintable()
    if not (one_line and newline and prompt.strip() and first.endswith(typed[:-1]) and rest.endswith(prompt)):
        return None
    return rest[: len(rest) - len(prompt)]


def _printed(command: str, output: str) -> str:
    """Of one command and all that it printed."""
    lines = _filled(output)
    single = not re.search(r"[|;&<>\n`$(]", command.strip())
    word = command.split(maxsplit=1)[0] if command.strip() else ""
    if not lines:
        return "the command prints nothing."
    if single and word in ("ls", "find") and (entries := _entries(command, output, lines)):
        return f"the listing shows {_count(entries, 'entry', 'entries')}."
    if single and word == "grep" and not re.search(r" -\w*[cABCLlq]| --", command):
        return f"the search finds {_count(len(lines), 'line')}."
    if re.fullmatch(r"\s*-?\d+\s*", output):
        return "the command prints one whole number."
    return f"the command prints {_count(len(lines), 'line')}, not counting blank ones."


def _entries(command: str, output: str, lines: list[str]) -> int:
    """How many entries a listing has; 0 where its layout does not tell."""
    if command.startswith("find"):
        return len(lines)
    if long := _LONG_ENTRY.findall(output):
        return len(long)
    return len(lines) if all(len(line.split()) == 1 for line in lines) and "R" not in command else 0


def _tool(action: str, observation: str, before: str) -> str | None:
    """MCP and function calls."""
    value = _json(observation)
    if isinstance(value, dict) and isinstance(value.get("isError"), bool):
        if value["isError"]:
            return "the call fails, and the result is marked as an error."
        text = "".join(part["text"] for part in value.get("content") or [] if _is_text(part))
        inner = _value(_json(text)) or _text(text)
        return None if inner is None else f"the call succeeds, and {inner}"
    if _ERROR_TEXT.match(observation):
        return "the call fails with an error message."
    return _value(value) or _text(observation)


def _value(value: Any) -> str | None:
    """Of a JSON value; None for text and for what is no JSON."""
    if isinstance(value, list):
        return f"the result is a list of {_count(len(value), 'item')}."
    if isinstance(value, dict) and value:
        names = [name for name in value if _NAME.fullmatch(name)][:MEMBERS]
        more = ", among others" if len(names) < len(value) else ""
        return f"the result is an object with the members {', '.join(names)}{more}." if names else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "the result is one number."
    return None


def _text(text: str) -> str | None:
    words = len(text.split())
    if words == 0:
        return "the result is empty."
    if text.rstrip().endswith("?"):
        return "the answer ends with a question."
    if words < 10:
        return None
    return f"the answer is a text of about {round(words, -1)} words."


def _phone(action: str, observation: str, before: str) -> str | None:
    if observation == before:
        return "the screen stays as it is."
    known = set(_LABEL.findall(before))
    return _screen(observation.splitlines(), [(label, f'"{label}"') for label in _LABEL.findall(observation)], known)


def _desktop(action: str, observation: str, before: str) -> str | None:
    if observation == before:
        return "the screen stays as it is."
    rows = [line.split("\t") for line in observation.splitlines()[1:] if line.strip()]
    known = {line.split("\t")[1] for line in before.splitlines() if "\t" in line}
    labels = [(row[1], f'the {row[0]} "{row[1]}"') for row in rows if len(row) > 1]
    return _screen(rows, labels, known)


def _screen(elements: list, labels: list[tuple[str, str]], known: set[str]) -> str | None:
    """The number of elements, and the first label that the screen before did not have."""
    if not elements:
        return None
    new = next(
        (shown for label, shown in labels if label not in known and label.strip() and len(shown) <= QUOTED), None
    )
    among = "" if new is None else f", among them {new}, which was not there before"
    return f"the screen has {_count(len(elements), 'element')}{among}."


def _page(action: str, observation: str, before: str) -> str | None:
    if found := _WEB_ERROR.search(observation):
        return f"the call fails with an error of type {found[1][:QUOTED]}."
    title, old = _TITLE.search(observation), _TITLE.search(before)
    if title is None:
        return None
    if (old is None or old[1] != title[1]) and len(title[1]) <= QUOTED:
        return f'the active page is then titled "{title[1]}".'
    nodes = sum(1 for line in observation.splitlines() if line.startswith("\t"))
    return f"the tree of the active page has {_count(nodes, 'node')} below its root."


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


_RULES: dict[str, Callable[[str, str, str], str | None]] = {
    "terminal": _shell,
    "swe": _shell,
    "mcp": _tool,
    "android": _phone,
    "os": _desktop,
    "web": _page,
}
