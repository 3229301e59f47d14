"""Examples: one turn a trajectory, uniform, and the same whatever the order."""

import random
from collections import Counter

import pytest

from agentworld.data.examples import Example, example, one_turn, select_examples
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


def everything(item: Example) -> bool:
    return True


def test_selection_is_without_replacement_and_independent_of_order():
    pool = [trajectory(f"t{i}", 1 + i % 6) for i in range(60)]
    selection = select_examples(pool, 20, 7, everything)
    chosen = selection.examples
    assert (len(chosen), selection.earlier, selection.too_long) == (20, 0, 0)
    assert len({item.trajectory.id for item in chosen}) == 20
    assert all(item.index == one_turn(item.trajectory, 7) for item in chosen)
    assert select_examples(random.Random(0).sample(pool, 60), 20, 7, everything) == selection
    assert select_examples(pool, 10, 7, everything).examples == chosen[:10]
    other = select_examples(pool, 20, 8, everything).examples
    assert {item.trajectory.id for item in other} != {item.trajectory.id for item in chosen}
    assert {item.trajectory.id for item in select_examples(pool, 1000, 7, everything).examples} == {t.id for t in pool}
    assert [item.trajectory.id for item in chosen] != [t.id for t in pool[:20]]


def test_turns_that_fit_are_preferred_and_what_was_passed_over_is_counted():
    """A limit of so many turns of history a trajectory; the oracle looks at every turn."""
    pool = [trajectory(f"t{i}", 1 + i % 7) for i in range(700)]
    limits = {item.id: number % 5 - 1 for number, item in enumerate(pool)}  # -1: not even the first turn

    def fits(item: Example) -> bool:
        return item.index <= limits[item.trajectory.id]

    whole = select_examples(pool, 700, 3, fits)
    unlimited = {item.trajectory.id: item.index for item in select_examples(pool, 700, 3, everything).examples}
    moved = [item for item in whole.examples if item.index != unlimited[item.trajectory.id]]
    assert whole.too_long == sum(limit < 0 for limit in limits.values()) == 140
    assert len(whole.examples) == 700 - 140 and whole.earlier == len(moved) > 100
    assert all(map(fits, whole.examples))
    assert all(not fits(example(item.trajectory, unlimited[item.trajectory.id])) for item in moved)
    of_three = Counter(item.index for item in moved if limits[item.trajectory.id] == 2)
    assert set(of_three) == {0, 1, 2} and max(of_three.values()) < 2 * min(of_three.values())  # any that fits
    # A smaller count is a prefix, filled up over those that do not fit.
    some = select_examples(random.Random(1).sample(pool, 700), 100, 3, fits)
    assert some.examples == whole.examples[:100] and 10 < some.too_long < 50


def test_a_turn_that_may_not_be_predicted_takes_no_place():
    turns = [
        Turn("a", "o", {"context_only": "x"}),
        Turn("b", "p"),
        Turn("c", "q", {"context_only": "x"}),
        Turn("d", "r"),
    ]
    pool = [Trajectory(f"t{i}", "mcp", "s", "g", System("t", "a"), turns) for i in range(50)]
    chosen = select_examples(pool, 50, 0, lambda item: item.index < 3)
    assert {item.index for item in chosen.examples} == {1} and len(chosen.examples) == 50
    assert select_examples(pool, 50, 0, lambda item: item.index < 1).too_long == 50
