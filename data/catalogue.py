"""The trajectories of a preparation on disk, and in memory only what decides on them: some 50 bytes each."""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from agentworld.data import draws
from agentworld.data.schema import Trajectory, to_dict


class Catalogue:
    """Trajectories as lines of a file, numbered from 0 in the order in which they are added.

    Columns, one entry a trajectory: `turns`, `characters` (of actions and observations), `draw` (uniform in [0, 1) by
    seed and id), and by `group_of`, `domain_of`, `source_of` its names.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._file = open(path, "w+b")  # noqa: SIM115 (open as long as this object lives)
        self._seed = seed
        self._ends = array("Q", [0])
        self.turns = array("I")
        self.characters = array("Q")
        self.draw = array("d")
        self._groups, self._domains, self._sources = _Names(), _Names(), _Names()

    def __len__(self) -> int:
        return len(self.turns)

    def adding(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """Pass trajectories through, taking each in on its way."""
        for trajectory in trajectories:
            line = json.dumps(to_dict(trajectory), ensure_ascii=False).encode() + b"\n"
            self._file.write(line)
            self._ends.append(self._ends[-1] + len(line))
            self.turns.append(len(trajectory.turns))
            self.characters.append(sum(len(turn.action) + len(turn.observation) for turn in trajectory.turns))
            self.draw.append(draws.uniform("selection", self._seed, trajectory.id))
            self._groups.add(trajectory.split_group)
            self._domains.add(trajectory.domain)
            self._sources.add(trajectory.source)
            yield trajectory

    def group_of(self, number: int) -> str:
        return self._groups.name_of(number)

    def domain_of(self, number: int) -> str:
        return self._domains.name_of(number)

    def source_of(self, number: int) -> str:
        return self._sources.name_of(number)

    def group_sizes(self, chosen: Iterable[bool]) -> Counter[str]:
        """Chosen trajectories of each split group, groups in the order of the first."""
        return Counter(self.group_of(number) for number, is_chosen in enumerate(chosen) if is_chosen)

    def lines(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, bytes]]:
        """(number, line of JSON with its end) of those wanted, in order."""
        self._file.flush()
        for number in range(len(self)):
            if wanted(number):
                self._file.seek(self._ends[number])
                yield number, self._file.read(self._ends[number + 1] - self._ends[number])

    def close(self) -> None:
        self._file.close()


class _Names:
    """A column of names, each stored once."""

    def __init__(self) -> None:
        self._code: dict[str, int] = {}
        self._names: list[str] = []
        self._column = array("I")

    def add(self, name: str) -> None:
        code = self._code.setdefault(name, len(self._names))
        if code == len(self._names):
            self._names.append(name)
        self._column.append(code)

    def name_of(self, number: int) -> str:
        return self._names[self._column[number]]
