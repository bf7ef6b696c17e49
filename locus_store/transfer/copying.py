"""Copies of threads between backends, with all their versions."""

from __future__ import annotations

from collections.abc import Sequence

from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.errors import IntegrityError, NotFoundError
from locus_store.runtime.progress import expect_steps
from locus_store.transfer.archive import all_threads
from locus_store.transfer.counts import Counts, Progress, Tally
from locus_store.transfer.items import copy_items
from locus_store.versions.archives import are_same


async def copy(
    source: StorageBackend,
    target: StorageBackend,
    thread_ids: Sequence[str] | None = None,
    *,
    with_items: bool = True,
    progress: Progress | None = None,
) -> Counts:
    """Copy threads with their versions, metadata, times, pending writes and messages.

    With all threads, the items of the store beside ``source`` are copied, too, with their versions,
    times and embeddings.

    Each thread is read at one moment, checked by its digests, written whole or not at all, and read
    again from ``target``. Identical threads in ``target`` are left as they are, so that
    a second run continues an interrupted copy. A thread that cannot be copied does not stop the
    others; the error is raised at the end.

    Args:
        source: Only read.
        target: Where to.
        thread_ids: Which; ``None``: all.
        with_items: Copy the items with all threads.
        progress: See ``counts.Progress``.

    Raises:
        ConflictError: ``target`` has a thread of that id with other versions, or another item.
        NotFoundError: There is no such thread.
        IntegrityError: A thread is damaged in ``source``, or was not kept by ``target``.
        UnsupportedError: One of the two does not keep whole threads, or ``target`` has no store.
    """
    source, target = needs(source, StoresThreads), needs(target, StoresThreads)
    tally = Tally(progress)
    if thread_ids is None:
        async for thread_id in all_threads(source):
            await tally.add(thread_id, _copy(source, target, thread_id, must_exist=False))
        if with_items:
            await copy_items(source, target, tally)
    for thread_id in expect_steps(thread_ids or ()):
        await tally.add(thread_id, _copy(source, target, thread_id, must_exist=True))
    return tally.finish()


async def _copy(
    source: StoresThreads, target: StoresThreads, thread_id: str, *, must_exist: bool
) -> bool | None:
    """Copy a thread; return whether it was new to the target, ``None`` if it does not exist."""
    thread = await source.read_thread(thread_id)
    if thread is None:
        if must_exist:
            raise NotFoundError("there is no such thread to copy")
        return None
    is_new = await target.write_thread(thread)
    if is_new:
        kept = await target.read_thread(thread_id)
        if kept is None or not are_same(kept, thread, target.max_state_bytes):
            raise IntegrityError("it was changed while it was copied; copy it again")
    return is_new
