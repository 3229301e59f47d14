"""tau-bench runs: an agent at a service desk, before an API and a customer whom a language model plays.

The customer belongs to the environment: what the agent says without a tool call is the action `respond`, as in
tau-bench itself, and the customer's reply is its observation; the run opens with the customer's first words. Words
beside a tool call never reach the customer, and go. `###STOP###` is how the customer ends the conversation and is kept.

Two dialects: tool calls, and ReAct, where the assistant's text ends with `Action:` and the JSON of the call, and the
API answers in a user message after "API output: ". Few-shot text ({"messages_display": "user: ..\\nassistant: .."})
has lost its calls and is refused.
"""

import json
from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.formats.tool_calls import action, action_space, calls_of, checked, text_of, turns
from agentworld.data.schema import System, Trajectory

SOURCE = "tau-bench"
TASK = (
    "A service desk. Tools read and change the records of a company, and answer with a result or an error; a customer "
    "with a request of their own answers what the agent says to them, and writes ###STOP### when they are done."
)
RESPOND = {
    "name": "respond",
    "description": "Say something to the customer, who replies.",
    "parameters": {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]},
}
API_OUTPUT = "API output: "


def matches(head: Head) -> bool:
    first = head.first
    if not isinstance(first, dict):
        return False
    return (isinstance(first.get("traj"), list) and "task_id" in first) or _is_few_shot(first)


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    if not isinstance(record, dict):
        raise UnusableError("not a JSON object")
    if _is_few_shot(record):
        raise UnusableError('few-shot text, which does not hold the tool calls ("assistant: None" stands for them)')
    if not isinstance(record.get("traj"), list):
        raise UnusableError('there is no list "traj"')
    if not record["traj"]:
        raise UnusableError("the run failed before its first message")
    messages = checked(record["traj"])
    react = not any(calls_of(message) for message in messages) and any(map(_reasons, messages))
    found = turns(messages, text_of, _reacted if react else _responded)
    if not found:
        raise UnusableError("neither a tool nor the customer answers the agent")
    identity = f"{SOURCE}:{origin.file}{origin.where}"
    task = record.get("task_id")
    yield Trajectory(
        id=identity,
        domain="mcp",
        source=SOURCE,
        split_group=identity if task is None else f"{SOURCE}:{task}",
        system=System(TASK, _action_space(found), initial_state=_opening(messages)),
        turns=found,
    )


def _is_few_shot(record: dict) -> bool:
    return record.keys() == {"messages_display"}


def _opening(messages: list[dict]) -> str | None:
    """What the customer says first."""
    before = messages[: next((k for k, m in enumerate(messages) if m["role"] == "assistant"), len(messages))]
    said = [text_of(message.get("content"))[0] for message in before if message["role"] == "user"]
    return "The customer opens: " + said[-1] if said else None


def _responded(said: dict, following: list[dict]) -> list[tuple[str, Any]]:
    words = text_of(said.get("content"))[0]
    return [(action(RESPOND["name"], {"content": words}), _reply(following))]


def _reacted(said: dict, following: list[dict]) -> list[tuple[str, Any]]:
    """What stands after the last `Action:`: a call, or words to the customer."""
    text = text_of(said.get("content"))[0].split("Action:")[-1].strip()
    reply = _reply(following)
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        call = None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return [(action(RESPOND["name"], {"content": text}), reply)]
    if call["name"] != RESPOND["name"] and isinstance(reply, str):
        reply = reply.removeprefix(API_OUTPUT)
    return [(action(call["name"], call.get("arguments", {})), reply)]


def _reply(following: list[dict]) -> Any:
    """The customer's words; None where the run ends before."""
    return next((message.get("content") or "" for message in following if message["role"] == "user"), None)


def _reasons(message: dict) -> bool:
    content = message.get("content")
    return message["role"] == "assistant" and isinstance(content, str) and "Action:\n{" in content


def _action_space(found: list) -> str:
    names = dict.fromkeys(json.loads(turn.action)["name"] for turn in found)
    return action_space([RESPOND, *({"name": name} for name in names if name != RESPOND["name"])], [])


FORMAT = Format("tau-bench", "tau-bench runs: an API and a simulated customer", matches, convert)
