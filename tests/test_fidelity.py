"""Fidelity against a naive oracle and closed forms."""

import json
import math
import random

import pytest

from agentworld.data.examples import Example
from agentworld.data.schema import System, Trajectory, Turn
from agentworld.train.fidelity import (
    METRICS,
    Scored,
    baselines,
    edit_similarity,
    fidelity,
    paired_difference,
    reward_summary,
    token_f1,
)


def item(
    prediction: str, reference: str, deterministic: bool | None = True, domain: str = "terminal", tag=None
) -> Scored:
    return Scored(prediction, reference, deterministic, domain, tag)


def naive_levenshtein(a: str, b: str) -> int:
    """The textbook table, whole."""
    table = [[i + j if i * j == 0 else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            change = table[i - 1][j - 1] + (a[i - 1] != b[j - 1])
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, change)
    return table[-1][-1]


def test_edit_similarity_equals_the_naive_oracle() -> None:
    draw = random.Random(0)
    for _ in range(300):
        a, b = ("".join(draw.choices("ab\n é🙂", k=draw.randint(0, 12))) for _ in range(2))
        longest = max(len(a), len(b))
        expected = 1 - naive_levenshtein(a, b) / longest if longest else 1.0
        assert edit_similarity(a, b) == pytest.approx(expected), (a, b)


def test_closed_forms_over_a_few_turns() -> None:
    got = fidelity(
        [
            item("ab", "ab", deterministic=True),
            item("ab ", "ab", deterministic=True),
            item("", "abcd", deterministic=False),
            item("x y y", "y y z", deterministic=None),
        ]
    )
    assert got["n"] == 4
    assert got["exact_match"] == 0.25
    assert got["exact_match_deterministic"] == 0.5
    assert got["edit_similarity"] == pytest.approx((1 + 2 / 3 + 0 + 1 - naive_levenshtein("x y y", "y y z") / 5) / 4)
    assert got["token_f1"] == pytest.approx((1 + 1 + 0 + 2 * 2 / 6) / 4)
    assert got["empty_rate"] == 0.25
    assert got["json_match"] is None and got["format_valid"] is None


def test_a_metric_over_zero_turns_is_none_and_never_0() -> None:
    got = fidelity([])
    assert got["n"] == 0 and got["domains"] == {}
    assert all(got[name] is None for name in METRICS)
    assert fidelity([item("a", "b", deterministic=False)])["exact_match_deterministic"] is None
    assert json.loads(json.dumps(got)) == got


def test_the_keys_are_exactly_the_documented_ones_also_in_domains() -> None:
    got = fidelity([item("a", "a", domain="swe"), item("a", "b", domain="mcp")])
    assert set(got) == {*METRICS, "n", "domains"}
    assert list(got["domains"]) == ["mcp", "swe"]
    for values in got["domains"].values():
        assert set(values) == {*METRICS, "n"}


def test_a_domain_is_scored_as_if_alone_and_the_whole_is_the_weighted_mean() -> None:
    draw = random.Random(1)
    texts = ["a b", "a", "", "b c\n"]
    items = [item(draw.choice(texts), draw.choice(texts), domain=draw.choice(["mcp", "web"])) for _ in range(40)]
    got = fidelity(items)
    for name, values in got["domains"].items():
        alone = fidelity([i for i in items if i.domain == name])
        assert values == {key: alone[key] for key in values}
    for metric in ("exact_match", "edit_similarity", "token_f1", "empty_rate"):
        weighted = sum(values[metric] * values["n"] for values in got["domains"].values()) / got["n"]
        assert got[metric] == pytest.approx(weighted)


def test_token_f1() -> None:
    assert token_f1("", "") == token_f1(" ", "\n") == 1.0
    assert token_f1("", "a") == token_f1("a", "") == 0.0
    assert token_f1("a a a", "a") == pytest.approx(0.5)  # a multiset: precision 1/3, recall 1
    assert token_f1("A", "a") == 0.0
    assert token_f1("~/x$", "~/x$ ") == 1.0
    assert token_f1("$", "#") == 0.0


@pytest.mark.parametrize(
    ("prediction", "reference", "equal"),
    [
        ('{"b": 2, "a": [1, null]}', '{"a":[1,null],"b":2}', 1.0),
        ('{"a": 1.0}', '{"a": 1}', 1.0),
        ('{"a": true}', '{"a": 1}', 0.0),
        ('{"a": 9007199254740993}', '{"a": 9007199254740992}', 0.0),
        ('{"a": "1"}', '{"a": 1}', 0.0),
        ("[1, 2]", "[2, 1]", 0.0),
        ("[NaN]", "[]", 0.0),
        ("[1e99999999999999999999]", "[1]", 0.0),
        ("[" * 100_000, "[]", 0.0),
        ('{"a": 1', '{"a": 1}', 0.0),
        (' {"a": 1}\n', '{"a": 1}', 1.0),
        ("{}", "not json", None),
        ("1", "1", None),
        ("null", "null", None),
    ],
)
def test_json_match(prediction: str, reference: str, equal: float | None) -> None:
    assert fidelity([item(prediction, reference)])["json_match"] == equal


def test_format_valid_counts_only_turns_that_ask_for_a_tag() -> None:
    tags = [True, True, False, None, None]
    assert fidelity([item("a", "a", tag=tag) for tag in tags])["format_valid"] == pytest.approx(2 / 3)


def example(observations: list[str], index: int) -> Example:
    system = System(task_description="t", action_space="a")
    turns = [Turn(f"a{i}", text, {"deterministic": i == 0}) for i, text in enumerate(observations)]
    return Example(f"t#{index}", Trajectory("t", "terminal", "s", "g", system, turns), index)


def test_baselines() -> None:
    examples = [example(["p", "p", "q"], 1), example(["p", "p", "q"], 2), example(["r"], 0)]
    got = baselines(examples, ["z", "q", "p", "q", "p"])
    assert list(got) == ["copy_last_observation", "most_frequent_observation"]
    copied, frequent = got.values()
    assert copied["exact_match"] == pytest.approx(1 / 3)  # p after p; q after p is wrong; a first turn copies ""
    assert copied["empty_rate"] == pytest.approx(1 / 3)
    assert frequent["exact_match"] == pytest.approx(1 / 3)  # p and q tie: p comes first
    assert copied["exact_match_deterministic"] == 0.0 and copied["format_valid"] is None
    reordered = baselines(examples, ["q", "p", "p", "z", "q"])
    assert reordered == got
    assert baselines(examples, [])["most_frequent_observation"]["empty_rate"] == 1.0


def test_reward_summary_in_closed_form() -> None:
    got = reward_summary([[1.0, 3.0], [4.0, 4.0], [0.0, 12.0]], greedy=[2.0, 4.0, 9.0])
    assert got["per_prompt"] == [2.0, 4.0, 6.0]
    assert got["mean"] == 4.0 and got["greedy_mean"] == 5.0
    assert got["standard_error"] == pytest.approx(2 / math.sqrt(3))
    assert (got["n"], got["draws"]) == (3, 2)


def test_rewards_that_a_judge_failed_on_count_nowhere() -> None:
    got = reward_summary([[1.0, None], [None, None], [0.0, 12.0]], greedy=[None, 4.0, 8.0])
    assert got["per_prompt"] == [1.0, None, 6.0] and got["mean"] == 3.5 and got["greedy_mean"] == 6.0
    assert (got["n"], got["draws"], got["failed"]) == (2, 2, 4)
    assert paired_difference([1.0, None, 5.0], [0.5, 2.0, None]) == {"mean": 0.5, "standard_error": None, "n": 1}


def test_reward_summary_of_too_few_prompts() -> None:
    assert reward_summary([[1.0]], [1.0])["standard_error"] is None
    empty = reward_summary([], [])
    assert (empty["mean"], empty["greedy_mean"], empty["n"]) == (None, None, 0)


def test_the_standard_error_covers_the_spread_of_repeated_samples() -> None:
    """Simulated: the standard error agrees with the spread of the mean over many repetitions."""
    draw = random.Random(3)

    def repetition() -> dict:
        levels = [draw.gauss(15, 3) for _ in range(50)]
        return reward_summary([[draw.gauss(level, 4) for _ in range(4)] for level in levels], levels)

    summaries = [repetition() for _ in range(400)]
    means = [summary["mean"] for summary in summaries]
    center = sum(means) / 400
    spread = math.sqrt(sum((m - center) ** 2 for m in means) / 399)
    assert sum(s["standard_error"] for s in summaries) / 400 == pytest.approx(spread, rel=0.15)


def test_paired_difference() -> None:
    got = paired_difference(after=[11.0, 22.0, 33.0], before=[10.0, 20.0, 30.0])
    assert got == {"mean": 2.0, "standard_error": pytest.approx(1 / math.sqrt(3)), "n": 3}
    with pytest.raises(AssertionError, match="not the same prompts"):
        paired_difference([1.0], [1.0, 2.0])
