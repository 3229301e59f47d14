"""Chat messages with tool calls to turns: what the chat formats share.

An action is one call, `{"name": ..., "arguments": {...}}`; its observation is the result that answers that very call.
What the agent says beside a call is its reasoning and goes. A round is an assistant message and what follows it up to
the next one: results are looked for there only, because some providers use the same call ids again and again.

Messages of the Anthropic API (blocks `tool_use` and `tool_result`) are read as the same thing.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agentworld.data.formats.format import UnusableError
from agentworld.data.schema import Turn

# The text of a result, and why it is no target (None: it is one).
Observe = Callable[[Any], tuple[str, str | None]]
# Action and result (None: there is none) of a round without a tool call.
Spoken = Callable[[dict, list[dict]], list[tuple[str, Any]]]

RESULT_ROLES = ("tool", "function")
IMAGE = "base64 data is replaced by a note"
_BASE64 = re.compile(
    r'("type":\s*"(?:image|audio|blob)",\s*"(?:data|blob)":\s*"|data:[\w.+-]+/[\w.+-]+;base64,)([A-Za-z0-9+/=]{64,})'
)


def turns(messages: Any, observe: Observe, spoken: Spoken | None = None) -> list[Turn]:
    """The turns of a conversation, in call order.

    A call without a result gives no turn; `meta["unanswered_before"]` of the next turn counts those calls.

    Args:
        spoken: for environments that answer what the agent says as well; None: only calls are actions.

    Raises:
        UnusableError: a message or a call is not of this shape.
    """
    found: list[Turn] = []
    unanswered = 0
    for said, following in rounds(checked(messages)):
        calls = calls_of(said)
        if calls:
            pairs = [(action(name, arguments), result) for name, arguments, result in answered(calls, following)]
        else:
            pairs = spoken(said, following) if spoken is not None else []
        for act, result in pairs:
            if result is None:
                unanswered += 1
                continue
            observation, why_context = observe(result)
            meta = {"context_only": why_context} if why_context is not None else {}
            if unanswered:
                meta, unanswered = meta | {"unanswered_before": unanswered}, 0
            found.append(Turn(act, observation, meta))
    return found


def checked(messages: Any) -> list[dict]:
    """The messages, blocks of calls and results as messages of their own.

    Raises:
        UnusableError: it is not a list of objects with a role.
    """
    if not isinstance(messages, list) or not messages:
        raise UnusableError("there are no messages")
    found: list[dict] = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise UnusableError(f"message {number} is not an object with a role")
        found += _from_blocks(message)
    return found


def rounds(messages: Iterable[dict]) -> Iterator[tuple[dict, list[dict]]]:
    """Each assistant message and what follows it; what stands before the first is left out."""
    said: dict | None = None
    following: list[dict] = []
    for message in messages:
        if message["role"] != "assistant":
            following.append(message)
            continue
        if said is not None:
            yield said, following
        said, following = message, []
    if said is not None:
        yield said, following


def calls_of(message: dict) -> list[dict]:
    """The tool calls of an assistant message, the older `function_call` included."""
    calls = message.get("tool_calls") or ([message["function_call"]] if message.get("function_call") else [])
    if not isinstance(calls, list):
        raise UnusableError("tool_calls is not a list")
    return calls


def answered(calls: list[dict], following: list[dict]) -> list[tuple[str, Any, Any]]:
    """(name, arguments, result or None) of each call, in call order.

    Results go by call id, or by name, or, where that tells nothing, by order. A result is left out rather than given to
    a wrong call: where it fits none, and where more calls than results could be meant.
    """
    named = [_name_and_arguments(call) for call in calls]
    ids, names = [call.get("id") for call in calls], [name for name, _ in named]
    results = [message for message in following if message["role"] in RESULT_ROLES]
    found: dict[int, Any] = {}
    for result in results:
        identity, name = result.get("tool_call_id"), result.get("name")
        if identity and any(ids):
            fitting = [k for k, known in enumerate(ids) if known == identity]
            alike = sum(other.get("tool_call_id") == identity for other in results)
        elif name and name in names:
            fitting = [k for k, known in enumerate(names) if known == name]
            alike = sum(other.get("name") == name for other in results)
        else:
            fitting, alike = list(range(len(calls))), len(results)
        waiting = [k for k in fitting if k not in found]
        if waiting and len(fitting) <= alike:
            found[waiting[0]] = "" if result.get("content") is None else result["content"]
    return [(name, arguments, found.get(k)) for k, (name, arguments) in enumerate(named)]


def action(name: str, arguments: Any) -> str:
    """A call as text; arguments that are the text of JSON are taken as that JSON."""
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def text_of(content: Any) -> tuple[str, str | None]:
    """The content of a message as text, base64 data as a note; and why it is no target then."""
    if isinstance(content, str):
        return without_base64(content)
    if content is None:
        return "", None
    if isinstance(content, list) and content and all(isinstance(p, dict) and "type" in p for p in content):
        texts = [part["text"] if isinstance(part.get("text"), str) else f"[{part['type']}]" for part in content]
        text, why = without_base64("\n".join(texts))
        return text, why or (None if all(isinstance(p.get("text"), str) for p in content) else IMAGE)
    return without_base64(json.dumps(content, ensure_ascii=False))


def without_base64(text: str) -> tuple[str, str | None]:
    """Base64 data of images and the like as a note of its length: no text predicts it, and it fills the context."""
    if "base64" not in text and '"type"' not in text:
        return text, None
    text, count = _BASE64.subn(lambda match: f"{match[1]}[{len(match[2])} base64 characters]", text)
    return text, IMAGE if count else None


def action_space(tools: Any, messages: Any) -> str:
    """The tools of a trajectory, one JSON object a line: their definitions, or the names that occur without them.

    Args:
        tools: the definitions of the record, or None.
    """
    form = 'One call of a tool: {"name": ..., "arguments": {...}}. '
    defined = _definitions(tools)
    if defined:
        return form + "The tools, one a line:\n" + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in defined)
    lines = "\n".join(json.dumps({"name": name}, ensure_ascii=False) for name in tool_names(messages))
    return form + "The tools that occur, one a line; their definitions were not recorded:\n" + lines


def tool_names(messages: Any) -> list[str]:
    """The tools that the agent calls, in order of first use."""
    calls = (call for message in checked(messages) for call in calls_of(message))
    return list(dict.fromkeys(_name_and_arguments(call)[0] for call in calls))


def _definitions(tools: Any) -> list[dict[str, Any]]:
    """Name, description and JSON parameters of each tool."""
    if isinstance(tools, str):
        tools = _parsed(tools)
    if not isinstance(tools, list):
        return []
    defined = []
    for tool in tools:
        tool = tool.get("function", tool) if isinstance(tool, dict) else {"name": tool}
        if not isinstance(tool, dict) or not isinstance(tool.get("name", tool.get("type")), str):
            raise UnusableError("a tool definition has no name")
        parameters = next((tool[k] for k in ("parameters", "input_schema", "inputSchema") if k in tool), None)
        described = {
            "name": tool.get("name", tool.get("type")),
            "description": tool.get("description"),
            "parameters": parameters,
        }
        defined.append({key: value for key, value in described.items() if value is not None})
    return defined


def _name_and_arguments(call: Any) -> tuple[str, Any]:
    if not isinstance(call, dict):
        raise UnusableError("a tool call is not an object")
    function = call.get("function") or call.get("custom") or call
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise UnusableError("a tool call has no name")
    return function["name"], function.get("arguments", function.get("input", {}))


def _parsed(text: str) -> Any:
    """The JSON of a text, or the text where it is none; NaN and Infinity are none."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def _from_blocks(message: dict) -> list[dict]:
    content = message.get("content")
    blocks = [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
    uses = [block for block in blocks if block.get("type") == "tool_use"]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    if uses and not message.get("tool_calls"):
        return [message | {"content": None, "tool_calls": uses}]
    if results:
        rest = [block for block in blocks if block.get("type") != "tool_result"]
        answers = [
            {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content")}
            for block in results
        ]
        return [*answers, *([message | {"content": rest}] if rest else [])]
    return [message]
