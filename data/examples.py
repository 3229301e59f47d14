"""Examples: one turn of a trajectory to be predicted, for RL prompts and evaluation."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
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
    every call. `filters.passing` has dropped trajectories without a target."""
    targets = [index for index, turn in enumerate(trajectory.turns) if turn.is_target]
    assert targets, f"{trajectory.id} has no turn that may be predicted"
    return targets[draws.choice(len(targets), "one-turn", seed, trajectory.id)]


@dataclass(frozen=True)
class Selection:
    """Examples for an evaluation. `earlier`: of so many of them the turn of `one_turn` did not fit, and an earlier one
    stands in its place; `too_long`: trajectories that were drawn and passed over because no turn of theirs fits."""

    examples: list[Example]
    earlier: int
    too_long: int


def select_examples(
    trajectories: Iterable[Trajectory], count: int, seed: int, fits: Callable[[Example], bool]
) -> Selection:
    """One turn each of `count` trajectories drawn without replacement (all of them if there are fewer).

    Neither the choice nor the order depends on the order of `trajectories`; a smaller count gives a prefix.

    Args:
        fits: whether there is room for the prompt of an example. Where one does not fit, no later turn of its
            trajectory may: a later prompt holds the earlier one.
    """
    examples: list[Example] = []
    earlier = too_long = 0
    for trajectory in sorted(trajectories, key=lambda trajectory: draws.digest("select", seed, trajectory.id)):
        if len(examples) == count:
            break
        index = _fitting_turn(trajectory, seed, fits)
        if index is None:
            too_long += 1
            continue
        earlier += index != one_turn(trajectory, seed)
        examples.append(example(trajectory, index))
    return Selection(examples, earlier, too_long)


def _fitting_turn(trajectory: Trajectory, seed: int, fits: Callable[[Example], bool]) -> int | None:
    """The turn of `one_turn` where it fits, else one of the targets before it that fit, uniform; None without any."""
    drawn = one_turn(trajectory, seed)
    if fits(example(trajectory, drawn)):
        return drawn
    before = [index for index, turn in enumerate(trajectory.turns[:drawn]) if turn.is_target]
    fitting = before[: bisect_left(before, True, key=lambda index: not fits(example(trajectory, index)))]
    return fitting[draws.choice(len(fitting), "fitting-turn", seed, trajectory.id)] if fitting else None
