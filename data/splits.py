"""Splitting trajectories into the pools of the stages, disjoint by `split_group` (arXiv:2606.24597 section 3.1.1)."""

import math
from collections.abc import Mapping
from dataclasses import asdict

from agentworld.data import draws
from agentworld.data.errors import ContentError, RequestError
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


def assign_pools(sizes: Mapping[str, int], split: SplitSettings, seed: int) -> dict[str, str]:
    """The pool of each split group.

    Groups in the order of a hash of (seed, group) are cut where the share of trajectories reaches each pool's
    cumulative share; a pool with a share gets at least one group.

    Args:
        sizes: trajectories of each group, at least 1.

    Raises:
        RequestError: the shares are wrong.
        ContentError: there are fewer groups than pools with a share; the text names a pool that would be empty.
    """
    check_shares(split)
    shares = {pool: getattr(split, pool) for pool in POOLS if getattr(split, pool) > 0}
    if len(sizes) < len(shares):
        pool = list(shares)[len(sizes)]
        raise ContentError(
            f"the {pool} pool would be empty: {len(shares)} pools need as many different split_group values, found "
            f"{len(sizes)} in {sum(sizes.values())} trajectories; give more of them"
        )
    order = sorted(sizes, key=lambda group: draws.digest("split", seed, group))
    return _cut(order, sizes, shares)


def _cut(order: list[str], sizes: Mapping[str, int], shares: dict[str, float]) -> dict[str, str]:
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
