"""Looks for new versions of a thread, shared by all viewers who wait for one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from locus_store.timeline.graph import newer

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.types import Version

    Found: TypeAlias = list[Version] | None

SECONDS: Final = 0.5
"""Between the beginnings of two looks at one line."""


class Looks:
    """The looks of one process: at most one each half second for each line.

    A look begins after all of the requests that it answers, so that no viewer gets an older head
    than before. The first one begins at once; later requests wait for the next one.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str | None, str, str], _Line] = {}

    async def newer(
        self, backend: StorageBackend, thread_id: str, sequence: int, *, namespace: str
    ) -> Found:
        """See ``timeline.graph.newer``."""
        key = backend.tenant, thread_id, namespace
        if key not in self._lines:
            self._lines = {name: it for name, it in self._lines.items() if not it.is_idle()}
            self._lines[key] = _Line(backend, thread_id, namespace)
        found = await self._lines[key].after(sequence)
        return found and [it for it in found if it.mark.sequence > sequence]


@dataclass
class _Line:
    backend: StorageBackend
    thread_id: str
    namespace: str
    next: asyncio.Task[Found] | None = None
    """The look that has not begun to read."""

    least: int = 0
    """The lowest sequence above which versions were asked for."""

    begun: float = -SECONDS

    def is_idle(self) -> bool:
        return self.next is None and monotonic() > self.begun + SECONDS

    async def after(self, sequence: int) -> Found:
        """Return the versions above a sequence, and maybe some before it."""
        if self.next is None:
            self.least = sequence
            self.next = asyncio.create_task(self._look())
            self.next.add_done_callback(_read)
        self.least = min(self.least, sequence)
        return await asyncio.shield(self.next)

    async def _look(self) -> Found:
        await asyncio.sleep(self.begun + SECONDS - monotonic())
        self.next, self.begun = None, monotonic()
        return await newer(self.backend, self.thread_id, self.least, namespace=self.namespace)


def _read(look: asyncio.Task[Found]) -> None:
    """Read the error of a look whose viewers have all left."""
    if not look.cancelled():
        look.exception()
