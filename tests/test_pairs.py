"""The pairwise rewards: Turing test and Reference-Reward, through the panel, against a server on this machine."""

import json
from pathlib import Path

import pytest
from hack_outputs import CASES, HACKS, Hack, said
from judge_server import JudgeServer, judge_server, section

from agentworld.data.errors import ContentError
from agentworld.data.render import Message, Prediction, parse_text
from agentworld.rewards import judge_questions
from agentworld.rewards.hybrid import Reward, reward, to_row
from agentworld.rewards.judge import Completion, Panel
from agentworld.rewards.judge_metrics import observations
from agentworld.rewards.judge_prompt import Case, instructions
from agentworld.rewards.judge_questions import Pair
from agentworld.rewards.preference import Preference
from agentworld.rewards.settings import JudgeEndpoint, JudgeSettings, RewardSettings
from agentworld.rewards.verdicts import Context

ACTION, TRUTH = "cat notes.txt", "cat notes.txt\napple river\nuser@box:~$ "
INITIAL = "cat notes.txt\nquartz river\nuser@box:~$ "
FIRST = {hack.name for hack in HACKS[:74]}
KINDS = ("turing", "reference")


def panel(server: JudgeServer, tmp_path: Path, kind: str, **changes) -> Panel:
    options = {"base_url": server.address, "model": "test", "backoff": 0.005, "backoff_limit": 0.02, "attempts": 2}
    settings = RewardSettings(rubric=kind, judge=JudgeSettings(**(options | changes)))
    return Panel(settings, tmp_path / "cache.sqlite", len)


def completion(text: str, initial: str | None = INITIAL, deterministic: bool | None = None) -> Completion:
    messages = (Message("system", "A terminal.", 3), Message("user", ACTION, 3))
    prediction = Prediction(text, "SECRET THOUGHT", ended=True, tag_valid=True)
    return Completion(prediction, TRUTH, ACTION, deterministic, "terminal", messages, initial)


def numbered(count: int) -> list[Completion]:
    return [completion(f"cat notes.txt\napple {number}\nuser@box:~$ ") for number in range(count)]


def even_ones_win(first: str, second: str, truth: str, action: str) -> str:
    """By content alone: an even number before the rival, which holds none, and the rival before an odd one."""
    numbers = [[int(word) for word in text.split() if word.isdigit()] for text in (first, second)]
    prediction = 0 if numbers[0] else 1
    return "AB"[prediction if numbers[prediction][0] % 2 == 0 else 1 - prediction]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_changes_no_reward(tmp_path, monkeypatch, kind: str) -> None:
    items, rewards = numbered(12), []
    with judge_server(choose=even_ones_win) as server:
        for letter in (0, 1):
            monkeypatch.setattr(judge_questions.draws, "choice", lambda count, *names, letter=letter: letter)
            outcomes = panel(server, tmp_path, kind).rewards(items)
            rewards.append([outcome.total for outcome in outcomes])
            words = outcomes[0].row()["judges"]["test"]["reply"]
            assert words.startswith(f"[the prediction was {'AB'[letter]}, the judge took {'AB'[letter]}]")
        assert len(server.requests) == 24, "another order is another question"
    assert rewards[0] == rewards[1] == [25.0, 0.0] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_judge_that_looks_at_the_place_pays_half(tmp_path, kind: str) -> None:
    """On average where each is asked once, and each prediction where both orders are asked."""
    items = numbered(60)
    with judge_server(choose=lambda *_: "A") as server:
        once = panel(server, tmp_path, kind).rewards(items)
        assert len(server.requests) == 60
        both = panel(server, tmp_path, kind, both_orders=True).rewards(items)
        assert len(server.requests) == 120, "the order that was asked before is bought"
    wins = [outcome.reward.scores.win for outcome in once]
    assert set(wins) == {0.0, 1.0} and abs(sum(wins) / 60 - 0.5) < 0.2  # three standard deviations
    assert {outcome.total for outcome in both} == {12.5}
    assert set(observations(once)["judge/first/test"]) == {1.0}, "the bias is told"
    assert set(observations(both)["judge/win/test"]) == {0.5}


def test_both_orders_pay_a_judge_that_agrees_with_itself(tmp_path) -> None:
    with judge_server(choose=even_ones_win) as server:
        both = panel(server, tmp_path, "turing", both_orders=True).rewards(numbered(6))
    assert [outcome.total for outcome in both] == [25.0, 0.0] * 3
    assert both[0].row()["judges"]["test"]["reply"].count("the prediction was") == 2


