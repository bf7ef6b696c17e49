"""Threads built version by version, and forks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.backends.memory.backend import MemoryBackend
from locus_store.errors import ConflictError, IntegrityError
from locus_store.types import ArchivedLine, ArchivedRecord, ArchivedThread, ArchivedWrite
from locus_store.values import frames
from locus_store.versions import expand_write, select_current


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """One version of the other library."""

    checkpoint_id: str
    parent_id: str | None
    """``None``, or one that was added to the same namespace before."""

    state: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime
    packed: bool = False
    """Bytes in ``state`` are MessagePack; see ``frames.compare_states``."""


class ThreadBuilder:
    """Saves versions one by one, so that only one state is in memory.

    Args:
        thread_id: The thread's id.
    """

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._memory = MemoryBackend()
        self._added: dict[str, dict[str, NewVersion]] = {}
        self._writes: dict[str, list[ArchivedWrite]] = {}

    async def add(self, version: NewVersion, *, namespace: str = "") -> None:
        """Add a version after all others of the namespace.

        Raises:
            SerializationError: Its state or metadata is not exactly JSON.
            NotFoundError: Its parent was not added.
            InvalidArgumentError: An id or the namespace is none.
            IntegrityError: A version of that id was added before.
        """
        of_line = self._added.setdefault(namespace, {})
        if version.checkpoint_id in of_line:
            raise IntegrityError(f"there are two checkpoints {version.checkpoint_id!r}")
        await self._memory.write_state(
            self._thread_id,
            version.state,
            namespace=namespace,
            checkpoint_id=version.checkpoint_id,
            metadata=version.metadata,
            labels=version.labels,
            parent_id=version.parent_id,
            packed=version.packed,
        )
        of_line[version.checkpoint_id] = replace(version, state={})

    def add_writes(self, writes: list[ArchivedWrite], *, namespace: str = "") -> None:
        """Add whole pending writes of any checkpoints of the namespace."""
        self._writes.setdefault(namespace, []).extend(writes)

    async def build(self, heads: Mapping[str, str] | None = None) -> ArchivedThread:
        """Return the thread; its times are those of its versions.

        Args:
            heads: Checkpoint id of the head per namespace, where it is not the last one added.
        """
        for namespace, writes in self._writes.items():
            for row in writes:
                await self._memory.put_writes(
                    self._thread_id, row.checkpoint_id, [row.write], namespace=namespace
                )
        thread = await self._memory.read_thread(self._thread_id)
        if thread is None:
            raise ValueError("nothing was added")
        lines = [self._finish_line(it, (heads or {}).get(it.namespace)) for it in thread.lines]
        times = [it.created_at for line in lines for it in line.records]
        times += [it.created_at for line in lines for it in line.writes]
        active_at = max(times).replace(second=0, microsecond=0)
        return replace(thread, created_at=min(times), active_at=active_at, lines=lines)

    def _finish_line(self, line: ArchivedLine, head: str | None) -> ArchivedLine:
        """Return the line with the other library's times, roots and head."""
        added = self._added.get(line.namespace, {})
        times = {
            (row.checkpoint_id, row.write.task_id, row.write.idx): row.created_at
            for row in self._writes.get(line.namespace, [])
        }
        records = [
            replace(
                record,
                created_at=added[record.checkpoint_id].created_at,
                parent=record.parent if added[record.checkpoint_id].parent_id else None,
            )
            for record in line.records
        ]
        sequences = {it.checkpoint_id: it.sequence for it in records}
        return replace(
            line,
            head=sequences[head] if head else line.head,
            records=records,
            writes=[
                replace(row, created_at=times[row.checkpoint_id, row.write.task_id, row.write.idx])
                for row in line.writes
            ],
        )


async def cut_thread(
    thread: ArchivedThread, checkpoint_id: str, *, namespace: str = "", max_state_bytes: int
) -> ArchivedThread | None:
    """Return the thread as it was when a version was its head; other namespaces are complete.

    Returns:
        A thread with that version and its ancestors; ``None``: there is no such version to see.

    Raises:
        IntegrityError: A version is damaged.
    """
    line = next((it for it in thread.lines if it.namespace == namespace), None)
    kept = _list_ancestry(line, checkpoint_id) if line else []
    if line is None or not kept:
        return None
    builder, names = ThreadBuilder(thread.thread_id), {it.sequence: it.checkpoint_id for it in kept}
    folders: dict[int, frames.Folder] = {}
    writes: list[ArchivedWrite] = []
    for record in line.records:
        folder = folders.setdefault(record.chain, frames.Folder(max_state_bytes))
        folder.apply(record.payload)
        if record.sequence in names:
            await builder.add(
                NewVersion(
                    checkpoint_id=record.checkpoint_id,
                    parent_id=names.get(record.parent or 0),
                    state=folder.get_state(),
                    metadata=record.metadata,
                    labels=record.labels,
                    created_at=record.created_at,
                    packed=True,
                ),
                namespace=namespace,
            )
            writes += [
                replace(row, write=expand_write(row.write, folder.get_state(), max_state_bytes))
                for row in line.writes
                if row.checkpoint_id == record.checkpoint_id
                and select_current([row.write], record.sequence)
            ]
    builder.add_writes(writes, namespace=namespace)
    shorter = (await builder.build()).lines[0]
    return replace(thread, lines=[shorter if it is line else it for it in thread.lines])


def _list_ancestry(line: ArchivedLine, checkpoint_id: str) -> list[ArchivedRecord]:
    """Return a visible version and its visible ancestors, newest first."""
    visible = [it for it in line.records if it.sequence >= line.floor or it.sequence == line.head]
    known = {it.sequence: it for it in visible}
    at = next((it for it in visible if it.checkpoint_id == checkpoint_id), None)
    if at is None:
        return []
    found = [at]
    while at.parent is not None and at.parent in known:
        found.append(at := known[at.parent])
    return found


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
    there, limit = await storage.read_thread(thread_id), backend.max_state_bytes
    if there is None:
        return False
    found = await cut_thread(there, checkpoint_id, namespace=namespace, max_state_bytes=limit)
    if found is None:
        return False
    copy = replace(found, thread_id=new_thread_id, messages=[], logs=[])
    if not await storage.write_thread(copy):
        raise ConflictError(f"thread {new_thread_id!r} already exists; nothing was written")
    return True
