"""When a request may be sent: limits per minute, pauses that a server asks for, and the wait before another attempt."""

import asyncio
import email.utils
import math
import random
import time
from collections.abc import Callable, Mapping

EXPECTED_REPLY_TOKENS = 500.0  # of a judgement before the first reply has told
NEWEST_SHARE = 0.1  # weight of the newest reply in the running mean of their length


class Pacer:
    """Spaces requests evenly, so that limits a minute hold in every shorter window, too, without a burst.

    Tokens of a reply are not known before it: the running mean is charged, and the next request pays or gets the
    difference. Its state holds no event loop; one rank's share of a limit is what the caller gives.
    """

    def __init__(
        self, requests_per_minute: float, tokens_per_minute: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        """A limit of 0 is none."""
        self._seconds_per_request = 60 / requests_per_minute if requests_per_minute else 0.0
        self._seconds_per_token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._now = now
        self._next_request = self._next_token = self._paused_until = -math.inf
        self._reply_tokens = EXPECTED_REPLY_TOKENS

    def delay(self) -> float:
        """Seconds until the next request may be sent; not positive when it may be now."""
        return max(self._next_request, self._next_token, self._paused_until) - self._now()

    def take(self, prompt_tokens: int) -> float:
        """A request is sent now; returns the tokens that were charged for it."""
        now, charged = self._now(), prompt_tokens + self._reply_tokens
        self._next_request = now + self._seconds_per_request
        self._next_token = max(self._next_token, now) + charged * self._seconds_per_token
        return charged

    async def turn(self, prompt_tokens: int) -> float:
        """Wait until a request may be sent, and take it. One caller at a time: the others wait for it, and so for a
        pause that begins meanwhile, behind which they do not all start at once."""
        while (seconds := self.delay()) > 0:
            await asyncio.sleep(seconds)
        return self.take(prompt_tokens)

    def settle(self, charged: float, used: float) -> None:
        """Correct what was charged by what was used, both in tokens."""
        self._next_token += (used - charged) * self._seconds_per_token

    def observe(self, reply_tokens: int) -> None:
        """Learn the length of replies."""
        self._reply_tokens += NEWEST_SHARE * (reply_tokens - self._reply_tokens)

    def pause(self, seconds: float) -> None:
        """Send nothing for so long: a server that says when to come again means every request."""
        self._paused_until = max(self._paused_until, self._now() + seconds)


def backoff_seconds(attempt: int, first: float, limit: float, draw: random.Random) -> float:
    """The wait after failed attempt number `attempt` (from 1): doubled each time, at most `limit`, times a draw from
    [0.5, 1], so that requests that failed together do not come again together."""
    return min(limit, first * 2 ** min(attempt - 1, 60)) * draw.uniform(0.5, 1.0)


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """The wait that a response asks for, None where it asks for none: `retry-after-ms`, or `retry-after` as seconds or
    as an HTTP date (RFC 9110 section 10.2.3). Never negative.

    Args:
        headers: with names in lower case, or a mapping that does not tell cases apart.
        now: unix seconds, to which a date is compared.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None
