"""Examples: one turn a trajectory, uniform, and the same whatever the order."""

import random
from collections import Counter

import pytest

from agentworld.data.examples import example, one_turn, select_examples
from agentworld.data.schema import System, Trajectory, Turn


def trajectory(name: str, turns: int = 5, domain: str = "terminal") -> Trajectory:
    made = [Turn(f"a{i}", f"o{i}", {"deterministic": i % 2 == 0} if i else {}) for i in range(turns)]
    return Trajectory(name, domain, "test", name, System("task", "actions"), made)


def test_an_example_is_its_turn_and_what_came_before():
    item = example(trajectory("x#1", domain="mcp"), 2)
    assert item.key == "x#1#2"
    assert (item.action, item.observation, item.domain) == ("a2", "o2", "mcp")
    assert [turn.action for turn in item.history] == ["a0", "a1"]
    assert [example(trajectory("x"), i).deterministic for i in range(3)] == [None, False, True]
    with pytest.raises(AssertionError):
        example(trajectory("x"), -1)
    with pytest.raises(AssertionError):
        example(trajectory("x"), 5)


def test_the_one_turn_is_uniform_and_stable():
    count, turns = 10_000, 5
    drawn = Counter(one_turn(trajectory(f"t{i}", turns), 0) for i in range(count))
    assert set(drawn) == set(range(turns))
    chi_squared = sum((n - count / turns) ** 2 / (count / turns) for n in drawn.values())
    assert chi_squared < 23.5  # 4 degrees of freedom, p = 1e-4
    some = [trajectory(f"t{i}") for i in range(50)]
    assert [one_turn(t, 1) for t in some] == [one_turn(t, 1) for t in some]
    assert [one_turn(t, 1) for t in some] != [one_turn(t, 2) for t in some]
    assert one_turn(trajectory("x", 1), 0) == 0


def test_selection_is_without_replacement_and_independent_of_order():
    pool = [trajectory(f"t{i}", 1 + i % 6) for i in range(60)]
    chosen = select_examples(pool, 20, 7)
    assert len({item.trajectory.id for item in chosen}) == 20
    assert all(item.index == one_turn(item.trajectory, 7) for item in chosen)
    assert select_examples(random.Random(0).sample(pool, 60), 20, 7) == chosen
    assert select_examples(pool, 10, 7) == chosen[:10]
    other = select_examples(pool, 20, 8)
    assert {item.trajectory.id for item in other} != {item.trajectory.id for item in chosen}
    assert {item.trajectory.id for item in select_examples(pool, 1000, 7)} == {t.id for t in pool}
    assert [item.trajectory.id for item in chosen] != [t.id for t in pool[:20]]
