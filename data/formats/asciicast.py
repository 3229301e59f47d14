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
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.formats.terminal_screen import MAX_COLUMNS, MAX_ROWS, Look, Place, TerminalScreen
from agentworld.data.schema import System, Trajectory, Turn

SOURCE = "asciicast"
TASK = "A terminal in which a shell runs."
ACTION_SPACE = (
    'A JSON list of {"keystrokes", "duration"}: keys to type into the terminal, "\\n" for Enter, and seconds to wait.'
)
WAIT, THINK = 0.04, 0.3  # seconds: longer than a program needs between two writes; as long as a person needs to answer
SIGNS = "$#%>❯➜»›λ▶⟩→⇒⟫≫❱➤"  # noqa: RUF001
_ARROW = re.compile(r"\s*[→-⇿➔-➾❯❱▶⟩λ»›\ue000-\uf8ff]")  # noqa: RUF001
_ZSH = "quote|dquote|bquote|heredoc|for|while|until|repeat|select|case|if|then|else|elif|do|cursh|subsh|cmdsubst|pipe"
_CONTINUATION = re.compile(rf"> |\.\.\. | *\.\.\.: | +\.\.\.> | +-> |(?:(?:{_ZSH}|cmdand|cmdor|function) ?)+> ")
_SECRET = re.compile(r"(?i)passw|passphrase|\bpin\b|secret|token")
_QUESTION = re.compile(r"[?:)\]>] $")
_ANSWERS = re.compile(  # of the terminal to programs that ask it, and the brackets around a paste
    r"\x1b\[(?:\d+;\d+R|[?>][\d;]*[cnuy]|\?[\d;]*\$y|[IO]|<[\d;]*[Mm]|20[01]~)"
    r"|\x1b[\]P_][^\x07\x1b]*(?:\x07|\x1b\\)"
)
_VISIBLE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x09\x0b-\x1f\x7f]")
_SUBMITS = "\r\n\x03\x04\x1a"


@dataclass(frozen=True)
class Event:
    """`code` is "o", "i", "r", or "?" for one that is damaged."""

    time: float
    code: str
    data: str = ""


@dataclass(frozen=True)
class Recording:
    columns: int
    rows: int
    shell: str
    events: list[Event]

    @cached_property
    def has_input(self) -> bool:
        return any(event.code == "i" for event in self.events)

    def waits(self) -> Iterator[tuple[Event, float, bool]]:
        """Each event, the seconds until more output comes (infinite before input), and whether a key's echo comes."""
        after: Event | None = None
        rows = []
        for event in reversed(self.events):
            wait = math.inf if after is None or after.code == "i" else after.time - event.time
            rows.append((event, wait, after is None or after.code == "i" or _is_key(after.data)))
            after = event if event.code in ("o", "i") else after
        return reversed(rows)


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
    session = _Session(recording, prompts)
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


def _is_key(data: str) -> bool:
    """Output that is the echo of one key."""
    return 1 <= len(_VISIBLE.sub("", data)) <= 2 and not data.endswith("\n")


# Prompts -------------------------------------------------------------------------------------------------------------


@dataclass
class Prompts:
    texts: set[str] = field(default_factory=set)
    signatures: set[tuple[str, str]] = field(default_factory=set)
    first: str = ""
    wait: float = WAIT

    def length(self, text: str, waits: bool) -> int | None:
        """How much of the line before the cursor is a prompt; None if it is none."""
        if self.continues(text):
            return None
        if text in self.texts:
            return len(text)
        if not waits:
            return None
        begun = max((len(known) for known in self.texts if len(known) > 1 and text.startswith(known)), default=None)
        return begun or (len(text) if signature(text) in self.signatures else None)

    def continues(self, text: str) -> bool:
        return text != self.first and bool(_CONTINUATION.fullmatch(text))


def signature(text: str) -> tuple[str, str] | None:
    """What stays the same of a prompt when its directory, its branch or its number changes; None if it is no prompt."""
    shown = text.rstrip(" ")
    blanks = len(text) - len(shown)
    if not shown or len(text) > 300 or _SECRET.search(shown[-60:]):
        return None
    if (shown[-1] in SIGNS and 1 <= blanks <= 2) or "\ue000" <= shown[-1] <= "\uf8ff":
        return "end", shown[-1]
    if _ARROW.match(shown) and blanks:
        return "begin", shown.lstrip()[0]
    if not shown[-1].isalnum() and shown[-1] not in ".,;…" and blanks <= 1:
        return "same", re.sub(r"\d+", "#", shown)
    return None


def learn(recording: Recording) -> Prompts:
    """The prompts of a recording.

    Raises:
        UnusableError: none came back.
    """
    screen = TerminalScreen(recording.columns, recording.rows)
    looks: list[tuple[Look, float, bool]] = []
    full_screen = 0
    for event, wait, key in recording.waits():
        if event.code == "r":
            resize(screen, event.data)
        if event.code != "o":
            continue
        screen.feed(event.data)
        if screen.alternate:
            full_screen += 1
        elif screen.cursor.x:
            looks.append((screen.look(), math.inf if screen.editing else wait, key))
    for wait in (WAIT, 0.0):
        prompts = _learned(looks, wait)
        if prompts.signatures:
            return prompts
    reason = "no shell prompt was found: no text before a waiting cursor came back on a second line"
    if full_screen > len(looks):
        reason += " (a full-screen program has the screen most of the time)"
    raise UnusableError(reason)


