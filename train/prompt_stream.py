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
    """Raise RequestError for `rl.domain_weights` that name no domain, are negative, or all 0, and for a pilot without
    groups."""
    if rl.pilot_completions < 0 or rl.pilot_completions == 1:
        raise RequestError(
            f"rl.pilot_completions={rl.pilot_completions} makes no group: it must be at least 2, or 0 for no pilot"
        )
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


def interleaved(parts: Mapping[str, Fraction], count: int) -> list[str]:
    """The domain of each place of a stream: in every beginning of it, a domain has its share to within one place.

    The k-th prompt of a domain with share s belongs between the places floor((k - 1) / s) and ceil(k / s). Of those
    that have begun, the one that ends first is taken: such windows can always be kept (Baruah et al., Proportionate
    progress, Algorithmica 15, 1996), and keeping them is that bound.
    """
    given = dict.fromkeys(parts, 0)
    stream = []
    for place in range(count):
        begun = [domain for domain, part in parts.items() if floor(given[domain] / part) <= place]
        domain = min(begun, key=lambda name: (ceil((given[name] + 1) / parts[name]), name))
        given[domain] += 1
        stream.append(domain)
    return stream


def draw(domains: Sequence[str], weights: Mapping[str, float], rollouts: int, per_rollout: int, seed: int) -> list[int]:
    """Numbers of prompts, in the order of the run: `rollouts` x `per_rollout`.

    No prompt comes twice in a rollout. A longer run begins with the order of a shorter one.

    Args:
        domains: of each prompt; `require_domains` holds.
    """
    queues: dict[str, list[int]] = {domain: [] for domain in weights}
    random = {domain: Random(f"{seed} {domain}") for domain in weights}
    members = {domain: [n for n, name in enumerate(domains) if name == domain] for domain in weights}
    order: list[int] = []
    for place, domain in enumerate(interleaved(shares(weights), rollouts * per_rollout)):
        queue = queues[domain]
        if not queue:
            queue += random[domain].sample(members[domain], len(members[domain]))
            of_this_rollout = set(order[place - place % per_rollout :])
            queue.sort(key=lambda number: number not in of_this_rollout)  # stable; taken from the end
        order.append(queue.pop())
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
