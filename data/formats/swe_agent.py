"""SWE-agent `.traj` files (github.com/SWE-agent/SWE-agent): old and new schema, all prompt dialects, CTF runs.

A file holds `trajectory` (steps of action, observation, response, thought, state), `history` (the chat) and `info`.
The dialects (``` blocks, XML, cursors, function calling) differ in `response` and `history` only: `action` is always
the command line that the environment ran, so it is the action here, also where the model called a function.
`state`, a dict in new files and a JSON string in old ones, is not read: it is taken before the action in some versions
and after it in others. A file with `history` only is read from the chat, less the prompt that the agent appends there.

Domain: "terminal" for capture-the-flag runs, else "swe". A run is one if its system message speaks of a CTF or its
first prompt opens with "the following CTF challenge"; both are fixed texts of the agent's CTF configurations, and the
issue text, which may say anything, stands in neither place.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.formats.issue_text import issue_key
from agentworld.data.schema import System, Trajectory, Turn

SOURCE = "swe-agent"

_TASK = {
    "swe": "A Linux container with the checkout of a software repository, used through a bash shell that keeps its "
    "state and through commands that show, search and edit files.",
    "terminal": "A Linux container with the files of a capture-the-flag challenge, used through a bash shell that "
    "keeps its state and through commands that show and edit files, inspect binaries and talk to a server.",
}
_ACTIONS = (
    "Each action is one command line, run by bash in the same session. Programs that wait for a user are refused."
)
_OBSERVATION = "The observation is what the command printed, standard output and standard error together."

# Texts of the agent's own code (sweagent/agent/agents.py, sweagent/environment/swe_env.py, old and new names).
_HARNESS = (
    (re.compile(r"^EXECUTION TIMED OUT", re.MULTILINE), "time-out of the harness"),
    (re.compile(r"^The command '.*' was cancelled because it took more than", re.DOTALL), "time-out of the harness"),
    (re.compile(r"^COMMAND FAILED TO EXECUTE\.", re.MULTILINE), "the harness restarted the shell"),
    (
        re.compile(r"^(?:Interactive o|O)peration '.*' is not supported by this environment", re.DOTALL),
        "refused by the harness",
    ),
    (
        re.compile(r"<response clipped><NOTE>|Observations should not exceeded \d+ characters"),
        "output truncated by the harness",
    ),
    (re.compile(r"^(?:Old environment output: \(|Old output omitted \()"), "output masked by the harness"),
    (re.compile(r"^(?:Exit due to |Exited \()"), "the harness ends the run"),
)
_HARNESS_ACTION = re.compile(r"exit_(?!forfeit)\w+|skip")  # exit_forfeit is a tool of the CTF runs
_COMMANDS = re.compile(r"^COMMANDS:\n(.*?)\n\s{0,20}\n(?=Please note|RESPONSE FORMAT)", re.DOTALL | re.MULTILINE)
_PROMPT = re.compile(
    r"\(Open file: ([^\n]*)\)\n\(Current directory: ([^\n]*)\)\n(?:\(Interactive session: [^\n]*\)\n)?bash-\$\s*$"
)
_UPLOADED = re.compile(r"<uploaded_files>\s*(\S+)\s*</uploaded_files>")
_CTF_OPENING = re.compile(r"\s*.{0,80}the following CTF challenge")
_CHALLENGE = re.compile(
    r"^Files included in the challenge: .*$|The challenge [^\n]{0,40}? is running on `[^`\n]*` port `[^`\n]*`",
    re.MULTILINE,
)
_NO_OUTPUT = "Your command ran successfully and did not produce any output."


def matches(head: Head) -> bool:
    record = head.first
    if not isinstance(record, dict):
        return False
    steps, history = record.get("trajectory"), record.get("history")
    if isinstance(steps, list) and steps:
        return isinstance(steps[0], dict) and {"action", "observation", "response", "thought"} <= steps[0].keys()
    chat = isinstance(history, list) and bool(history) and isinstance(history[0], dict)
    return chat and {"role", "content", "agent"} <= history[0].keys() and steps in (None, [])


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    if not isinstance(record, dict):
        raise UnusableError(f"a run is an object; found {type(record).__name__}")
    history = record.get("history")
    messages = [m for m in history if isinstance(m, dict) and not m.get("is_demo")] if isinstance(history, list) else []
    steps = record.get("trajectory")
    pairs = _from_history(messages) if steps is None else _from_steps(steps)
    if not pairs:
        raise UnusableError(f"the run has no steps (exit status {_exit_status(record)})")
    rules = "\n".join(message_text(m.get("content")) for m in messages if m.get("role") == "system")
    task = next((message_text(m.get("content")) for m in messages if m.get("role") == "user"), "")
    domain = "terminal" if re.search(r"\bCTF\b", rules) or _CTF_OPENING.match(task) else "swe"
    yield Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}",
        domain=domain,
        source=SOURCE,
        split_group=f"{SOURCE}:{issue_key(_PROMPT.sub('', task) or origin.file)}",
        system=System(_TASK[domain], _action_space(record, rules, messages), initial_state=_initial_state(task)),
        turns=[Turn(action, observation, _meta(domain, action, observation)) for action, observation in pairs],
    )


def _from_steps(steps: Any) -> list[tuple[str, str]]:
    if not isinstance(steps, list):
        raise UnusableError(f"trajectory is no list of steps but {type(steps).__name__}")
    pairs = []
    for index, step in enumerate(steps):
        if not isinstance(step, dict):
            raise UnusableError(f"step {index} is no object")
        for key in ("action", "observation"):
            if not isinstance(step.get(key), str):
                raise UnusableError(f"step {index} has no text as {key}")
        pairs.append((step["action"], step["observation"]))
    return pairs


def _from_history(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each message with an action and the observation that follows it; an action without one ends the run."""
    pairs = []
    for message, answer in pairwise(messages):
        action = message.get("action")
        if message.get("role") != "assistant" or not isinstance(action, str):
            continue
        if answer.get("role") not in ("user", "tool"):
            break
        asked = [call.get("id") for call in message.get("tool_calls") or [] if isinstance(call, dict)]
        answered = answer.get("tool_call_ids") or asked
        if asked and answered != asked:
            break
        pairs.append((action, _observation(message_text(answer.get("content")))))
    return pairs


