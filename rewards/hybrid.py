"""The RL reward of one completion: rubric and rule, 9:1 (arXiv:2606.24597 section 3.4.1), behind the guards.

    rubric = 5 x mean of the five dimensions                    in [5, 25]
             25 x win, where a judge compared a pair            in [0, 25]
    rule   = 25 where all verifiers that apply say yes, else 0  only where one applies
    total  = 0.9 rubric + 0.1 rule, or rubric alone without a verifier
    total  = 0 for a completion that did not end, or whose answer is not exactly one closed tag with nothing after it

The paper gives no formula for items without a verifier; the rubric alone keeps both kinds of item on one scale. A
guard of the content (rewards/guard.py) that fires puts all dimensions to 1, or the win to 0, and the rule to 0, or the
total to 0, as `reward.guards` says. The pairs are the paper's alternatives, Turing-Test and Reference-Reward; it gives
no formula for them beside a rule, and here they take the rubric's place.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentworld.data.errors import RequestError
from agentworld.data.render import Prediction
from agentworld.rewards.guard import (
    GUARD_NAMES,
    Hit,
    content_hits,
    form_hit,
    unsupported,
    unsupported_win,
    without_support,
)
from agentworld.rewards.preference import Preference
from agentworld.rewards.rubric import HIGHEST, LOWEST, RubricScores, reference_scores
from agentworld.rewards.settings import GUARD_POLICIES, PAIRS, RUBRICS, RewardSettings
from agentworld.rewards.verdicts import NO_RULING, Context, Item, Ruling, Verdict
from agentworld.rewards.verifiers import RULE_SCALE, RULES

RUBRIC_SCALE = 5.0  # from the mean of the dimensions to the reward
WIN_SCALE = 25.0  # from the win of a pair to the reward
NO_CONTEXT = Context()


@dataclass(frozen=True)
class Reward:
    """`total` is what the policy is trained on. `rubric` and `rule` are before weighting; `rule` is None where no
    verifier applies, `scores` is None where nothing was scored. `verdicts` and `guards` say what each verifier found
    and which guards fired; `reason` says in words how the total came about."""

    total: float
    rubric: float
    rule: float | None
    scores: RubricScores | Preference | None
    reason: str
    verdicts: tuple[Verdict, ...] = ()
    guards: tuple[Hit, ...] = ()


def nothing(reason: str) -> Reward:
    """The reward 0, and why."""
    return Reward(total=0.0, rubric=0.0, rule=None, scores=None, reason=reason)


def without_rubric(prediction: Prediction) -> Reward | None:
    """The reward 0 of a completion of broken form, for which no rubric is asked; None for every other."""
    form = form_hit(prediction)
    return None if form is None else Reward(0.0, 0.0, None, None, f"0: {form.reason}", guards=(form,))


def reward(
    prediction: Prediction,
    reference: str,
    action: str,
    deterministic: bool | None,
    settings: RewardSettings,
    scores: RubricScores | Preference | None = None,
    context: Context = NO_CONTEXT,
    ruling: Ruling = NO_RULING,
) -> Reward:
    """Reward one completion of the policy.

    Args:
        prediction: the completion as `Renderer.parse(ids, tagged=True)` or `render.parse_text` read it.
        reference: the real observation of the turn.
        deterministic: whether the observation follows from the session alone; None (unknown) counts as no.
        scores: what a judge gave, or how a pair went; None computes the reference scores.
        context: domain and history, for the verifiers of the domain and the guards.
        ruling: of the synthesised verifiers of the turn; their verdicts count like those of the domain.

    Returns:
        Reward with `total` 0, or in [5, 25] without a verifier, or in [4.5, 25] with one (default weights); for a pair
        in [0, 25].

    Raises:
        RequestError: `reward.rubric`, `reward.rule` or `reward.guards` names nothing known.
    """
    _require_known(settings)
    if (broken := without_rubric(prediction)) is not None:
        return broken
    item = Item(prediction.text, reference, action, deterministic, context)
    verdicts = [*RULES[settings.rule](item), *ruling.verdicts]
    hits = content_hits(item)
    obeyed = settings.guards != "report"
    if scores is None:
        assert settings.rubric == "reference_scorer", "a judge's scores come from rewards/judge.py"
        scores = reference_scores(prediction.text, reference, action)
    elif why := without_support(item, passed := all(verdict.passed for verdict in verdicts)):
        honest = reference_scores(prediction.text, reference, action)
        hit = _contradicted(scores, item, honest, why, passed)
        if hit is not None:
            hits.append(hit)
            if obeyed:
                scores = honest if isinstance(scores, RubricScores) else replace(scores, win=0.0)
    caught = obeyed and any(hit.name != "unsupported_score" for hit in hits)
    if caught:
        scores = _lowest(scores)
    got = _combined(scores, verdicts, caught, _weights(settings, context.domain))
    if ruling.silent:
        got = replace(got, reason=f"{got.reason}; no verdict of {'; '.join(ruling.silent)}")
    fired = _words(hits, settings.guards)
    if caught and settings.guards == "zero":
        return replace(got, total=0.0, reason=f"0: {fired}", guards=tuple(hits))
    return replace(got, reason=got.reason + (f"; {fired}" if hits else ""), guards=tuple(hits))


def _contradicted(
    scores: RubricScores | Preference, item: Item, honest: RubricScores, why: str, passed: bool
) -> Hit | None:
    """What the reference scorer, which gives `honest`, has against a judge without support."""
    if isinstance(scores, RubricScores):
        return unsupported(scores, honest, why)
    if scores.win == 0:
        return None
    return unsupported_win(reference_scores(scores.rival, item.reference, item.action), honest, why, passed)


def _lowest(scores: RubricScores | Preference) -> RubricScores | Preference:
    if isinstance(scores, Preference):
        return replace(scores, win=0.0)
    return RubricScores(LOWEST, LOWEST, LOWEST, LOWEST, LOWEST)


def numbers(scores: RubricScores | Preference) -> dict[str, float]:
    """The scores by name: the five dimensions, or the win of a pair."""
    return {"win": scores.win} if isinstance(scores, Preference) else asdict(scores)


def _combined(
    scores: RubricScores | Preference,
    verdicts: Sequence[Verdict],
    caught: bool,
    weights: tuple[float, float],
) -> Reward:
    """Rubric and rule by their weights; a prediction that a guard caught has its rule put to no."""
    rubric = WIN_SCALE * scores.win if isinstance(scores, Preference) else RUBRIC_SCALE * scores.mean
    parts = ", ".join(f"{name} {value:.2f}" for name, value in numbers(scores).items())
    note = f": {scores.note}" if isinstance(scores, Preference) and scores.note else ""
    words = f"rubric {rubric:.2f} ({parts}{note})"
    if not verdicts:
        return Reward(rubric, rubric, None, scores, f"{rubric:.2f}: {words}; no verifier for this turn")
    rule = RULE_SCALE if all(verdict.passed for verdict in verdicts) and not caught else 0.0
    total = weights[0] * rubric + weights[1] * rule
    said = "; ".join(f"{verdict.name}: {verdict.reason}" for verdict in verdicts)
    return Reward(total, rubric, rule, scores, f"{total:.2f}: {words}; rule {rule:.0f} ({said})", tuple(verdicts))


def _weights(settings: RewardSettings, domain: str) -> tuple[float, float]:
    """The weights of rubric and rule in a domain."""
    if domain in settings.domain_rule_weights:
        share = settings.domain_rule_weights[domain]
        return 1.0 - share, share
    return settings.rubric_weight, settings.rule_weight


def ends_of_scale(settings: RewardSettings, domain: str) -> dict[bool, tuple[float, float]]:
    """Bottom and top of the total in a domain, where a verifier applies (True) and where none does: the reward of an
    answer of right form of which nothing is right, and of the truth. A broken form has 0; for a pair, which a judge
    decides, that is also the bottom."""
    bottom, top = (0.0, WIN_SCALE) if settings.rubric in PAIRS else (RUBRIC_SCALE * LOWEST, RUBRIC_SCALE * HIGHEST)
    rubric, rule = _weights(settings, domain)
    return {False: (bottom, top), True: (rubric * bottom, rubric * top + rule * RULE_SCALE)}


def _words(hits: Sequence[Hit], policy: str) -> str:
    effect = {"lowest": "guards", "zero": "guards", "report": "guards that only report"}[policy]
    return f"{effect}: " + "; ".join(f"{hit.name} ({hit.reason})" for hit in hits) if hits else ""


def _require_known(settings: RewardSettings) -> None:
    for key, value, known in (
        ("rubric", settings.rubric, RUBRICS),
        ("rule", settings.rule, RULES),
        ("guards", settings.guards, GUARD_POLICIES),
    ):
        if value not in known:
            raise RequestError(f"reward.{key}={value}: unknown {key}; known: {', '.join(known)}")


def to_row(reward: Reward) -> dict[str, Any]:
    """The JSON-able form in which a reward is stored and shown: total, parts, and why."""
    return {
        "reward": reward.total,
        "rubric": reward.rubric,
        "rule": reward.rule,
        "scores": numbers(reward.scores) if reward.scores else None,
        "verdicts": [asdict(verdict) for verdict in reward.verdicts],
        "guards": [asdict(hit) for hit in reward.guards],
        "reason": reward.reason,
    }


def guard_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """For a step's metrics: the share of rows (of `to_row`) on which each guard fired. Every guard is there, so that a
    mean over ranks counts those on which it was silent."""
    fired = Counter(hit["name"] for row in rows for hit in row["guards"])
    return {f"guards/{name}": fired[name] / len(rows) for name in GUARD_NAMES}
