"""R2E-Gym runs (github.com/R2E-Gym/R2E-Gym, also written by SWE-World): `trajectory_steps` with actions in XML.

Taken are the steps' `action` (from the first `<function=` on, so that prose before a call stays out) and `observation`,
less the line on steps left that the agent's loop appends to each. Of `ds` only instance, repository and commit are
read: it and its copy in `env_args` hold the gold patch and the hidden tests. `test_output`, the grader's test report on
the final state, is no turn here: no recorded action asks for it, and it shows hidden tests that the session never saw.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.formats.issue_text import issue_key
from agentworld.data.schema import System, Trajectory, Turn

SOURCE = "r2e-gym"
_TASK = (
    "A Linux container with the checkout of a Python repository, used through tools. execute_bash runs a command and "
    "answers with its exit code and its two streams; str_replace_editor shows, creates and edits files and answers "
    "with what it shows or with a snippet of the edited file; submit ends the session."
)
_ACTIONS = (
    "Each action is one call: <function=NAME>, a <parameter=KEY>VALUE</parameter> for each argument, </function>."
)
_STEPS_LEFT = re.compile(r"\n?This is step \d+ of a maximum of \d+\. Steps Remaining: -?\d+\.?\s*$")
_FUNCTION = re.compile(r"<function=([^>\s]{1,200})>")
_PARAMETER = re.compile(r"<parameter=([^>\s]{1,200})>")
_HARNESS = (
    (re.compile(r"^The command took too long to execute \(>\d+s\)", re.MULTILINE), "time-out of the harness"),
    (
        re.compile(r"^<Observation truncated in middle for saving context>$", re.MULTILINE),
        "output truncated by the harness",
    ),
    (re.compile(r"<response clipped><NOTE>"), "output truncated by the tool"),
    (re.compile(r"^<<< ?Finished ?>>>"), "the harness ends the run"),
)


def matches(head: Head) -> bool:
    steps = head.first.get("trajectory_steps") if isinstance(head.first, dict) else None
    if not isinstance(steps, list):
        return False
    return not steps or (isinstance(steps[0], dict) and {"action", "observation"} <= steps[0].keys())


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    steps = record.get("trajectory_steps") if isinstance(record, dict) else None
    if not isinstance(steps, list):
        raise UnusableError("the record has no list trajectory_steps")
    if not steps:
        raise UnusableError(f"the run has no steps (exit reason {record.get('exit_reason')})")
    turns = [_turn(index, step) for index, step in enumerate(steps)]
    task = record.get("ds") if isinstance(record.get("ds"), dict) else {}
    name = task.get("instance_id")
    if not isinstance(name, str) or not name:
        problem = record.get("problem_statement")
        name = issue_key(problem if isinstance(problem, str) and problem else origin.file + origin.where)
    repository, commit = task.get("repo"), task.get("base_commit")
    start = f"Repository: {repository}" if isinstance(repository, str) else None
    if start and isinstance(commit, str):
        start += f" at commit {commit}"
    yield Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}",
        domain="swe",
        source=SOURCE,
        split_group=f"{SOURCE}:{name}",
        system=System(_TASK, _action_space(record, turns), initial_state=start),
        turns=turns,
    )


def _turn(index: int, step: Any) -> Turn:
    action = step.get("action") if isinstance(step, dict) else None
    observation = step.get("observation") if isinstance(step, dict) else None
    if not isinstance(action, str) or not isinstance(observation, str):
        raise UnusableError(f"step {index} has no text as action and observation")
    observation = _STEPS_LEFT.sub("", observation)
    begin = _FUNCTION.search(action)
    if not begin:  # the answer is the loop's reminder to call a tool
        return Turn("", observation, {"context_only": "no tool was called"})
    end = action.rfind("</function>")
    action = action[begin.start() : end + len("</function>") if end > begin.start() else None]
    reason = next((reason for pattern, reason in _HARNESS if pattern.search(observation)), None)
    return Turn(action, observation, {"context_only": reason} if reason else {})


def _action_space(record: dict[str, Any], turns: list[Turn]) -> str:
    """The tools that the run was given, each with the arguments that its calls have."""
    settings = record.get("agent_args")
    files = settings.get("command_files") if isinstance(settings, dict) else None
    called: dict[str, dict[str, None]] = {
        PurePosixPath(file).stem: {} for file in (files if isinstance(files, list) else []) if isinstance(file, str)
    }
    for turn in turns:
        if name := _FUNCTION.match(turn.action):
            called.setdefault(name[1], {}).update(dict.fromkeys(_PARAMETER.findall(turn.action)))
    tools = [f"{name}: {', '.join(keys) or 'no arguments'}" for name, keys in called.items()]
    return "\n".join([_ACTIONS, "", *tools])


FORMAT = Format("r2e-gym", "R2E-Gym and SWE-World runs with XML actions", matches, convert)
