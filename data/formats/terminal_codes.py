"""Control codes of terminals as `pyte` takes them; colours, titles and other codes that move no text are left out."""

import re

MAX_REPEATED = 1000  # of one character by "repeat the character before"; no line is longer
_MAX_HELD = 65_536  # an unfinished control string longer than this is text

_STRING = r"[\]PX^_k]"  # OSC, DCS, SOS, PM, APC and the title of `screen`
_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    rf"|(?:\x1b{_STRING}|\x9d|\x90)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b(?P<charset>[()][0B])"
    r"|\x1b(?P<escape>[ -/]*[0-Z\\-~])"
    r"|\x1b\[?|[\x90\x9b\x9d]"  # damaged: what follows is text
)
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")  # most of the codes, and none moves text
_UNFINISHED = re.compile(
    rf"(?:\x1b(?:\[[0-?]*[ -/]*|{_STRING}[^\x07\x1b\x9c]*\x1b?|[ -/]*)?|[\x9d\x90][^\x07\x1b\x9c]*)\Z"
)
_MOST_PARAMETERS = dict.fromkeys("@ABCDEFGJKLMPXade`g", 1) | {"H": 2, "f": 2, "r": 2}


class ControlCodes:
    """Reads what a terminal is sent, in pieces that may end anywhere."""

    def __init__(self) -> None:
        self._held = self._before = ""  # a code that is not finished; the character before the next piece

    def read(self, data: str) -> str:
        """The next piece, with every code in a form that pyte handles; an unfinished code waits for its rest."""
        data = self._held + data
        unfinished = _UNFINISHED.search(data, max(0, len(data) - _MAX_HELD))
        self._held = unfinished[0] if unfinished else ""
        if self._held:
            data = data[: unfinished.start()]
        before, self._before = self._before, data[-1:] or self._before
        return _CONTROL.sub(lambda match: _for_pyte(match, before), _COLOUR.sub("", data))


def _for_pyte(match: re.Match, before: str) -> str:
    """A control code in a form that pyte handles, or nothing: colours, titles, and codes that do not move text.

    pyte prints the rest of codes that it does not know, and raises on superfluous or unknown parameters.
    """
    final = match["final"]
    if final is None:
        keep = match["charset"] or (match["escape"] if match["escape"] in tuple("cDEHM78") else None)
        return "\x1b" + keep if keep else ""
    parameters = match["parameters"]
    private = parameters.startswith("?")
    numbers = parameters[private:]
    if match["between"] or not re.fullmatch(r"[\d;]*", numbers):
        return ""
    if final in "hl":
        return match[0] if private or set(numbers.split(";")) <= {"4", "20"} else ""
    if private:
        return ""
    if final in "su" and not numbers:
        return "\x1b7" if final == "s" else "\x1b8"
    if final == "b":  # repeat the character before
        before = match.string[match.start() - 1] if match.start() else before
        return before * min(int(numbers[-9:] or 1), MAX_REPEATED) if before.isprintable() and ";" not in numbers else ""
    most = _MOST_PARAMETERS.get(final)
    if most is None or (final in "JK" and numbers.split(";")[0] not in ("", "0", "1", "2")):
        return ""  # CSI 3 J clears what has scrolled away: nothing on the screen
    return f"\x1b[{';'.join(number[-9:] for number in numbers.split(';')[:most])}{final}"
