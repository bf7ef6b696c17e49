"""Threads for calls that block, queues of writes, and the base of clients."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from itertools import chain, islice
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from locus_store.runtime.forks import start_in_each_process
from locus_store.runtime.loops import await_to_end
from locus_store.runtime.retries import parse_date
from locus_store.runtime.stepping import may_block, run_now

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

SECOND: Final = timedelta(seconds=1)


class RunsWork(Protocol):
    """An object whose work may block the event loop."""

    async def _run(self, work: Callable[[], T]) -> T:
        """Run work; in a worker thread if it may block."""


Self = TypeVar("Self", bound=RunsWork)


def move_off_loop(
    work: Callable[Concatenate[Self, P], T],
) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, T]]:
    """Make an async method of one that is work of its object."""

    @wraps(work)
    async def method(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(partial(work, self, *args, **kwargs))

    return method


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
        start_in_each_process(self._start)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._nested = threading.local()
        self._open(is_open=True)

    def _open(self, *, is_open: bool) -> None:
        """Begin with other pools, which have no threads yet."""
        self._calls = ThreadPoolExecutor(self._size, self._name)
        self._reads = ThreadPoolExecutor(self._size, f"{self._name}-read")
        self.is_open = is_open

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call; see ``concurrent.futures.Executor``."""
        with self._lock:
            self.is_open = True
            return self._calls.submit(fn, *args, **kwargs)

    def _read(self, work: Callable[[T], R], item: T) -> Future[R]:
        """Read in a thread of the pool; in this one if the call has outlived ``close``."""
        with self._lock:
            if self.is_open:
                return self._reads.submit(self._as_reader, work, item)
        done: Future[R] = Future()
        done.set_result(work(item))
        return done

    def close(self) -> None:
        """Release the threads once their work is done; later calls start others."""
        with self._lock:
            pools = self._calls, self._reads
            self._open(is_open=False)
        for pool in pools:
            pool.shutdown(wait=False)

    def run_each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results in order; within another call of this kind, one after another."""
        if getattr(self._nested, "is_reader", False):
            yield from map(work, items)
            return
        rest = iter(items)
        first = list(islice(rest, 2))
        if len(first) > 1:
            yield from self._run_at_once(work, chain(first, rest))
        else:
            yield from map(work, first)

    def _run_at_once(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results in order; twice as many as there are threads are under way."""
        under_way: deque[Future[R]] = deque()
        try:
            for item in items:
                under_way.append(self._read(work, item))
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


class BlockingClient:
    """A client of a service, which begins without connections, also in a forked child.

    Args:
        name: The names of its threads end with it.
        pool_size: Calls at once.
    """

    def __init__(self, name: str, pool_size: int) -> None:
        self._workers = Workers(f"locus-store-{name}", pool_size)
        start_in_each_process(self._start)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._offset = timedelta(0)

    @property
    def pool(self) -> Executor:
        """The threads that calls run in, which ``close`` does not end for good."""
        self._workers.is_open = True
        return self._workers

    def run_each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """See ``Objects``; within another call of this kind, one after another."""
        return self._workers.run_each(work, items)

    def read_clock(self) -> datetime:
        """Return the time by the service's clock, as far as it is known."""
        return datetime.now(UTC) + self._offset

    def _follow_clock(self, date: object) -> None:
        """Follow the service's clock, whose answers have whole seconds."""
        if at := parse_date(date):
            offset = at + SECOND / 2 - datetime.now(UTC)
            if abs(offset - self._offset) > SECOND:
                self._offset = offset


class _Job:
    """Work to run in another thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work

    def run(self) -> None:
        self.future.set_running_or_notify_cancel()
        try:
            answer = self._work()
        except BaseException as exc:  # noqa: BLE001  (it is the caller's)
            self.future.set_exception(exc)
        else:
            self.future.set_result(answer)


class WriteQueues:
    """The writes that wait, by thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Job]] = {}

    async def run(self, name: str, work: Callable[[], T], pool: Executor | None) -> T:
        """Run a write after all earlier ones of its queue, even if the caller is cancelled.

        Args:
            name: The queue's.
            work: The write.
            pool: Its thread, unless that of a sync call; ``None``: one of the event loop's.
        """
        job = _Job(work)
        if may_block():
            return await run_now(self._run_here, name, job)
        if queue := self._add(name, job):
            submit = partial(asyncio.get_running_loop().run_in_executor, None)
            # The end of a pool's work need not wake the event loop.
            self._give(name, queue, submit if pool is None else pool.submit)
        answer: T = await await_to_end(asyncio.wrap_future(job.future))
        return answer

    def _run_here(self, name: str, job: _Job) -> Any:
        """Run a job in this thread, and leave those that came meanwhile to another."""
        if queue := self._add(name, job):
            job.run()
            if self._has_more(name, queue):
                self._give(name, queue, lambda it: threading.Thread(target=it, daemon=True).start())
        return job.future.result()

    def _add(self, name: str, job: _Job) -> deque[_Job] | None:
        """Add a job; return its queue if it is the first one there."""
        with self._lock:
            queue = self._queues.setdefault(name, deque())
            queue.append(job)
            return queue if len(queue) == 1 else None

    def _give(self, name: str, queue: deque[_Job], submit: Callable[..., object]) -> None:
        """Have another thread run a queue's jobs, or this one if none can begin."""
        drain = partial(self._drain, name, queue, threading.Lock())
        try:
            submit(drain)
        except RuntimeError:  # an executor may run it later nevertheless
            drain()

    def _drain(self, name: str, queue: deque[_Job], claim: threading.Lock) -> None:
        """Run a queue's jobs, once; the first one stays in it until it is finished."""
        if not claim.acquire(blocking=False):
            return
        queue[0].run()
        while self._has_more(name, queue):
            queue[0].run()

    def _has_more(self, name: str, queue: deque[_Job]) -> bool:
        """Remove a queue's first job; return whether it has another one."""
        with self._lock:
            queue.popleft()
            if not queue:
                del self._queues[name]
            return bool(queue)