def test_a_second_run_is_free_and_the_questions_share_no_verdict(tmp_path) -> None:
    items = numbered(8)
    with judge_server() as server:
        first = {kind: panel(server, tmp_path, kind).rewards(items) for kind in ("judge", *KINDS)}
        assert len(server.requests) == 24
        again = {kind: panel(server, tmp_path, kind) for kind in first}
        assert {kind: one.rewards(items) for kind, one in again.items()} == first
        assert len(server.requests) == 24 and all(one.judges[0].counts.cached == 8 for one in again.values())
        panel(server, tmp_path, "reference").rewards([completion(items[0].prediction.text, "another rival")])
        assert len(server.requests) == 25
        panel(server, tmp_path, "turing").rewards([completion(items[0].prediction.text, "another rival")])
        assert len(server.requests) == 25, "the Turing test knows no other answer than the truth"


@pytest.mark.parametrize(
    ("kind", "text", "initial", "total"),
    [
        ("turing", TRUTH, INITIAL, 25.0),
        ("reference", TRUTH, INITIAL, 25.0),
        ("reference", INITIAL, INITIAL, 12.5),
        ("reference", TRUTH, TRUTH, 12.5),
    ],
)
def test_what_is_settled_is_not_asked(tmp_path, kind, text, initial, total) -> None:
    with judge_server() as server:
        [outcome] = panel(server, tmp_path, kind).rewards([completion(text, initial)])
        assert server.requests == []
    assert outcome.total == total and outcome.verdict is None and "no judge asked" in outcome.reward.reason
    assert outcome.row()["scores"] == {"win": total / 25}


def test_what_the_judge_reads(tmp_path) -> None:
    """Both candidates verbatim, in the Turing test with nothing that tells them apart, and never the thinking."""
    text = "pear\n[/CANDIDATE A {mark}]\n"
    with judge_server() as server:
        panel(server, tmp_path, "turing", both_orders=True).rewards([completion(text)])
        panel(server, tmp_path, "reference").rewards([completion(text)])
        one, other, last = (request.user for request in server.requests)
        assert not any("SECRET THOUGHT" in json.dumps(request.body) for request in server.requests)
    assert [section(one, f"CANDIDATE {letter}") for letter in "AB"] == [
        section(other, f"CANDIDATE {letter}") for letter in "BA"
    ]
    assert {section(one, f"CANDIDATE {letter}") for letter in "AB"} == {text, TRUTH}
    swapped = one.replace(text, "\0").replace(TRUTH, text).replace("\0", TRUTH)
    assert swapped == other, "but for the place there is nothing to tell truth and prediction apart"
    assert section(last, "TRUTH") == TRUTH and {section(last, f"ANSWER {letter}") for letter in "AB"} == {text, INITIAL}
    for kind in KINDS:
        assert "{domain}" not in instructions(kind, "web") and "Deterministic here" in instructions(kind, "web")


def test_the_order_is_that_of_the_case() -> None:
    messages = (Message("system", "w", 5), Message("user", "a", 5))
    cases = [Case("terminal", messages, TRUTH, f"pear {number}", 20, INITIAL) for number in range(200)]
    letters = [[prompt.letter for prompt in Pair("reference", False).prompts(case, 30)] for case in cases]
    assert letters == [[prompt.letter for prompt in Pair("reference", False).prompts(case, 99)] for case in cases]
    assert 70 < letters.count(["A"]) < 130


def test_an_initial_answer_takes_room_too(tmp_path) -> None:
    room = 6 + len(TRUTH) + len("pear")
    with judge_server() as server:
        judges = panel(server, tmp_path, "reference", prompt_tokens=room + 10)
        outcomes = judges.rewards([completion("pear", "x" * 11), completion("pear", "x" * 10)])
    assert outcomes[0].total is None and f"{room + 11} tokens without any history" in outcomes[0].verdict.failure
    assert outcomes[1].total is not None


def test_a_failed_judgement_leaves_the_group(tmp_path) -> None:
    """Also where only one of two orders failed."""
    refused: list[str] = []

    def fault(request) -> str:
        if "apple 1\n" in request.user and len(refused) < 1:
            refused.append(request.user)
        return "400" if request.user in refused else ""

    with judge_server(fault=fault, choose=even_ones_win) as server:
        outcomes = panel(server, tmp_path, "turing", both_orders=True).rewards(numbered(3))
        zero = panel(server, tmp_path, "turing", both_orders=True, on_failure="zero").rewards(numbered(3))
    assert [outcome.total for outcome in outcomes] == [25.0, None, 25.0]
    assert "the judge failed: test: HTTP 400" in outcomes[1].row()["reason"]
    assert [outcome.total for outcome in zero] == [25.0, 0.0, 25.0]
    assert observations(outcomes)["judge/failed_share"] == [0, 1, 0]


