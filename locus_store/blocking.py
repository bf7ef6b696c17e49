"""The same contract for code without an event loop."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import finalize

import anyio
from anyio.from_thread import BlockingPortal

from locus_store import open as opening
from locus_store.checkpointer import BaseCheckpointer, Loads, loaded_here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from locus_store.types import CheckpointerCapabilities

T = TypeVar("T")


class BlockingCheckpointer:
    """A checkpointer whose methods block; may be used from any number of threads.

    Its event loop runs in a thread of its own, started by the first call and ended by ``close``.
    Every method is the one of the same name of the checkpointer, with the same arguments,
    results and errors. What the calling thread has loaded is remembered for its next save.

    Args:
        checkpointer: Any checkpointer; closed by ``close``.
    """

    def __init__(self, checkpointer: BaseCheckpointer) -> None:
        self._async = checkpointer
        self._portals = Portals()

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """What the checkpointer declares."""
        return self._async.capabilities

    @property
    def deletes_single_checkpoints(self) -> bool:
        """Whether ``delete`` can remove one version and leave the rest."""
        return self._async.deletes_single_checkpoints

    def __repr__(self) -> str:
        return f"BlockingCheckpointer({self._async!r})"

    def save(
        self,
        state: Any,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        **options: Any,
    ) -> str:
        return self._run(
            lambda: self._async.save(state, thread_id, checkpoint_id, metadata, **options)
        )

    def load(self, thread_id: str, checkpoint_id: str | None = None) -> Any | None:
        return self._run(lambda: self._async.load(thread_id, checkpoint_id))

    def list_checkpoints(self, thread_id: str, limit: int = 10, **options: Any) -> list[str]:
        return self._run(lambda: self._async.list_checkpoints(thread_id, limit, **options))

    def delete(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        return self._run(lambda: self._async.delete(thread_id, checkpoint_id))

    def exists(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        return self._run(lambda: self._async.exists(thread_id, checkpoint_id))

    def search(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        return self._run(lambda: self._async.search(query, limit))

    def query_by_metadata(self, key: str, value: Any, limit: int = 100) -> list[dict[str, Any]]:
        return self._run(lambda: self._async.query_by_metadata(key, value, limit))

    def get_metadata(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> dict[str, Any] | None:
        return self._run(lambda: self._async.get_metadata(thread_id, checkpoint_id))

    def vacuum(self, older_than_days: float = 30) -> int:
        return self._run(lambda: self._async.vacuum(older_than_days))

    def expire(self) -> int:
        return self._run(self._async.expire)

    def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        return self._run(lambda: self._async.copy_thread(source_thread_id, dest_thread_id))

    def list_threads(self, limit: int = 100, pattern: str = "*", **options: Any) -> list[str]:
        return self._run(lambda: self._async.list_threads(limit, pattern, **options))

    def list_with_metadata(self, limit: int = 100) -> list[dict[str, Any]]:
        return self._run(lambda: self._async.list_with_metadata(limit))

    def close(self) -> None:
        """Close the checkpointer and end the loop's thread; may be used again after."""
        if self._portals.is_open:
            self._run(self._async.close)
            self._portals.close()

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call on the loop, and bring back what it noted of the caller's loads."""

        async def carried() -> tuple[T, Loads]:
            loaded_here.set(mine)
            return await call(), loaded_here.get()

        mine = loaded_here.get()
        result, noted = self._portals.open().call(carried)
        loaded_here.set(noted)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Portals:
    """The event loop's thread of this process, for code that blocks: a forked child starts its own.

    A daemon thread, so that a facade that nobody closed does not keep its process from ending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._portal: BlockingPortal | None = None
        self._stop: Any = None

    @property
    def is_open(self) -> bool:
        """Whether the thread runs."""
        return self._portal is not None and self._pid == os.getpid()

    def open(self) -> BlockingPortal:
        """The way to the loop, which is started first."""
        with self._lock:
            if not self.is_open or self._portal is None:
                started: Future[BlockingPortal] = Future()
                name = "locus-store-blocking"
                thread = threading.Thread(target=_serve, args=(started,), name=name, daemon=True)
                thread.start()
                self._portal = started.result()
                self._pid = os.getpid()
                self._stop = finalize(self, _stop, self._portal, thread, self._pid)
            return self._portal

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._lock:
            stop, self._stop, self._portal = self._stop, None, None
        if stop is not None:
            stop()


def _serve(started: Future[BlockingPortal]) -> None:
    async def main() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    anyio.run(main, backend="asyncio")


def _stop(portal: BlockingPortal, thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():  # a forked child has neither
        return
    portal.start_task_soon(portal.stop)
    if thread is not threading.current_thread():
        thread.join()


def open_checkpointer(url: str, **options: Any) -> BlockingCheckpointer:
    """Return the blocking form of the checkpointer that ``url`` names; see ``locus_store.open``."""
    return BlockingCheckpointer(opening.open_checkpointer(url, **options))


for _name in vars(BlockingCheckpointer).keys() & vars(BaseCheckpointer).keys():
    if not _name.startswith("_") and not getattr(BlockingCheckpointer, _name).__doc__:
        getattr(BlockingCheckpointer, _name).__doc__ = getattr(BaseCheckpointer, _name).__doc__
