"""Rewind: an old version as the new head."""

from __future__ import annotations

import secrets
import uuid
from typing import TYPE_CHECKING

from locus_store.backend import StoresWrites, needs
from locus_store.errors import ConflictError, NotFoundError
from locus_store.timeline.layouts import is_graphs
from locus_store.types import Expected
from locus_store.versions import current, new_checkpoint_id, whole_write

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.types import Snapshot


async def rewind(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str,
    *,
    namespace: str = "",
    expected_head: str | None = None,
) -> str:
    """Save the state of an old version, with its pending writes, as the new head; return its id.

    Removes nothing: the versions behind the old one are a side branch then. The new version has the
    metadata of the old one, which is its parent. An agent continues from it. So does a LangGraph
    graph, interrupted or not, which gets an id of its own kind. LangGraph derives the ids of tasks
    from that of the checkpoint: tasks that were done or interrupted at the old one run again.

    Args:
        backend: The storage.
        thread_id: The thread.
        checkpoint_id: The version to return to.
        namespace: Its line.
        expected_head: The head that the caller saw; ``None``: any.

    Raises:
        ConflictError: The head is another one, or moved meanwhile; nothing was saved.
        NotFoundError: There is no such version.
        UnsupportedError: The backend keeps no pending writes.
    """
    writing = needs(backend, StoresWrites)
    found = await backend.read_state(
        thread_id, checkpoint_id, namespace=namespace, with_writes=True
    )
    if found is None:
        raise NotFoundError(f"there is no checkpoint {checkpoint_id!r} in thread {thread_id!r}")
    await _require_head(backend, found, expected_head)
    name = new_graph_id() if is_graphs(found.state) else new_checkpoint_id()
    writes = [
        whole_write(it, found.state, backend.max_state_bytes)
        for it in current(found.writes or [], found.version.mark.sequence)
    ]
    await writing.put_writes(thread_id, name, writes, namespace=namespace)
    await backend.write_state(
        thread_id,
        found.state,
        namespace=namespace,
        checkpoint_id=name,
        metadata=found.version.metadata,
        labels=found.version.labels,
        expected=Expected(made_from=found.version.mark, head=found.head),
    )
    return name


async def _require_head(
    backend: StorageBackend, found: Snapshot, expected_head: str | None
) -> None:
    if expected_head is None:
        return
    version = found.version
    head = await backend.version(version.thread_id, namespace=version.namespace)
    if head is None or head.checkpoint_id != expected_head or head.mark != found.head:
        now = head.checkpoint_id if head else None
        raise ConflictError(
            f"the head of thread {version.thread_id!r} is {now!r}, not {expected_head!r}; nothing "
            "was saved. Look at the newer versions first",
            head_id=now,
            parent_id=version.checkpoint_id,
        )


def new_graph_id() -> str:
    """Return a checkpoint id as LangGraph makes them: a UUID of version 6, ordered by time."""
    time = uuid.uuid1(node=0, clock_seq=0).time
    number = time >> 12 << 80 | 6 << 76 | (time & 0xFFF) << 64 | 2 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))
