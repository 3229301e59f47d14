"""The Python repr of an MCP CallToolResult, as clients write it down who print their objects.

    meta=None content=[TextContent(type='text', text='..', annotations=None)] isError=False

The repr is how the client prints, not what the server said; the texts in it are.
"""

import ast
import re

from agentworld.data.formats.tool_calls import without_base64

CUT = "cut by the harness"

_SURROGATE = re.compile("[\ud800-\udfff]")
_OPENING = re.compile(r"meta=(?:None|\{[^\n]*?\}) content=\[")
_WHOLE = re.compile(
    r"meta=(?:None|\{[^\n]*?\}) content=(\[.*\])(?: structuredContent=(?:None|\{.*\}))? isError=(?:True|False)",
    re.DOTALL,
)
# The text of the first part, as far as it goes: whole characters and whole escapes.
_FIRST_TEXT = re.compile(_OPENING.pattern + r"TextContent\(type='text', text=(['\"])")
_LITERAL = {
    quote: re.compile(rf"(?:[^\\{quote}\n]|\\x[0-9a-f]{{2}}|\\u[0-9a-f]{{4}}|\\U[0-9a-f]{{8}}|\\[^xuU])*")
    for quote in "'\""
}


def is_repr(content: object) -> bool:
    return isinstance(content, str) and _OPENING.match(content) is not None


def unwrapped(content: str) -> tuple[str, str | None]:
    """The texts of the parts of a repr, and why they are no target (None: they are one).

    Of one that was cut, the text of its first part as far as it goes; one that cannot be read is given back.
    """
    text, why = _read(content)
    text, why_note = without_base64(text)
    return text, why or why_note


def _read(content: str) -> tuple[str, str | None]:
    # Python's parser takes no lone surrogates; their escapes mean the same to it.
    source = _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", content)
    whole, cut = _WHOLE.fullmatch(source), _FIRST_TEXT.match(source)
    try:
        if whole is not None:
            return _parts(whole[1])
        if cut is not None:
            literal = _LITERAL[cut[1]].match(source, cut.end())[0]
            return ast.literal_eval(cut[1] + literal + cut[1]), CUT
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return content, "the repr of the result cannot be read"
    return content, CUT


def _parts(listed: str) -> tuple[str, str | None]:
    """`[TextContent(type='text', text='..', ..), ImageContent(..)]` as text, what is no text as a note."""
    texts, why = [], None
    parsed = ast.parse(listed, mode="eval").body
    if not isinstance(parsed, ast.List):
        raise ValueError("not one list")
    for part in parsed.elts:
        arguments = {k.arg: k.value for k in part.keywords} if isinstance(part, ast.Call) else {}
        text = arguments.get("text")
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            texts.append(text.value)
        else:
            texts.append(f"[{ast.unparse(part.func) if isinstance(part, ast.Call) else 'unknown'}]")
            why = "a part of the result is no text"
    return "\n".join(texts), why
