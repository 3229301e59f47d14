"""A terminal that remembers what is new: what a person saw since a given place, with every control code resolved.

`pyte` emulates the screen; this module adds what it lacks and a recording needs: lines that scroll away are kept, a
line that the terminal broke at its right edge is one line again, the alternate screen, and tolerance for any control
code.
"""

import copy
from collections import defaultdict
from dataclasses import dataclass

import pyte
from pyte.screens import Savepoint, wcwidth

from agentworld.data.formats.terminal_cells import CELLS, Line
from agentworld.data.formats.terminal_codes import ControlCodes

Place = tuple[int, int]  # (line, counted from the first of the recording; column)

MAX_COLUMNS, MAX_ROWS = 1000, 1000  # larger sizes in a header are mistakes and would cost memory
_IRM = pyte.modes.IRM
_ALTERNATE, _PASTE = {47, 1047, 1049}, 2004


@dataclass(frozen=True)
class Look:
    """The line of the cursor, up to the cursor, with the place of each of its characters; broken lines are joined.

    `row` names the line: it is never that of another line, also after the screen was cleared.
    """

    row: tuple[int, int]
    text: str
    places: list[Place]
    right: str  # what stands to the right of the cursor (a prompt there, a suggestion of the shell)


class TerminalScreen(pyte.Screen):
    """A screen without colours. `begin` sets the place from which on `text` gives what is shown.

    Attributes:
        alternate: a full-screen program has the screen.
        was_alternate: one has had it since `begin`.
        editing, opened, closed: a line editor has announced itself (bracketed paste is on), how often, and how often
            it has taken its leave. Shells do the first at a prompt and the second after Enter.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.top = self.clears = self.opened = self.closed = 0
        self.editing = self.was_alternate = False
        self.watch_above = False  # drawing above the start is new text as well
        self._main: tuple | None = None
        self._start: Place = (0, 0)
        self._scrolled: list[tuple[str, bool]] = []  # from the line of the start on: (text, joined)
        self._full_screens: list[tuple[int, str]] = []  # (line before which it stands, text)
        self._controls = ControlCodes()
        super().__init__(columns, rows)
        self.buffer = defaultdict(lambda: Line(CELLS[" "]))
        self._stream = pyte.Stream(self)
        self._stream.use_utf8 = False  # so that line-drawing sets are used, as terminals do

    @property
    def alternate(self) -> bool:
        return self._main is not None

    def feed(self, data: str) -> None:
        self._stream.feed(self._controls.read(data))

    def begin(self, place: Place) -> None:
        """What comes after `place` is new from now on."""
        self._start, self._scrolled, self._full_screens = place, [], []
        self.was_alternate, self.watch_above = self.alternate, False

    def place(self) -> Place:
        return self.top + self.cursor.y, self.cursor.x

    def text(self, end: Place | None = None) -> str:
        """What is shown from the start to `end` (the cursor). Lines end without blanks, except the last.

        The last screen of a full-screen program stands where the program was called.
        """
        end = end or self.place()
        rows = [(self._start[0] + number, *row) for number, row in enumerate(self._scrolled)]
        for number in range(max(self.top, self._start[0]), end[0] + 1):
            column = self._start[1] if number == self._start[0] else 0
            stop = end[1] if number == end[0] else None
            rows.append((number, *self._row(number - self.top, column, stop)))
        parts = []
        for number, text, joined in rows:
            parts += [screen + "\n" for line, screen in self._full_screens if line == number > self._start[0]]
            parts.append(text if joined or number == end[0] else text + "\n")
        return "".join(parts)

    def look(self) -> Look:
        first = y = self.cursor.y
        while first > 0 and self.buffer[first - 1].joined:
            first -= 1
        characters, places = [], []
        for number in range(first, y + 1):
            line = self.buffer[number]
            for x in range(self.cursor.x if number == y else max(line, default=-1) + 1):
                characters.append(line[x].data)
                places += [(self.top + number, x)] * len(line[x].data)
        places.append(self.place())
        right = self._row(y, self.cursor.x)[0].strip()
        return Look((self.clears, self.top + first), "".join(characters), places, right)

    def line_from(self, place: Place) -> str:
        """The rest of the line that `place` stands in, however many rows it takes."""
        number, column = place[0] - self.top, place[1]
        parts = []
        while 0 <= number < self.lines:
            text, joined = self._row(number, column)
            parts.append(text)
            if not joined:
                break
            number, column = number + 1, 0
        return "".join(parts)

    def ends_line(self) -> bool:
        """A line feed now would leave the line of the cursor (in a line that takes several rows it may not)."""
        line = self.buffer[self.cursor.y]
        if line.joined and not self._row(self.cursor.y + 1)[0]:
            line.joined = False  # the second row was deleted again
        return not line.joined

    def leave_alternate(self) -> None:
        if self._main is None:
            return
        shown = "\n".join(self._row(y)[0] for y in range(self.lines)).strip("\n")
        self.buffer, self.cursor, self.margins, self.savepoints = self._main
        self._main = None
        self._fit(self.lines)
        if shown:
            self._full_screens.append((self.place()[0], shown))

    def draw(self, data: str) -> None:
        data = data.translate(self.g1_charset if self.charset else self.g0_charset)
        self._changes(self.cursor.y)
        line, x = self.buffer[self.cursor.y], self.cursor.x
        if data.isascii() and data.isprintable() and x + len(data) <= self.columns and _IRM not in self.mode:
            if line.get(x) is CELLS[""] or line.get(x + len(data)) is CELLS[""]:
                pass  # half of a wide character is overwritten: the slow way
            else:
                line.update(zip(range(x, x + len(data)), map(CELLS.__getitem__, data), strict=True))
                self.cursor.x = x + len(data)
                return
        for char in data:
            width = 1 if " " <= char <= "~" else wcwidth(char)
            if width <= 0:
                if width == 0 and char != "\0":
                    self._combine(char)
                continue
            if self.cursor.x + width > self.columns:
                if pyte.modes.DECAWM in self.mode and width <= self.columns:
                    self.buffer[self.cursor.y].joined = True
                    self.carriage_return()
                    self.linefeed()
                else:
                    self.cursor.x = max(0, self.columns - width)
            if _IRM in self.mode:
                self.insert_characters(width)
            self._changes(self.cursor.y)
            line, x = self.buffer[self.cursor.y], self.cursor.x
            if line[x].data == "" and x > 0:
                line[x - 1] = CELLS[" "]  # the right half of a wide character is overwritten
            line[x] = CELLS[char]
            if width == 2:
                line[x + 1] = CELLS[""]
            if line.get(x + width) is CELLS[""]:
                line[x + width] = CELLS[" "]
            self.cursor.x = x + width

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self.cursor.y == bottom and top == 0:
            self._scroll_away()
        if self.margins is None and self.cursor.y == bottom:
            lines = [(y - 1, line) for y, line in self.buffer.items() if y]
            self.buffer.clear()
            self.buffer.update(lines)
        else:
            super().index()

    def insert_characters(self, count: int | None = None) -> None:
        super().insert_characters(count)
        self.buffer[self.cursor.y].pop(self.columns, None)  # pyte keeps one that was pushed over the edge

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        if how != 1:
            self.buffer[self.cursor.y].joined = False
        super().erase_in_line(how)

    def erase_in_display(self, how: int = 0, *args: int, **kwargs: bool) -> None:
        # Home and "erase below" is how terminals without the other code clear. Shells do the same to redraw a prompt.
        home = (self.cursor.y, self.cursor.x) == (0, 0) and (self.watch_above or self._start[0] > self.top)
        if how == 2 or (how == 0 and home):
            self._cleared()
        elif how == 0:
            self._changes(self.cursor.y)
            if self.watch_above and self.cursor.x == 0 and self.cursor.y > 0:
                # zsh fills a line up to the edge and a little more, to begin its prompt in a line of its own
                self.buffer[self.cursor.y - 1].joined = False
        super().erase_in_display(how)
        if how != 1:
            for y in range(self.cursor.y + 1 if how == 0 else 0, self.lines):
                self.buffer[y].joined = False

    def reset(self) -> None:
        self._cleared()
        super().reset()

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Rows that no longer fit scroll away, and nothing is cut off at the right."""
        self.lines, self.columns, self.margins = lines or self.lines, columns or self.columns, None
        self.tabstops = set(range(8, self.columns, 8))
        self._fit(self.lines)

    def save_cursor(self) -> None:
        self.savepoints.clear()  # a terminal has one place for it
        super().save_cursor()

    def restore_cursor(self) -> None:
        saved = self.savepoints[-1:]
        super().restore_cursor()
        self.savepoints[:] = [Savepoint(copy.copy(point.cursor), *point[1:]) for point in saved]

    def set_mode(self, *modes: int, **kwargs: bool) -> None:
        if kwargs.get("private"):
            if _ALTERNATE & set(modes) and not self.alternate:
                self._enter_alternate()
            if _PASTE in modes and not self.alternate:
                self.editing, self.opened = True, self.opened + 1
            modes = tuple(mode for mode in modes if mode == 7)
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: bool) -> None:
        if kwargs.get("private"):
            if _ALTERNATE & set(modes):
                self.leave_alternate()
            if _PASTE in modes and not self.alternate:
                self.editing, self.closed = False, self.closed + 1
            modes = tuple(mode for mode in modes if mode == 7)
        super().reset_mode(*modes, **kwargs)

    def _row(self, y: int, column: int = 0, stop: int | None = None) -> tuple[str, bool]:
        line = self.buffer.get(y)
        if not line:
            return " " * max(0, (stop or 0) - column), False
        return line.read(column, stop)

    def _fit(self, lines: int) -> None:
        while self.cursor.y >= lines:
            self._scroll_away()
            for y in range(max(self.buffer, default=0)):
                self.buffer[y] = self.buffer[y + 1]
            self.cursor.y -= 1
        for y in [y for y in self.buffer if y >= lines]:
            del self.buffer[y]
        self.cursor.x = min(self.cursor.x, self.columns)

    def _scroll_away(self) -> None:
        if self.alternate:
            return
        if self.top >= self._start[0]:
            self._scrolled.append(self._row(0, self._start[1] if self.top == self._start[0] else 0))
        self.top += 1

    def _changes(self, y: int) -> None:
        if self.watch_above and not self.alternate and self.top + y < self._start[0]:
            self._start = (self.top + y, 0)

    def _cleared(self) -> None:
        if not self.alternate:
            self.clears += 1
            self._start, self._scrolled, self._full_screens = (self.top, 0), [], []

    def _enter_alternate(self) -> None:
        self._main = (self.buffer, copy.copy(self.cursor), self.margins, list(self.savepoints))
        self.buffer, self.margins = defaultdict(lambda: Line(CELLS[" "])), None
        self.was_alternate = True

    def _combine(self, char: str) -> None:
        """A character without a width belongs to the one before it."""
        y, x = self.cursor.y, self.cursor.x - 1
        if x < 0:
            return
        self.buffer[y].combine(x, char)
