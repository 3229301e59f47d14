"""asciicast: terminal recordings of asciinema (versions 2 and 3) as turns of a terminal session.

https://docs.asciinema.org/manual/asciicast/v2/ and .../v3/: a JSON header, then `[time, code, data]` a line; "o" is
output, "i" input (recorded only on request), "r" a resize. Markers and the exit status carry no text.

A turn goes from one prompt to the next. Its observation is what the screen newly shows: echo, output, next prompt, with
control codes resolved (`terminal_screen`). Its action is what was typed:

- With input events, the keys until the next prompt, split after each Enter. Answers of the terminal itself (cursor
  position, focus, colours) are taken out. Keys typed at a question for a password become `<hidden>`.
- Without, the command as the shell echoed it when Enter was pressed, with the lines at continuation prompts. "^C" and
  "^Z" in the output are keys; where another kind of prompt comes though nothing was entered, the key was Ctrl-D.

A prompt is learned, not listed. Where the recording waits (the next event is input, or comes 40 ms later or more) with
text before the cursor, that text may be a prompt: it ends in a sign such as "$ ", begins with an arrow, or is the same,
numbers aside, in three places at which keys are then echoed. What comes back on a second line is a prompt; if nothing
does, the same is tried with every event as a wait. A prompt that is drawn again (completion lists, Ctrl-L) before Enter
ends no turn. Secondary prompts ("> ", "... ", "quote> ") end none either.

Turns that are context only: a full-screen program ran (its last screen stands where it was called); a program asked a
question and the answer is not recorded as input; a damaged event; no prompt came back before the recording ended.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.formats.recording import Event, Recording
from agentworld.data.formats.shell_prompts import learn
from agentworld.data.formats.shell_turns import Session
from agentworld.data.formats.terminal_screen import MAX_COLUMNS, MAX_ROWS
from agentworld.data.schema import System, Trajectory

SOURCE = "asciicast"
TASK = "A terminal in which a shell runs."
ACTION_SPACE = (
    'A JSON list of {"keystrokes", "duration"}: keys to type into the terminal, "\\n" for Enter, and seconds to wait.'
)


def matches(head: Head) -> bool:
    header = head.first
    if not isinstance(header, dict) or type(header.get("version")) is not int or head.layout == "array":
        return False
    if header["version"] == 1:
        return isinstance(header.get("stdout"), list) and {"width", "height"} <= header.keys()
    if header["version"] not in (2, 3) or "turns" in header or "messages" in header:
        return False
    sized = {"width", "height"} <= header.keys() or isinstance(header.get("term"), dict)
    return sized or bool(re.match(r'\s*\{[^\n]*\}\s*\n\s*\[\s*[\d.eE+-]+\s*,\s*"\w"\s*,\s*"', head.text))


def convert(record: Any, origin: Origin) -> Iterator[Trajectory | Rejected]:
    """One trajectory a recording; files that were joined (`cat a.cast b.cast`) give several."""
    parts = _split(record if isinstance(record, list) else [record])
    if len(parts) == 1:
        yield _trajectory(parts[0], origin, "")
        return
    for number, part in enumerate(parts, start=1):
        try:
            yield _trajectory(part, origin, f"#{number}")
        except UnusableError as error:
            yield Rejected(f"{origin.where}#{number}", str(error))


def _split(values: list[Any]) -> list[list[Any]]:
    if not values or not isinstance(values[0], dict):
        raise UnusableError("the first line is not an asciicast header")
    parts: list[list[Any]] = []
    for value in values:
        if isinstance(value, dict) and "version" in value:
            parts.append([])
        parts[-1].append(value) if parts else None
    if not parts:
        raise UnusableError("the asciicast header names no version")
    return parts


def _trajectory(values: list[Any], origin: Origin, part: str) -> Trajectory:
    recording = _recording(values[0], values[1:])
    prompts = learn(recording)
    session = Session(recording, prompts)
    turns = session.run()
    if not turns:
        raise UnusableError("no command was entered at the prompt before the recording ended")
    typed = "\0".join(step["keystrokes"] for turn in session.steps for step in turn)
    state = f"{recording.columns} columns, {recording.rows} rows{recording.shell}. The screen:\n{session.initial}"
    return Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}{part}",
        domain="terminal",
        source=SOURCE,
        # The same commands again are the same task, whoever recorded them.
        split_group=f"{SOURCE}:{hashlib.sha256(typed.encode('utf-8', 'replace')).hexdigest()[:16]}",
        system=System(TASK, ACTION_SPACE, initial_state=state),
        turns=turns,
    )


def _recording(header: dict[str, Any], values: list[Any]) -> Recording:
    version = header.get("version")
    if version not in (1, 2, 3):
        raise UnusableError(f"asciicast version {version!r} is not known; known are 1, 2 and 3")
    size = header.get("term") if version == 3 else header
    size = size if isinstance(size, dict) else {}
    names = ("cols", "rows") if version == 3 else ("width", "height")
    columns, rows = (_size(size.get(name), *limits) for name, limits in zip(names, _LIMITS, strict=True))
    environment = header.get("env")
    shell = environment.get("SHELL") if isinstance(environment, dict) else None
    if version == 1:
        frames = header.get("stdout") if isinstance(header.get("stdout"), list) else []
        values = [[f[0], "o", f[1]] if isinstance(f, list) and len(f) == 2 else None for f in frames]
    if not values:
        raise UnusableError("the recording has a header and no events")
    events = list(_events(values, relative=version != 2))
    if not any(event.code == "o" for event in events):
        raise UnusableError("the recording has no output events, so nothing that the terminal showed")
    return Recording(columns, rows, f", {shell}" if isinstance(shell, str) and shell else "", events)


_LIMITS = ((80, MAX_COLUMNS), (24, MAX_ROWS))


def _size(value: Any, default: int, most: int) -> int:
    return min(value, most) if type(value) is int and value > 0 else default


def _events(values: Iterable[Any], relative: bool) -> Iterator[Event]:
    now = 0.0
    for value in values:
        if not (isinstance(value, list) and len(value) == 3 and _is_time(value[0])):
            yield Event(now, "?")
            continue
        time, code, data = value
        now = now + max(0.0, time) if relative else max(now, time)
        if code in ("o", "i", "r"):
            yield Event(now, code, data) if isinstance(data, str) else Event(now, "?")


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and -1e12 < value < 1e12  # NaN is not


FORMAT = Format(SOURCE, "terminal recordings of asciinema (.cast)", matches, convert, whole=True)
