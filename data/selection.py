"""Which trajectories a run uses: weights of domains, shares of sources.

A weight is the part of a domain's trajectories that is used, drawn by a hash of (seed, id): a larger weight keeps what
a smaller one kept. A share is what a source may hold of all characters (actions and observations) that are used: of a
source that has more, as many are used as fit, in the order of their draws; sources without a share are used whole.
Weights come first.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agentworld.data.catalogue import Catalogue
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import DOMAINS


@dataclass
class PartCount:
    """Trajectories and characters of a domain or source: given, and used."""

    given: int = 0
    used: int = 0
    given_characters: int = 0
    used_characters: int = 0


@dataclass
class SelectionCount:
    domains: dict[str, PartCount] = field(default_factory=dict)
    sources: dict[str, PartCount] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_selection(domain_weights: Mapping[str, float], source_shares: Mapping[str, float]) -> None:
    """Raise RequestError naming the key, its value and what it may be."""
    for domain, weight in domain_weights.items():
        if domain not in DOMAINS:
            raise RequestError(f"data.domain_weights.{domain}: no such domain; known: {', '.join(DOMAINS)}")
        if not 0 <= weight <= 1:
            raise RequestError(
                f"data.domain_weights.{domain}={weight}: the part of its trajectories that is used, from 0 to 1"
            )
    for source, share in source_shares.items():
        if not 0 <= share <= 1:
            raise RequestError(f"data.source_shares.{source}={share}: a share is a number from 0 to 1")
    total = math.fsum(source_shares.values())
    if total > 1 + 1e-6:
        raise RequestError(f"data.source_shares add up to {total:g}; they are shares of one whole, at most 1 together")


def select(
    catalogue: Catalogue,
    kept: Iterable[bool],
    domain_weights: Mapping[str, float],
    source_shares: Mapping[str, float],
) -> tuple[bytearray, SelectionCount]:
    """Decide on each trajectory of the catalogue: 1 where it is used, and the count.

    Args:
        kept: whether each one is left by what came before (duplicates).

    Raises:
        ContentError: a share names a source that no trajectory has, or all is left out.
    """
    chosen, count = bytearray(len(catalogue)), SelectionCount()
    of_source: dict[str, list[int]] = {source: [] for source in source_shares}
    unshared = 0  # characters used of sources without a share
    for number, is_kept in enumerate(kept):
        if not is_kept:
            continue
        domain, source = catalogue.domain_of(number), catalogue.source_of(number)
        _count(count, catalogue, number, "given")
        if catalogue.draw[number] >= domain_weights.get(domain, 1.0):
            continue
        if source in of_source:
            of_source[source].append(number)
        else:
            chosen[number] = 1
            unshared += catalogue.characters[number]
    available = {source: sum(map(catalogue.characters.__getitem__, found)) for source, found in of_source.items()}
    _require_known(count, source_shares)
    if source_shares and not unshared and not _is_one(source_shares):
        raise ContentError(
            f"data.source_shares add up to {math.fsum(source_shares.values()):g} and name every source that is left, "
            "so nothing fills the rest; let them add up to 1"
        )
    whole = largest_whole(unshared, available, source_shares)
    for source, found in of_source.items():
        left = whole * source_shares[source]
        for number in sorted(found, key=catalogue.draw.__getitem__):
            if catalogue.characters[number] / 2 > left:  # used where that brings the sum nearer
                break
            chosen[number] = 1
            left -= catalogue.characters[number]
    for number in (number for number, is_chosen in enumerate(chosen) if is_chosen):
        _count(count, catalogue, number, "used")
    if not any(chosen):
        raise ContentError("data.domain_weights and data.source_shares leave no trajectory; raise them")
    return chosen, count


def largest_whole(unshared: int, available: Mapping[str, int], shares: Mapping[str, float]) -> float:
    """The largest whole in which what has no share is used up and no source exceeds its share.

    A source that has less than its share of that is used up, too, and the others hold their shares of what is then the
    whole: the root of W = unshared + sum of min(available, share x W), where the shares leave room for one. Shares that
    add up to 1 with nothing beside them have many roots, all up to the one at which the scarcest source is used up.
    """
    if not shares:
        return float(unshared)
    if not unshared and _is_one(shares):
        return min(available[source] / share for source, share in shares.items() if share > 0)
    whole, before = float(unshared + sum(available.values())), math.inf
    while whole < before:  # from above: each step lowers the whole or stays
        before = whole
        short = [source for source, share in shares.items() if available[source] <= share * whole]
        full = math.fsum(share for source, share in shares.items() if source not in short)
        whole = (unshared + sum(available[source] for source in short)) / (1 - full) if full < 1 else 0.0
    return before


def _is_one(shares: Mapping[str, float]) -> bool:
    return math.isclose(math.fsum(shares.values()), 1, abs_tol=1e-6)


def _require_known(count: SelectionCount, shares: Mapping[str, float]) -> None:
    for source in shares:
        if source not in count.sources:
            known = ", ".join(sorted(count.sources))
            raise ContentError(f"data.source_shares.{source}: no trajectory has this source; found: {known}")


def _count(count: SelectionCount, catalogue: Catalogue, number: int, kind: str) -> None:
    parts = (count.domains, catalogue.domain_of(number)), (count.sources, catalogue.source_of(number))
    for of_kind, name in parts:
        part = of_kind.setdefault(name, PartCount())
        setattr(part, kind, getattr(part, kind) + 1)
        field_name = f"{kind}_characters"
        setattr(part, field_name, getattr(part, field_name) + catalogue.characters[number])
