"""Removal of a thread whose head the caller has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store import versions
from locus_store.backends.redis import failures
from locus_store.backends.redis.threads import ATTEMPTS

if TYPE_CHECKING:
    from locus_store.backends.redis.connections import LoopClient
    from locus_store.backends.redis.threads import RedisThreads
    from locus_store.types import Mark, Removed


async def drop_seen(
    threads: RedisThreads, home: LoopClient, thread_id: str, head: Mark, namespace: str
) -> Removed:
    """Remove a thread whose head is the one that the caller saw.

    Raises:
        ConflictError: It is another one; nothing was removed.
        BackendError: Other clients keep changing the thread.
    """
    for _ in range(ATTEMPTS):
        thread, revisions = await threads.archive(home, thread_id, is_whole=False) or (None, {})
        space = thread.space(namespace) if thread and thread.is_live else None
        row = space.row(space.line.head or 0) if space else None
        if not (thread and space and row and thread.mark(space, row.record) == head):
            raise versions.head_moved(thread_id)
        removed = await threads.drop(home, thread_id, revisions)
        if removed.existed:
            return removed
    raise failures.busy(thread_id)
