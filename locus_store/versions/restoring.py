"""Storing a whole thread, as it was elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from locus_store.errors import ConflictError
from locus_store.versions.archives import require_whole, same

if TYPE_CHECKING:
    from locus_store.types import ArchivedThread


class Archive(Protocol):
    """The methods of a backend that this module calls."""

    @property
    def max_state_bytes(self) -> int:
        """The largest state that is stored."""

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        """Return all that is stored of a thread."""

    async def restore(self, thread: ArchivedThread) -> None:
        """Store a thread that was found whole."""


async def write_thread(backend: Archive, thread: ArchivedThread) -> bool:
    """Store a thread, all or nothing; return ``False`` if the very same is there already.

    Raises:
        ConflictError: A thread of this id is there, and differs.
        IntegrityError, InvalidArgumentError, SerializationError: See ``archives.require_whole``.
    """
    await asyncio.to_thread(require_whole, thread, backend.max_state_bytes)
    there = await backend.read_thread(thread.thread_id)
    if there is None:
        try:
            await backend.restore(thread)
        except ConflictError:  # somebody else was faster, perhaps with the same
            there = await backend.read_thread(thread.thread_id)
        else:
            return True
    if there is not None and same(there, thread):
        return False
    raise ConflictError(
        f"thread {thread.thread_id!r} is there already, and differs; nothing was written. "
        "Delete one of the two, or fork it under another id first"
    )
