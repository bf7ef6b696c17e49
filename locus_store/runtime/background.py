"""Work beside the calls, and the saves that an event loop has begun."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeAlias

from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.holding import Place, make_place
from locus_store.runtime.stepping import ThreadCall, may_block, run, wait_for_end

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

MOST_WAITING: Final = 256
"""Further work is refused."""

logger = logging.getLogger(__name__)


class Background:
    """The work of one event loop that no call waits for; without a loop, of a thread.

    Args:
        most_waiting: Further work is refused.
    """

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self._most = most_waiting
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Work] = {}
        self._task: asyncio.Task[None] | ThreadCall[None] | None = None

    def submit(self, name: Hashable, work: Work) -> None:
        """Run ``work`` soon, unless there is too much to do, or work of this name waits."""
        with self._lock:
            if len(self._waiting) >= self._most:
                return
            self._waiting.setdefault(name, work)
            if self._task is None:
                self._task = Context().run(self._begin_work)

    def _begin_work(self) -> asyncio.Task[None] | ThreadCall[None]:
        if may_block():
            call = ThreadCall[None]()
            call.start(self._run)
            return call
        task = asyncio.Task(self._run(), loop=asyncio.get_running_loop())  # it begins later
        # A loop may end without running it: the work is best effort.
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        return task

    async def finish(self, seconds: float | None = None) -> None:
        """Wait for the work, but no longer than this; the rest of it is dropped."""
        task = self._task
        if task is None:
            return
        if isinstance(task, ThreadCall):
            await wait_for_end(task, seconds)
        else:
            await asyncio.wait([task], timeout=seconds)
        self._waiting.clear()
        task.cancel()

    async def _run(self) -> None:
        try:
            while work := self._take_next():
                await work()
        except BaseException as exc:
            with self._lock:
                self._waiting.clear()
                self._task = None
            if may_block() and isinstance(exc, Exception):  # else asyncio prints it
                logger.exception("work beside the calls failed")
            raise

    def _take_next(self) -> Work | None:
        with self._lock:
            if not self._waiting:
                self._task = None
                return None
            return self._waiting.pop(next(iter(self._waiting)))


PATIENCE_SECONDS: Final = 5.0
"""A load waits so long for a save: that one may wait for a transaction of the load's caller."""

_saves: Final[PerLoop[dict[Place, set[asyncio.Future[None]]]]] = PerLoop(dict)


def note_save(backend: Any, name: str) -> AbstractContextManager[None]:
    """Return a context in which a thread, or a part of one, is saved."""
    return nullcontext() if may_block() else _Saving(_saves.get(), make_place(backend, name))


class _Saving:
    __slots__ = ("_all", "_ended", "_key")

    def __init__(self, saves: dict[Place, set[asyncio.Future[None]]], key: Place) -> None:
        self._all, self._key = saves, key

    def __enter__(self) -> None:
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._all.setdefault(self._key, set()).add(self._ended)

    def __exit__(self, *_: object) -> None:
        if not self._ended.done():  # else the loop has ended
            self._ended.set_result(None)
        of_thread = self._all[self._key]
        of_thread.discard(self._ended)
        if not of_thread:
            del self._all[self._key]


async def wait_for_saves(backend: Any, name: str) -> None:
    """Wait for the saves of a thread, or a part of one, that this event loop has begun.

    An asynchronous generator that was abandoned, such as an agent's run after its first event, is
    closed two steps of the loop later, and saves then. Sync calls have no such generators.
    """
    if may_block():
        return
    for _ in range(2):
        await asyncio.sleep(0)
    if under_way := _saves.get().get(make_place(backend, name)):
        await asyncio.wait(under_way, timeout=PATIENCE_SECONDS)


@asynccontextmanager
async def repeat_beside(work: Callable[[], Awaitable[None]], seconds: float) -> AsyncIterator[None]:
    """Do work every so many seconds while a block runs."""
    if may_block():
        over = threading.Event()

        def keep_on() -> None:
            while not over.wait(seconds):
                run(work, [])

        target = partial(copy_context().run, keep_on)  # which may hold a turn
        thread = threading.Thread(target=target, name="locus-store-repeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        return

    async def keep() -> None:
        while True:
            await asyncio.sleep(seconds)
            await work()

    task = asyncio.create_task(keep(), name="locus-store-repeat")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
