"""The reward of a completion, in closed form."""

import json

import pytest

from agentworld.data.errors import RequestError
from agentworld.data.render import Prediction
from agentworld.rewards.hybrid import reward
from agentworld.rewards.rubric import RubricScores, reference_scores
from agentworld.rewards.settings import RewardSettings, check_weights
from agentworld.rewards.verdicts import Context, Ruling, Verdict

ACTION = json.dumps([{"keystrokes": "cat notes.txt\n", "duration": 0.1}])
TRUTH = "cat notes.txt\napple river\nuser@box:~/dir$ "
WRONG = "cat notes.txt\nquartz zebra\nuser@box:~/dir$ "
SETTINGS = RewardSettings()


def answer(text: str, ended: bool = True, tag_valid: bool = True) -> Prediction:
    return Prediction(text=text, thinking="asks: read.", ended=ended, tag_valid=tag_valid)


@pytest.mark.parametrize("deterministic", [True, False, None])
def test_the_truth_earns_25_with_and_without_a_verifier(deterministic: bool | None) -> None:
    got = reward(answer(TRUTH), TRUTH, ACTION, deterministic, SETTINGS)
    assert got.total == pytest.approx(25.0)
    assert got.rubric == pytest.approx(25.0)
    assert got.rule == (25.0 if deterministic else None)


def test_a_wrong_answer_in_closed_form() -> None:
    scores = reference_scores(WRONG, TRUTH, ACTION)
    with_rule = reward(answer(WRONG), TRUTH, ACTION, True, SETTINGS)
    assert with_rule.scores == scores
    assert with_rule.rule == 0.0
    assert with_rule.total == pytest.approx(0.9 * 5 * scores.mean)
    without = reward(answer(WRONG), TRUTH, ACTION, False, SETTINGS)
    assert without.rule is None
    assert without.total == without.rubric == pytest.approx(5 * scores.mean)


def test_a_verdict_is_worth_2_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """At equal rubric a flip of the verifier is 0.1 x 25 (recipe: 0.56 points of the mean at 4.5 a point)."""
    yes = reward(answer(TRUTH), TRUTH, ACTION, True, SETTINGS)
    monkeypatch.setattr("agentworld.rewards.verifiers.exact_match", lambda prediction, reference: False)
    no = reward(answer(TRUTH), TRUTH, ACTION, True, SETTINGS)
    assert yes.rubric == no.rubric
    assert yes.total - no.total == pytest.approx(2.5)


def test_the_weights_come_from_the_settings() -> None:
    settings = RewardSettings(rubric_weight=0.5, rule_weight=0.5)
    scores = reference_scores(WRONG, TRUTH, ACTION)
    assert reward(answer(WRONG), TRUTH, ACTION, True, settings).total == pytest.approx(0.5 * 5 * scores.mean)


@pytest.mark.parametrize("text", [TRUTH, WRONG, ""])
def test_no_end_or_no_valid_tag_earns_nothing_and_says_why(text: str) -> None:
    cut = reward(answer(text, ended=False), TRUTH, ACTION, True, SETTINGS)
    assert (cut.total, cut.rubric, cut.rule, cut.scores) == (0.0, 0.0, None, None)
    assert "end token" in cut.reason
    untagged = reward(answer(text, tag_valid=False), TRUTH, ACTION, True, SETTINGS)
    assert (untagged.total, untagged.rubric, untagged.rule, untagged.scores) == (0.0, 0.0, None, None)
    assert "tag" in untagged.reason


def test_an_empty_answer_in_a_valid_tag_earns_the_bottom_of_the_scale() -> None:
    assert reward(answer(""), TRUTH, ACTION, False, SETTINGS).total == pytest.approx(5.0)
    assert reward(answer(""), TRUTH, ACTION, True, SETTINGS).total == pytest.approx(4.5)


def test_the_thinking_never_reaches_the_reward() -> None:
    for thinking in (None, "", TRUTH, "perfect answer"):
        got = reward(
            Prediction(text=WRONG, thinking=thinking, ended=True, tag_valid=True), TRUTH, ACTION, True, SETTINGS
        )
        assert got == reward(answer(WRONG), TRUTH, ACTION, True, SETTINGS)


def test_the_reason_names_the_numbers() -> None:
    reason = reward(answer(WRONG), TRUTH, ACTION, True, SETTINGS).reason
    for word in ("format", "factuality", "consistency", "realism", "quality", "rule 0", "differs"):
        assert word in reason
    assert "no verifier" in reward(answer(WRONG), TRUTH, ACTION, False, SETTINGS).reason


