"""Threads for the calls of an object store, and for the reads of one call."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Workers(Executor):
    """Two bounded pools: of calls, and of the parallel reads of calls.

    A call that waits for its reads would wait for its own thread in a common pool. The threads are
    started at first use, also after ``close`` and in a forked child, which has none of its
    parent's.

    Args:
        name: The names of the threads begin with it.
        size: The threads of each pool.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._nested = threading.local()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call; see ``concurrent.futures.Executor``."""
        return self._submitted("", fn, *args, **kwargs)

    def _submitted(
        self, suffix: str, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Hand work to a pool under the lock, so that ``close`` comes before it or after it."""
        if self._pid != os.getpid():
            self._start()
        with self._lock:
            if suffix not in self._pools:
                self._pools[suffix] = ThreadPoolExecutor(self._size, self._name + suffix)
            return self._pools[suffix].submit(fn, *args, **kwargs)

    def close(self) -> None:
        """Release the threads once their work is done; later calls start others."""
        if self._pid != os.getpid():
            self._start()
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False)

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results in order; within another call of this kind, one after another."""
        if getattr(self._nested, "is_reader", False):
            yield from map(work, items)
            return
        rest = iter(items)
        first = list(islice(rest, 2))
        if len(first) > 1:
            yield from self._at_once(work, first, rest)
        else:
            yield from map(work, first)

    def _at_once(
        self, work: Callable[[T], R], first: Iterable[T], rest: Iterator[T]
    ) -> Iterator[R]:
        """Yield the results in order; twice as many as there are threads are under way."""
        under_way: deque[Future[R]] = deque()
        try:
            for items in (first, rest):
                for it in items:
                    under_way.append(self._submitted("-read", self._as_reader, work, it))
                    if len(under_way) > 2 * self._size:
                        yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    def _as_reader(self, work: Callable[[T], R], item: T) -> R:
        self._nested.is_reader = True
        return work(item)
