"""Judging beside the rollout: nothing lost, nothing asked twice, no thread left, the deadline from the collection."""

import sqlite3
import threading
import time
from contextlib import asynccontextmanager

import pytest
from judge_server import judge_server, section
from test_judge import TRUTH, completion, expected, panel, predictions
from test_rollout_batches import wait_for

from agentworld.data.errors import ContentError
from agentworld.rewards.judge_background import Background
from agentworld.rewards.judge_cache import JudgeCache
from agentworld.rewards.settings import JudgeEndpoint


def judging_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "judge"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert judging_threads() == []


def asked_of(server) -> list[str]:
    return sorted(section(request.user, "PREDICTION") for request in server.requests)


def test_what_was_submitted_is_collected_and_the_rest_is_asked(tmp_path) -> None:
    """With a cached one, equal ones, broken forms, and one that fails for good: outcomes are those of a panel that is
    asked at the end, and every prediction was sent once."""
    texts = predictions(9)
    items = [completion(text) for text in (*texts, texts[0])]
    items += [completion("cut off", ended=False), completion("no tag", tag_valid=False)]
    with judge_server(fault=lambda request: "400" if texts[4] in request.user else "") as server:
        panel(server, tmp_path).rewards(items[:1])
        judges = panel(server, tmp_path)
        judges.submit(items[:3])
        judges.submit(items[2:6])
        wait_for(lambda: len(server.requests) == 6)
        assert len(judging_threads()) == 1
        found = judges.rewards(items)
        assert judging_threads() == [] and asked_of(server) == sorted(texts), "each once"
        counts = judges.judges[0].counts
        assert (counts.requests, counts.judged, counts.failed, counts.cached) == (8, 7, 1, 1)
        (tmp_path / "cache.sqlite").unlink()
        late = panel(server, tmp_path).rewards(items)
    assert [outcome.reward for outcome in found] == [outcome.reward for outcome in late]
    assert [outcome.verdict for outcome in found] == [outcome.verdict for outcome in late]
    assert found[4].total is None and "HTTP 400" in found[4].verdict.failure
    kept = [n for n in range(9) if n != 4]
    assert [found[n].verdict.scores for n in kept] == expected([texts[n] for n in kept])


def test_an_answer_is_in_the_cache_before_it_is_collected(tmp_path) -> None:
    """So a kill during the rollout costs no verdict; what is given up can be submitted again, and asks nothing."""
    with judge_server() as server:
        judges = panel(server, tmp_path)
        judges.submit([completion("pear")])
        wait_for(lambda: judges.judges[0].counts.judged == 1)
        judges.abandon()
        judges.submit([completion("pear")])
        assert judging_threads() == [], "nothing to ask"
        [outcome] = judges.rewards([completion("pear")])
        assert outcome.total is not None and len(server.requests) == 1
        assert judges.judges[0].counts.cached == 1


def test_the_deadline_counts_from_the_collection(tmp_path) -> None:
    """What took longer than the deadline while others were sampled is no failure; what is late afterwards is one."""
    go = threading.Event()
    with judge_server() as server:
        reply = server.reply
        held = {"pear": go, "plum": threading.Event()}

        def waiting(user: str) -> str:
            text = section(user, "PREDICTION")
            if text in held:
                held[text].wait(20.0)
            return reply(user)

        server.reply = waiting
        judges = panel(server, tmp_path, deadline=0.5, timeout=60.0)
        judges.submit([completion("pear"), completion("plum")])
        wait_for(lambda: len(server.requests) == 2)
        time.sleep(0.7)
        go.set()
        wait_for(lambda: judges.judges[0].counts.judged == 1)
        pear, plum, fig = judges.rewards([completion("pear"), completion("plum"), completion("fig")])
        held["plum"].set()
    assert pear.total is not None and fig.total is not None
    assert plum.total is None and "within reward.judge.deadline=0.5 s" in plum.verdict.failure


def test_the_next_rollout_begins_anew_and_watchers_are_asked_too(tmp_path) -> None:
    with judge_server() as server:
        judges = panel(server, tmp_path, watchers=[JudgeEndpoint(base_url=server.address, model="eye")])
        for number, text in enumerate(("pear", "plum"), start=1):
            judges.submit([completion(text)])
            [outcome] = judges.rewards([completion(text)])
            assert outcome.total is not None and outcome.verdict.watched.keys() == {"eye"}
            assert len(server.requests) == 2 * number


def test_what_cannot_begin_says_so_and_what_is_over_can_be_given_up_again(tmp_path) -> None:
    class Broken:
        @asynccontextmanager
        async def opened(self):
            raise ValueError("no connection")
            yield

    cache = JudgeCache(tmp_path / "c.sqlite")
    with pytest.raises(ValueError, match="no connection"):
        Background([Broken()], cache, None)
    background = Background([], cache, None)
    background.abandon()
    background.abandon()


def test_giving_up_ends_what_is_under_way(tmp_path) -> None:
    with judge_server(fault=lambda request: "late", late_seconds=30.0) as server:
        judges = panel(server, tmp_path, timeout=60.0)
        judges.submit([completion(text) for text in predictions(3)])
        wait_for(lambda: len(server.requests) == 3)
        judges.abandon()
        judges.abandon()
        assert judging_threads() == []
        server.fault = lambda request: ""
        [outcome] = judges.rewards([completion(TRUTH)])
        assert outcome.total is not None


def test_a_cache_that_fails_is_raised_where_verdicts_are_collected(tmp_path) -> None:
    with judge_server() as server:
        judges = panel(server, tmp_path)
        judges.submit([completion("pear")])
        wait_for(lambda: judges.judges[0].counts.judged == 1)
        judges.abandon()
        with sqlite3.connect(tmp_path / "cache.sqlite") as connection:
            connection.execute("drop table verdicts")
        with pytest.raises(ContentError, match=r"reward\.judge\.cache"):
            judges.submit([completion("plum")])
        JudgeCache(tmp_path / "cache.sqlite").close()
        server.fault = lambda request: drop(tmp_path / "cache.sqlite")
        judges.submit([completion("plum")])
        wait_for(lambda: len(server.requests) == 2)
        with pytest.raises(ContentError, match=r"reward\.judge\.cache"):
            judges.rewards([completion("plum")])


def drop(path) -> str:
    with sqlite3.connect(path) as connection:
        connection.execute("drop table verdicts")
    return ""
