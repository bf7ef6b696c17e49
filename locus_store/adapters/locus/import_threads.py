"""Threads of the Locus SDK's own checkpointers (locus-sdk 3.0.1): its files, tables and keys.

Every checkpoint, with its metadata and time, in its order. The source is only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from locus_store.adapters.locus.records import (
    Entry,
    FoundThread,
    compute_fingerprint,
    find_repeated,
)
from locus_store.adapters.locus.sources import LocusSource, make_source
from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.errors import (
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    SerializationError,
)
from locus_store.runtime.progress import expect_steps
from locus_store.transfer.building import NewVersion, ThreadBuilder
from locus_store.transfer.counts import Counts, Progress, Tally
from locus_store.types import ArchivedThread
from locus_store.types.codec import get_labels
from locus_store.types.marks import split_mark
from locus_store.values import frames
from locus_store.values.surrogates import restore


async def import_locus(
    backend: StorageBackend,
    source: str,
    *,
    table_name: str | None = None,
    tenant: str | None = None,
    thread_ids: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Counts:
    """Store the threads that the Locus SDK kept; threads that exist already are left unchanged.

    The source is read at one moment. Each thread is written whole or not at all, read again, and
    compared with the source state by state. A thread that cannot be imported does not stop the
    others; the error is raised at the end. A second run continues the first one.

    Args:
        backend: Where to.
        source: ``postgresql://…`` or ``sqlite:///file.db``, which may end in ``?table_name=…``
            and ``&tenant=…``; ``redis://…``, which may end in ``?prefix=…``;
            ``oci://namespace/bucket/prefix``; a directory of
            ``FileCheckpointer``, or ``file:directory``.
        table_name: The SDK's, with its schema if need be; ``None``: the one that is there of
            ``locus_checkpoints`` and ``checkpoints``, the SDK's defaults.
        tenant: Of ``PgCheckpointer``, whose threads to import; ``None``: ``"default"``.
        thread_ids: Which; ``None``: all.
        progress: See ``counts.Progress``.

    Raises:
        ConnectionFailedError: The source cannot be reached, or is not a directory.
        SchemaError: The SDK's table is not there.
        NotFoundError: One of ``thread_ids`` is not there; nothing was written.
        ConflictError: ``backend`` has a thread of that id with other versions.
        IntegrityError: A row or file of the source is damaged or not the SDK's; names it.
        SerializationError: A state holds what JSON cannot keep; names it.
        InvalidArgumentError: No such scheme; two tables or prefixes; or an invalid id.
    """
    backend = needs(backend, StoresThreads)
    await backend.exists("-")  # its schema is made now: that may wait for all who read
    tally = Tally(progress)
    async with make_source(source, table_name=table_name, tenant=tenant) as reader:
        threads = await reader.read_threads()
        for thread_id in thread_ids or ():
            if thread_id not in threads:
                raise NotFoundError(
                    f"{reader.shown} has no thread {thread_id!r}; nothing was written"
                )
        chosen = sorted(threads) if thread_ids is None else list(dict.fromkeys(thread_ids))
        for thread_id in expect_steps(chosen):
            await tally.add(
                thread_id, _import_thread(backend, reader, thread_id, threads[thread_id])
            )
        return tally.finish(reader.shown)


async def _import_thread(
    backend: StoresThreads, reader: LocusSource, thread_id: str, thread: FoundThread
) -> bool:
    """Import a thread; return whether it was new to the backend."""
    if thread.problem:
        raise thread.problem
    for checkpoint_id in find_repeated(thread.entries):
        raise IntegrityError(f"checkpoint {checkpoint_id!r} exists twice")
    builder, states = ThreadBuilder(thread_id), {}
    parent: str | None = None
    for entry in thread.entries:
        version = await _make_version(reader, entry, parent)
        try:
            await builder.add(version)
        except (InvalidArgumentError, SerializationError) as exc:
            raise type(exc)(f"{entry.where}: {exc}") from exc
        states[entry.checkpoint_id] = compute_fingerprint(version.state), version.metadata
        parent = entry.checkpoint_id
    is_new = await backend.write_thread(await builder.build())
    there = await backend.read_thread(thread_id)
    _compare(thread.entries, states, there, backend.max_state_bytes)
    return is_new


async def _make_version(reader: LocusSource, entry: Entry, parent: str | None) -> NewVersion:
    content = await reader.read(entry)
    state, _ = split_mark(content.state)  # of a state that this library loaded
    return NewVersion(
        checkpoint_id=entry.checkpoint_id,
        parent_id=parent,
        state=state,
        metadata=content.metadata,
        labels=get_labels(state),
        created_at=entry.created_at,
    )


def _compare(
    entries: Sequence[Entry],
    states: Mapping[str, tuple[str, Mapping[str, object]]],
    thread: ArchivedThread | None,
    max_bytes: int,
) -> None:
    """Rebuild every stored state, and raise if it is not what the source has."""
    lines = thread.lines if thread else []
    records = lines[0].records if len(lines) == 1 else []
    if len(records) != len(entries) or lines[0].head != records[-1].sequence:
        raise IntegrityError("what was stored has other checkpoints, or was changed meanwhile")
    folders: dict[int, frames.Folder] = {}
    for entry, record in zip(entries, records, strict=True):
        folder = folders.setdefault(record.chain, frames.Folder(max_bytes))
        folder.apply(record.payload)
        kept = compute_fingerprint(restore(folder.get_state()))
        there = (record.checkpoint_id, record.created_at, kept, restore(record.metadata))
        if there != (entry.checkpoint_id, entry.created_at, *states[entry.checkpoint_id]):
            raise IntegrityError(f"what was stored of {entry.where} differs from it")
