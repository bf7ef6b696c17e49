"""Rewind: an old version as the new head."""

from __future__ import annotations

import secrets
import uuid
from typing import TYPE_CHECKING

from locus_store.backend import StoresWrites, needs
from locus_store.errors import ConflictError, NotFoundError
from locus_store.timeline.carried import carried
from locus_store.timeline.layouts import is_graphs
from locus_store.timeline.lineage import PAGE
from locus_store.types import Expected
from locus_store.versions import REBUILT, current, new_checkpoint_id, whole_write

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.types import Mark, Snapshot, Version


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
    graph, interrupted or not, which gets an id of its own kind; ``carried`` has what it runs again.
    A ``DeltaChannel`` is rebuilt from the parents' writes, so the parent of such a version is that
    of the old one.

    Args:
        backend: The storage.
        thread_id: The thread.
        checkpoint_id: The version to return to.
        namespace: Its line.
        expected_head: The head that the caller saw; ``None``: any.

    Raises:
        ConflictError: The head is another one, or moved meanwhile; nothing was saved.
        NotFoundError: There is no such version.
        UnsupportedError: The backend keeps no pending writes, or the package ``xxhash`` is missing
            for a LangGraph thread.
    """
    writing = needs(backend, StoresWrites)
    found = await backend.read_state(
        thread_id, checkpoint_id, namespace=namespace, with_writes=True
    )
    if found is None:
        raise NotFoundError(f"there is no checkpoint {checkpoint_id!r} in thread {thread_id!r}")
    await _require_head(backend, found, expected_head)
    writes = [
        whole_write(it, found.state, backend.max_state_bytes)
        for it in current(found.writes or [], found.version.mark.sequence)
    ]
    name = new_checkpoint_id()
    if is_graphs(found.state):
        name = new_graph_id()
        is_left = bool(writes) and await _is_left(backend, found.version)
        writes = carried(found, writes, name, backend.max_state_bytes, is_left=is_left)
    await writing.put_writes(thread_id, name, writes, namespace=namespace)
    await backend.write_state(
        thread_id,
        found.state,
        namespace=namespace,
        checkpoint_id=name,
        metadata=found.version.metadata,
        labels=found.version.labels,
        expected=Expected(made_from=await _made_from(backend, found.version), head=found.head),
    )
    return name


async def _made_from(backend: StorageBackend, version: Version) -> Mark | None:
    if not version.labels.get(REBUILT):
        return version.mark
    parent = version.parent_id
    found = await backend.version(version.thread_id, parent, namespace=version.namespace)
    if parent is None or found is None:
        raise NotFoundError(
            f"checkpoint {version.checkpoint_id!r} is rebuilt from its parent {parent!r}, which is "
            "not stored any more"
        )
    return found.mark


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


async def _is_left(backend: StorageBackend, version: Version) -> bool:
    """Return whether a graph ran on from a version: a child of it has a later step."""
    before: str | None = None
    step = version.metadata.get("step")
    while page := await backend.history(
        version.thread_id, namespace=version.namespace, limit=PAGE, before=before
    ):
        before = page[-1].checkpoint_id
        for it in page:
            if it.mark.sequence <= version.mark.sequence:
                return False
            if it.parent_id == version.checkpoint_id and it.metadata.get("step") != step:
                return True
    return False


def new_graph_id() -> str:
    """Return a checkpoint id as LangGraph makes them: a UUID of version 6, ordered by time."""
    time = uuid.uuid1(node=0, clock_seq=0).time
    number = time >> 12 << 80 | 6 << 76 | (time & 0xFFF) << 64 | 2 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))