def _learned(looks: list[tuple[Look, float, bool]], least: float) -> Prompts:
    candidates: dict[tuple[int, int], tuple[str, tuple[str, str], bool]] = {}
    for look, wait, key in looks:
        if wait >= least and look.row not in candidates and (found := signature(look.text)):
            candidates[look.row] = (look.text, found, key)
    prompts = Prompts(wait=least, first=next((text for text, _, _ in candidates.values()), ""))
    counted: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for text, found, key in candidates.values():
        if not prompts.continues(text):
            counted[found].append(key)
    for found, keys in counted.items():
        if least == 0.0 and (found[0] != "end" or found[1] not in SIGNS):
            continue  # nothing ever waits: only the plainest signs will do
        if (len(keys) >= 2 and found[0] != "same") or (len(keys) >= 3 and sum(keys) >= 2):
            prompts.signatures.add(found)
    prompts.texts = {text for text, found, _ in candidates.values() if found in prompts.signatures}
    prompts.texts = {text for text in prompts.texts if not prompts.continues(text)}
    return prompts


def resize(screen: TerminalScreen, size: str) -> None:
    found = re.fullmatch(r"(\d{1,6})x(\d{1,6})", size)
    if found and int(found[1]) and int(found[2]):
        screen.resize(min(int(found[2]), MAX_ROWS), min(int(found[1]), MAX_COLUMNS))


# Turns ---------------------------------------------------------------------------------------------------------------


