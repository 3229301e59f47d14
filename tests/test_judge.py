"""The panel against a test server: faults, limits, the cache, several judges, and what must never be told."""

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from judge_server import KEY, TRANSIENT, JudgeServer, judge_server, section, share_of

from agentworld.data.errors import ContentError
from agentworld.data.render import Message, Prediction
from agentworld.rewards.judge import Completion, Needed, Outcome, Panel, Verdict
from agentworld.rewards.judge_cache import JudgeCache, Judged
from agentworld.rewards.judge_metrics import Watch, observations
from agentworld.rewards.judge_prompt import Case
from agentworld.rewards.rubric import RubricScores, reference_scores
from agentworld.rewards.settings import JudgeEndpoint, JudgeSettings, RewardSettings

ACTION, TRUTH = "cat notes.txt", "cat notes.txt\napple river\nuser@box:~$ "
WORDS = ("apple", "river", "quartz", "zebra", "salt", "rose")


def settings(server: JudgeServer, **changes) -> RewardSettings:
    options = {"base_url": server.address, "model": "test", "backoff": 0.005, "backoff_limit": 0.02, "timeout": 5.0}
    return RewardSettings(rubric="judge", judge=JudgeSettings(**(options | changes)))


def panel(server: JudgeServer, tmp_path: Path, ranks: int = 1, **changes) -> Panel:
    return Panel(settings(server, **changes), tmp_path / "cache.sqlite", len, ranks)


def case(prediction: str, truth: str = TRUTH, world: str = "A terminal.") -> Case:
    messages = (Message("system", world, 3), Message("user", ACTION, 3))
    return Case("terminal", messages, truth, prediction, 20)


def predictions(count: int) -> list[str]:
    draw = random.Random(0)
    return [
        f"cat notes.txt\n{draw.choice(WORDS)} {draw.choice(WORDS)} {number}\nuser@box:~$ " for number in range(count)
    ]


def expected(texts: list[str]) -> list[RubricScores]:
    return [reference_scores(text, TRUTH, ACTION) for text in texts]


def test_two_thousand_judgements_with_faults(tmp_path) -> None:
    """30 % of the answers are bad. None is lost, none asked twice after a good answer, the order is kept, no window
    holds more requests than its limit, and a second run asks nothing."""
    texts = predictions(2000)
    per_second = 250
    limits = {"requests_per_minute": per_second * 60, "concurrency": 32, "attempts": 15, "timeout": 5.0}
    kinds = (*TRANSIENT, *TRANSIENT[1:] * 3)  # the first, a late answer, takes the time of the test
    with judge_server(fault=share_of(0.3, kinds), retry_after=0.01, late_seconds=5.5) as server:
        judges = panel(server, tmp_path, **limits)
        verdicts = judges.judge([case(text) for text in texts])
        assert [verdict.scores for verdict in verdicts] == expected(texts)
        log, counts = list(server.requests), judges.judges[0].counts
        again = panel(server, tmp_path, **limits)
        assert [verdict.scores for verdict in again.judge([case(text) for text in texts])] == expected(texts)
        assert len(server.requests) == len(log), "the second run must ask nothing"
    good = Counter(section(request.user, "PREDICTION") for request in log if not request.fault)
    assert set(good) == set(texts) and set(good.values()) == {1}
    faults = Counter(request.fault for request in log if request.fault)
    assert set(faults) == set(TRANSIENT) and 0.25 < faults.total() / len(log) < 0.35
    assert (counts.requests, counts.judged, counts.failed) == (len(log), 2000, 0)
    assert counts.retries == counts.requests - 2000 == faults.total()
    assert (again.judges[0].counts.cached, again.judges[0].counts.requests) == (2000, 0)
    answered = len(log) - sum(
        faults[kind] for kind in ("late", "429", "429-date", "500", "html", "half-json", "cut", "empty")
    )
    assert counts.prompt_tokens == 100 * answered and counts.completion_tokens == 10 * answered
    moments = sorted(request.time for request in log)
    for first in range(len(moments) - per_second - 25):  # the slack is for the way from the client to the log
        assert moments[first + per_second + 25] - moments[first] > 1.0


