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
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

from agentworld.data.schema import System, Trajectory, Turn
from agentworld.data.secret_patterns import FINDERS, KINDS, MARK, outline

__all__ = ["KINDS", "redact"]

# A value that its surroundings gave away is sought without them as well, if it is no word of every day.
_SHORTEST_ALONE = 12
_NATIONAL_DIGITS = 10  # of a phone number, without the code of the country
_MOST_ALONE = 256  # such values of a trajectory; each costs a search
_BARE_PHONE = re.compile(r"(?:(?<=\\[nrt])|(?<=\+1)|(?<![A-Za-z0-9]))\d{10}(?![A-Za-z0-9])")
_KEPT_OR_LETTER = re.compile(r"(\\+[nrt])|[A-Za-z0-9]")

# Numbers of placeholders that a text holds: of tokens, keys and passwords; of addresses; of cards and phones.
_USED = re.compile(
    rf"{MARK}(\d{{1,6}})|redacted-(\d{{1,6}})@example\.com|000[ )-]{{1,2}}0[0 -]{{3,10}}(\d{{1,6}})(?!\d)"
)

_BETWEEN = "\n\0\n"

Span = tuple[int, int, str]  # start, end, kind


class _Placeholders:
    """The placeholders of one trajectory: numbers by kind and value, beyond those that its text holds already."""

    def __init__(self, whole: str) -> None:
        used = [int(digits) for groups in _USED.findall(whole) for digits in groups if digits]
        self._numbers: dict[tuple[str, str], int] = {}
        self._last = Counter(dict.fromkeys(KINDS, max(used, default=0)))

    def of(self, kind: str, value: str) -> str:
        key = (kind, _same(kind, value))
        if key not in self._numbers:
            self._last[kind] += 1
            self._numbers[key] = self._last[kind]
        return _placeholder(kind, value, self._numbers[key])


def redact(trajectory: Trajectory) -> tuple[Trajectory, Counter[str]]:
    """The trajectory without personal data and secrets, and how many occurrences of each kind were replaced."""
    trajectory, named = _with_hidden_group(trajectory)
    texts = list(_texts(trajectory))
    whole = _BETWEEN.join(texts)
    spans = _spans(whole)
    if not spans:
        return trajectory, named
    found = _by_text(spans, texts)
    phones, values = _known_values(texts, found)
    placeholders, counts = _Placeholders(whole), named
    redacted = []
    for text, spans in zip(texts, found, strict=True):
        spans = _merged(spans, _alone(text, phones, values))
        counts.update(kind for _, _, kind in spans)
        redacted.append(_replaced(text, spans, placeholders))
    return _with_texts(trajectory, redacted), counts


def _with_hidden_group(trajectory: Trajectory) -> tuple[Trajectory, Counter[str]]:
    """A group may be named by what the agent was asked to do. A hash of such a name keeps the group together, which
    placeholders, numbered for each trajectory, would not."""
    counts = Counter(kind for _, _, kind in _spans(trajectory.split_group))
    if not counts:
        return trajectory, counts
    name = sha256(trajectory.split_group.encode("utf-8", "replace")).hexdigest()[:16]
    return replace(trajectory, split_group=f"{trajectory.source}:{name}"), counts


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


def _spans(text: str) -> list[Span]:
    """What the finders find, in order; where two overlap, the earlier finder's."""
    taken: list[Span] = []
    of_text = outline(text)
    for finder in FINDERS:
        if finder.applies(of_text):
            taken = _merged(taken, [(start, end, finder.kind) for start, end in finder.find(text)])
    return taken


def _by_text(spans: list[Span], texts: list[str]) -> list[list[Span]]:
    """The spans of the joined texts as spans of each; no pattern matches across what is between two."""
    found: list[list[Span]] = []
    begin = place = 0
    for text in texts:
        after = begin + len(text)
        own = []
        while place < len(spans) and spans[place][1] <= after:
            start, end, kind = spans[place]
            own.append((start - begin, end - begin, kind))
            place += 1
        found.append(own)
        begin = after + len(_BETWEEN)
    assert place == len(spans), "a match across two texts"
    return found


def _merged(spans: list[Span], more: list[Span]) -> list[Span]:
    """Both, in order, without what of `more` overlaps `spans`. Each by itself has no overlaps and is in order."""
    if not spans or not more:
        return spans or more
    ends = [end for _, end, _ in spans]
    free = []
    for start, end, kind in more:
        after = bisect_right(ends, start)  # the first of `spans` that ends behind the start
        if after == len(spans) or spans[after][0] >= end:
            free.append((start, end, kind))
    return sorted([*spans, *free])


def _known_values(texts: list[str], found: list[list[Span]]) -> tuple[set[str], dict[str, str]]:
    """Values to seek without what gave them away: the bare digits of phone numbers; and passwords and keys that were
    told by a URL, a header or a name, with their kinds, the first of them."""
    phones: set[str] = set()
    values: dict[str, str] = {}
    for text, spans in zip(texts, found, strict=True):
        for start, end, kind in spans:
            value = text[start:end]
            if kind == "phone" and len(digits := _same(kind, value)) == _NATIONAL_DIGITS:
                phones.add(digits)
            elif kind in ("token", "url_password") and len(value) >= _SHORTEST_ALONE and len(values) < _MOST_ALONE:
                values[value] = kind
    return phones, values


def _alone(text: str, phones: set[str], values: dict[str, str]) -> list[Span]:
    spans = [(*match.span(), "phone") for match in _BARE_PHONE.finditer(text) if match[0] in phones] if phones else []
    for value, kind in values.items():
        more, at = [], text.find(value)
        while at >= 0:
            end = at + len(value)
            if _is_apart(text, at) and not text[end : end + 1].isalnum():
                more.append((at, end, kind))
            at = text.find(value, end)
        spans = _merged(spans, more)
    return spans


def _is_apart(text: str, at: int) -> bool:
    """Whether no letter or digit stands before, but for that of an escaped newline."""
    return not text[at - 1 : at].isalnum() or text[max(0, at - 2) : at] in ("\\n", "\\r", "\\t")


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
