"""One judge without a server: its share of the limits, what is charged, what is tried again, when it gives up."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from agentworld.rewards.judge_client import JudgeClient, JudgementError
from agentworld.rewards.judge_prompt import JudgePrompt
from agentworld.rewards.settings import JudgeEndpoint, JudgeSettings

PROMPT = JudgePrompt("s", "u", tokens=300, dropped_turns=0, parse=lambda text: text)


def client(ranks: int = 1, settings: JudgeSettings | None = None, **endpoint) -> JudgeClient:
    """A judge whose clock stands still."""
    made = JudgeClient(
        JudgeEndpoint(**{"base_url": "http://h/v1", "model": "m"} | endpoint), settings or JudgeSettings(), ranks
    )
    made._pacer._now = lambda: 1000.0
    return made


def body(**usage: int) -> str:
    return json.dumps({"choices": [{"message": {"content": "yes"}}], "usage": usage})


def asked(judge: JudgeClient, *bodies: str) -> float:
    """Ask once for each body; the seconds until the next request may be sent."""

    async def run() -> None:
        answers = iter(bodies)

        async def answer(prompt: JudgePrompt) -> str:
            return next(answers)

        judge._request = answer
        async with judge.opened():
            for _ in bodies:
                judge._pacer._next_request = judge._pacer._next_token = 0.0
                assert (await judge.ask(PROMPT)).scores == "yes"

    asyncio.run(run())
    return judge._pacer.delay()


def test_limits_are_shared_by_the_ranks_and_an_answer_corrects_what_was_charged() -> None:
    """By hand: 60,000 tokens a minute over 2 ranks are 500 a second. The prompt's 300 and 500 for the reply are
    charged, what the endpoint counted is paid, and the next reply is expected nearer to the length of this one."""
    limits = {"ranks": 2, "tokens_per_minute": 60_000}
    judge = client(**limits)
    assert asked(judge, body(prompt_tokens=100, completion_tokens=10)) == pytest.approx((100 + 10) / 500)
    assert judge._pacer.take(0) == pytest.approx(500 + 0.1 * (10 - 500))
    silent = client(**limits)
    assert asked(silent, body()) == pytest.approx((300 + 500) / 500), "without a count what was charged stays"
    assert silent._pacer.take(0) == 500
    assert asked(client(ranks=4, requests_per_minute=120), body()) == pytest.approx(2.0)
    assert [client(ranks, concurrency=8)._concurrency for ranks in (1, 2, 3, 8, 64)] == [8, 4, 2, 1, 1]


def test_tokens_and_cost_add_up_over_answers() -> None:
    judge = client(price_prompt=3.0, price_completion=15.0)
    asked(judge, body(prompt_tokens=1000, completion_tokens=50), body(prompt_tokens=2000, completion_tokens=10), body())
    counts = judge.counts
    assert (counts.requests, counts.judged, counts.retries) == (3, 3, 0)
    assert (counts.prompt_tokens, counts.completion_tokens) == (3000, 60)
    assert counts.cost == pytest.approx((3.0 * 3000 + 15.0 * 60) / 1e6)


@pytest.mark.parametrize(
    ("status", "wait", "again"),
    [(400, None, False), (401, None, False), (404, None, False), (422, None, False), (400, "1", False)]
    + [(status, None, True) for status in (408, 409, 425, 429, 500, 503, 529)]
    + [(429, "3600", True), (429, "3601", False), (503, "3601", False)],
)
def test_what_is_tried_again(status: int, wait: str | None, again: bool) -> None:
    """A wait of an hour is obeyed by all requests, a longer one ends what asked for it."""
    judge = client()
    headers = {} if wait is None else {"retry-after": wait}
    error = judge._of_status(status, SimpleNamespace(text="", headers=headers))
    assert isinstance(error, JudgementError) is not again
    assert judge._pacer.delay() == (float(wait) if wait and again else -float("inf"))


def test_a_reply_that_never_ends_is_given_up_and_waited_for_between_attempts(monkeypatch) -> None:
    """The library's timeout is one of each read: a server that sends a byte now and then would hold a slot for ever."""
    waits: list[float] = []
    settings = JudgeSettings(timeout=0.02, attempts=4, backoff=1.0, backoff_limit=3.0)
    judge = client(settings=settings)
    sleep = asyncio.sleep

    async def slept(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    async def run() -> None:
        async with judge.opened():
            assert (judge._client.timeout, judge._client.max_retries) == (settings.timeout, 0)
            raw = SimpleNamespace(with_raw_response=SimpleNamespace(create=lambda **_: asyncio.Event().wait()))
            judge._client = SimpleNamespace(chat=SimpleNamespace(completions=raw))
            with pytest.raises(JudgementError, match=r"m: 4 attempts failed, the last: no answer within 0\.02 s"):
                await asyncio.wait_for(judge.ask(PROMPT), 20.0)

    monkeypatch.setattr("agentworld.rewards.judge_client.asyncio.sleep", slept)
    asyncio.run(run())
    assert (judge.counts.requests, judge.counts.retries) == (4, 3)
    tops = (1.0, 2.0, 3.0)
    assert len(waits) == 3 and all(top / 2 <= wait <= top for wait, top in zip(waits, tops, strict=True))
