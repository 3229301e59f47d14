"""A recording process: `python -m agentworld.data.record.worker MODE FOLDER`, started by `pool`.

It speaks JSON lines. Out: {"failed": reason} when the mode is not possible, else {"ready": {...}}; in: one job; out:
one {"index", "trajectory"} or {"index", "reason"} a session, then {"done": true}.
"""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from agentworld.data.record import commands
from agentworld.data.record.commands import Command, Plan
from agentworld.data.record.isolation import HOST, USER, Place, become_worker, make_place
from agentworld.data.record.session import Limits, Recorded, run_once, run_twice
from agentworld.data.record.shell import Dropped
from agentworld.data.schema import System, Trajectory, Turn, to_dict

DURATION = 0.1  # seconds an agent would wait for the output; recorded in the action, never slept
TASK = "A bash terminal."
ACTION_SPACE = 'JSON list of {"keystrokes", "duration"}.'
_PROBE = (("bash", "echo $BASH_VERSION"), ("python3", "python3 --version"), ("git", "git --version"))


def main(arguments: list[str]) -> int:
    mode, folder = arguments
    become_worker()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a session ends with its shell
    try:
        place = make_place(mode, Path(folder))
        programs = probe(place)
    except (OSError, Dropped) as error:
        _send({"failed": str(error)})
        return 0
    _send({"ready": {"programs": programs, "read_only": place.read_only}})
    job = sys.stdin.readline()
    if job:
        for message in run_job(place, json.loads(job)):
            _send(message)
        _send({"done": True})
    return 0


def probe(place: Place) -> dict[str, str]:
    """The programs that sessions have, each with its version as one line of text.

    Raises:
        Dropped: not even a shell works here.
    """
    plan = Plan([Command("", command) for _, command in _PROBE], {})
    shown = run_once(place, plan, Limits(30.0, 4000), "UTC")
    answers = {name: text.split("\n")[1:-1] for (name, _), text in zip(_PROBE, shown, strict=True)}
    if not answers["bash"]:
        raise Dropped("bash does not answer")
    found = {name: lines[0] for name, lines in answers.items() if len(lines) == 1 and "not found" not in lines[0]}
    return {name: text for name, text in found.items() if any(char.isdigit() for char in text)}


def run_job(place: Place, job: dict) -> Iterator[dict]:
    """The sessions `first`, `first + step`, ... below `count`, as messages."""
    seed, programs, turns = job["seed"], job["programs"], (job["min_turns"], job["max_turns"])
    plans = {}

    def numbered() -> Iterator[tuple[int, Plan]]:
        for index in range(job["first"], job["count"], job["step"]):
            plans[index] = commands.plan(seed, index, job["mix"], turns, programs)
            yield index, plans[index]

    for result in run_twice(place, numbered(), Limits(job["command_timeout"], job["max_output_chars"])):
        plan = plans.pop(result.index)
        if isinstance(result, Recorded):
            yield {"index": result.index, "trajectory": to_dict(trajectory(place, seed, plan, result))}
        else:
            yield {"index": result.index, "reason": result.reason}


def trajectory(place: Place, seed: int, plan: Plan, recorded: Recorded) -> Trajectory:
    """Sessions that type the same commands share their `split_group`."""
    turns = [
        Turn(
            action=json.dumps([{"keystrokes": command.keystrokes + "\n", "duration": DURATION}]),
            observation=observation,
            meta={"deterministic": deterministic, "family": command.family},
        )
        for command, observation, deterministic in zip(
            plan.commands, recorded.observations, recorded.deterministic, strict=True
        )
    ]
    return Trajectory(
        id=f"terminal-{seed}-{recorded.index}",
        domain="terminal",
        source="record-terminal",
        split_group=f"terminal-{plan.digest}",
        system=System(task_description=TASK, action_space=ACTION_SPACE, initial_state=initial_state(place, plan)),
        turns=turns,
    )


def initial_state(place: Place, plan: Plan) -> str:
    """User, host, HOME and the files that are there with what they hold, in few words."""
    start = f"{USER}@{HOST}, home {place.home}."
    for name, lines in plan.initial_files.items():
        start += f"\n{name}" + (f": {' / '.join(lines)}" if lines else "")
    return start


def _send(message: dict) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
