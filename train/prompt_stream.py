"""The order in which RL meets its prompts where `rl.domain_weights` balances the domains. Imports no torch.

The order of the whole run is drawn before it begins and given to the trainer as its data set, unshuffled: it is the
same on every rank, and a resumed run skips in it as in any other. Domains share the stream in proportion to their
weights (weighted sampling by domain); within a domain prompts are drawn without replacement, in a new order each pass.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from random import Random

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import DOMAINS
from agentworld.train.config import RlSettings


def check(rl: RlSettings) -> None:
    """Raise RequestError for `rl.domain_weights` that name no domain, are negative, or all 0."""
    weights = rl.domain_weights
    for domain, weight in weights.items():
        if domain not in DOMAINS:
            raise RequestError(f"rl.domain_weights.{domain}: no such domain; known: {', '.join(DOMAINS)}")
        if weight < 0:
            raise RequestError(f"rl.domain_weights.{domain}={weight} must not be negative; 0 leaves the domain out")
    if weights and not any(weights.values()):
        raise RequestError("rl.domain_weights are all 0: nothing is left to train on; raise one")


def require_domains(weights: Mapping[str, float], domains: Sequence[str], per_rollout: int) -> None:
    """Refuse weights that the prompts cannot follow.

    Args:
        domains: of each prompt; per_rollout: prompts of a rollout.

    Raises:
        ContentError: prompts of a domain without a weight, a weight without prompts, or with so few that a rollout
            would hold one twice.
    """
    counts = Counter(domains)
    for domain, count in counts.items():
        if weights and domain not in weights:
            raise ContentError(
                f"rl.domain_weights names no weight for {domain}, which has {count} prompts; add {domain}: 0 to leave "
                "them out"
            )
    for domain, share in shares(weights).items():
        most = ceil(share * per_rollout)
        if most > counts[domain]:
            raise ContentError(
                f"rl.domain_weights gives {domain} up to {most} of the {per_rollout} prompts of a rollout, and there "
                f"are {counts[domain]}: a rollout would hold a prompt twice; lower rl.domain_weights.{domain} or "
                "rl.prompts_per_rollout, or give more trajectories"
            )


def shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """The part of the stream of each domain with a weight above 0, exactly."""
    parts = {domain: Fraction(str(weight)) for domain, weight in weights.items() if weight > 0}
    return {domain: part / sum(parts.values()) for domain, part in parts.items()}


def rollout_counts(parts: Mapping[str, Fraction], rollouts: int, per_rollout: int) -> list[dict[str, int]]:
    """The prompts of each domain in each rollout: its share rounded down or up, up where it is furthest behind its
    share of all rollouts so far."""
    given, found = dict.fromkeys(parts, 0), []
    for number in range(1, rollouts + 1):
        quotas = {domain: part * per_rollout for domain, part in parts.items()}
        counts = {domain: floor(quota) for domain, quota in quotas.items()}
        ahead = {d: given[d] + counts[d] - quota * number for d, quota in quotas.items() if quota != counts[d]}
        for domain in sorted(ahead, key=lambda name: (ahead[name], name))[: per_rollout - sum(counts.values())]:
            counts[domain] += 1
        for domain, count in counts.items():
            given[domain] += count
        found.append(counts)
    return found


def draw(domains: Sequence[str], weights: Mapping[str, float], rollouts: int, per_rollout: int, seed: int) -> list[int]:
    """Numbers of prompts, in the order of the run: `rollouts` x `per_rollout`.

    No prompt comes twice in a rollout. A longer run begins with the order of a shorter one.

    Args:
        domains: of each prompt; `require_domains` holds.
    """
    members = {domain: [n for n, name in enumerate(domains) if name == domain] for domain in weights}
    random = {domain: Random(f"{seed} {domain}") for domain in weights}
    queues: dict[str, list[int]] = {domain: [] for domain in weights}
    order: list[int] = []
    for number, counts in enumerate(rollout_counts(shares(weights), rollouts, per_rollout)):
        rollout: list[int] = []
        for domain, count in counts.items():
            queue = queues[domain]
            if len(queue) < count:  # the next pass; what is left of this one comes first, and not again in this rollout
                again = random[domain].sample(members[domain], len(members[domain]))
                queue += sorted(again, key=set(queue).__contains__)  # stable: those that are still queued come last
            rollout += queue[:count]
            del queue[:count]
        Random(f"{seed} rollout {number}").shuffle(rollout)  # no rank and no mini-batch gets one domain alone
        order += rollout
    return order


def stream_facts(domains: Sequence[str], drawn: Sequence[int] | None) -> dict[str, dict[str, float]]:
    """For each domain its prompts and their share, of the data or, where the order was drawn, of the run's stream."""
    counts = Counter(domains)
    if drawn is None:
        return {domain: {"prompts": n, "share": n / len(domains)} for domain, n in sorted(counts.items())}
    taken = Counter(domains[number] for number in drawn)
    return {
        domain: {"prompts": n, "drawn": taken[domain], "share": taken[domain] / len(drawn)}
        for domain, n in sorted(counts.items())
    }
