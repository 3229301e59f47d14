"""ALFWorld prompts for masked diffusion agents: recognised, so that their refusal says why."""

from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.schema import DOMAINS, Trajectory


def matches(head: Head) -> bool:
    return isinstance(head.first, dict) and {"messages", "game_file", "init_admissible"} <= head.first.keys()


def convert(record: Any, origin: Origin) -> Iterator[Trajectory | Rejected]:
    """Raises UnusableError always."""
    raise UnusableError(
        "an ALFWorld game: the first observation of a household text game without an action, so it holds no turn, "
        f"and such games are none of the domains {', '.join(DOMAINS)}"
    )


FORMAT = Format("alfworld", "ALFWorld prompts: recognised and refused, they hold no turns", matches, convert)
