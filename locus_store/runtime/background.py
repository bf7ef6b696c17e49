"""Work beside the calls: one piece at a time in each event loop, and each name at most once."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import Context
from typing import TYPE_CHECKING, Final

from locus_store.runtime.stepping import Begun, begin, ended, may_block

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from typing import Any, TypeAlias

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
        self._task: asyncio.Task[None] | Begun[None] | None = None

    def submit(self, name: Hashable, work: Work) -> None:
        """Run ``work`` soon, unless there is too much to do, or work of this name waits."""
        with self._lock:
            if len(self._waiting) >= self._most:
                return
            self._waiting.setdefault(name, work)
            if self._task is None:
                self._task = Context().run(self._begun)

    def _begun(self) -> asyncio.Task[None] | Begun[None]:
        if may_block():
            return begin(self._run)
        task = asyncio.get_running_loop().create_task(self._run())
        # A loop may end without running it: the work is best effort.
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        return task

    async def finish(self, seconds: float | None = None) -> None:
        """Wait for the work, but no longer than this; the rest of it is dropped."""
        task = self._task
        if task is None:
            return
        if isinstance(task, Begun):
            await ended(task, seconds)
        else:
            await asyncio.wait([task], timeout=seconds)
        self._waiting.clear()
        task.cancel()

    async def _run(self) -> None:
        try:
            while work := self._next():
                await work()
        except BaseException as exc:
            with self._lock:
                self._waiting.clear()
                self._task = None
            if may_block() and isinstance(exc, Exception):  # else asyncio prints it
                logger.exception("work beside the calls failed")
            raise

    def _next(self) -> Work | None:
        with self._lock:
            if not self._waiting:
                self._task = None
                return None
            return self._waiting.pop(next(iter(self._waiting)))
