"""Our own JSON Lines (`agentworld.data.schema`)."""

from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.schema import SchemaError, Trajectory, from_dict


def matches(head: Head) -> bool:
    return isinstance(head.first, dict) and {"id", "domain", "split_group", "turns"} <= head.first.keys()


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """Ids are kept."""
    try:
        yield from_dict(record)
    except SchemaError as error:
        raise UnusableError(str(error)) from None


FORMAT = Format("agentworld", "one trajectory of this project a line", matches, convert)
