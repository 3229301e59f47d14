"""The prompts of a terminal recording, learned from it; how is told in `asciicast`."""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field

from agentworld.data.formats.format import UnusableError
from agentworld.data.formats.recording import Recording
from agentworld.data.formats.terminal_screen import MAX_COLUMNS, MAX_ROWS, Look, TerminalScreen

WAIT = 0.04  # seconds: longer than a program needs between two writes
SIGNS = "$#%>❯➜»›λ▶⟩→⇒⟫≫❱➤"  # noqa: RUF001
SECRET = re.compile(r"(?i)passw|passphrase|\bpin\b|secret|token")
_ARROW = re.compile(r"\s*[→-⇿➔-➾❯❱▶⟩λ»›\ue000-\uf8ff]")  # noqa: RUF001
_ZSH = "quote|dquote|bquote|heredoc|for|while|until|repeat|select|case|if|then|else|elif|do|cursh|subsh|cmdsubst|pipe"
_CONTINUATION = re.compile(rf"> |\.\.\. | *\.\.\.: | +\.\.\.> | +-> |(?:(?:{_ZSH}|cmdand|cmdor|function) ?)+> ")


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
    if not shown or len(text) > 300 or SECRET.search(shown[-60:]):
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
