"""The RL reward of one completion: rubric and rule, 9:1 (arXiv:2606.24597 section 3.4.1).

    rubric = 5 x mean of the five dimensions                    in [5, 25]
    rule   = 25 where the verifier says yes, else 0             only where a verifier applies
    total  = 0.9 rubric + 0.1 rule, or rubric alone without a verifier
    total  = 0 for a completion that did not end, or whose answer is not exactly one closed tag with nothing after it

The paper gives no formula for items without a verifier; the rubric alone keeps both kinds of item on one scale.
"""

from dataclasses import dataclass

from agentworld.data.errors import RequestError
from agentworld.data.render import Prediction
from agentworld.rewards.rubric import RubricScores, reference_scores
from agentworld.rewards.settings import RUBRICS, RewardSettings
from agentworld.rewards.verifiers import RULE_SCALE, exact_match

RUBRIC_SCALE = 5.0  # from the mean of the dimensions to the reward


@dataclass(frozen=True)
class Reward:
    """`total` is what the policy is trained on. `rubric` and `rule` are before weighting; `rule` is None where no
    verifier was asked, `scores` is None where nothing was scored; `reason` says in words how the total came about."""

    total: float
    rubric: float
    rule: float | None
    scores: RubricScores | None
    reason: str


def without_rubric(prediction: Prediction) -> Reward | None:
    """The reward 0 of a completion of broken form, for which no rubric is asked; None for every other."""
    if not prediction.ended:
        return nothing("0: the completion has no end token, it was cut at the token limit")
    if not prediction.tag_valid:
        return nothing("0: the answer is not exactly one closed <predicted_observation> tag with nothing after it")
    return None


def reward(
    prediction: Prediction,
    reference: str,
    action: str,
    deterministic: bool | None,
    settings: RewardSettings,
    scores: RubricScores | None = None,
) -> Reward:
    """Reward one completion of the policy.

    Args:
        prediction: the completion as `Renderer.parse(ids, tagged=True)` read it.
        reference: the real observation of the turn.
        deterministic: whether the observation follows from the session alone, so that the rule verifier applies;
            None (unknown) counts as no.
        scores: what a judge gave; None computes the reference scores.

    Returns:
        Reward with `total` 0, or in [5, 25] without a verifier, or in [4.5, 25] with one (default weights).

    Raises:
        RequestError: `reward.rubric` names no rubric.
    """
    if settings.rubric not in RUBRICS:
        raise RequestError(f"reward.rubric={settings.rubric}: unknown rubric; known: {', '.join(RUBRICS)}")
    if (broken := without_rubric(prediction)) is not None:
        return broken
    if scores is None:
        assert settings.rubric == "reference_scorer", "a judge's scores come from rewards/judge.py"
        scores = reference_scores(prediction.text, reference, action)
    rubric = RUBRIC_SCALE * scores.mean
    words = (
        f"rubric {rubric:.2f} (format {scores.format:.2f}, factuality {scores.factuality:.2f}, "
        f"consistency {scores.consistency:.2f}, realism {scores.realism:.2f}, quality {scores.quality:.2f})"
    )
    if not deterministic:
        return Reward(rubric, rubric, None, scores, f"{rubric:.2f}: {words}; no verifier for this turn")
    equal = exact_match(prediction.text, reference)
    rule = RULE_SCALE if equal else 0.0
    total = settings.rubric_weight * rubric + settings.rule_weight * rule
    verdict = "equal to the real observation" if equal else "differs from the real observation"
    return Reward(total, rubric, rule, scores, f"{total:.2f}: {words}; rule {rule:.0f} ({verdict})")


def nothing(reason: str) -> Reward:
    """The reward 0, and why."""
    return Reward(total=0.0, rubric=0.0, rule=None, scores=None, reason=reason)
