"""Personal data and secrets of a trajectory, replaced by placeholders of the same form (`import --redact on`).

A value has one placeholder throughout a trajectory, in the system prompt, actions and observations alike, so that what
an agent types and the environment echoes still agrees. Placeholders are numbered by first occurrence and keep length
and separators where the kind allows:

    email         redacted-1@example.com
    token         ghp_REDACTED1xxxxxxxxxxxxxxxxxxxxxxxxxxx (prefix and length stay)
    private_key   the lines of the body, as REDACTED1xxxx..., between the same BEGIN and END
    url_password  https://user:REDACTED1@host
    card          0000 0000 0000 0001
    phone         +1 000-000-0001

No rule finds a placeholder, so redacting twice changes nothing. What is reserved for examples stays. Not found are
passwords without a URL, keys that look like any hash without a name before them, names and postal addresses.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from agentworld.data.schema import System, Trajectory, Turn
from agentworld.data.secret_patterns import FINDERS, KINDS, MARK, Finder, outline

__all__ = ["KINDS", "redact"]

# A value that its surroundings gave away is sought without them as well, if it is no word of every day.
_SHORTEST_ALONE = 12
_NATIONAL_DIGITS = 10  # of a phone number, without the code of the country
# Before such a value: no letter or digit, but for an escaped newline and the +1 of a phone number.
_ALONE = r"(?:(?<=\\[nrt])|(?<=\+1)|(?<![A-Za-z0-9]))"
_KEPT_OR_LETTER = re.compile(r"(\\+[nrt])|[A-Za-z0-9]")

Span = tuple[int, int, str]  # start, end, kind


@dataclass
class _Placeholders:
    """The numbers of the values of one trajectory, by kind; `whole` is its text, in which no new placeholder occurs."""

    whole: str
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    last: Counter[str] = field(default_factory=Counter)

    def of(self, kind: str, value: str) -> str:
        key = (kind, _same(kind, value))
        if key not in self.numbers:
            free = (n for n in count(self.last[kind] + 1) if _placeholder(kind, value, n) not in self.whole)
            self.numbers[key] = self.last[kind] = next(free)
        return _placeholder(kind, value, self.numbers[key])


def redact(trajectory: Trajectory) -> tuple[Trajectory, Counter[str]]:
    """The trajectory without personal data and secrets, and how many occurrences of each kind were replaced."""
    texts = list(_texts(trajectory))
    whole = "\0".join(texts)
    of_all = outline(whole)
    finders = [finder for finder in FINDERS if finder.applies(of_all)]
    found = [_spans(text, finders) for text in texts]
    if not any(found):
        return trajectory, Counter()
    known = _known_values(texts, found)
    placeholders, counts = _Placeholders(whole), Counter()
    redacted = []
    for text, spans in zip(texts, found, strict=True):
        spans = _with_known(text, spans, known)
        counts.update(kind for _, _, kind in spans)
        redacted.append(_replaced(text, spans, placeholders))
    return _with_texts(trajectory, redacted), counts


def _texts(trajectory: Trajectory) -> Iterator[str]:
    system = trajectory.system
    yield from (system.task_description, system.action_space, system.demonstrations)
    yield from (system.initial_state or "", system.simulation_instruction or "")
    for turn in trajectory.turns:
        yield turn.action
        yield turn.observation


def _with_texts(trajectory: Trajectory, texts: list[str]) -> Trajectory:
    """The inverse of `_texts`."""
    task, space, demonstrations, state, instruction, *rest = texts
    system = System(
        task_description=task,
        action_space=space,
        demonstrations=demonstrations,
        initial_state=None if trajectory.system.initial_state is None else state,
        simulation_instruction=None if trajectory.system.simulation_instruction is None else instruction,
    )
    pairs = zip(rest[::2], rest[1::2], trajectory.turns, strict=True)
    return replace(trajectory, system=system, turns=[Turn(action, seen, turn.meta) for action, seen, turn in pairs])


def _spans(text: str, finders: list[Finder]) -> list[Span]:
    """What the finders find, in order; where two overlap, the earlier finder's."""
    taken: list[Span] = []
    if not finders or not text:
        return taken
    of_text = outline(text)
    for finder in finders:
        if finder.applies(of_text):
            taken += [(a, b, finder.kind) for a, b in finder.find(text) if not _overlaps(a, b, taken)]
    return sorted(taken)


def _overlaps(start: int, end: int, spans: list[Span]) -> bool:
    return any(start < other_end and other_start < end for other_start, other_end, _ in spans)


def _known_values(texts: list[str], found: list[list[Span]]) -> dict[str, str]:
    """Values to seek without what gave them away, and their kinds: the bare digits of phone numbers, and passwords and
    keys that were told by a URL, a header or a name."""
    known: dict[str, str] = {}
    for text, spans in zip(texts, found, strict=True):
        for start, end, kind in spans:
            value = text[start:end]
            if kind == "phone" and len(digits := _same(kind, value)) == _NATIONAL_DIGITS:
                known[digits] = kind
            elif kind in ("token", "url_password") and len(value) >= _SHORTEST_ALONE:
                known[value] = kind
    return known


def _with_known(text: str, spans: list[Span], known: dict[str, str]) -> list[Span]:
    more = []
    for value, kind in known.items():
        if value in text:
            for match in re.finditer(rf"{_ALONE}{re.escape(value)}(?![A-Za-z0-9])", text):
                if not _overlaps(*match.span(), [*spans, *more]):
                    more.append((*match.span(), kind))
    return sorted([*spans, *more])


def _replaced(text: str, spans: list[Span], placeholders: _Placeholders) -> str:
    parts, done = [], 0
    for start, end, kind in spans:
        parts += [text[done:start], placeholders.of(kind, text[start:end])]
        done = end
    return "".join([*parts, text[done:]])


def _same(kind: str, value: str) -> str:
    """What two writings of one value have in common."""
    if kind == "email":
        return value.casefold()
    if kind == "card":
        return re.sub(r"\D", "", value)
    if kind == "phone":
        return re.sub(r"\D", "", value)[-_NATIONAL_DIGITS:]
    return value


def _placeholder(kind: str, value: str, number: int) -> str:
    if kind == "email":
        return f"redacted-{number}@example.com"
    if kind in ("card", "phone"):
        return _digits(value, number)
    mark = f"{MARK}{number}"
    return mark + _KEPT_OR_LETTER.sub(lambda match: match[1] or "x", value[len(mark) :])


def _digits(value: str, number: int) -> str:
    """Zeros that end in the number, grouped as the value is; the code of a country stays."""
    country = re.match(r"\+\d{1,3}(?=[ .-])", value)
    kept = country[0] if country else ""
    rest = value[len(kept) :]
    digits = iter(str(number).zfill(sum(char.isdigit() for char in rest)))
    return kept + "".join(next(digits) if char.isdigit() else char for char in rest)