def test_the_limit_binds_and_is_shared_by_ranks(tmp_path) -> None:
    texts = predictions(31)
    with judge_server() as server:
        judges = panel(server, tmp_path, ranks=2, requests_per_minute=2400)  # 20 a second for this rank
        judges.judge([case(text) for text in texts])
        moments = sorted(request.time for request in server.requests)
    assert len(moments) == 31 and moments[-1] - moments[0] > 1.4


def test_retry_after_holds_all_requests_back(tmp_path) -> None:
    refused = []

    def fault(request) -> str:
        if not refused:
            refused.append(request.time)
            return "429"
        return ""

    with judge_server(fault=fault, retry_after=0.5) as server:
        verdicts = panel(server, tmp_path, concurrency=1).judge([case(text) for text in predictions(4)])
        later = [request.time for request in server.requests[1:]]
    assert all(verdict.scores for verdict in verdicts) and len(later) == 4
    assert min(later) - refused[0] >= 0.5


@pytest.mark.parametrize("status", ["400", "401", "404"])
def test_permanent_errors_are_not_retried_and_never_tell_the_key(tmp_path, monkeypatch, capfd, status) -> None:
    monkeypatch.setenv("JUDGE_TEST_KEY", KEY)
    with judge_server(fault=lambda request: status) as server:
        judges = panel(server, tmp_path, key_variable="JUDGE_TEST_KEY")
        [verdict] = judges.judge([case("pear")])
        assert [request.authorization for request in server.requests] == [f"Bearer {KEY}"]
    assert verdict.scores is None and f"HTTP {status}" in verdict.failure and "[key]" in verdict.failure
    assert judges.judges[0].counts.failed == 1
    output = "".join(capfd.readouterr())
    assert "1 of 1 judgements failed" in output and KEY not in output + verdict.failure
    assert KEY.encode() not in (tmp_path / "cache.sqlite").read_bytes()


@pytest.mark.parametrize("kind", TRANSIENT)
def test_every_fault_ends_in_a_failure_with_its_reason(tmp_path, kind) -> None:
    with judge_server(fault=lambda request: kind) as server:
        timeout = 0.3 if kind == "late" else 20.0
        [verdict] = panel(server, tmp_path, attempts=2, timeout=timeout).judge([case("pear")])
        assert len(server.requests) == 2 or kind == "late"
    reasons = {"late": "no answer within 0.3 s", "429": "HTTP 429", "429-date": "HTTP 429", "500": "HTTP 500",
               "garbage": "good: 4 of 5.", "html": "no chat completion: <html>", "half-json": "no chat completion",
               "cut": "connection", "out-of-range": "realism is not from 1 to 5", "partial": "has no quality",
               "empty": "no chat completion"}  # fmt: skip
    assert verdict.scores is None and reasons[kind] in verdict.failure


def test_a_dead_endpoint_and_a_deadline_end_in_time(tmp_path) -> None:
    with judge_server() as server:
        pass
    started = time.monotonic()
    verdicts = panel(server, tmp_path, attempts=2).judge([case(text) for text in predictions(3)])
    assert all("connection" in verdict.failure for verdict in verdicts)
    with judge_server(fault=share_of(1.0, ("late",)), late_seconds=60.0) as server:
        texts = predictions(4)
        verdicts = panel(server, tmp_path, deadline=0.5).judge([case(text) for text in texts])
        assert all("within reward.judge.deadline=0.5 s" in verdict.failure for verdict in verdicts)
        assert time.monotonic() - started < 30.0


def test_a_wait_of_days_ends_what_asked_for_it(tmp_path) -> None:
    with judge_server(fault=lambda request: "429", retry_after=1e6) as server:
        [verdict] = panel(server, tmp_path).judge([case("pear")])
        assert len(server.requests) == 1 and "come again in 1000000 s: HTTP 429" in verdict.failure


