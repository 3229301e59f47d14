"""`map` by processes with bounded memory: `Executor.map` reads all of its input, and keeps all results, at once."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    pending: deque[Future[Result]] = deque()
    with ProcessPoolExecutor(workers, initializer=initializer) as pool:
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
