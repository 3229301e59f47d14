"""What a rule verifier is told and what it answers.

A verifier is a function of one `Item`. It answers None where it decides nothing (another domain, another kind of turn,
a truth that leaves open what it checks), else a `Verdict`: a yes or a no with its reason in words. The truth always
passes: a verifier that would fail it must answer None.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentworld.data.render import Message
from agentworld.data.schema import System, Turn


@dataclass(frozen=True)
class Context:
    """What surrounds the turn. `domain` "" is unknown: then only exact match on deterministic turns applies. `history`
    holds the turns before, with their true observations."""

    domain: str = ""
    history: tuple[Turn, ...] = ()
    action_space: str = ""
    simulation_instruction: str = ""

    @property
    def last(self) -> str | None:
        """The observation before this one; None at the first turn."""
        return self.history[-1].observation if self.history else None


def context_of(domain: str, history: Sequence[Turn], system: System) -> Context:
    """The context of a turn of a trajectory."""
    return Context(domain, tuple(history), system.action_space, system.simulation_instruction or "")


def context_of_messages(domain: str, messages: Sequence[Message]) -> Context:
    """The context of a prompt that `Renderer.messages` took apart. The system prompt holds action space and simulation
    instruction beside other text; both are only searched, so it stands for both."""
    world, *said = messages
    pairs = zip(said[:-1:2], said[1::2], strict=True)
    history = tuple(Turn(action.text, observation.text) for action, observation in pairs)
    return Context(domain, history, world.text, world.text)


@dataclass(frozen=True)
class Item:
    """One prediction to be verified. `deterministic`: the observation follows from the session alone; None: unknown."""

    prediction: str
    reference: str
    action: str
    deterministic: bool | None
    context: Context


@dataclass(frozen=True)
class Verdict:
    name: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class Ruling:
    """What verifiers that a model wrote said of one prediction (rewards/turn_verifiers.py). `silent`: for each that
    ended without a verdict, its name and why; `stale`: there is one for this turn, but for another text of
    the truth."""

    verdicts: tuple[Verdict, ...] = ()
    silent: tuple[str, ...] = ()
    stale: bool = False


NO_RULING = Ruling()

Verifier = Callable[[Item], Verdict | None]


def compared(name: str, what: str, found: object, expected: object) -> Verdict:
    """The verdict of an equality; the reason names both sides, cut where they are long."""
    if found == expected:
        return Verdict(name, True, f"{what} {_short(expected)} as in truth")
    return Verdict(name, False, f"{what} {_short(found)}, in truth {_short(expected)}")


def without(name: str, lost: Iterable[object], what: str) -> Verdict:
    """The verdict that nothing is in `lost`."""
    items = list(lost)
    if not items:
        return Verdict(name, True, f"{what}: all as in truth")
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return Verdict(name, False, f"{what}: {_short(items[0])}{more} differ from the truth")


def _short(value: object, limit: int = 60) -> str:
    shown = repr(value)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