def test_what_neither_utf8_nor_sqlite_can_hold_ends_no_run(tmp_path) -> None:
    scores = '<final_evaluation>{"format": 4, "factuality": 4, "consistency": 4, "realism": 4, "quality": 4}'
    with judge_server(answer=lambda user: "\ud800\0" + scores) as server:
        judges = panel(server, tmp_path)
        [verdict] = judges.judge([case("pear")])
        [again] = panel(server, tmp_path).judge([case("pear")])
        [sent] = judges.judge([case("\ud800")])
        assert len(server.requests) == 2
    assert verdict.scores == again.scores == sent.scores == RubricScores(4, 4, 4, 4, 4)
    assert again.by_judge["test"].replies[0][1].reply.startswith("?\0")
    message = [{"message": {"content": "x"}}]
    for count, kept in ((1 << 63, 0), (float("inf"), 0), ("7", 0), (-1, 0), (7, 7)):
        body = json.dumps({"choices": message, "usage": {"prompt_tokens": count}})
        assert judges.judges[0]._read(body) == ("x", (kept, 0))


def test_an_interrupt_leaves_no_request_behind(tmp_path) -> None:
    async def interrupted() -> None:
        asking = asyncio.create_task(judges._ask(judges._wanted([judges._prompts(case(t)) for t in predictions(5)])))
        while not server.requests:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with judge_server(fault=share_of(1.0, ("late",)), late_seconds=1.0) as server:
        judges = panel(server, tmp_path, concurrency=1)
        asyncio.run(interrupted())


@pytest.mark.parametrize(
    "change",
    ["scores = 'x'", "scores = '[1, 2]'", "scores = '[9, 1, 1, 1, 1]'", "scores = '[NaN, 1, 1, 1, 1]'",
     "reply = x'ff'", "prompt_tokens = 'many'"],
)  # fmt: skip
def test_a_damaged_verdict_is_refused_with_the_way_out(tmp_path, change: str) -> None:
    cache = JudgeCache(tmp_path / "c.sqlite")
    judged = Judged(RubricScores(1, 2, 3, 4, 5), "r", 7, 1)
    cache.put("k", "m", judged)
    assert cache.get(["k"]) == {"k": judged}
    cache.close()
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute(f"update verdicts set {change}")
    with pytest.raises(ContentError, match=r"c\.sqlite: the verdict k is damaged; delete the file"):
        cache.get(["k"])


def test_equal_cases_are_asked_once_and_what_decides_a_verdict_is_in_the_key(tmp_path) -> None:
    with judge_server() as server:
        verdicts = panel(server, tmp_path).judge([case("pear"), case("plum"), case("pear")])
        assert verdicts[0] == verdicts[2] and len(server.requests) == 2
        for changes in ({}, {"base_url": server.address + "/"}, {"concurrency": 3}):
            panel(server, tmp_path, **changes).judge([case("pear")])
        assert len(server.requests) == 2, "an endpoint that moved gives the same verdict"
        for changes in ({"model": "other"}, {"temperature": 0.0}, {"temperature": -1.0}, {"max_tokens": 5}):
            panel(server, tmp_path, **changes).judge([case("pear")])
        for other in (case("pear", truth="other"), case("pear", world="other"), case("pear ")):
            panel(server, tmp_path).judge([other])
        assert len(server.requests) == 9
        sent = server.requests[4].body
        assert "temperature" not in sent and sent["max_completion_tokens"] == 32768


WRITER = """
import sys
from pathlib import Path
from agentworld.rewards.judge_cache import Judged, JudgeCache
from agentworld.rewards.rubric import RubricScores
cache, name = JudgeCache(Path(sys.argv[1])), sys.argv[2]
for number in range(150):
    cache.put(f"shared-{number}", "m", Judged(RubricScores(1, 2, 3, 4, float(name)), name, 1, 1))
    cache.put(f"{name}-{number}", "m", Judged(RubricScores(1, 2, 3, 4, 5), name, 1, 1))
"""


