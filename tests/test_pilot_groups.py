"""Which groups of the pilot of RL are dropped, and what its report counts."""

import pytest

from agentworld.rewards import hybrid
from agentworld.rewards.settings import RewardSettings
from agentworld.train import pilot_groups

DEFAULT = hybrid.ends_of_scale(RewardSettings(), "terminal")
HEAVY = hybrid.ends_of_scale(RewardSettings(domain_rule_weights={"terminal": 0.4}), "terminal")


def test_the_scale_ends_where_the_reward_does() -> None:
    """Held against the reward itself: of the truth, and of an answer without a right word."""
    assert DEFAULT == {False: (5.0, 25.0), True: (4.5, 25.0)}
    assert HEAVY == {False: (5.0, 25.0), True: (3.0, 25.0)}
    assert hybrid.ends_of_scale(RewardSettings(rubric="turing"), "terminal") == {False: (0.0, 25.0), True: (0.0, 25.0)}
    truth, action = "user@box:~$ cat a\nb\n", "cat a"
    for settings, ends in ((RewardSettings(), DEFAULT), (RewardSettings(domain_rule_weights={"terminal": 0.4}), HEAVY)):
        context = hybrid.Context("terminal")
        for exact in (True, False):
            for text, end in (("", 0), (truth, 1)):
                prediction = hybrid.Prediction(text, None, True, True, text)
                got = hybrid.reward(prediction, truth, action, exact, settings, context=context)
                assert got.total == pytest.approx(ends[got.rule is not None][end])
            assert (got.rule is not None) == exact


@pytest.mark.parametrize(
    ("rewards", "rule", "kind"),
    [
        ([25.0, 25.0, 25.0], 25.0, "solved"),
        ([25.0, 25.0, 24.9], 25.0, "mixed"),
        ([25.0, 25.0], None, "solved"),
        ([0.9 * 5 * 5 + 0.1 * 25, 25.0 - 1e-9], 25.0, "solved"),  # a sum of weights is rounded
        ([0.9 * 5, 4.5 + 1e-9], 0.0, "hopeless"),
        ([4.5, 4.5], 0.0, "hopeless"),
        ([4.5, 4.6], 0.0, "mixed"),
        ([5.0, 5.0], None, "hopeless"),
        ([5.0, 5.1], None, "mixed"),
        ([5.0, 5.0], 0.0, "mixed"),  # with a rule 4.5 is the bottom
        ([0.0, 0.0], None, "hopeless"),
        ([0.0, 4.5], 0.0, "mixed"),  # right form against broken form is learnt
        ([0.0, 25.0], None, "mixed"),
        ([14.0, 14.0], None, "mixed"),
        ([None, 25.0], 25.0, "unjudged"),
        ([None, None], None, "unjudged"),
        ([None, 25.0, 25.0], 25.0, "solved"),
        ([None, 0.0, 0.0], None, "unjudged"),  # the one of right form is the one that was not judged
        ([None, 5.0, 5.0], None, "hopeless"),
    ],
)
def test_a_group_is_dropped_at_the_ends_of_the_scale_only(rewards, rule, kind) -> None:
    rows = [{"prompt": "t#0", "domain": "terminal", "reward": reward, "rule": rule} for reward in rewards]
    assert pilot_groups.group_of(rows, DEFAULT).kind == kind


def test_the_bottom_follows_the_weights_of_the_domain() -> None:
    rows = [{"prompt": "t#0", "domain": "terminal", "reward": 3.0, "rule": 0.0}] * 2
    assert pilot_groups.group_of(rows, HEAVY).kind == "hopeless"


def test_the_report_counts_by_domain_and_drops_what_the_recipe_says() -> None:
    found = [("a", "swe", "solved", (25.0, 25.0)), ("b", "swe", "mixed", (5.0, 15.0)), ("c", "mcp", "hopeless", (0, 0))]
    groups = [pilot_groups.Group(*one) for one in (*found, ("d", "mcp", "unjudged", ()))]
    report = pilot_groups.summary(groups, {}, ["solved", "hopeless"], parts=2)
    counts = {"given": 2, "solved": 1, "hopeless": 0, "mixed": 1, "unjudged": 0, "kept": 1, "mean_reward": 17.5}
    assert report["domains"]["swe"] == counts
    assert report["domains"]["mcp"]["unjudged"] == report["domains"]["mcp"]["kept"] == 1
    assert report["total"]["kept"] == 2 and report["total"]["mean_reward"] == pytest.approx((25 + 10 + 0) / 3)
    assert report["dropped"] == {"solved": ["a"], "hopeless": ["c"]}
    kept = pilot_groups.summary(groups, {}, ["solved"], parts=2)
    assert kept["total"]["kept"] == 3 and kept["dropped"] == {"solved": ["a"]}
