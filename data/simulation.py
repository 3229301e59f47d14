"""Simulation instructions (arXiv:2606.24597 section 3.1.2): what a simulation is told about its own course.

Search: the query that a session works on, its reference answer, and the demand not to give it away. Every search
trajectory that names both has one. Other domains: a share of the trajectories gets an instruction on one turn, read
off the real observation by rules ("fails: permission denied", "the output has 3 lines"), so that a model learns to
simulate according to an instruction. Such an instruction tells less than the observation: it is made of counts, kinds
and at most QUOTED characters of the observation, and where that would be all of it, there is none.

An instruction names its turn by number, so that it is also true where a whole trajectory is trained. It is derived from
the truth: it belongs into training, never into an evaluation.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentworld.data import draws
from agentworld.data.outcomes import outcome
from agentworld.data.schema import DOMAINS, Trajectory

# The paper tells no share. A fifth leaves most sessions to be simulated freely, which is what evaluation asks.
CONTROLLED_SHARE = 0.2
CONTROLLED_DOMAINS = tuple(domain for domain in DOMAINS if domain != "search")
# Where a search record may say what it works on: as JSON in its simulation instruction, or in `meta` of its first turn.
QUERY_KEY, ANSWER_KEY = "query", "reference_answer"

_NO_LEAKAGE = (
    "This answer is for you alone. Documents state it where real documents would, and nowhere else; titles, snippets "
    "and messages never give it away; nothing marks it, confirms it or points to it; and a query that asks for it "
    "outright gets what the service returns for its words."
)


@dataclass
class InstructionCount:
    """Trajectories by what became of their instruction.

    `own`: the source's text, kept as it is; `search`: made from query and answer; `controlled`: made from the truth;
    `no_rule`: drawn, but no rule says anything of the turn; `none`: neither given nor drawn.
    """

    own: int = 0
    search: int = 0
    controlled: int = 0
    no_rule: int = 0
    none: int = 0

    def add(self, kind: str) -> None:
        """Count one trajectory."""
        setattr(self, kind, getattr(self, kind) + 1)

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def instructed(
    trajectory: Trajectory, index: int, seed: int, share: float = CONTROLLED_SHARE
) -> tuple[Trajectory, str]:
    """A trajectory whose target is `turns[index]` with its instruction in `system`, and the field of InstructionCount
    that it counts in; the turns are the same objects.

    Depends on its arguments alone. What the source says comes first; the draw depends on (seed, trajectory id), so that
    a larger share keeps the instructions of a smaller one.
    """
    text, kind = _decide(trajectory, index, seed, share)
    return replace(trajectory, system=replace(trajectory.system, simulation_instruction=text)), kind


def search_instruction(query: str, answer: str) -> str:
    """The instruction of a search session: target query, reference answer, no leakage."""
    return (
        f"The agent works on this query: {query}\nThe reference answer in the simulated world: {answer}\n{_NO_LEAKAGE}"
    )


def _decide(trajectory: Trajectory, index: int, seed: int, share: float) -> tuple[str | None, str]:
    """The instruction, None where it is simulated freely, and the field of InstructionCount that it counts in."""
    assert 0 <= index < len(trajectory.turns), f"turn {index} of {len(trajectory.turns)}"
    own = trajectory.system.simulation_instruction
    if trajectory.domain == "search":
        known = _query_and_answer(_object(own)) or _query_and_answer(trajectory.turns[0].meta)
        if known and (not own or not own.strip() or _query_and_answer(_object(own))):
            return search_instruction(*known), "search"
    if own and own.strip():
        return own, "own"
    if trajectory.domain not in CONTROLLED_DOMAINS or "context_only" in trajectory.turns[index].meta:
        return None, "none"
    if draws.uniform("simulation-instruction", seed, trajectory.id) >= share:
        return None, "none"
    said = outcome(trajectory, index)
    if said is None:
        return None, "no_rule"
    return f"Turn {index + 1}, counted from the first action: {said}", "controlled"


def _object(text: str | None) -> Any:
    try:
        return json.loads(text) if text and text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):  # text that merely begins with a brace
        return None


def _query_and_answer(fields: Any) -> tuple[str, str] | None:
    """Both, where both are texts that are not blank."""
    if not isinstance(fields, dict):
        return None
    found = [fields.get(name) for name in (QUERY_KEY, ANSWER_KEY)]
    if all(isinstance(value, str) and value.strip() for value in found):
        return found[0].strip(), found[1].strip()
    return None
