"""Settings of the RL reward, composed into the recipe schema by `agentworld.train.config`."""

from dataclasses import dataclass, field

from agentworld.data.errors import RequestError
from agentworld.data.schema import DOMAINS

RUBRICS = ("reference_scorer",)  # what `rubric` may be
RULES = ("verifiers", "exact_match")  # what `rule` may be
GUARD_POLICIES = ("lowest", "zero", "report")  # what `guards` may be


@dataclass
class RewardSettings:
    """reward = rubric_weight * rubric + rule_weight * rule for items with a verifier, the rubric alone otherwise.

    The weights are the 9:1 of arXiv:2606.24597 section 3.4.1.
    """

    rubric: str = "reference_scorer"  # the deterministic scorer of rewards/rubric.py; it is not an LLM judge
    rubric_weight: float = 0.9
    rule_weight: float = 0.1
    # The rule's share in single domains, {terminal: 0.3}; the rubric has the rest. A factor on the whole reward of a
    # domain would do nothing: GSPO compares the samples of one prompt and divides by their spread.
    domain_rule_weights: dict[str, float] = field(default_factory=dict)
    rule: str = "verifiers"  # verifiers: those of the domain that apply | exact_match: on deterministic turns only
    # What a hit of a content guard does (rewards/guard.py): lowest = the bottom of the scale, all dimensions 1 and the
    # rule a no, as for an honest answer of which nothing is right; zero = 0, as for a broken form; report = nothing.
    guards: str = "lowest"


def check_weights(settings: RewardSettings) -> None:
    """Refuse `reward.domain_rule_weights` that name no domain or are no share.

    Raises:
        RequestError: naming the key.
    """
    for domain, share in settings.domain_rule_weights.items():
        if domain not in DOMAINS:
            raise RequestError(f"reward.domain_rule_weights.{domain} is not one of {', '.join(DOMAINS)}")
        if not 0 <= share <= 1:
            raise RequestError(f"reward.domain_rule_weights.{domain}={share} must lie between 0 and 1")
