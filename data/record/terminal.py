"""`agentworld record terminal`: record trajectories from real bash sessions.

Each session is one persistent interactive shell on a pseudo-terminal. A seeded generator types commands into it
(`commands`); what the terminal shows is the observation: the echo of the command, its output and the new prompt,
exactly as the shell gave it except that the terminal's line end "\\r\\n" is written "\\n". Each session runs twice,
with another clock, other process ids and another creation order of the initial files; `Turn.meta["deterministic"]`
says whether both runs showed the same.
"""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.formats import native
from agentworld.data.formats.container import DamagedError, look
from agentworld.data.record.commands import MIXES, NEEDS, weights
from agentworld.data.record.pool import ModeRefused, Pool
from agentworld.data.settings import RecordSettings
from agentworld.data.visible_text import counted

_PROGRESS_SECONDS = 5.0


def record(
    settings: RecordSettings, seed: int, out: Path, say: Callable[[str], None], mode: str | None = None
) -> dict[str, Any]:
    """Record `settings.count` sessions into the JSONL file `out`, which appears complete or not at all.

    Args:
        mode: `namespace` or `plain` (see `isolation`); None takes `namespace` where the system permits it, else says
            loudly that it does not and takes `plain`.

    Returns:
        sessions asked, kept, dropped (reason -> count), turns, deterministic turns, families (name -> turns),
        families_left_out, isolation, unisolated (sessions recorded without namespaces), workers, programs (name ->
        version), seconds, turns_per_s.

    Raises:
        RequestError: a setting or the path is not usable, or the path holds something else than trajectories, which
            would be replaced; found before any work is done.
        ContentError: every session was dropped, or a worker failed.
    """
    out = Path(out)
    _validate(settings)
    _require_writable(out)
    if out.exists():
        say(f"record: {out} exists; it is replaced when the new trajectories are complete")
    started = time.monotonic()
    workers = min(settings.workers or 2 * _cores(), settings.count)
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with ExitStack() as stack:
        pool = _open_pool(stack, settings, workers, mode, say)
        left_out = _left_out(settings.mix, pool, say)
        counts = _Counts(settings.count, say)
        job = {"seed": seed, **asdict(settings)}
        try:
            with open(partial, "w", encoding="utf-8") as file:
                for message in in_order(pool.run(job)):
                    if counts.add(message):
                        file.write(json.dumps(message["trajectory"], ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
            if counts.kept == 0:
                raise ContentError(f"record: every session was dropped: {dict(counts.dropped)}")
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)
        facts = {
            "families_left_out": left_out,
            "isolation": pool.mode,
            "unisolated": counts.kept if pool.mode == "plain" else 0,
            "workers": workers,
            "programs": pool.programs,
        }
    seconds = time.monotonic() - started
    return counts.as_dict() | facts | {"seconds": round(seconds, 2), "turns_per_s": round(counts.turns / seconds, 1)}


def summary(counts: dict[str, Any], out: Path) -> str:
    """What `record` returned, for the screen."""
    turns, dropped = counts["turns"], counts["dropped"]
    same = f"{100 * counts['deterministic'] / turns:.1f} %"
    reasons = ", ".join(f"{count} x {reason}" for reason, count in dropped.items())
    families = ", ".join(f"{name} {count}" for name, count in counts["families"].items())
    where = {"namespace": "in private namespaces", "plain": "without namespaces, in a temporary directory"}
    lines = [
        f"{out}: {counted(counts['kept'], 'trajectory', 'trajectories')} of {counted(counts['sessions'], 'session')}, "
        f"{counted(turns, 'turn')}; "
        f"{counts['seconds']:.1f} s, {counts['turns_per_s']:.0f} turns/s",
        f"  {counts['deterministic']} turns ({same}) were the same in both runs of their session: deterministic",
        f"  sessions dropped: {reasons or 'none'}",
        f"  turns by family of commands: {families}",
    ]
    if counts["families_left_out"]:
        lines.append(f"  families left out, their programs are missing: {', '.join(counts['families_left_out'])}")
    programs = ", ".join(
        version if name in version.lower() else f"{name} {version}" for name, version in counts["programs"].items()
    )
    lines.append(
        f"  recorded by {counted(counts['workers'], 'process', 'processes')} {where[counts['isolation']]}; {programs}"
    )
    return "\n".join(lines)


def in_order(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages by rising `index` from 0, whichever worker is faster."""
    early: dict[int, dict[str, Any]] = {}
    wanted = 0
    for message in messages:
        early[message["index"]] = message
        while wanted in early:
            yield early.pop(wanted)
            wanted += 1
    assert not early, f"session {wanted} is missing"


class _Counts:
    """What was recorded so far; says how far it is every few seconds."""

    def __init__(self, asked: int, say: Callable[[str], None]) -> None:
        self.asked, self.say = asked, say
        self.kept = self.turns = self.deterministic = 0
        self.dropped: Counter[str] = Counter()
        self.families: Counter[str] = Counter()
        self.started = self.said = time.monotonic()

    def add(self, message: dict[str, Any]) -> bool:
        """Count one message; True when it brings a trajectory."""
        kept = "trajectory" in message
        if kept:
            turns = message["trajectory"]["turns"]
            self.kept += 1
            self.turns += len(turns)
            self.deterministic += sum(turn["meta"]["deterministic"] for turn in turns)
            self.families.update(turn["meta"]["family"] for turn in turns)
        else:
            self.dropped[message["reason"]] += 1
        now = time.monotonic()
        if now - self.said >= _PROGRESS_SECONDS:
            self.said = now
            done = self.kept + self.dropped.total()
            self.say(f"record: {done}/{self.asked} sessions, {self.turns / (now - self.started):.0f} turns/s")
        return kept

    def as_dict(self) -> dict[str, Any]:
        return {
            "sessions": self.asked,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "turns": self.turns,
            "deterministic": self.deterministic,
            "families": dict(self.families.most_common()),
        }


def _open_pool(
    stack: ExitStack, settings: RecordSettings, workers: int, mode: str | None, say: Callable[[str], None]
) -> Pool:
    silence = 60.0 + 2 * settings.max_turns * settings.command_timeout
    try:
        pool = stack.enter_context(Pool(mode or "namespace", workers, silence))
    except ModeRefused as refused:
        if mode is not None:
            raise ContentError(f"record: isolation {mode} is not possible here: {refused}") from None
        say(
            f"WARNING: record: no private namespaces here ({refused}): the sessions run in a temporary directory, with "
            "the network and the file system of this machine in reach. The generated commands use neither."
        )
    else:
        if pool.mode == "namespace" and not pool.read_only:
            say("WARNING: record: this kernel cannot mount the system folders read-only for the sessions")
        return pool
    try:
        return stack.enter_context(Pool("plain", workers, silence))
    except ModeRefused as refused:
        raise ContentError(f"record: no shell can be started here: {refused}") from None


def _left_out(mix: str, pool: Pool, say: Callable[[str], None]) -> list[str]:
    missing = sorted(set(MIXES[mix]) - set(weights(mix, pool.programs)))
    for family in missing:
        say(f"WARNING: record: the sessions have no {NEEDS[family]}; the family {family} is left out")
    return missing


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _validate(settings: RecordSettings) -> None:
    if settings.mix not in MIXES:
        raise RequestError(f"mix: {settings.mix!r} is unknown; use {' or '.join(sorted(MIXES))}")
    for name in ("count", "min_turns", "max_output_chars"):
        if getattr(settings, name) < 1:
            raise RequestError(f"{name}: {getattr(settings, name)} is below 1")
    if settings.max_turns < settings.min_turns:
        raise RequestError(f"max_turns: {settings.max_turns} is below min_turns {settings.min_turns}")
    if settings.workers < 0:
        raise RequestError(f"workers: {settings.workers} is negative; 0 takes two a core")
    if not 0 < settings.command_timeout < float("inf"):
        raise RequestError(f"command_timeout: {settings.command_timeout} is not a number of seconds above 0")
    if os.name != "posix" or shutil.which("bash") is None:
        raise RequestError(
            "record terminal needs bash on a POSIX system; install bash, or give data.trajectories files"
        )


def _require_writable(out: Path) -> None:
    if out.is_dir():
        raise RequestError(f"{out}: is a directory; name a file")
    if not out.parent.is_dir():
        raise RequestError(f"{out}: the directory {out.parent} does not exist; make it first")
    if out.exists() and not (out.is_file() and _holds_trajectories(out)):
        raise RequestError(f"{out}: holds something else than trajectories, which would be replaced; name another file")
    trial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        raise RequestError(f"{out}: cannot be written: {error.strerror}; choose another path") from None


def _holds_trajectories(path: Path) -> bool:
    """Whether a file may be replaced: an earlier recording or import, or nothing at all."""
    if path.stat().st_size == 0:
        return True
    try:
        return native.FORMAT.matches(look(path))
    except (DamagedError, OSError):
        return False
