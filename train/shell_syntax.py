"""The small part of shell syntax that the scripted teacher reads: simple commands, joined by `;`, `&&` or `||`.

Words may hold plain characters, quotes and `$name`; a command may end in one `> file`, `>> file` or `< file`.
Everything else (pipes, substitutions, globs, braces, compound commands, several lines) is not read: `parse` returns
None.
"""

import json
import re
from dataclasses import dataclass, field

MAX_COMMAND_CHARS = 300  # a longer line may be wrapped by the terminal

_PIECE = re.compile(
    r"""
      (?P<space>[ ]+)
    | (?P<connector>;|&&|\|\|)
    | (?P<redirect>(?<!\d)(?:>>|>|<)(?![<>&(]))
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\`$!]|\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}|\?))*)"
    | \$(?P<variable>[A-Za-z_]\w*|\{[A-Za-z_]\w*\}|\?)
    | (?P<tilde>(?<![^ ])~(?=[/ ]|$))
    | (?P<bare>[\w./,:=+@%^-]+|(?<![^ ])[\[\]](?=[ ]|$))
    """,
    re.VERBOSE,
)
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|\{[A-Za-z_]\w*\}|\?)")
_SUBSHELL_EXIT = re.compile(r"^\(exit (\d{1,2})\)(?=;)")


@dataclass(frozen=True)
class Part:
    """A piece of a word. `kind`: text | variable | quoted variable | tilde; `text`: the characters or the name."""

    kind: str
    text: str = ""


Word = list[Part]


@dataclass
class Command:
    """One simple command. `connector` is what joins it to the one before ("" for the first)."""

    connector: str
    words: list[Word] = field(default_factory=list)
    redirect: str = ""  # "" | > | >> | <
    target: Word | None = None


def keystrokes(action: str) -> str | None:
    """What an action types, without its last newline: one entry of Terminus JSON that ends in a newline; else None."""
    try:
        entries = json.loads(action)
        (entry,) = entries
        typed = entry["keystrokes"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(entries, list) or not isinstance(typed, str) or not typed.endswith("\n"):
        return None
    return typed[:-1]


def parse(line: str) -> list[Command] | None:
    """The simple commands of a line, or None where it holds anything that is not read here."""
    if not line.isprintable() or len(line) > MAX_COMMAND_CHARS:
        return None
    line = _SUBSHELL_EXIT.sub(r"exit-status \1", line)
    commands = [Command("")]
    word: Word | None = None
    position = 0
    for piece in _PIECE.finditer(line):
        if piece.start() != position:
            return None
        position = piece.end()
        kind, text = piece.lastgroup, piece[piece.lastgroup]
        command = commands[-1]
        if kind in ("space", "connector", "redirect"):
            word = None
            if kind == "connector":
                commands.append(Command(text))
            elif kind == "redirect":
                if command.redirect:
                    return None
                command.redirect = text
            continue
        if word is None:
            word = []
            if command.redirect:
                if command.target is not None:
                    return None
                command.target = word
            else:
                command.words.append(word)
        word.extend(_parts(kind, text))
    complete = position == len(line) and all(c.words and bool(c.redirect) == (c.target is not None) for c in commands)
    return commands if complete else None


def _parts(kind: str, text: str) -> list[Part]:
    if kind == "variable":
        return [Part("variable", text.strip("{}"))]
    if kind == "tilde":
        return [Part("tilde")]
    if kind != "double":
        return [Part("text", text)]
    parts, position = [Part("text")], 0  # the empty text keeps an empty quoted word a word
    for name in _VARIABLE.finditer(text):
        parts += [Part("text", text[position : name.start()]), Part("quoted variable", name[1].strip("{}"))]
        position = name.end()
    return [*parts, Part("text", text[position:])]
