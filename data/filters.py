"""Filters over trajectories (arXiv:2606.24597 section 3.1.2): pure functions that return what is left and what went."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentworld.data import cleaning
from agentworld.data.schema import Trajectory


@dataclass(frozen=True)
class FilterCount:
    """Trajectories unless named turns; read = kept + too_short + without_target."""

    read: int
    empty_action_turns: int
    too_short: int
    without_target: int
    kept: int


def apply(trajectories: Sequence[Trajectory], min_turns: int) -> tuple[list[Trajectory], FilterCount]:
    """Strip empty actions, then drop what is too short or holds no target. Duplicates: `duplicates.py`."""
    stripped, empty_action_turns = strip_empty_actions(trajectories)
    long_enough, too_short = drop_short(stripped, min_turns)
    kept = [t for t in long_enough if any(turn.is_target for turn in t.turns)]
    without_target = len(long_enough) - len(kept)
    return kept, FilterCount(len(trajectories), empty_action_turns, too_short, without_target, len(kept))


def strip_empty_actions(trajectories: Sequence[Trajectory]) -> tuple[list[Trajectory], int]:
    """Take out turns whose action is blank; returns the trajectories, some maybe without turns, and the turns taken."""
    stripped = [cleaning.strip_empty_actions(trajectory) for trajectory in trajectories]
    return [trajectory for trajectory, _ in stripped], sum(count for _, count in stripped)


def drop_short(trajectories: Sequence[Trajectory], min_turns: int) -> tuple[list[Trajectory], int]:
    """Drop trajectories of fewer than `min_turns` turns; returns the rest and how many went."""
    kept = [t for t in trajectories if len(t.turns) >= min_turns]
    return kept, len(trajectories) - len(kept)