def test_an_unknown_rubric_is_a_wrong_request() -> None:
    with pytest.raises(RequestError, match=r"reward\.rubric=jury.*reference_scorer"):
        reward(answer(TRUTH), TRUTH, ACTION, True, RewardSettings(rubric="jury"))


def test_a_judges_scores_take_the_place_of_the_scorers() -> None:
    judged = RubricScores(4, 3, 2, 3, 3)
    assert reward(answer(WRONG), TRUTH, ACTION, None, SETTINGS, judged).total == pytest.approx(15.0)
    with_rule = reward(answer(TRUTH), TRUTH, ACTION, True, SETTINGS, judged)
    assert with_rule.total == pytest.approx(0.9 * 15 + 2.5) and with_rule.scores == judged


@pytest.mark.parametrize("guards", ["lowest", "zero", "report"])
def test_a_judge_far_above_the_scorer_is_held_down_where_a_rule_says_no(guards: str) -> None:
    honest, settings = reference_scores(WRONG, TRUTH, ACTION), RewardSettings(guards=guards)
    fooled, near = RubricScores(5, 5, 5, 5, 5), RubricScores(*[honest.mean + 1.4] * 5)
    assert fooled.mean - honest.mean > 1.5
    got = reward(answer(WRONG), TRUTH, ACTION, True, settings, fooled)
    assert [hit.name for hit in got.guards] == ["unsupported_score"] and "unsupported_score" in got.reason
    assert got.total == pytest.approx(0.9 * 25 if guards == "report" else 0.9 * 5 * honest.mean)
    assert reward(answer(WRONG), TRUTH, ACTION, True, settings, near).total == pytest.approx(0.9 * 5 * near.mean)
    assert reward(answer(WRONG), TRUTH, ACTION, None, settings, fooled).total == pytest.approx(25.0)  # no rule speaks


@pytest.mark.parametrize(("guards", "total", "rule"), [("lowest", 4.5, 0.0), ("zero", 0.0, 0.0), ("report", 7.0, 25.0)])
def test_a_caught_answer_loses_its_rule_though_every_verifier_says_yes(guards: str, total: float, rule: float) -> None:
    """Nothing said, and a synthesised verifier that looks for something else: 0.9 x 5, with the rule 2.5 more."""
    yes = Ruling((Verdict("synthesised", True, "a line is there"),))
    got = reward(
        answer(""), TRUTH, ACTION, None, RewardSettings(guards=guards), RubricScores(1, 1, 1, 1, 1), ruling=yes
    )
    assert [hit.name for hit in got.guards] == ["empty"]
    assert (got.total, got.rule) == (pytest.approx(total), rule)


def test_a_domain_may_weigh_its_rule_otherwise() -> None:
    settings = RewardSettings(domain_rule_weights={"terminal": 0.4})
    scores = reference_scores(WRONG, TRUTH, ACTION)
    for domain, share in (("terminal", 0.4), ("mcp", 0.1)):
        got = reward(answer(WRONG), TRUTH, ACTION, True, settings, context=Context(domain))
        assert got.total == pytest.approx((1 - share) * 5 * scores.mean)
        assert reward(answer(TRUTH), TRUTH, ACTION, True, settings, context=Context(domain)).total == pytest.approx(25)
    for weights, said in (({"shell": 0.1}, "shell is not one of"), ({"mcp": 1.5}, "between 0 and 1")):
        with pytest.raises(RequestError, match=said):
            check_weights(RewardSettings(domain_rule_weights=weights))
    for rubric, rule in ((0.0, 0.0), (0.9, 0.2), (1e30, 0.1)):  # the last overflows in the spread of a group
        with pytest.raises(RequestError, match="rule_weight must be 1"):
            check_weights(RewardSettings(rubric_weight=rubric, rule_weight=rule))


def test_the_rule_is_a_setting() -> None:
    """A terminal answer without its echo: the verifiers ask for the output, exact match for every character."""
    silent = TRUTH.split("\n", 1)[1]
    for rule, expected in (("verifiers", 25.0), ("exact_match", 0.0)):
        settings = RewardSettings(rule=rule)
        assert reward(answer(silent), TRUTH, ACTION, True, settings, context=Context("terminal")).rule == expected
    with pytest.raises(RequestError, match=r"reward\.guards=off"):
        reward(answer(TRUTH), TRUTH, ACTION, True, RewardSettings(guards="off"))
