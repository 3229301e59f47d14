"""Text that shows all that it holds: characters that a screen would obey or hide stand as ⟨NAME⟩.

Terminal output brings escape sequences that move the cursor, set the title or wipe the screen of whoever looks at it,
and Unicode brings characters that reverse a line or take no space. None of them reaches a person raw. The opening
bracket itself is escaped too, so that what is shown can be told from text that only looks like it.
"""

import re
import unicodedata
from functools import lru_cache

OPEN, CLOSE = "⟨", "⟩"

_NAMES = {"\0": "NUL", "\a": "BEL", "\b": "BS", "\t": "TAB", "\v": "VT", "\f": "FF", "\r": "CR", "\x1b": "ESC"}
# Control, format, surrogate, private use, unassigned, line and paragraph separators, spaces but U+0020.
_HIDDEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))
# Letters and marks without a shape: combining grapheme joiner, fillers, inherent vowels, selectors, empty Braille.
_HIDDEN_RANGES = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0100, 0xE01EF),
)
_UNUSUAL = re.compile(r"[^\n -~]")


def visible(text: str, keep_newlines: bool = True) -> str:
    """The text with every hidden character as ⟨NAME⟩; with `keep_newlines` a line feed stays as it is."""
    shown = _UNUSUAL.sub(lambda match: _shown(match[0]), text)
    return shown if keep_newlines else shown.replace("\n", f"{OPEN}LF{CLOSE}")


def counted(number: int, thing: str, things: str = "") -> str:
    """A count with its noun: "1 row", "2,700 rows"; `things` where the plural is another."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


@lru_cache(maxsize=4096)
def hidden_name(char: str) -> str | None:
    """The name under which a character is shown, for example "ESC" or "U+202E"; None where it is shown as it is.

    A line feed is no hidden character here.
    """
    if char in _NAMES:
        return _NAMES[char]
    code = ord(char)
    if char == "\n" or " " <= char <= "~":
        return None
    hidden = char == OPEN or unicodedata.category(char) in _HIDDEN_CATEGORIES
    if hidden or any(first <= code <= last for first, last in _HIDDEN_RANGES):
        return f"U+{code:04X}"
    return None


def _shown(char: str) -> str:
    name = hidden_name(char)
    return char if name is None else f"{OPEN}{name}{CLOSE}"