def test_processes_share_a_cache_and_a_foreign_file_is_refused(tmp_path) -> None:
    path = tmp_path / "cache.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("1", "2", "3")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    cache = JudgeCache(path)
    keys = [f"{name}-{number}" for name in ("shared", "1", "2", "3") for number in range(150)]
    found = cache.get([*keys, "absent"])
    assert found.keys() == set(keys)
    for number in range(150):
        judged = found[f"shared-{number}"]
        assert judged.scores.quality == float(judged.reply), "one writer's row, whole"
    cache.put("1-0", "m", Judged(RubricScores(5, 5, 5, 5, 5), "later", 1, 1))
    assert cache.get(["1-0"])["1-0"] == found["1-0"], "the first stays: a resumed run finds what it trained on"
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from verdicts").fetchone() == (600,)
    (tmp_path / "foreign").write_text("no data base, but long enough to be taken for one" * 50)
    with pytest.raises(ContentError, match=r"foreign: .*reward\.judge\.cache"):
        JudgeCache(tmp_path / "foreign")


def test_several_judges_and_one_that_watches(tmp_path) -> None:
    """The mean of each dimension; a watcher changes nothing, not even by failing; a judge that fails leaves none."""
    scores = {
        "test": RubricScores(1, 2, 3, 4, 5),
        "second": RubricScores(3, 3, 3, 3, 3),
        "eye": RubricScores(1, 1, 1, 1, 1),
    }

    def judged() -> list[Verdict]:
        watch = Watch(judges)
        found = judges.judge([case(text) for text in predictions(2)])
        totals.append(watch.totals())
        return found

    with judge_server() as server:
        models = {}
        server.fault = lambda request: (models.update({request.user: request.model}), faults.get(request.model, ""))[1]
        server.reply = lambda user: json_block(scores[models[user]])
        totals: list[dict] = []
        faults = {"eye": "400"}
        more = [JudgeEndpoint(base_url=server.address, model="second", price_prompt=2.0, price_completion=50.0)]
        watchers = [JudgeEndpoint(base_url=server.address, model="eye")]
        judges = panel(server, tmp_path, more=more, watchers=watchers, concurrency=1, attempts=1)
        first = judged()
        assert [verdict.scores for verdict in first] == [RubricScores(2, 2.5, 3, 3.5, 4)] * 2
        assert [verdict.failure for verdict in first] == ["", ""] and first[0].watched == {}
        assert totals[0]["cost"] == pytest.approx(2 * (2.0 * 100 + 50.0 * 10) / 1e6)
        assert totals[0]["prompt_tokens"] == 400 and totals[0]["requests"] == 6
        faults.clear()
        second = judged()
        assert totals[1]["cached"] == 4 and totals[1]["requests"] == 2
        assert second[0].scores == first[0].scores and second[0].watched["eye"].scores == scores["eye"]
        faults["second"] = "400"
        (tmp_path / "cache.sqlite").unlink()
        judges = panel(server, tmp_path, more=more, concurrency=1, attempts=1)
        third = judged()
        assert all(verdict.scores is None and "second: HTTP 400" in verdict.failure for verdict in third)
    found = observations([Outcome(None, verdict) for verdict in (*second, *third)])
    assert found["judge/failed_share"] == [0, 0, 1, 1]
    assert found["judge/rubric/eye"] == [1, 1] and found["judge/rubric/second"] == [3, 3]
    assert found["judge/agreement"] == [1, 1] and found["judge/watchers_gap"] == [2, 2]


def json_block(scores: RubricScores) -> str:
    return f"<final_evaluation>{json.dumps(vars(scores))}</final_evaluation>"


