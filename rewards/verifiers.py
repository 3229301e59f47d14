"""Rule verifiers of the RL reward: a yes or a no that no wording can talk its way around.

arXiv:2606.24597 section 3.4.1 joins executable verifiers with the rubric 9:1; its training rules are not disclosed.
Here the rule is exact match, and it applies to turns whose observation follows from the session alone
(`deterministic`).
"""

RULE_SCALE = 25.0  # a verdict of true is worth this much before weighting: the scale of the rubric reward


def exact_match(prediction: str, reference: str) -> bool:
    """Whether the prediction is the real observation, character for character: nothing is stripped or folded."""
    return prediction == reference
