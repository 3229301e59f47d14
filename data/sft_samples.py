"""SFT samples: one turn of a trajectory, with a teacher's thought that led to what the environment really answered.

Only traces whose prediction equals the truth are kept (arXiv:2606.24597 section 3.3 keeps the best of three by a
judge; equality is the strictest judge).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from agentworld.data import draws
from agentworld.data.examples import Example, example
from agentworld.data.render import CLOSE_TAG, OPEN_TAG
from agentworld.data.schema import Trace, Trajectory, Turn

Teacher = Callable[[Sequence[Turn], str], Trace | None]


@dataclass(frozen=True)
class SftSample:
    """A turn and the correct trace of it."""

    example: Example
    trace: Trace


@dataclass
class TeacherCount:
    """What the teacher did over all turns of some trajectories; `families`: [answered, correct] by trace family."""

    trajectories: int = 0
    turns: int = 0
    answered: int = 0
    correct: int = 0
    unsayable: int = 0  # turns not asked: the observation holds the answer's tag, so a target would be ambiguous
    samples: int = 0  # trajectories with at least one correct turn
    families: dict[str, list[int]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """With coverage (answered / turns) and precision (correct / answered); null where the divisor is 0."""
        families = {
            name: {"answered": answered, "correct": correct, "precision": correct / answered}
            for name, (answered, correct) in sorted(self.families.items())
        }
        return {
            "trajectories": self.trajectories,
            "turns": self.turns,
            "answered": self.answered,
            "correct": self.correct,
            "unsayable": self.unsayable,
            "coverage": self.answered / self.turns if self.turns else None,
            "precision": self.correct / self.answered if self.answered else None,
            "samples": self.samples,
            "families": families,
        }


def holds_tag(observation: str) -> bool:
    """Whether an observation holds the tag that an answer is wrapped in, so that no answer could be told from it."""
    return OPEN_TAG in observation or CLOSE_TAG in observation


def choose_samples(
    trajectories: Iterable[Trajectory], teacher: Teacher, seed: int, count: TeacherCount
) -> Iterator[SftSample]:
    """Ask the teacher about every turn; of each trajectory take one of its correct turns, uniform by hash.

    The teacher gets the history and the action of a turn, without `meta`: nothing from which the truth can be read.
    `count` is complete at the end.
    """
    for trajectory in trajectories:
        count.trajectories += 1
        correct = _correct_traces(trajectory, teacher, count)
        if correct:
            count.samples += 1
            yield correct[draws.choice(len(correct), "sft-turn", seed, trajectory.id)]


def samples_of(trajectories: Iterable[Trajectory], traces: Path, start: int, number: int) -> Iterator[SftSample]:
    """The samples again, from the trajectories that they were chosen from and the file of traces.

    Args:
        traces: rows of key, family, thinking and prediction, in the order of the trajectories.
        start, number: the lines of the file that belong to these trajectories.
    """
    given = iter(trajectories)
    with open(traces, encoding="utf-8") as file:
        for line in islice(file, start, start + number):
            row = json.loads(line)
            name, _, index = row.pop("key").rpartition("#")
            trajectory = next(each for each in given if each.id == name)
            yield SftSample(example(trajectory, int(index)), Trace(**row))


def _correct_traces(trajectory: Trajectory, teacher: Teacher, count: TeacherCount) -> list[SftSample]:
    bare = [Turn(turn.action, turn.observation) for turn in trajectory.turns]
    correct = []
    for index, turn in enumerate(bare):
        if not trajectory.turns[index].is_target:
            continue
        count.turns += 1
        if holds_tag(turn.observation):
            count.unsayable += 1
            continue
        trace = teacher(bare[:index], turn.action)
        if trace is None:
            continue
        is_correct = trace.prediction == turn.observation
        family = count.families.setdefault(trace.family, [0, 0])
        family[0] += 1
        family[1] += is_correct
        count.answered += 1
        count.correct += is_correct
        if is_correct:
            correct.append(SftSample(example(trajectory, index), trace))
    return correct
