"""One judge: it asks its endpoint until there is an evaluation that can be read, or a reason why there is none.

    retried      no answer in time, a broken connection, HTTP 408, 409, 425, 429 and 5xx, a reply without an evaluation
    final        every other HTTP 4xx (401 the key, 404 the model, 400 the request): the next would be refused, too;
                 a Retry-After of more than an hour

The client is the official one without its own retries: every request has to pass the pacer and to be counted.
"""

import asyncio
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentworld.rewards.judge_cache import Judged
from agentworld.rewards.judge_prompt import JudgePrompt
from agentworld.rewards.judge_reply import ReplyError
from agentworld.rewards.rate_limit import Pacer, backoff_seconds, retry_after_seconds
from agentworld.rewards.settings import JudgeEndpoint, JudgeSettings

RETRIED_STATUS = (408, 409, 425, 429)
SHOWN_CHARACTERS = 200  # of an error text
SHOWN_END = 60  # characters of a reply that could not be read: an evaluation stands at its end
MILLION = 1e6
MOST_TOKENS = 1 << 40  # of one answer: above, a server's `usage` is no count
LONGEST_PAUSE = 3600.0  # seconds that a server may ask to wait; for more, what it was asked has failed


class JudgementError(Exception):
    """A judgement that failed for good; the text says why, without the key."""


class _AttemptError(Exception):
    """One request that failed and may be tried again."""


@dataclass
class Counts:
    """What one judge did since it was made, on this rank. Tokens are those of the endpoint's `usage`, of every reply
    that carried one, usable or not; `cost` in the currency of the prices."""

    requests: int = 0
    retries: int = 0
    cached: int = 0
    judged: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class JudgeClient:
    """A judge on one rank, with this rank's share of its limits. Attribute `counts`: see `Counts`."""

    def __init__(self, endpoint: JudgeEndpoint, settings: JudgeSettings, ranks: int) -> None:
        """
        Args:
            settings: how all judges are asked (timeout, attempts, backoff).
            ranks: among which the limits of the endpoint are divided.
        """
        self.model = endpoint.model
        self.sampling: dict[str, Any] = {endpoint.max_tokens_field: endpoint.max_tokens}
        if endpoint.temperature >= 0:
            self.sampling["temperature"] = endpoint.temperature
        self.counts = Counts()
        self._endpoint, self._settings = endpoint, settings
        self._key = os.environ.get(endpoint.key_variable, "") if endpoint.key_variable else ""
        self._pacer = Pacer(endpoint.requests_per_minute / ranks, endpoint.tokens_per_minute / ranks)
        self._concurrency = max(1, endpoint.concurrency // ranks)
        self._draw = random.Random()  # not the seeded generator of the training, which must not depend on the network

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["JudgeClient"]:
        """Connections for one event loop."""
        from openai import AsyncOpenAI

        self._places, self._gate = asyncio.Semaphore(self._concurrency), asyncio.Lock()
        async with AsyncOpenAI(
            base_url=self._endpoint.base_url,
            api_key=self._key or "none",
            max_retries=0,
            timeout=self._settings.timeout,
        ) as client:
            self._client = client
            yield self

    async def ask(self, prompt: JudgePrompt) -> Judged:
        """One judgement.

        Raises:
            JudgementError: refused for good, or failed `attempts` times.
        """
        reason = ""
        for attempt in range(1, self._settings.attempts + 1):
            if attempt > 1:
                self.counts.retries += 1
                wait = backoff_seconds(attempt - 1, self._settings.backoff, self._settings.backoff_limit, self._draw)
                await asyncio.sleep(wait)
            try:
                judged = await self._attempt(prompt)
            except _AttemptError as error:
                reason = str(error)
                continue
            self.counts.judged += 1
            return judged
        raise JudgementError(f"{self.model}: {self._settings.attempts} attempts failed, the last: {reason}")

    def price(self, prompt_tokens: int, completion_tokens: int) -> float:
        """In the currency of the endpoint's prices."""
        prices = self._endpoint.price_prompt * prompt_tokens + self._endpoint.price_completion * completion_tokens
        return prices / MILLION

    async def _attempt(self, prompt: JudgePrompt) -> Judged:
        async with self._places:
            async with self._gate:
                charged = await self._pacer.turn(prompt.tokens)
            self.counts.requests += 1
            body = await self._request(prompt)
        text, usage = self._read(body)
        prompt_tokens, completion_tokens = usage
        if prompt_tokens or completion_tokens:  # an endpoint without usage keeps what was charged
            self._pacer.settle(charged, prompt_tokens + completion_tokens)
            self._pacer.observe(completion_tokens)
        self.counts.prompt_tokens += prompt_tokens
        self.counts.completion_tokens += completion_tokens
        self.counts.cost += self.price(prompt_tokens, completion_tokens)
        try:
            return Judged(prompt.parse(text), text, prompt_tokens, completion_tokens)
        except ReplyError as error:
            raise _AttemptError(
                self._shown(f"a reply without a usable evaluation: {error}; it ends: {text.strip()[-SHOWN_END:]}")
            ) from None

    async def _request(self, prompt: JudgePrompt) -> str:
        """The body of the response, whatever it is."""
        import openai

        try:
            async with asyncio.timeout(self._settings.timeout):  # the client's own timeout is one of each read
                response = await self._client.chat.completions.with_raw_response.create(
                    model=self.model, messages=prompt.messages, extra_body=self.sampling
                )
                return response.text
        except (openai.APITimeoutError, TimeoutError):
            raise _AttemptError(f"no answer within {self._settings.timeout:g} s") from None
        except openai.APIStatusError as error:
            raise self._of_status(error.status_code, error.response) from None
        except (openai.APIError, UnicodeError) as error:
            raise _AttemptError(self._shown(f"connection: {error.__cause__ or error}")) from None

    def _of_status(self, status: int, response: Any) -> Exception:
        shown = self._shown(f"HTTP {status}: {response.text}")
        if status < 500 and status not in RETRIED_STATUS:
            return JudgementError(f"{self.model}: {shown}")
        wait = retry_after_seconds(response.headers, time.time())
        if wait is not None and wait > LONGEST_PAUSE:
            return JudgementError(f"{self.model}: it asks to come again in {wait:.0f} s: {shown}")
        if wait is not None:
            self._pacer.pause(wait)
        return _AttemptError(shown)

    def _read(self, body: str) -> tuple[str, tuple[int, int]]:
        """The reply's text and (prompt tokens, completion tokens), 0 where `usage` does not say."""
        try:
            answer = json.loads(body)
            text = answer["choices"][0]["message"]["content"]
        except (ValueError, RecursionError, KeyError, IndexError, TypeError):
            text = None
        if not isinstance(text, str):
            raise _AttemptError(self._shown(f"no chat completion: {body}")) from None
        text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair could not be kept
        usage = answer.get("usage")
        counts = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
        prompt_tokens, completion_tokens = (
            value if isinstance(value, int) and 0 < value <= MOST_TOKENS else 0 for value in counts
        )
        return text, (prompt_tokens, completion_tokens)

    def _shown(self, text: str) -> str:
        """An error's text on one line, short, and without the key, which a server may repeat."""
        if self._key:
            text = text.replace(self._key, "[key]")
        text = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", text)
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
