"""Lines of a terminal and their cells: one shared object a character, without colours. The right half of a wide
character is the empty text."""

import unicodedata

from pyte.screens import Char, StaticDefaultDict


class _Cells(dict):
    def __missing__(self, char: str) -> Char:
        self[char] = Char(char)
        return self[char]


CELLS = _Cells()


class Line(StaticDefaultDict):
    """Column -> cell; a column that was never written is blank.

    joined: the terminal broke the line at its right edge: the next one continues it.
    """

    joined = False

    def read(self, column: int, stop: int | None) -> tuple[str, bool]:
        """The text from `column` to before `stop`, and whether the next line continues it; without `stop` to the end
        of the line, where blanks are no text unless it is joined."""
        last = max(self) + 1 if stop is None else stop
        text = "".join([self[x].data for x in range(column, last)])
        joined = self.joined and stop is None
        return (text if joined or stop is not None else text.rstrip(" ")), joined

    def combine(self, x: int, char: str) -> None:
        """Put a character without a width on the one at `x`."""
        if self[x].data == "" and x > 0:
            x -= 1
        self[x] = Char(unicodedata.normalize("NFC", self[x].data + char))
