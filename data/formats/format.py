"""What a raw format is: how to recognise it, and how one of its records becomes trajectories.

A format is one module of this folder with a `FORMAT`, listed in `agentworld.data.formats.FORMATS`. Reading files, lines
and JSON, damaged input, Unicode, filters, redaction and counting are not its business (`container.py`,
`agentworld.data.importing`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agentworld.data.errors import ContentError
from agentworld.data.schema import Trajectory


class UnusableError(ContentError):
    """A record gives no trajectory; the text is the reason that a person reads in the report."""


@dataclass(frozen=True)
class Head:
    """What detection sees of a file.

    `layout`: "object" (one JSON object), "array" (one JSON array), "lines" (one JSON value a line), "stream" (JSON
    values that follow each other without lines) or "text".
    `first`: the object, the first element, the value of the first line, the first value; None for text. What is damaged
    before it is passed over.
    `text`: the first 65,536 characters.
    """

    layout: str
    first: Any
    text: str


@dataclass(frozen=True)
class Origin:
    """Where a record stands: `file` is the path below the folder that was named, with that folder's name; `where` adds
    the line (`logs/a.jsonl:12`) or the element (`logs/a.json[3]`). It makes ids that are unique and lead back."""

    file: str
    where: str


@dataclass(frozen=True)
class Rejected:
    """A part of a record that gives no trajectory, while the others do."""

    where: str
    reason: str


@dataclass(frozen=True)
class Format:
    """`convert` gets one record: a JSON value, or the whole text of a text file. With `whole` it gets all elements of
    an array, or all values of lines or of a stream, as one list. It raises UnusableError where the record gives
    nothing.

    Args:
        about: half a line for the list of known formats.
    """

    name: str
    about: str
    matches: Callable[[Head], bool]
    convert: Callable[[Any, Origin], Iterable[Trajectory | Rejected]]
    whole: bool = False