def completion(text: str, ended: bool = True, tag_valid: bool = True, deterministic: bool | None = True) -> Completion:
    prediction = Prediction(text, "SECRET THOUGHT", ended, tag_valid)
    messages = (Message("system", "A terminal.", 3), Message("user", ACTION, 3))
    return Completion(prediction, TRUTH, ACTION, deterministic, "terminal", messages)


def test_rewards_combine_the_judge_with_the_rule_and_broken_forms_are_not_sent(tmp_path) -> None:
    items = [completion(TRUTH), completion("pear"), completion(TRUTH, ended=False), completion("x", tag_valid=False),
             completion("pear", deterministic=None)]  # fmt: skip
    with judge_server() as server:
        judges = panel(server, tmp_path)
        outcomes = judges.rewards(items)
        assert sorted(section(request.user, "PREDICTION") for request in server.requests) == [TRUTH, "pear"]
        assert not any("SECRET THOUGHT" in json.dumps(request.body) for request in server.requests)
    offline = RewardSettings()
    for item, outcome in zip(items, outcomes, strict=True):
        same = item.reward(offline, None)
        assert outcome.reward == same, "a judge that scores like the reference scorer gives its rewards"
    assert [outcome.verdict is None for outcome in outcomes] == [False, False, True, True, False]
    row = outcomes[1].row()
    assert row["reward"] == outcomes[1].total and "final_evaluation" in row["judges"]["test"]["reply"]
    json.dumps(row)


def test_what_judging_would_take_is_known_before(tmp_path) -> None:
    """Equal ones once, broken forms not at all, prompts at the price of prompts; nothing when it was bought."""
    items = [completion("pear"), completion("plum"), completion("pear"), completion("x", ended=False)]
    told: list[tuple[int, int]] = []
    with judge_server() as server:
        judges = panel(server, tmp_path, price_prompt=2.0, price_completion=9.0)
        needed = judges.needed(items)
        tokens = judges._prompts(judges._case(items[0]))[0].tokens
        assert needed == Needed(2, 0, 2 * tokens, pytest.approx(2 * tokens * 2.0 / 1e6)) and server.requests == []
        judges._progress = lambda *numbers: told.append(numbers)
        judges.rewards(items)
        assert judges.needed(items) == Needed(0, 2, 0, 0.0) and told == [(1, 2), (2, 2)]


def test_a_failed_judgement_is_no_score_unless_asked_for(tmp_path) -> None:
    with judge_server(fault=lambda request: "400" if "pear" in request.user else "") as server:
        kept = panel(server, tmp_path).rewards([completion(TRUTH), completion("pear")])
        zero = panel(server, tmp_path, on_failure="zero").rewards([completion(TRUTH), completion("pear")])
    assert kept[0].total == zero[0].total == pytest.approx(25.0)
    assert kept[1].total is None and "the judge failed: test: HTTP 400" in kept[1].row()["reason"]
    assert zero[1].total == 0.0 and "the judge failed" in zero[1].row()["reason"]
    assert observations(zero)["judge/failed_share"] == [0, 1], "counted either way"


def test_a_case_over_the_budget_fails_unasked_and_windowed_ones_are_counted(tmp_path) -> None:
    messages = (
        Message("system", "w", 3),
        Message("user", "a", 30),
        Message("assistant", "o", 30),
        Message("user", "b", 3),
    )
    with judge_server() as server:
        judges = panel(server, tmp_path, prompt_tokens=40)
        long = Case("terminal", messages, TRUTH, "pear", 60)
        windowed = Case("terminal", messages, TRUTH, "pear", 20)
        verdicts = judges.judge([long, windowed])
        assert len(server.requests) == 1
    assert "66 tokens without any history" in verdicts[0].failure and verdicts[1].dropped_turns == 1


def test_the_package_starts_without_the_client() -> None:
    """`agentworld --help` and offline runs must not pay for the import of openai."""
    code = "import sys, agentworld.rewards.judge, agentworld.train.contradictions; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout == "False\n", done.stderr
