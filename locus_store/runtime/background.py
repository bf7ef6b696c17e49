"""Work beside the calls: one piece at a time in each event loop, and each name at most once."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from typing import Any, TypeAlias

    Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

MOST_WAITING: Final = 256
"""Further work is refused."""


class Background:
    """The work of one event loop that no call waits for."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, Work] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, name: Hashable, work: Work) -> None:
        """Run ``work`` soon, unless there is too much to do, or work of this name waits."""
        if len(self._waiting) >= MOST_WAITING:
            return
        self._waiting.setdefault(name, work)
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = Context().run(loop.create_task, self._run())
            self._task.add_done_callback(self._ended)
            # A loop may end without running it: the work is best effort.
            self._task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001

    async def finish(self, seconds: float) -> None:
        """Wait for the work, but no longer than this; the rest of it is dropped."""
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=seconds)
            self._waiting.clear()
            task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            name = next(iter(self._waiting))
            await self._waiting.pop(name)()

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._task = None  # an error that the work did not expect is printed by asyncio
        self._waiting.clear()
