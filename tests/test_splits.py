"""Splits: disjoint by group, near their shares, never empty, and the same in any order."""

import random
from collections import Counter

import pytest

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import System, Trajectory, Turn
from agentworld.data.settings import SplitSettings
from agentworld.data.splits import POOLS, assign_pools


def trajectories(groups: list[int]) -> list[Trajectory]:
    """groups[i] trajectories of group i."""
    return [
        Trajectory(f"t{g}-{i}", "terminal", "test", f"g{g}", System("t", "a"), [Turn("a", "b")])
        for g, size in enumerate(groups)
        for i in range(size)
    ]


def split_pools(given: list[Trajectory], split: SplitSettings, seed: int) -> dict[str, list[Trajectory]]:
    pool_of = assign_pools(Counter(t.split_group for t in given), split, seed)
    return {pool: [t for t in given if pool_of[t.split_group] == pool] for pool in POOLS}


def test_pools_are_disjoint_by_group_complete_and_never_empty():
    rng = random.Random(0)
    for seed in range(300):
        sizes = [rng.choice((1, 1, 2, 9, 40)) for _ in range(rng.randint(4, 30))]
        given = trajectories(sizes)
        pools = split_pools(given, SplitSettings(), seed)
        assert list(pools) == list(POOLS)
        groups = {name: {t.split_group for t in pool} for name, pool in pools.items()}
        assert all(groups.values())
        assert sum(len(g) for g in groups.values()) == len(sizes)
        assert sorted(t.id for pool in pools.values() for t in pool) == sorted(t.id for t in given)


def test_shares_are_of_trajectories():
    rng = random.Random(1)
    given = trajectories([rng.choice((1, 2, 3, 10)) for _ in range(500)])
    pools = split_pools(given, SplitSettings(), 0)
    for name, share in (("cpt", 0.55), ("sft", 0.2), ("rl", 0.2), ("eval", 0.05)):
        assert abs(len(pools[name]) / len(given) - share) < 10 / len(given), name


def test_a_group_goes_where_its_middle_falls():
    pools = split_pools(trajectories([10] * 4), SplitSettings(cpt=0.6, sft=0, rl=0, eval=0.4), 0)
    assert [len(pools[name]) for name in POOLS] == [20, 0, 0, 20]  # 24 wanted: 20 is nearer than 30


def test_the_order_of_the_input_does_not_matter_but_is_kept():
    given = trajectories([1] * 40)
    pools = split_pools(given, SplitSettings(), 5)
    shuffled = random.Random(2).sample(given, len(given))
    again = split_pools(shuffled, SplitSettings(), 5)
    for name in POOLS:
        assert {t.id for t in pools[name]} == {t.id for t in again[name]}
        assert pools[name] == [t for t in given if t in pools[name]]
        assert again[name] == [t for t in shuffled if t in again[name]]
    assert split_pools(given, SplitSettings(), 6) != pools


def test_a_pool_without_a_share_is_empty():
    pools = split_pools(trajectories([1, 1]), SplitSettings(cpt=0.5, sft=0, rl=0.5, eval=0), 0)
    assert [len(pools[name]) for name in POOLS] == [1, 0, 1, 0]


def test_too_few_groups_name_the_pool_and_the_way_out():
    with pytest.raises(ContentError, match=r"the eval pool would be empty.*found 3 in 300.*give more"):
        split_pools(trajectories([100] * 3), SplitSettings(), 0)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"cpt": 0.5}, r"data\.split: the shares must add up to 1, found .* = 0\.95"),
        ({"cpt": 1.5, "sft": -0.75}, r"data\.split\.cpt=1\.5"),
        ({"sft": float("nan")}, r"data\.split\.sft=nan"),
    ],
)
def test_wrong_shares_are_refused(shares, message):
    with pytest.raises(RequestError, match=message):
        split_pools(trajectories([1] * 10), SplitSettings(**shares), 0)
