"""Run the commands of one session in a shell, and run every session a second time to see which turns repeat."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentworld.data.record.commands import Plan
from agentworld.data.record.isolation import Place
from agentworld.data.record.shell import Dropped, Shell

SECOND_RUN_AFTER = 1.1  # seconds between the two runs: no clock of one second shows the same in both


@dataclass(frozen=True)
class Limits:
    command_timeout: float  # seconds a command may take
    max_output: int  # characters an observation may have


@dataclass(frozen=True)
class Recorded:
    """What the terminal showed after each command, and whether the second run showed the same."""

    index: int
    observations: list[str]
    deterministic: list[bool]


@dataclass(frozen=True)
class Rejected:
    index: int
    reason: str


def run_once(place: Place, plan: Plan, limits: Limits, timezone: str, backwards: bool = False) -> list[str]:
    """Type the commands of the plan into a new shell in a clean HOME and return one observation a command.

    Args:
        backwards: create the initial files in the reverse order (what readdir gives then differs).

    Raises:
        Dropped: a limit was exceeded or the shell ended; nothing of the session is left running.
    """
    place.wipe()
    _create_files(place, plan, backwards)
    shell = Shell(place, timezone, limits.command_timeout, limits.max_output)
    try:
        return [shell.run(command.keystrokes) for command in plan.commands]
    finally:
        shell.close()
        place.wipe()


def run_twice(place: Place, plans: Iterable[tuple[int, Plan]], limits: Limits) -> Iterator[Recorded | Rejected]:
    """Run each plan, and again at least 1.1 s later under another clock; results come in the order of the plans.

    A turn is deterministic if both runs show the same text. A value that differs and enters the state (`x=$$`) is
    found again at each later turn that shows it.
    """
    waiting: deque[tuple[float, int, Plan, list[str] | str]] = deque()
    for index, plan in plans:
        try:
            first: list[str] | str = run_once(place, plan, limits, "UTC")
        except Dropped as dropped:
            first = str(dropped)
        waiting.append((time.monotonic() + SECOND_RUN_AFTER, index, plan, first))
        while waiting and waiting[0][0] <= time.monotonic():
            yield _compare(place, limits, *waiting.popleft()[1:])
    while waiting:
        time.sleep(max(0.0, waiting[0][0] - time.monotonic()))
        yield _compare(place, limits, *waiting.popleft()[1:])


def other_timezone(now: float) -> str:
    """A TZ under which hour, minute, second and day all differ from UTC at the time `now` (seconds since the epoch).

    21:07:31 away from UTC, to the side that lies on another day; POSIX writes west as positive.
    """
    return "<-2107>21:07:31" if now % 86400 < 43200 else "<+2107>-21:07:31"


def _compare(place: Place, limits: Limits, index: int, plan: Plan, first: list[str] | str) -> Recorded | Rejected:
    if isinstance(first, str):
        return Rejected(index, first)
    try:
        second = run_once(place, plan, limits, other_timezone(time.time()), backwards=True)
    except Dropped as dropped:
        return Rejected(index, str(dropped))
    return Recorded(index, first, [one == other for one, other in zip(first, second, strict=True)])


def _create_files(place: Place, plan: Plan, backwards: bool) -> None:
    entries = list(plan.initial_files.items())
    for name, lines in reversed(entries) if backwards else entries:
        path = place.outer_home / name
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        place.give(path)
