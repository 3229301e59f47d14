"""LiveMCPBench results: an agent before many real MCP servers, through two tools, `route` and `execute-tool`.

The client wrote each answer down as the Python repr of its CallToolResult object, and cut it at 10,000 characters. That
repr is unwrapped into the text of its parts (`mcp_repr`): the quotes and doubled escapes of Python are how the client
prints, and without them the same answer reads as it does from any other client. `execute-tool` itself answers with JSON
that holds the result of the inner tool; that is the server's answer and stays as it is. The flag isError of the repr is
not kept: where it is set, the text itself says that the tool failed.

Answers that are no repr ("Tool call timed out.") are the client's words; those, and answers that were cut, are context.
"""

from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.formats.mcp_repr import is_repr, unwrapped
from agentworld.data.formats.tool_calls import action_space, text_of, tool_names, turns
from agentworld.data.schema import System, Trajectory

SOURCE = "livemcpbench"
TASK = (
    "Real MCP servers behind two tools. `route` searches a catalogue of their tools, `execute-tool` runs one of these "
    "and answers with its result as JSON, errors of the server included. Files and data that calls change stay changed."
)
TOOLS = [
    {
        "name": "route",
        "description": "Search the catalogue; answers with the best matching tools, their servers and input schemas.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
    {
        "name": "execute-tool",
        "description": "Run one tool of one server.",
        "parameters": {
            "type": "object",
            "properties": {
                "server_name": {"type": "string"},
                "tool_name": {"type": "string"},
                "params": {"type": "object"},
            },
            "required": ["server_name", "tool_name", "params"],
        },
    },
]
TIMED_OUT = "Tool call timed out."


def matches(head: Head) -> bool:
    first = head.first
    if not isinstance(first, dict) or not isinstance(first.get("messages"), list):
        return False
    if {"task_id", "Question", "category", "Annotator Metadata"} <= first.keys():
        return True
    try:
        names = tool_names(first["messages"])
    except UnusableError:
        return False
    # Other clients print their results as well, but have other tools.
    known = all(name in ("route", "execute-tool") for name in names)
    return known and any(is_repr(m.get("content")) for m in first["messages"] if m["role"] == "tool")


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        raise UnusableError("there is no list of messages")
    found = turns(record["messages"], observation)
    if not found:
        raise UnusableError("no tool call is answered")
    identity = f"{SOURCE}:{origin.file}{origin.where}"
    task = record.get("task_id")
    yield Trajectory(
        id=identity,
        domain="mcp",
        source=SOURCE,
        split_group=identity if task in (None, "") else f"{SOURCE}:{task}",
        system=System(TASK, action_space(TOOLS, record["messages"])),
        turns=found,
    )


def observation(content: Any) -> tuple[str, str | None]:
    """What the server answered, and why it is no target."""
    if not isinstance(content, str):
        return text_of(content)
    if content == TIMED_OUT:
        return content, "time-out of the harness"
    if not is_repr(content):
        return content, "written by the client of the harness, not by a server"
    return unwrapped(content)


FORMAT = Format("livemcpbench", "LiveMCPBench results: real MCP servers, two tools", matches, convert)
