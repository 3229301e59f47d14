"""Filters drop what they name, keep the rest as it was, and count."""

from dataclasses import replace

from agentworld.data import filters
from agentworld.data.schema import System, Trajectory, Turn


def trajectory(name: str, *pairs: tuple[str, str]) -> Trajectory:
    turns = [Turn(action, observation, {"n": i}) for i, (action, observation) in enumerate(pairs)]
    return Trajectory(name, "terminal", "test", name, System("task", "actions"), turns)


def passing(given: list[Trajectory], min_turns: int) -> tuple[list[Trajectory], filters.FilterCount]:
    count = filters.FilterCount()
    return list(filters.passing(given, min_turns, count)), count


A, B, C = ("ls", "x"), ("pwd", "/"), ("id", "")


def test_turns_without_an_action_are_stripped_and_the_others_stay():
    given = [trajectory("a", A, ("", "noise"), B), trajectory("b", (" \n\t", "noise")), trajectory("c", C)]
    kept, count = passing(given, 1)
    assert [[(turn.action, turn.meta["n"]) for turn in t.turns] for t in kept] == [[("ls", 0), ("pwd", 2)], [("id", 0)]]
    assert (count.empty_action_turns, count.too_short) == (2, 1)
    assert len(given[0].turns) == 3  # the input is untouched


def test_filters_run_in_order_and_the_totals_add_up():
    given = [
        trajectory("a", A, ("", "?"), B),
        trajectory("c", A, ("", "?")),  # too short once stripped
        trajectory("d", B, C),
        replace(trajectory("e", A, C), turns=[Turn(*turn, {"context_only": "time-out"}) for turn in (A, C)]),
        replace(trajectory("f", A, B), source="agentworldbench"),  # of a benchmark: never trained on
    ]
    kept, count = passing(given, 2)
    assert [t.id for t in kept] == ["a", "d"]
    assert count == filters.FilterCount(5, empty_action_turns=2, too_short=1, without_target=1, evaluation=1, kept=2)
    assert count.read == count.too_short + count.without_target + count.evaluation + count.kept
