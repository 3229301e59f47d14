"""Pacing against a simulated clock, the backoff, and Retry-After in both of its forms."""

import asyncio
import random
import time

import pytest

from agentworld.rewards.rate_limit import EXPECTED_REPLY_TOKENS, Pacer, backoff_seconds, retry_after_seconds


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def sent(pacer: Pacer, clock: Clock, tokens: list[int], idle: random.Random | None = None) -> list[tuple[float, float]]:
    """(moment, tokens charged) of requests that each wait for their turn; some come late."""
    found = []
    for count in tokens:
        clock.time += max(0.0, pacer.delay())
        found.append((clock.time, pacer.take(count)))
        if idle and idle.random() < 0.1:
            clock.time += idle.uniform(0, 5)
    return found


@pytest.mark.parametrize("window", [1.0, 7.0, 60.0])
def test_no_window_holds_more_than_its_share(window: float) -> None:
    draw, clock = random.Random(0), Clock()
    pacer = Pacer(120, 60_000, clock)
    moments = sent(pacer, clock, [draw.randrange(50, 2000) for _ in range(800)], draw)
    largest = max(charged for _, charged in moments)
    for first, (start, _) in enumerate(moments):
        inside = [charged for moment, charged in moments[first:] if moment < start + window]
        assert len(inside) <= window * 2 + 1
        assert sum(inside) <= window * 1000 + largest + 1e-6


def test_the_limit_is_used_and_no_limit_never_waits() -> None:
    clock = Clock()
    moments = sent(Pacer(600, 0, clock), clock, [100] * 101)
    assert moments[-1][0] - moments[0][0] == pytest.approx(10.0)
    clock = Clock()
    assert {moment for moment, _ in sent(Pacer(0, 0, clock), clock, [10**6] * 50)} == {1000.0}


def test_tokens_that_were_charged_too_high_come_back() -> None:
    clock = Clock()
    pacer = Pacer(0, 60_000, clock)  # 1,000 tokens a second
    charged = pacer.take(1500)
    assert charged == 1500 + EXPECTED_REPLY_TOKENS
    pacer.settle(charged, 500)
    assert pacer.delay() == pytest.approx(0.5)
    pacer.observe(40)
    assert pacer.take(0) == pytest.approx(EXPECTED_REPLY_TOKENS + 0.1 * (40 - EXPECTED_REPLY_TOKENS))
    for _ in range(200):
        pacer.observe(40)
    assert pacer.take(0) == pytest.approx(40, abs=0.1)


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    pacer = Pacer(0, 0, Clock())
    pacer.pause(5.0)
    pacer.pause(1.0)
    assert pacer.delay() == 5.0


def test_a_pause_holds_everyone_and_does_not_end_in_a_burst() -> None:
    async def run() -> list[float]:
        pacer, gate, started, moments = Pacer(6000, 0), asyncio.Lock(), time.monotonic(), []

        async def one() -> None:
            async with gate:
                await pacer.turn(1)
            moments.append(time.monotonic() - started)

        waiting = [asyncio.create_task(one()) for _ in range(20)]
        await asyncio.sleep(0.05)
        before = len(moments)
        pacer.pause(0.3)
        await asyncio.gather(*waiting)
        return moments[before:]

    moments = asyncio.run(run())
    assert len(moments) >= 5, "some must have waited"
    assert min(moments) >= 0.3
    assert max(moments) - min(moments) >= 0.01 * (len(moments) - 1) - 0.005


def test_backoff_doubles_up_to_its_limit_with_jitter() -> None:
    draw = random.Random(0)
    for attempt, top in ((1, 2.0), (2, 4.0), (3, 8.0), (4, 10.0), (5000, 10.0)):
        waits = [backoff_seconds(attempt, 2.0, 10.0, draw) for _ in range(300)]
        assert top / 2 <= min(waits) < 0.55 * top and 0.95 * top < max(waits) <= top


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.0),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
    ],
)
def test_retry_after(headers: dict, seconds: float | None) -> None:
    assert retry_after_seconds(headers, now=100.0) == seconds
