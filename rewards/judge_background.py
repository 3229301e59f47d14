"""Judgements that begin while the rest of a rollout is still sampled: a thread with an event loop of its own.

    add       what is to be asked; what was added before is not asked again
    finish    the rest, and all answers; the deadline counts from here: until then nobody waits for the judge
    abandon   let everything go

The clients and their limits are those of the panel, and no other event loop may use them meanwhile. Verdicts go into
the cache as they arrive, through a connection of the thread's own (SQLite binds one to its thread).
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack
from typing import Any

from agentworld.rewards.judge_cache import JudgeCache
from agentworld.rewards.judge_client import JudgeClient

Name = tuple[JudgeClient, str]  # who is asked, and the key of the question
Ask = Callable[[JudgeCache, JudgeClient, str, Any], Awaitable[Any]]


class Background:
    """Questions under way. One `finish` or `abandon` ends it; no thread is left over then."""

    def __init__(self, clients: list[JudgeClient], cache: JudgeCache, ask: Ask) -> None:
        self._clients, self._cache, self._ask = clients, cache, ask
        self._futures: dict[Name, Future] = {}
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="judge", daemon=True)
        self._thread.start()
        self._opened.result()

    def __contains__(self, name: Name) -> bool:
        return name in self._futures

    def add(self, questions: Mapping[Name, Any]) -> None:
        """Ask about what was not added before."""
        for name, question in questions.items():
            if name not in self._futures:
                asking = self._ask(self._own_cache, *name, question)
                self._futures[name] = asyncio.run_coroutine_threadsafe(asking, self._loop)

    def finish(self, questions: Mapping[Name, Any], deadline: float) -> dict[Name, Any]:
        """The answers to all that was added, and to `questions`; None where one took longer than `deadline` seconds
        from now. A defect of an asker, or a cache that fails, is raised."""
        try:
            self.add(questions)
            wait(self._futures.values(), timeout=deadline)
        finally:
            self.abandon()
        return {name: None if f.cancelled() else f.result(timeout=0) for name, f in self._futures.items()}

    def abandon(self) -> None:
        """Cancel what is under way, close the connections and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self._own_cache = JudgeCache(self._cache.path)
            async with AsyncExitStack() as stack:
                stack.callback(self._own_cache.close)
                for client in self._clients:
                    await stack.enter_async_context(client.opened())
                self._opened.set_result(None)
                await self._stop.wait()
                tasks = asyncio.all_tasks() - {asyncio.current_task()}
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except BaseException as error:  # told to the caller, who waits for it
            if not self._opened.done():
                self._opened.set_exception(error)
                return
            raise
