"""Marks of threads in lists: interrupted by LangGraph, or with a message log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from locus_store.backend import StoresWrites
from locus_store.versions.sizes import INTERRUPT, Marked, MeasuresVersions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.backend import StorageBackend
    from locus_store.messages import BaseMessageLog

AT_ONCE: Final = 8
"""Threads that are looked at together."""


async def marked(
    backend: StorageBackend, log: BaseMessageLog | None, thread_ids: Sequence[str]
) -> dict[str, Marked]:
    """Return the marks of threads by their ids; SQL databases find them in two statements.

    Args:
        backend: The storage.
        log: The message log beside it, if there is one.
        thread_ids: The threads.
    """
    if isinstance(backend, MeasuresVersions):
        found = await backend.marks(thread_ids)
        return {it: found.get(it, Marked()) for it in thread_ids}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(thread_id: str) -> Marked:
        async with gate:
            logs = await log.logs(thread_id) if log is not None else []
            messages = sum(it.count for it in logs) if logs else None
            return Marked(await _is_interrupted(backend, thread_id), messages)

    return dict(zip(thread_ids, await asyncio.gather(*map(one, thread_ids)), strict=True))


async def _is_interrupted(backend: StorageBackend, thread_id: str) -> bool:
    if not isinstance(backend, StoresWrites) or not backend.capabilities.branching:
        return False
    head = await backend.version(thread_id)
    writes = await backend.get_writes(thread_id, head.checkpoint_id) if head else []
    return any(it.channel == INTERRUPT for it in writes)
