"""Examples: one turn of a trajectory to be predicted, for RL prompts and evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentworld.data import draws
from agentworld.data.schema import Trajectory, Turn


@dataclass(frozen=True)
class Example:
    """The turn `index` of a trajectory. `key` is "<trajectory id>#<index>"."""

    key: str
    trajectory: Trajectory
    index: int

    @property
    def turn(self) -> Turn:
        return self.trajectory.turns[self.index]

    @property
    def action(self) -> str:
        return self.turn.action

    @property
    def observation(self) -> str:
        return self.turn.observation

    @property
    def history(self) -> list[Turn]:
        """The turns before this one."""
        return self.trajectory.turns[: self.index]

    @property
    def deterministic(self) -> bool | None:
        """Whether the observation follows from the session alone; None where the source does not say."""
        value = self.turn.meta.get("deterministic")
        return value if isinstance(value, bool) else None

    @property
    def domain(self) -> str:
        return self.trajectory.domain


def example(trajectory: Trajectory, index: int) -> Example:
    """The example of one turn."""
    assert 0 <= index < len(trajectory.turns), f"turn {index} of {len(trajectory.turns)}"
    return Example(f"{trajectory.id}#{index}", trajectory, index)


def one_turn(trajectory: Trajectory, seed: int) -> int:
    """The one turn that a trajectory gives (arXiv:2606.24597 section 3.1.2): uniform over its targets, the same on
    every call. `filters.apply` has dropped trajectories without a target."""
    targets = [index for index, turn in enumerate(trajectory.turns) if turn.is_target]
    assert targets, f"{trajectory.id} has no turn that may be predicted"
    return targets[draws.choice(len(targets), "one-turn", seed, trajectory.id)]


def select_examples(trajectories: Sequence[Trajectory], count: int, seed: int) -> list[Example]:
    """One turn each of `count` trajectories drawn without replacement (all of them if there are fewer).

    Neither the choice nor the order depends on the order of `trajectories`; a smaller count gives a prefix.
    """
    drawn = sorted(trajectories, key=lambda trajectory: draws.digest("select", seed, trajectory.id))
    return [example(trajectory, one_turn(trajectory, seed)) for trajectory in drawn[:count]]