class _Session:
    """One pass over a recording whose prompts are known."""

    def __init__(self, recording: Recording, prompts: Prompts) -> None:
        self.recording, self.prompts = recording, prompts
        self.screen = TerminalScreen(recording.columns, recording.rows)
        self.initial = ""
        self.turns: list[tuple[str, dict[str, Any]]] = []  # observation, meta
        self.steps: list[list[dict[str, Any]]] = []  # the action of each
        self.row: tuple[int, int] | None = None  # the line of the prompt, None before the first
        self.kind: tuple[str, str] | None = None  # of prompt
        self.now = 0.0
        self._begin((0, 0), None, "")

    def run(self) -> list[Turn]:
        for event, wait, key in self.recording.waits():
            self.now = event.time
            if event.code == "o":
                self._output(event.data, wait, key)
            elif event.code == "i":
                self._input(event.data)
            elif event.code == "r":
                resize(self.screen, event.data)
            else:
                self.spoiled = self.spoiled or "an event of the recording is damaged here"
        self.screen.leave_alternate()
        if self.row is not None and self._submitted():
            self._finish(None, "the recording ends before the next prompt")
        actions = [json.dumps(steps) for steps in self.steps]
        return [Turn(action, *turn) for action, turn in zip(actions, self.turns, strict=True)]

    def _begin(self, place: Place, row: tuple[int, int] | None, right: str) -> None:
        self.screen.begin(place)
        self.mark, self.row, self.line, self.right = place, row, row, right
        self.continued = ""  # the last continuation prompt
        self.typing = row is not None
        self.captured: list[str] = []  # the lines of the command, as echoed
        self.keys: list[tuple[float, str]] = []
        self.entered_at = self.now
        self.spoiled: str | None = None
        self.asked = False
        self.editor = (self.screen.editing, self.screen.opened, self.screen.closed)

    def _output(self, data: str, wait: float, key: bool) -> None:
        for piece in re.findall(r"[^\r\n]*\r*\n|.+", data, re.DOTALL) if self.typing else [data]:
            if self.typing and piece.endswith("\n"):
                text = piece.rstrip("\r\n")
                self.screen.feed(text)
                piece = piece[len(text) :]
                if not self.screen.alternate and self.screen.ends_line():
                    self._enter()
            self.screen.feed(piece)
        if self.screen.alternate:
            return
        look = self.screen.look()
        waits = wait >= self.prompts.wait or self.screen.editing
        if look.row == self.line:
            self._resume()
        elif self.captured and self.prompts.continues(look.text) and waits:
            self.mark, self.line, self.typing, self.continued = look.places[-1], look.row, True, look.text
        elif (length := self.prompts.length(look.text, waits)) is not None:
            self._at_prompt(look, length)
        else:
            if self.asked:
                self.spoiled = self.spoiled or "a program asked for input, which the recording does not hold apart"
            self.asked = self._asks(look, wait, key)

    def _asks(self, look: Look, wait: float, key: bool) -> bool:
        """A program reads what is typed: what comes after a while, at a question or in an empty line, is the echo of a
        key (or a short prompt, which is seen then)."""
        running = bool(self.captured) and not self.typing and not self.recording.has_input
        asked = not look.text or _QUESTION.search(look.text)
        return running and key and THINK <= wait < math.inf and bool(asked)

    def _enter(self) -> None:
        """The line that is being typed ends."""
        command = self.screen.line_from(self.mark)
        if self.right and command.endswith(self.right):
            command = command.removesuffix(self.right).rstrip(" ")
        self.captured.append(command)
        self.entered_at = self.now
        self.typing, self.screen.watch_above = False, True

    def _resume(self) -> None:
        """The cursor is back in the line that is typed: what left it was a list or a preview, not Enter."""
        if not self.typing:
            self.captured.pop()
            self.typing, self.screen.watch_above = True, bool(self.captured)

    def _input(self, data: str) -> None:
        data = _ANSWERS.sub("", data)
        if data and not self.typing and not self.screen.alternate and _SECRET.search(self.screen.look().text[-60:]):
            end = re.search(r"[\r\n\x03\x04]", data)
            hidden = self.keys and self.keys[-1][1].endswith("<hidden>")
            shown = "" if hidden or (end and end.start() == 0) else "<hidden>"
            data = shown + (data[end.start() :] if end else "")
        if data:
            self.keys.append((self.now, data))

    def _submitted(self) -> bool:
        """Enter was pressed since the prompt (or a key that interrupts)."""
        if self.keys:
            return any(char in _SUBMITS for _, data in self.keys for char in data)
        editing, opened, closed = self.editor
        if (editing or self.screen.opened > opened) and self.screen.closed == closed:
            return False  # the line editor never left
        return bool(self.captured)

    def _at_prompt(self, look: Look, length: int) -> None:
        place, rest = look.places[length], look.text[length:]
        before, self.kind = self.kind, signature(look.text[:length])
        if self.row is None:
            self.initial = self.screen.text(place)
        elif not self.keys and not any(self.captured) and self.kind != before:
            self.captured = ["\x04"]  # the shell or the program that asked was left without a word: Ctrl-D
            self._finish(place, None)
        elif not self._submitted():
            if self.keys:  # a list of completions is part of what these keys show
                self.mark, self.row, self.line, self.typing, self.captured = place, look.row, look.row, True, []
                return
        elif rest and not self.keys and self.captured and rest.startswith(self.captured[-1] or " "):
            pass  # drawn again below a list of completions
        else:
            self._finish(place, None)
        self._begin(place, look.row, look.right)

    def _finish(self, place: Place | None, problem: str | None) -> None:
        observation = self.screen.text(place)
        first, newline, others = observation.partition("\n")
        if self.right and first.endswith(self.right):
            observation = first.removesuffix(self.right).rstrip(" ") + newline + others
        if self.screen.was_alternate:
            problem = problem or "a full-screen program ran"
        if any(len(text) > 3 and ("\n" + text) in observation.rpartition("\n")[0] for text in self.prompts.texts):
            problem = problem or "several prompts stand in it: commands ran without a pause"
        problem = self.spoiled or problem
        self.steps.append(self._typed() if self.keys else self._echoed(observation))
        self.turns.append((observation, {"context_only": problem} if problem else {}))

    def _typed(self) -> list[dict[str, Any]]:
        """One step for each line of keys; its duration ends where the next begins."""
        lines: list[list[tuple[float, str]]] = [[]]
        for time, data in self.keys:
            for piece in re.findall(r"[^\r\n\x03\x04]*[\r\n\x03\x04]|[^\r\n\x03\x04]+", data):
                lines[-1].append((time, piece))
                if piece[-1] in "\r\n\x03\x04":
                    lines.append([])
        lines = [line for line in lines if line]
        ends = [line[0][0] for line in lines[1:]] + [self.now]
        return [
            _step("".join(piece for _, piece in line), end - line[-1][0]) for line, end in zip(lines, ends, strict=True)
        ]

    def _echoed(self, observation: str) -> list[dict[str, Any]]:
        keystrokes = "\n".join(self.captured) + "\n"
        if keystrokes == "\x04\n":
            keystrokes = "\x04"
        elif self.continued == "> " and len(self.captured) > 1 and not self.captured[-1]:
            keystrokes = keystrokes[:-1] + "\x04"  # no command of a shell ends with an empty line there
        elif keystrokes.endswith("^C\n"):
            keystrokes = keystrokes[:-3] + "\x03"
        steps = [_step(keystrokes, self.now - self.entered_at)]
        # The terminal shows a key that interrupts or stops the program, as the last thing in a line.
        interrupts = re.findall(r"\n[^\n]*\^([CZ])(?=\n)", observation)
        steps += [_step({"C": "\x03", "Z": "\x1a"}[letter], 0.1) for letter in interrupts[-1:]]
        if self.steps and len(self.steps[-1]) > 1 and self.steps[-1][-1]["keystrokes"] == keystrokes:
            self.steps[-1].pop()  # typed ahead, while the command before was running
        return steps


def _step(keystrokes: str, seconds: float) -> dict[str, Any]:
    return {"keystrokes": keystrokes.replace("\r", "\n"), "duration": max(0.1, round(seconds, 1))}


FORMAT = Format(SOURCE, "terminal recordings of asciinema (.cast)", matches, convert, whole=True)
