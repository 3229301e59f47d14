"""The turns of a terminal recording whose prompts are known; `asciicast` says what a turn is."""

import json
import math
import re
from typing import Any

from agentworld.data.formats.recording import Recording
from agentworld.data.formats.shell_prompts import SECRET, Prompts, resize, signature
from agentworld.data.formats.terminal_screen import Look, Place, TerminalScreen
from agentworld.data.schema import Turn

THINK = 0.3  # seconds: as long as a person needs to answer
_QUESTION = re.compile(r"[?:)\]>] $")
_ANSWERS = re.compile(  # of the terminal to programs that ask it, and the brackets around a paste
    r"\x1b\[(?:\d+;\d+R|[?>][\d;]*[cnuy]|\?[\d;]*\$y|[IO]|<[\d;]*[Mm]|20[01]~)"
    r"|\x1b[\]P_][^\x07\x1b]*(?:\x07|\x1b\\)"
)
_SUBMITS = "\r\n\x03\x04\x1a"


class Session:
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
        if data and not self.typing and not self.screen.alternate and SECRET.search(self.screen.look().text[-60:]):
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
