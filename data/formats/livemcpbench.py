"""LiveMCPBench results: an agent before many real MCP servers, through two tools, `route` and `execute-tool`.

The client wrote each answer down as the Python repr of its CallToolResult object, and cut it at 10,000 characters. That
repr is how the client prints, not what the server said, so it is unwrapped into the text of its parts: the quotes and
the doubled escapes of Python are gone, and the same answer reads as it does from any other client. `execute-tool`
itself answers with JSON that holds the result of the inner tool; that is the server's answer and stays as it is. The
flag isError of the repr is not kept: where it is set, the text itself says that the tool failed.

Answers that are no repr ("Tool call timed out.") are the client's words; those, and answers that were cut, are context.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.formats.tool_calls import action_space, text_of, turns
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

_OPENING = re.compile(r"meta=(?:None|\{[^\n]*?\}) content=\[")
_WHOLE = re.compile(
    r"meta=(?:None|\{[^\n]*?\}) content=(\[.*\])(?: structuredContent=(?:None|\{.*\}))? isError=(?:True|False)",
    re.DOTALL,
)
# The text of the first part, as far as it goes: whole characters and whole escapes.
_FIRST_TEXT = re.compile(r"\[TextContent\(type='text', text=(['\"])")
_LITERAL = {
    quote: re.compile(rf"(?:[^\\{quote}\n]|\\x[0-9a-f]{{2}}|\\u[0-9a-f]{{4}}|\\U[0-9a-f]{{8}}|\\[^xuU])*")
    for quote in "'\""
}


def matches(head: Head) -> bool:
    first = head.first
    if not isinstance(first, dict) or not isinstance(first.get("messages"), list):
        return False
    if {"task_id", "Question"} <= first.keys():
        return True
    results = (m.get("content") for m in first["messages"] if isinstance(m, dict) and m.get("role") == "tool")
    return any(isinstance(content, str) and _OPENING.match(content) for content in results)


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
    if not _OPENING.match(content):
        return content, "written by the client of the harness, not by a server"
    text, why = _unwrapped(content)
    text, why_note = text_of(text)
    return text, why or why_note


def _unwrapped(content: str) -> tuple[str, str | None]:
    """The texts of the parts of a repr; of one that was cut, the text of its first part as far as it goes."""
    whole = _WHOLE.fullmatch(content)
    if whole is not None:
        try:
            return _parts(whole[1])
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return content, "the repr of the result cannot be read"
    cut = "cut by the harness"
    first = _FIRST_TEXT.search(content)
    if first is None:
        return content, cut
    quote = first[1]
    return ast.literal_eval(quote + _LITERAL[quote].match(content, first.end())[0] + quote), cut


def _parts(listed: str) -> tuple[str, str | None]:
    """`[TextContent(type='text', text='..', ..), ImageContent(..)]` as text, what is no text as a note."""
    texts, why = [], None
    for part in ast.parse(listed, mode="eval").body.elts:
        arguments = {k.arg: k.value for k in part.keywords} if isinstance(part, ast.Call) else {}
        text = arguments.get("text")
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            texts.append(text.value)
        else:
            texts.append(f"[{ast.unparse(part.func) if isinstance(part, ast.Call) else 'unknown'}]")
            why = "a part of the result is no text"
    return "\n".join(texts), why


FORMAT = Format("livemcpbench", "LiveMCPBench results: real MCP servers, two tools", matches, convert)
