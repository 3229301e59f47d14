"""Filters over trajectories (arXiv:2606.24597 section 3.1.2), one at a time, with a count of what went."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentworld.data.cleaning import strip_empty_actions
from agentworld.data.formats import agentworldbench
from agentworld.data.schema import Trajectory

EVALUATION_SOURCES = (agentworldbench.SOURCE,)  # what is measured with is not trained on


@dataclass
class FilterCount:
    """Trajectories unless named turns; read = kept + too_short + without_target + evaluation."""

    read: int = 0
    empty_action_turns: int = 0
    too_short: int = 0
    without_target: int = 0
    evaluation: int = 0  # of EVALUATION_SOURCES
    kept: int = 0


def passing(trajectories: Iterable[Trajectory], min_turns: int, count: FilterCount) -> Iterator[Trajectory]:
    """Those that have `min_turns` turns and a target once turns with a blank action are stripped, in their order, and
    are no rows of a benchmark.

    `count` is complete at the end. Duplicates: `duplicates.py`.
    """
    for given in trajectories:
        trajectory, stripped = strip_empty_actions(given)
        count.read += 1
        count.empty_action_turns += stripped
        if trajectory.source in EVALUATION_SOURCES:
            count.evaluation += 1
        elif len(trajectory.turns) < min_turns:
            count.too_short += 1
        elif not any(turn.is_target for turn in trajectory.turns):
            count.without_target += 1
        else:
            count.kept += 1
            yield trajectory
