"""Writes that continue when their caller is cancelled, and that ``arelease`` waits for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.loops import outlasting
from locus_store.runtime.stepping import ended, may_block

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")


class Writes:
    """The writes that are under way, by event loop."""

    def __init__(self) -> None:
        self._tasks: PerLoop[set[asyncio.Task[Any]]] = PerLoop(set)
        self._without_loop: PerLoop[set[Future[None]]] = PerLoop(set)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a write, which continues when the caller is cancelled."""
        if may_block():
            return await self._awaited(work)
        tasks, task = self._tasks.here(), asyncio.create_task(work, name="locus-store")
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return await outlasting(task)

    async def _awaited(self, work: Coroutine[Any, Any, T]) -> T:
        mine: Future[None] = Future()
        writes = self._without_loop.here()
        writes.add(mine)
        try:
            return await work
        finally:
            writes.discard(mine)
            mine.set_result(None)

    async def drain(self) -> None:
        """Wait for the writes of this loop, also of tasks that were created but not yet begun."""
        if may_block():
            for it in list(self._without_loop.here()):
                await ended(it)
            return
        await asyncio.sleep(0)
        while tasks := self._tasks.here():
            await asyncio.wait(tasks)


class _Writer(Protocol):
    _writes: Writes


W = TypeVar("W", bound=_Writer)


def writing(
    method: Callable[Concatenate[W, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """Make a method a write."""

    @wraps(method)
    async def run(self: W, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writes.run(method(self, *args, **kwargs))

    return run  # type: ignore[return-value]  # of the same signature