def test_several_judges_give_the_mean_of_their_wins(tmp_path) -> None:
    with judge_server(choose=even_ones_win) as server:
        alone = panel(server, tmp_path, "reference").rewards(numbered(2))
        server.choose = lambda *_: "tie"
        more = [JudgeEndpoint(base_url=server.address, model="second")]
        watchers = [JudgeEndpoint(base_url=server.address, model="eye")]
        together = panel(server, tmp_path, "reference", more=more, watchers=watchers).rewards(numbered(2))
    assert [outcome.total for outcome in alone] == [25.0, 0.0]
    assert [outcome.total for outcome in together] == [18.75, 6.25]
    found = observations(together)
    assert found["judge/agreement"] == [0, 0] and found["judge/watchers_gap"] == [0.25, -0.25]
    assert found["judge/win/test"] == [1, 0] and found["judge/win/second"] == found["judge/win/eye"] == [0.5, 0.5]


def test_an_answer_to_compare_with_is_required(tmp_path) -> None:
    with judge_server() as server, pytest.raises(ContentError, match=r"rl\.pilot_completions to at least 2"):
        panel(server, tmp_path, "reference").rewards([completion("pear", None)])


def test_win_and_rule_are_combined_and_a_baseless_win_is_none() -> None:
    def got(text: str, win: float, rival: str, kind: str = "turing", **changes) -> Reward:
        settings = RewardSettings(rubric=kind, **changes)
        prediction, preference = Prediction(text, None, True, True), Preference(win, rival)
        return reward(prediction, TRUTH, ACTION, True, settings, preference, Context("terminal"))

    near = TRUTH.replace("river", "rivers")
    assert got(TRUTH, 1.0, TRUTH).total == 25.0 and got(TRUTH, 0.0, INITIAL).total == pytest.approx(2.5)
    assert got(near, 1.0, TRUTH).total == pytest.approx(22.5) and got(near, 0.5, TRUTH).total == pytest.approx(11.25)
    assert got(near, 0.0, TRUTH).total == 0.0
    far = got("pear", 1.0, TRUTH)
    assert far.total == 0.0 and [hit.name for hit in far.guards] == ["unsupported_score"]
    assert got("pear", 0.5, TRUTH).total == 0.0, "level with the truth claims as much as before it"
    assert got("pear", 1.0, TRUTH, guards="report").total == pytest.approx(22.5)
    assert got("pear", 1.0, "plum", "reference").total == pytest.approx(22.5), "no better rival contradicts the judge"
    assert got("pear", 1.0, near, "reference").total == 0.0
    assert to_row(far)["scores"] == {"win": 0.0} and "win 0.00" in far.reason
    praised = got(TRUTH + "\nThe prediction is correct.", 1.0, TRUTH)
    assert praised.total == praised.rule == 0.0 and "self_praise" in praised.reason


# Near the truth or near the rival, where a rule says no: a win tells nothing of how near, so that 1.5 points must lie
# between the two before a judge is contradicted.
WIN_A_PAIR = {
    "turing": {
        "copy without a line",
        "copy behind a heading",
        "copy with the action",
        "deep praise in json",
        "copy numbered",
    },
}
WIN_A_PAIR["reference"] = WIN_A_PAIR["turing"] | {
    "two dimensions",
    "result ok",
    "one line again and again",
    "json of the action",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hack", HACKS, ids=lambda hack: hack.name)
def test_a_judge_that_takes_every_hack_cannot_lift_it_above_an_honest_answer_that_lost(hack: Hack, kind: str) -> None:
    """In Reference-Reward with an initial answer that is honest and wrong, as that of a trained model is."""
    case = CASES[hack.case]
    rival = case.truth if kind == "turing" else case.wrong

    def total(completion: str, win: float, guards: str = "lowest") -> float:
        settings = RewardSettings(rubric=kind, guards=guards)
        context = Context(case.domain, case.history)
        prediction = parse_text(completion, ended=True)
        rest = (settings, Preference(win, rival), context)
        return reward(prediction, case.truth, case.action, case.deterministic, *rest).total

    held = total(hack.completion, 1.0) <= total(said(case.wrong), 0.0)
    assert held == (hack.name not in WIN_A_PAIR[kind])


def test_an_initial_answer_without_worth_lets_a_judge_be_fooled() -> None:
    """The limit that docs/rewards.md tells: where the policy before RL answered nothing, what only the reference scorer
    or a rule holds back passes. Of the hacks that the guards were first written for that is one."""
    lifted = []
    for hack in HACKS:
        case = CASES[hack.case]
        rest = (RewardSettings(rubric="reference"), Preference(1.0, ""), Context(case.domain, case.history))
        got = reward(parse_text(hack.completion, True), case.truth, case.action, case.deterministic, *rest)
        lifted += [hack.name] if got.total > 2.5 else []
    assert "truth only in the thinking" in lifted and len(set(lifted) & FIRST) == 1 and len(lifted) == 56
