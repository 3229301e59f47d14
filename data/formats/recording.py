"""What a terminal recording is, whatever its version: events in time, in a terminal of a size."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_VISIBLE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x09\x0b-\x1f\x7f]")


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


def _is_key(data: str) -> bool:
    """Output that is the echo of one key."""
    return 1 <= len(_VISIBLE.sub("", data)) <= 2 and not data.endswith("\n")
