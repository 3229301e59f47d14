"""mini-swe-agent runs (github.com/SWE-agent/mini-swe-agent): {info, messages, trajectory_format, instance_id}.

The action is the bash command: from `extra.actions`, else from the tool calls, else the one ``` block of the message
(with none or several the agent refuses the message and nothing is run). The observation is the message that the agent
got, `<returncode>..</returncode><output>..</output>`, and not `extra.raw_output`: that lacks the return code, which is
half of the answer of a command that prints nothing, and files without `extra` only have the message. Where the message
shortens a long output it is history only.

A bare array of messages is a file of the same agent if it holds its fence and its closing command.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.formats.issue_text import issue_key
from agentworld.data.formats.swe_agent import message_text
from agentworld.data.schema import System, Trajectory, Turn

SOURCE = "mini-swe-agent"
SUBMIT = ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT")
_FENCE = "```mswea_bash_command"
_TASK = "A Linux container with the checkout of a software repository, used through bash."
_ACTIONS = (
    "bash: one command or script, run by `bash -c` in a new subshell: files stay, the working directory and variables "
    "do not. The observation is <returncode>N</returncode> and then, between <output> and </output>, what the command "
    "printed, standard output and standard error together."
)
_BLOCK = re.compile(r"```(?:mswea_bash_command|bash)[ \t]*\n(.*?)\n```", re.DOTALL)
_HARNESS = (
    (re.compile(r"<exception>.*timed out after", re.DOTALL), "time-out of the harness"),
    (re.compile(r"<exception>"), "error of the harness"),
    (re.compile(r"The last command <command>.*timed out and has been killed", re.DOTALL), "time-out of the harness"),
    (re.compile(r"<returncode>-?\d+</returncode>\s*<warning>"), "output truncated by the harness"),
)
_FORMAT_ERROR = re.compile(r"Tool call error:|Format error:|Please always provide EXACTLY ONE action", re.IGNORECASE)


def matches(head: Head) -> bool:
    record = head.first
    if not isinstance(record, dict):
        return False
    if isinstance(record.get("messages"), list):
        info = record.get("info")
        named = isinstance(info, dict) and "mini_version" in info
        layout = record.get("trajectory_format")
        return named or (isinstance(layout, str) and layout.startswith("mini-swe-agent"))
    chat = head.layout == "array" and {"role", "content"} <= record.keys()
    return chat and _FENCE in head.text and any(word in head.text for word in SUBMIT)


def convert(record: Any, origin: Origin) -> Iterator[Trajectory | Rejected]:
    """A run, the messages of one run, or a list of runs."""
    if isinstance(record, dict):
        yield _run(record, origin, "")
    elif isinstance(record, list) and record and all(isinstance(m, dict) and "role" in m for m in record):
        yield _run({"messages": record}, origin, "")
    elif isinstance(record, list) and record:
        for number, run in enumerate(record, start=1):
            try:
                yield _run(run, origin, f"#{number}")
            except UnusableError as error:
                yield Rejected(f"{origin.where}#{number}", str(error))
    else:
        raise UnusableError("neither a run, nor the messages of one, nor a list of runs")


def _run(record: Any, origin: Origin, number: str) -> Trajectory:
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise UnusableError("the record has no list of messages")
    info = record.get("info") if isinstance(record.get("info"), dict) else {}
    turns = _turns(messages)
    if not turns:
        ended = f"; it ended with {info['exit_status']}" if info.get("exit_status") else ""
        raise UnusableError(f"no command was run in this session{ended}")
    task = next((message_text(m.get("content")) for m in messages if m.get("role") == "user"), "")
    name = record.get("instance_id")
    return Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}{number}",
        domain="swe",
        source=SOURCE,
        split_group=f"{SOURCE}:{name if isinstance(name, str) and name else issue_key(task or origin.file)}",
        system=System(_TASK, _ACTIONS, initial_state=_initial_state(info.get("config"))),
        turns=turns,
    )


def _turns(messages: list[dict[str, Any]]) -> list[Turn]:
    """One turn for each command with an answer. Commands without one are left out, and counted by the next turn."""
    turns: list[Turn] = []
    unanswered = 0
    for index, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        replies = []
        for reply in messages[index + 1 :]:
            if reply.get("role") == "assistant":
                break
            replies.append(reply)
        for command, observation, reason in _answered(_commands(message), replies):
            if observation is None:
                unanswered += 1
                continue
            meta: dict[str, Any] = {"context_only": reason} if reason else {}
            if unanswered:
                meta["commands_without_answer"], unanswered = unanswered, 0
            turns.append(Turn(command, observation, meta))
    return turns


def _answered(
    commands: list[tuple[str, str | None]], replies: list[dict[str, Any]]
) -> Iterator[tuple[str, str | None, str | None]]:
    """(command, observation or None, why it is no target or None), matched by call id, or in order without ids."""
    ids = [name for _, name in commands]
    named = all(ids) and len(set(ids)) == len(ids)
    plain = [r for r in replies if r.get("role") in ("tool", "user") and not _is_format_error(r)]
    for place, (command, name) in enumerate(commands):
        if named and any(r.get("role") == "tool" for r in plain):
            reply = next((r for r in plain if r.get("role") == "tool" and r.get("tool_call_id") == name), None)
        else:
            reply = plain[place] if place < len(plain) else None
        closing = any(word in command for word in SUBMIT)
        if reply is None and closing:  # the agent ends here; its exit message is the output, less the closing word
            reply = next((r for r in replies if r.get("role") == "exit"), None)
        text = message_text(reply.get("content")) if reply else None
        if text is None:
            yield command, None, None
        elif closing and not text.startswith("<returncode>"):
            yield command, text, "the harness ends the run"
        else:
            yield command, text, next((reason for pattern, reason in _HARNESS if pattern.match(text)), None)


def _commands(message: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The commands of a message of the agent, each with the id of its call where there is one."""
    extra = message.get("extra")
    actions = extra.get("actions") if isinstance(extra, dict) else None
    if isinstance(actions, list) and actions:
        found = [(a.get("command"), a.get("tool_call_id")) for a in actions if isinstance(a, dict)]
        return [(command, name) for command, name in found if isinstance(command, str)]
    if message.get("tool_calls"):
        return [(command, call.get("id")) for call in message["tool_calls"] if (command := _argument(call)) is not None]
    blocks = _BLOCK.findall(message_text(message.get("content")))
    return [(blocks[0].strip(), None)] if len(blocks) == 1 else []


def _argument(call: Any) -> str | None:
    """The command of a call of the tool bash."""
    function = call.get("function") if isinstance(call, dict) else None
    try:
        arguments = function.get("arguments") if isinstance(function, dict) else None
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else None


def _is_format_error(reply: dict[str, Any]) -> bool:
    extra = reply.get("extra")
    told = isinstance(extra, dict) and extra.get("interrupt_type") == "FormatError"
    return told or (reply.get("role") == "user" and bool(_FORMAT_ERROR.match(message_text(reply.get("content")))))


def _initial_state(config: Any) -> str | None:
    environment = config.get("environment") if isinstance(config, dict) else None
    if not isinstance(environment, dict):
        return None
    known = (("Working directory", environment.get("cwd")), ("Container image", environment.get("image")))
    return "\n".join(f"{name}: {value}" for name, value in known if isinstance(value, str) and value) or None


FORMAT = Format("mini-swe-agent", "mini-swe-agent runs, or their bare messages", matches, convert, whole=True)
