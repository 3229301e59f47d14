"""OpenAI-style chat with tool calls: the wide fallback for logs of agents that call tools.

    FORMAT            {"messages": [...], "tools": [...]}, one a line, one an element, or one file; a list of
                      messages as an element is read as well
    MESSAGES_FORMAT   a file that is one conversation: an array, or lines, of messages

Only calls are actions and only their results are observations. What the agent writes to its user and what the user
asks next is no part of the environment of tools, and is left out; so are the system prompt and the task, which are the
agent's. tau-bench, where the user is simulated and belongs to the environment, has a format of its own.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

from agentworld.data.formats import livemcpbench
from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.formats.mcp_repr import is_repr, unwrapped
from agentworld.data.formats.tool_calls import action_space, calls_of, checked, text_of, turns
from agentworld.data.schema import DOMAINS, System, Trajectory

SOURCE = "openai-chat"
TASK = "Tools behind function calls. Each call is answered with the result that the tool returns."
CALL_KEYS = ('"tool_calls"', '"function_call"', '"tool_use"')


def matches(head: Head) -> bool:
    first = head.first
    if isinstance(first, dict):
        # mini-swe-agent keeps messages too, and names its schema.
        known = "trajectory_format" in first or livemcpbench.matches(head)
        return not known and _are_messages(first.get("messages"))
    return head.layout in ("array", "lines", "stream") and _are_messages(first)


def matches_messages(head: Head) -> bool:
    """Other agents keep bare messages as well, with their actions in the text; those have no tool calls."""
    is_message = _are_messages([head.first]) and "content" in head.first and "messages" not in head.first
    return head.layout in ("array", "lines", "stream") and is_message and any(key in head.text for key in CALL_KEYS)


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    fields = record if isinstance(record, dict) else {"messages": record}
    if not isinstance(fields.get("messages"), list):
        raise UnusableError("there is no list of messages")
    messages = checked(fields["messages"])
    if not any(calls_of(message) for message in messages):
        raise UnusableError("there is no tool call: nothing in a plain chat tells what an environment answered")
    found = turns(messages, _observation)
    if not found:
        raise UnusableError("no tool call is answered")
    source = fields["source"] if _is_text(fields.get("source")) else SOURCE
    identity = f"{source}:{origin.file}{origin.where}"
    tools = fields.get("tools") or fields.get("functions")
    yield Trajectory(
        id=identity,
        domain=fields["domain"] if fields.get("domain") in DOMAINS else "mcp",
        source=source,
        split_group=f"{source}:{_task(fields, messages)}",
        system=System(TASK, action_space(tools, messages)),
        turns=found,
    )


def _observation(content: Any) -> tuple[str, str | None]:
    return unwrapped(content) if is_repr(content) else text_of(content)


def _task(fields: dict, messages: list[dict]) -> str:
    """Runs of one task share its name; without one, they share what the user first asks."""
    for key in ("task_id", "instance_id"):
        if isinstance(fields.get(key), str | int) and fields[key] != "":
            return str(fields[key])
    asked = next((text_of(message.get("content"))[0] for message in messages if message["role"] == "user"), "")
    return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and _is_text(value[0].get("role"))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


FORMAT = Format("openai-chat", "chats with tool calls, as the OpenAI API takes them", matches, convert)
MESSAGES_FORMAT = Format(
    "openai-messages", "one chat with tool calls: a bare array of messages", matches_messages, convert, whole=True
)
