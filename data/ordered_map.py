"""`map` by processes with bounded memory: `Executor.map` reads all of its input, and keeps all results, at once."""

import gc
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_shared: Any = None  # of a worker process: what it was forked with


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    ahead: int,
    initializer: Callable[[], None] | None = None,
) -> Iterator[Result]:
    """The results in the order of the items.

    At most `ahead` items beyond the one that is waited for are given to the processes. Where single items take long,
    `ahead` should be many times `workers`, or processes idle behind the one that takes longest. Closing the iterator
    waits for what is under way and drops the rest. `initializer` is called once in each process, before its first item.
    """
    with ProcessPoolExecutor(workers, initializer=initializer) as pool:
        yield from _in_order(pool, function, items, ahead)


def ordered_map_with(
    shared: Any, function: Callable[[Any, Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Iterator[Result]:
    """`ordered_map` of `function(shared, item)`. Processes are forked with `shared`: it is neither pickled nor copied
    before it is changed, which matters where it is large."""
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork, initializer=_hold, initargs=(shared,)) as pool:
        yield from _in_order(pool, _call, ((function, item) for item in items), ahead)


def _in_order(
    pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def _hold(shared: Any) -> None:
    global _shared
    _shared = shared
    gc.freeze()  # a collection would write to the pages of all objects and so copy them


def _call(work: tuple[Callable[[Any, Item], Result], Item]) -> Result:
    function, item = work
    return function(_shared, item)
