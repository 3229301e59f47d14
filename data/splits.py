"""Splitting trajectories into the pools of the stages, disjoint by `split_group` (arXiv:2606.24597 section 3.1.1)."""

import math
from collections.abc import Sequence
from dataclasses import asdict

from agentworld.data import draws
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import Trajectory
from agentworld.data.settings import SplitSettings

POOLS = ("cpt", "sft", "rl", "eval")


def check_shares(split: SplitSettings) -> None:
    """Raise RequestError unless every share is in [0, 1] and they add up to 1."""
    shares = asdict(split)
    for pool, share in shares.items():
        if not 0 <= share <= 1:
            raise RequestError(f"data.split.{pool}={share}: a share is a number from 0 to 1")
    total = sum(shares.values())
    if not math.isclose(total, 1, abs_tol=1e-6):
        shown = " + ".join(f"{pool} {share:g}" for pool, share in shares.items())
        raise RequestError(f"data.split: the shares must add up to 1, found {shown} = {total:g}")


def split_pools(trajectories: Sequence[Trajectory], split: SplitSettings, seed: int) -> dict[str, list[Trajectory]]:
    """Give every split group to one pool; trajectories keep their order.

    Groups in the order of a hash of (seed, group) are cut where the share of trajectories reaches each pool's
    cumulative share; a pool with a share gets at least one group.

    Raises:
        RequestError: the shares are wrong.
        ContentError: there are fewer groups than pools with a share; the text names a pool that would be empty.
    """
    check_shares(split)
    sizes: dict[str, int] = {}
    for trajectory in trajectories:
        sizes[trajectory.split_group] = sizes.get(trajectory.split_group, 0) + 1
    shares = {pool: getattr(split, pool) for pool in POOLS if getattr(split, pool) > 0}
    if len(sizes) < len(shares):
        pool = list(shares)[len(sizes)]
        raise ContentError(
            f"the {pool} pool would be empty: {len(shares)} pools need as many different split_group values, found "
            f"{len(sizes)} in {len(trajectories)} trajectories; give more of them"
        )
    order = sorted(sizes, key=lambda group: draws.digest("split", seed, group))
    pool_of = _cut(order, sizes, shares)
    pools: dict[str, list[Trajectory]] = {pool: [] for pool in POOLS}
    for trajectory in trajectories:
        pools[pool_of[trajectory.split_group]].append(trajectory)
    return pools


def _cut(order: list[str], sizes: dict[str, int], shares: dict[str, float]) -> dict[str, str]:
    """The pool of each group. A group belongs where its middle falls, so a large one is not always pushed on."""
    names = list(shares)
    ends = [sum(list(shares.values())[: i + 1]) * sum(sizes.values()) for i in range(len(names))]
    pool_of: dict[str, str] = {}
    at = taken = before = 0  # the current pool, groups in it, trajectories before this group
    for position, group in enumerate(order):
        is_past = before + sizes[group] / 2 >= ends[at]
        is_needed_later = len(order) - position <= len(names) - 1 - at
        if taken and at + 1 < len(names) and (is_past or is_needed_later):
            at, taken = at + 1, 0
        pool_of[group] = names[at]
        taken += 1
        before += sizes[group]
    return pool_of