def _observation(shown: str) -> str:
    """What the environment printed, of the message made of it: the agent appends its prompt and may prepend a heading.

    The prompt follows an observation after one newline.
    """
    text = _PROMPT.sub("", shown)
    if text != shown:
        text = text.removesuffix("\n")
    text = text.removeprefix("OBSERVATION:\n")
    return "" if text.strip() == _NO_OUTPUT else text


def _meta(domain: str, action: str, observation: str) -> dict[str, Any]:
    command = action.strip()
    if domain == "terminal" and command.split(maxsplit=1)[:1] == ["submit"]:
        return {"context_only": "verdict of the grader"}
    if _HARNESS_ACTION.fullmatch(command):
        return {"context_only": "the harness ends the run"}
    reason = next((reason for pattern, reason in _HARNESS if pattern.search(observation)), None)
    return {"context_only": reason} if reason else {}


def _action_space(record: dict[str, Any], rules: str, messages: list[dict[str, Any]]) -> str:
    """The commands that the record defines, else the functions that it calls with the arguments it gives."""
    defined = _command_docs(record.get("replay_config"))
    if not defined and (found := _COMMANDS.search(rules)):
        defined = found[1]
    if not defined:
        called: dict[str, dict[str, None]] = {}
        for message in messages:
            for name, arguments in _calls(message):
                called.setdefault(name, {}).update(dict.fromkeys(arguments))
        defined = "\n".join(f"{name}: {', '.join(names) or 'no arguments'}" for name, names in called.items())
    return "\n\n".join(part for part in (f"{_ACTIONS} {_OBSERVATION}", defined.strip("\n")) if part)


def _command_docs(replay: Any) -> str:
    """New files keep the configuration of the run, in some as a JSON string."""
    if isinstance(replay, str):
        try:
            replay = json.loads(replay)
        except (ValueError, RecursionError):
            return ""
    for key in ("agent", "tools", "command_docs"):
        replay = replay.get(key) if isinstance(replay, dict) else None
    return replay if isinstance(replay, str) else ""


def _calls(message: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            continue
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (TypeError, ValueError, RecursionError):
            arguments = {}
        yield function["name"], arguments if isinstance(arguments, dict) else {}


def _initial_state(task: str) -> str | None:
    """The start directory and, for a challenge, its files and its server, as the first prompt tells them."""
    known = []
    if shown := _PROMPT.search(task):
        known.append(f"Working directory: {shown[2]}\nOpen file: {shown[1]}")
    elif uploaded := _UPLOADED.search(task):
        known.append(f"Working directory: {uploaded[1]}")
    known += _CHALLENGE.findall(task)
    return "\n".join(known) or None


def _exit_status(record: dict[str, Any]) -> str:
    info = record.get("info")
    return str(info.get("exit_status")) if isinstance(info, dict) else "unknown"


def message_text(content: Any) -> str:
    """The text of a message: a string, or parts of which some are text."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


FORMAT = Format("swe-agent", "SWE-agent .traj files, CTF runs included", matches, convert)
