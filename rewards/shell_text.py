"""A terminal's observation taken apart: the echo of what was typed, the output, the prompt that ends it.

Normalisation (`normalised`), the same for prediction and truth: `\\r\\n` becomes `\\n`, white space at the end of a
line goes, empty lines at the end go. Nothing else: case, order, inner white space, numbers and empty lines between
others stay.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache

_PROMPT = re.compile(r"(?:\([^()\n]+\) )?(?:[^\s:@]+@[^\s:]+:(?P<path>\S*?)|\S*?)\s?[$#%>] ?")
_BEFORE_ECHO = re.compile(r"(?:\([^()\n]+\) )?\S*[$#%>] ")
_STATUS = (
    re.compile(r"<returncode>(-?\d+)</returncode>"),
    re.compile(r"^Exit code: (-?\d+)$", re.MULTILINE),
    re.compile(r"^(?:rc|exit|status|exit_code)=(-?\d+)$", re.MULTILINE),
)
_ASKS_STATUS = re.compile(r"\becho\s+[\"']?\$\?[\"']?\s*$")
_ERROR_CLASSES = re.compile(
    "No such file or directory|Permission denied|command not found|Is a directory|Not a directory|File exists"
    "|Directory not empty|syntax error|unbound variable|No such process|Connection refused|Connection timed out"
    "|Could not resolve host|Invalid argument|missing operand|missing file operand|invalid option"
    "|unrecognized option|No space left on device|cannot execute|not a git repository|pathspec"
    "|No module named|No such container|Operation not permitted|Segmentation fault|Killed"
)
_EXCEPTION = re.compile(r"^(?:E +)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))\b(?::|$)", re.MULTILINE)


@dataclass(frozen=True)
class Screen:
    """`prompt` is None where the text does not end in one; `body` is normalised."""

    echo: str
    body: str
    prompt: str | None

    @property
    def directory(self) -> str | None:
        """The working directory of a prompt such as `user@box:~/work$ `; None where the prompt shows none."""
        found = _PROMPT.fullmatch(self.prompt) if self.prompt is not None else None
        return found["path"] if found else None


def normalised(text: str) -> str:
    return "\n".join([line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]).rstrip("\n")


@lru_cache(maxsize=4096)
def typed_lines(action: str) -> tuple[str, ...]:
    """The lines that an action types: of a JSON list of keystrokes, or of the action as it is."""
    try:
        value = json.loads(action)
    except (ValueError, RecursionError):
        value = action
    if isinstance(value, list):
        text = "".join(str(step["keystrokes"]) for step in value if isinstance(step, dict) and "keystrokes" in step)
    else:
        text = action
    return tuple(text.rstrip("\n").split("\n"))


@lru_cache(maxsize=1024)  # the completions of a group share their truth
def true_screen(reference: str, action: str) -> Screen:
    return screen(reference, action)


def screen(text: str, action: str) -> Screen:
    """Take one text apart. Echo lines are first lines that are what was typed, alone or behind a prompt or `> `; the
    prompt is a last line of one word (or `(env) ` and one word) that ends in `$`, `#`, `%` or `>`."""
    lines = text.replace("\r\n", "\n").split("\n")
    prompt = None
    if len(lines) > 1 and _PROMPT.fullmatch(lines[-1]) and lines[-1]:
        prompt = lines.pop()
    count = 0
    for line, typed in zip(lines, typed_lines(action), strict=False):
        if not typed or not line.endswith(typed):
            break
        before = line[: len(line) - len(typed)]
        if before and not _BEFORE_ECHO.fullmatch(before):
            break
        count += 1
    return Screen("\n".join(lines[:count]), normalised("\n".join(lines[count:])), prompt)


def exit_status(text: str, action: str) -> int | None:
    """The exit status that a text shows: in an element of its own, or as the answer to `echo $?`."""
    for pattern in _STATUS:
        if found := pattern.search(text):
            return int(found[1])
    if _ASKS_STATUS.search(typed_lines(action)[-1]):
        last = screen(text, action).body.rpartition("\n")[2]
        return int(last) if last.isdecimal() and len(last) < 4 else None
    return None


def error_classes(text: str) -> frozenset[str]:
    """The kinds of error that a text names: fixed messages of shells and tools, and names of exceptions."""
    if "rror" not in text and "xce" not in text and not _ERROR_CLASSES.search(text):
        return frozenset()
    return frozenset(_ERROR_CLASSES.findall(text)) | frozenset(_EXCEPTION.findall(text))
