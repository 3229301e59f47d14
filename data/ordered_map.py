"""`map` by processes with bounded memory: `Executor.map` reads all of its input, and keeps all results, at once."""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

PR_SET_PDEATHSIG = 1  # linux/prctl.h

_shared: Any = None  # of a worker process: what it was forked with


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    ahead: int,
) -> Iterator[Result]:
    """The results in the order of the items.

    At most `ahead` items beyond the one that is waited for are given to the processes. Where single items take long,
    `ahead` should be many times `workers`, or processes idle behind the one that takes longest. Closing the iterator
    waits for what is under way and drops the rest.

    Raises:
        BrokenProcessPool: a process was killed.
    """
    with ProcessPoolExecutor(workers, initializer=as_worker) as pool:
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


def as_worker() -> None:
    """Of each process, before it waits for work, since one whose parent dies before would wait for ever: end by SIGTERM
    without a word, whatever the parent does on it, leave Ctrl-C to the parent, and die with it (Linux)."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if not parent.is_alive():  # it died before the line above
            os.kill(os.getpid(), signal.SIGKILL)


def _hold(shared: Any) -> None:
    as_worker()
    global _shared
    _shared = shared
    gc.freeze()  # a collection would write to the pages of all objects and so copy them


def _call(work: tuple[Callable[[Any, Item], Result], Item]) -> Result:
    function, item = work
    return function(_shared, item)
