"""Forks: copies of threads under other ids, complete or up to a version."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from locus_store.backend import StoresThreads, needs
from locus_store.errors import ConflictError
from locus_store.transfer.building import up_to

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend


async def fork(
    backend: StorageBackend,
    thread_id: str,
    new_thread_id: str,
    checkpoint_id: str | None = None,
    *,
    namespace: str = "",
) -> bool:
    """Copy a thread under another id; ``False`` if it or the version does not exist.

    Args:
        backend: The storage.
        thread_id: The thread.
        new_thread_id: The id of the copy.
        checkpoint_id: Copy only this version, which becomes the head, and its ancestors, without
            messages; ``None``: all that the thread has.
        namespace: The line of the version.

    Raises:
        ConflictError: A thread has the new id; nothing was written.
        UnsupportedError: The backend does not list what its versions are made of.
    """
    storage = needs(backend, StoresThreads)
    if checkpoint_id is None:
        return await storage.copy_thread(thread_id, new_thread_id)
    there = await storage.read_thread(thread_id)
    limit = backend.max_state_bytes
    found = (
        await up_to(there, checkpoint_id, namespace=namespace, max_state_bytes=limit)
        if there
        else None
    )
    if found is None:
        return False
    copy = replace(found, thread_id=new_thread_id, messages=[], logs=[])
    if not await storage.write_thread(copy):
        raise ConflictError(f"thread {new_thread_id!r} already exists; nothing was written")
    return True
