"""Raw formats: the registry, and detection by content."""

from agentworld.data.errors import RequestError
from agentworld.data.formats import (
    agentworldbench,
    alfworld,
    android_world,
    asciicast,
    browsergym,
    hotpotqa_react,
    livemcpbench,
    mini_swe_agent,
    native,
    openai_chat,
    osworld,
    r2e_gym,
    swe_agent,
    tau_bench,
    wm_triples,
)
from agentworld.data.formats.format import Format, Head

# The first that matches is taken: the narrower before the wider.
FORMATS: tuple[Format, ...] = (
    native.FORMAT,
    agentworldbench.FORMAT,
    livemcpbench.FORMAT,
    tau_bench.FORMAT,
    swe_agent.FORMAT,
    mini_swe_agent.FORMAT,
    r2e_gym.FORMAT,
    wm_triples.FORMAT,
    hotpotqa_react.FORMAT,
    android_world.FORMAT,
    browsergym.FORMAT,
    osworld.FORMAT,
    asciicast.FORMAT,
    alfworld.FORMAT,
    openai_chat.FORMAT,
    openai_chat.MESSAGES_FORMAT,
)


def detect(head: Head) -> Format | None:
    """The format of a file with this head, or None."""
    return next((known for known in FORMATS if known.matches(head)), None)


def by_name(name: str) -> Format:
    """The format of a name.

    Raises:
        RequestError: there is none; the text lists those there are.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    raise RequestError(f"unknown format {name!r}; known: {', '.join(known.name for known in FORMATS)}")
