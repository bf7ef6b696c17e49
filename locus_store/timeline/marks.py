"""Marks of threads in lists: interrupted by LangGraph, or with a message log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from locus_store.backend import StoresWrites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.backend import StorageBackend
    from locus_store.messages import BaseMessageLog

INTERRUPT: Final = "__interrupt__"
"""LangGraph's channel of a task that waits for an answer."""

AT_ONCE: Final = 8
"""Threads that are looked at together."""


@dataclass(frozen=True, slots=True)
class Marked:
    """The marks of a thread."""

    is_interrupted: bool = False
    messages: int | None = None
    """Messages in all logs; ``None``: there is no log."""

    def __str__(self) -> str:
        noun = "message" if self.messages == 1 else "messages"
        logged = "" if self.messages is None else f"{self.messages:,} {noun}"
        return ", ".join(filter(None, ("interrupted" if self.is_interrupted else "", logged)))


async def marked(
    backend: StorageBackend, log: BaseMessageLog | None, thread_ids: Sequence[str]
) -> dict[str, Marked]:
    """Return the marks of threads.

    Args:
        backend: The storage.
        log: The message log beside it, if there is one.
        thread_ids: The threads.
    """
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
    newest = await backend.history(thread_id, limit=1)
    names = [it.checkpoint_id for it in newest]
    found = await backend.writes_of(thread_id, names) if names else {}
    return any(it.channel == INTERRUPT for writes in found.values() for it in writes)
