"""Filters over trajectories (arXiv:2606.24597 section 3.1.2), one at a time, with a count of what went."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentworld.data.cleaning import strip_empty_actions
from agentworld.data.schema import Trajectory


@dataclass
class FilterCount:
    """Trajectories unless named turns; read = kept + too_short + without_target."""

    read: int = 0
    empty_action_turns: int = 0
    too_short: int = 0
    without_target: int = 0
    kept: int = 0


def passing(trajectories: Iterable[Trajectory], min_turns: int, count: FilterCount) -> Iterator[Trajectory]:
    """Those that have `min_turns` turns and a target once turns with a blank action are stripped, in their order.

    `count` is complete at the end. Duplicates: `duplicates.py`.
    """
    for given in trajectories:
        trajectory, stripped = strip_empty_actions(given)
        count.read += 1
        count.empty_action_turns += stripped
        if len(trajectory.turns) < min_turns:
            count.too_short += 1
        elif not any(turn.is_target for turn in trajectory.turns):
            count.without_target += 1
        else:
            count.kept += 1
            yield trajectory
