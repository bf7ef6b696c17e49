"""Resources per event loop, released at the loop's end and after a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary, finalize

from locus_store.errors import InvalidArgumentError
from locus_store.runtime.forks import inherited, make_lock
from locus_store.runtime.stepping import may_block, run_in_thread, run_to_end

T = TypeVar("T")
H = TypeVar("H", bound="LoopResources")


THREADED_BYTES: Final = 256 * 1024
"""Work on more bytes than these would delay the other tasks of an event loop."""

_TASK: Final = "locus-store"
"""Name of the tasks of ``LoopResources``."""


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set a future's error, and mark it as retrieved.

    Where the caller was cancelled in the same tick, or its loop has ended, asyncio would print the
    error, and with it the caller's data.
    """
    future.set_exception(error)
    future.exception()


async def run_off_loop(work: Callable[[], T], size: int) -> T:
    """Return what ``work`` returns; in a thread above ``THREADED_BYTES`` of ``size``."""
    return await run_in_thread(work) if size > THREADED_BYTES else work()


async def await_to_end(work: asyncio.Future[T]) -> T:
    """Await work that continues when the caller is cancelled; its error is marked as retrieved.

    ``asyncio.shield`` has a future of its own, whose error asyncio prints; see ``fail``.
    """
    ended = work.get_loop().create_future()

    def end(work: asyncio.Future[T]) -> None:
        _retrieve(work)
        if not ended.done():  # else the caller was cancelled
            ended.set_result(None)

    work.add_done_callback(end)
    await ended
    return work.result()


async def settle(work: Awaitable[T]) -> T:
    """Return the result of a change; a cancelled caller waits for it, too, before it is cancelled.

    So does the caller of a sync method that ``Ctrl-C`` interrupts.

    Raises:
        CancelledError: The caller was cancelled; the change has ended.
    """
    if may_block():
        return await run_to_end(work)
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        task.cancelled() or task.exception()  # an error that is not asked for is logged
        raise cancelled
    return task.result()


