"""Settings of the RL reward, composed into the recipe schema by `agentworld.train.config`."""

from dataclasses import dataclass

RUBRICS = ("reference_scorer",)  # what `rubric` may be


@dataclass
class RewardSettings:
    """reward = rubric_weight * rubric + rule_weight * rule for items with a verifier, the rubric alone otherwise.

    The weights are the 9:1 of arXiv:2606.24597 section 3.4.1.
    """

    rubric: str = "reference_scorer"  # the deterministic scorer of rewards/rubric.py; it is not an LLM judge
    rubric_weight: float = 0.9
    rule_weight: float = 0.1
