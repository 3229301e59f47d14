"""What `kill_matrix` tells: a line for each kill, and kills.json."""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentworld.train.checkpoint import library_versions
from bench import kill_phases


@dataclass
class Kill:
    """One kill and what came of it. Times in seconds."""

    number: int
    phase: str
    tries: int = 0
    moment: float = 0.0  # after the beginning of the phase
    phase_seconds: float = 0.0  # of the reference
    victim: str = ""
    first_exit: int | None = None  # of the killed start; -9: the command itself was the victim; None: it hung
    next_exit: int | None = None
    left_processes: list[str] = field(default_factory=list)
    left_folders: list[str] = field(default_factory=list)  # of the recorder, under TMPDIR
    last_step: int = 0  # in metrics.jsonl when the next start began
    checkpoint: int = 0  # the newest whole one then
    resumed_after: int = 0
    steps_lost: int = 0
    dropped_sessions: int | None = None
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def line(kill: Kill) -> str:
    """A row of the table on the screen."""
    moment = f"{kill.moment:.3f} of {kill.phase_seconds:.3f} s"
    steps = f"at {kill.last_step}, from {kill.resumed_after}, lost {kill.steps_lost}" if kill.last_step else "-"
    verdict = "; ".join(kill.wrong) or "equal"
    extra = f", {kill.dropped_sessions} sessions dropped" if kill.dropped_sessions else ""
    return (
        f"{kill.number:>2}  {kill.phase:<16} {moment:<20} {kill.victim:<18} exit {kill.first_exit!s:>4} then "
        f"{kill.next_exit!s:>4}  steps {steps:<24} {kill.seconds:>5.0f} s  {verdict}{extra}"
    )


def write(
    out: Path, options: argparse.Namespace, kills: Sequence[Kill], durations: Mapping[str, float], took: float
) -> None:
    """kills.json, after every kill."""
    folder = Path(__file__).parent
    commit = subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True, text=True)
    content = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version(), **library_versions()},
        "options": {key: str(value) for key, value in vars(options).items()},
        "settings": kill_phases.SETTINGS,
        "seconds": round(took, 1),
        "phases": {name: round(seconds, 4) for name, seconds in durations.items()},
        "passed": sum(not kill.wrong for kill in kills),
        "kills": [asdict(kill) for kill in kills],
    }
    (out / "kills.json").write_text(json.dumps(content, indent=1) + "\n")