def _retrieve(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()


class LoopResources(ABC):
    """The resources that one event loop has opened, since a connection belongs to its loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._last: dict[str, asyncio.Task[Any]] = {}
        """The last submitted write of each line, until it is done."""
        self._until_the_end: AsyncGenerator[None] | None = None
        self.was_released = False
        """True if nothing is open any more, as after ``asyncio.run``."""

    async def begin(self) -> None:
        """Make the loop close these resources before it ends, as ``asyncio.run`` does."""
        if self._until_the_end is None:
            self._until_the_end = self._finish_at_end()
            await anext(self._until_the_end)

    async def _finish_at_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            if self.pid == os.getpid():  # else the connections are a parent process's
                await self._finish()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start ``work``; ``close`` waits for it."""
        task = asyncio.get_running_loop().create_task(work, name=_TASK)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_retrieve)
        return task

    def step(
        self, work: Coroutine[Any, Any, T], end_work: Callable[[T | BaseException], None]
    ) -> None:
        """Run ``work`` to its first wait in this step, the rest in later ones; ``close`` waits.

        A task would begin one step later, and the caller continue another one later. ``work`` may
        wait for futures only: it has no task that a time limit of asyncio could cancel.

        Args:
            work: What is run, even if the caller is cancelled.
            end_work: Called with its result or its error.
        """
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        steps = _stepping.setdefault(under_way.get_loop(), set())
        for all_of in (self._tasks, steps):
            all_of.add(under_way)

        def end(result: T | BaseException) -> None:
            under_way.set_result(None)
            for all_of in (self._tasks, steps):
                all_of.discard(under_way)
            end_work(result)

        _run_on(work, end)

    async def run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end, even if the caller is cancelled."""
        return await await_to_end(self.spawn(work))

    async def run_in_order(
        self, name: str, work: Callable[[], Coroutine[Any, Any, T]], *others: str
    ) -> T:
        """Run a write after all earlier writes of the line, even if the caller is cancelled.

        What writes several lines names all of them.
        """
        names = {name, *others}
        before = {self._last[it] for it in names if it in self._last}

        async def turn() -> T:
            if before:
                await asyncio.wait(before)
            return await work()

        task = self.spawn(turn())
        self._last.update(dict.fromkeys(names, task))
        task.add_done_callback(lambda it: self._forget(names, it))
        return await await_to_end(task)

    def _forget(self, names: set[str], task: asyncio.Task[Any]) -> None:
        for name in names:
            if self._last.get(name) is task:
                del self._last[name]

    def leave(self) -> None:
        """Close the resources; called in their own loop."""
        self._leaving = asyncio.ensure_future(self.close())

    async def close_to_end(self) -> None:
        """Close the resources, even if the caller is cancelled."""
        self._leaving = asyncio.get_running_loop().create_task(self.close(), name=_TASK)
        await await_to_end(self._leaving)

    async def close(self) -> None:
        """Finish what was submitted; release what was opened."""
        ending, self._until_the_end = self._until_the_end, None
        if ending is None:
            await self._finish()
        elif not getattr(ending, "ag_running", False):  # else the end of the loop is closing it
            await ending.aclose()

    async def _finish(self) -> None:
        while self._tasks:  # one may begin another
            await asyncio.wait(self._tasks)
        await self._release()
        self.was_released = True

    @abstractmethod
    async def _release(self) -> None:
        """Release what was opened."""


class ResourcesPerLoop(Generic[H]):
    """The resources of a backend, one object for each event loop.

    Args:
        make: Gives one, in its loop.
        refusal: Why there may be one running loop at a time; ``None``: there may be any number.
    """

    def __init__(self, make: Callable[[], H], refusal: str | None) -> None:
        self._lock = make_lock()  # the first: pickle names it, not a local function
        self._make = make
        self._refusal = refusal
        self._resources: dict[asyncio.AbstractEventLoop, H] = {}
        finalize(self, _abandon, self._resources)

    async def get(self) -> H:
        """Return the resources of the running loop.

        Raises:
            InvalidArgumentError: Another loop has what is not to be shared.
        """
        loop = asyncio.get_running_loop()
        found = self._resources.get(loop)
        if found is None or found.pid != os.getpid():
            found = self._make_new(loop)
            await found.begin()
        return found

    def _make_new(self, loop: asyncio.AbstractEventLoop) -> H:
        with self._lock:
            for other in list(self._resources):
                if self._resources[other].pid != os.getpid():  # the parent's: not even closed here
                    inherited.append(self._resources.pop(other))
                elif other.is_closed():
                    _abandon({other: self._resources.pop(other)})
                elif self._refusal is not None and other.is_running():
                    raise InvalidArgumentError(self._refusal)
            made = self._resources[loop] = self._make()
            return made

    async def close(self) -> None:
        """Close the resources of the running loop; the others close in their own loops."""
        loop = asyncio.get_running_loop()
        with self._lock:
            mine, others = self._resources.pop(loop, None), dict(self._resources)
            self._resources.clear()
        if mine is not None and mine.pid != os.getpid():
            others[loop], mine = mine, None
        _abandon(others)
        if mine is not None:
            await mine.close_to_end()


def bind_to_loop(client: T) -> Callable[[], T]:
    """Return a function that gives a caller's client to this process and to its first event loop.

    It raises ``InvalidArgumentError`` in others, which would share the client's connections.
    """
    pid, owner = os.getpid(), list[asyncio.AbstractEventLoop]()

    def get() -> T:
        loop = asyncio.get_running_loop()
        owner[:] = owner or [loop]
        if os.getpid() != pid or owner != [loop]:
            raise InvalidArgumentError(
                "a client belongs to its process and to the event loop that it was first used in;"
                " create the client after the fork and in that loop, or leave it out"
            )
        return client

    return get


def is_at_work(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a loop has unfinished work of this library; call it in the loop's thread."""
    return bool(_stepping.get(loop)) or any(
        task.get_name() == _TASK for task in asyncio.all_tasks(loop)
    )


_stepping: WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = (
    WeakKeyDictionary()
)
"""The unfinished steps of ``LoopResources.step``, by event loop."""


def _run_on(work: Coroutine[Any, Any, T], end: Callable[[T | BaseException], None]) -> None:
    """Run a coroutine until it waits for a future, and continue when that is done."""
    try:
        waited_for = work.send(None)
    except StopIteration as exc:
        end(exc.value)
    except (KeyboardInterrupt, SystemExit) as exc:
        end(exc)
        raise
    except BaseException as exc:  # noqa: BLE001  (as a task does)
        end(exc)
    else:
        waited_for._asyncio_future_blocking = False  # noqa: SLF001  (as a task does)
        waited_for.add_done_callback(lambda _: _run_on(work, end))


def _abandon(resources: dict[asyncio.AbstractEventLoop, H]) -> None:
    """Release unused connections without waiting; the server sees them closed."""
    if any(it.pid != os.getpid() for it in resources.values()):
        inherited.append(dict(resources))
    for loop in [it for it in resources if not it.is_closed() and resources[it].pid == os.getpid()]:
        with suppress(RuntimeError):  # closed in between
            loop.call_soon_threadsafe(resources.pop(loop).leave)
    if all(it.was_released for it in resources.values()):
        resources.clear()
        return
    with warnings.catch_warnings():  # a closed loop cannot close connections
        warnings.simplefilter("ignore", ResourceWarning)
        resources.clear()
        gc.collect()
