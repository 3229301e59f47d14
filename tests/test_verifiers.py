"""The rule verifier is equality: whatever a person would forgive, it does not."""

import pytest

from agentworld.rewards.verifiers import RULE_SCALE, exact_match

TRUTH = "echo $?\n1\nuser@box:~$ "


def test_the_truth_passes() -> None:
    assert exact_match(TRUTH, TRUTH) is True
    assert exact_match("", "") is True
    assert RULE_SCALE == 25.0


@pytest.mark.parametrize(
    "prediction",
    ["", TRUTH.rstrip(), TRUTH + "\n", TRUTH.upper(), TRUTH.replace("\n", "\r\n"), TRUTH + "operation completed", "1"],
)
def test_nothing_else_does(prediction: str) -> None:
    assert exact_match(prediction, TRUTH) is False


def test_look_alikes_differ() -> None:
    assert exact_match("caf\u00e9", "cafe\u0301") is False
