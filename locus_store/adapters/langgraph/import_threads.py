"""Threads of LangGraph's own savers: langgraph-checkpoint-postgres and -sqlite.

Every checkpoint, channel value and pending write, with its parent, metadata and time, in the form
that this package's saver for LangGraph reads: a state is the checkpoint without its id, its values
in their stored form (``typed_values``). The source is only read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from locus_store.adapters.langgraph.source_tables import Cipher, TableSource, open_source
from locus_store.adapters.langgraph.typed_values import convert_to_json, get_members
from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.errors import (
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    MissingExtraError,
    NotFoundError,
    make_install_command,
)
from locus_store.runtime.progress import expect_steps
from locus_store.saver import make_line_labels, make_line_name
from locus_store.transfer.building import NewVersion, ThreadBuilder
from locus_store.transfer.counts import Counts, Progress, Tally
from locus_store.types import ArchivedThread, ArchivedWrite, PendingWrite
from locus_store.values import frames
from locus_store.values.encoding import UNLIMITED
from locus_store.values.surrogates import restore
from locus_store.values.times import EPOCH
from locus_store.versions import CHANNELS, make_write_sort_key as order_of_writes

_TASKS = "__pregel_tasks"
_TASKS_FORMAT = 4
"""The first format of checkpoints with a channel of this name."""


async def import_langgraph(
    backend: StorageBackend,
    url: str,
    *,
    thread_ids: Sequence[str] | None = None,
    cipher: Cipher | None = None,
    progress: Progress | None = None,
) -> Counts:
    """Store the threads of LangGraph's tables; threads that exist already are left unchanged.

    Each thread is read at one moment and written whole or not at all; then both sides are read
    again and compared, version by version. A thread that cannot be imported does not stop the
    others; the error is raised at the end. A second run continues the first one.

    Args:
        backend: Where to.
        url: ``postgresql://…`` or ``sqlite:///file.db``: the database with LangGraph's tables. For
            tables in another PostgreSQL schema, say ``options=-csearch_path%3Dschema`` in it.
        thread_ids: Which; ``None``: all.
        cipher: Decrypts what an ``EncryptedSerializer`` wrote, so that it is stored in clear; its
            ``cipher``, or that of ``make_aes_cipher``. ``None``: values stay encrypted, to be read
            by a saver with the same serializer; SQLite's savers encrypt whole checkpoints, which
            need it.
        progress: See ``counts.Progress``.

    Raises:
        SchemaError: LangGraph's tables are not there.
        ConflictError: ``backend`` has a thread of that id with other versions.
        IntegrityError: A row of the source is damaged, or was not kept; names it.
        InvalidArgumentError: No such scheme, or an id that is too long.
        MissingExtraError: ``ormsgpack`` is not installed.
    """
    backend = needs(backend, StoresThreads)
    tally = Tally(progress)
    async with open_source(url, cipher) as source:
        for thread_id in expect_steps(
            await source.list_threads() if thread_ids is None else thread_ids
        ):
            await tally.add(thread_id, _import_thread(backend, source, thread_id))
        return tally.finish(source.shown)


async def _import_thread(backend: StoresThreads, source: TableSource, thread_id: str) -> bool:
    """Import a thread; return whether it was new to the backend."""
    async with source.begin_snapshot():
        try:
            thread = await _read(source, thread_id)
        except (ValueError, TypeError, LookupError) as exc:
            if isinstance(exc, LocusStoreError):
                raise
            raise IntegrityError(f"a row is not as LangGraph writes it: {exc}") from exc
        is_new = await backend.write_thread(thread)
        await _compare(source, await backend.read_thread(thread_id), thread_id)
        return is_new


async def _read(source: TableSource, thread_id: str) -> ArchivedThread:
    builder, heads = ThreadBuilder(thread_id), {}
    namespaces = await source.list_namespaces(thread_id)
    if not namespaces:
        raise NotFoundError("there is no such thread")
    for namespace in namespaces:
        parents = await source.read_parents(thread_id, namespace)
        times: dict[str, datetime] = {}
        async for version in _read_versions(source, thread_id, namespace, parents):
            times[version.checkpoint_id] = version.created_at
            await builder.add(version, namespace=make_line_name(namespace))
        newest = max(times.values(), default=EPOCH)
        if parents:
            heads[make_line_name(namespace)] = max(parents)
        writes = [
            ArchivedWrite(
                checkpoint_id=checkpoint_id,
                write=write,
                created_at=times.get(checkpoint_id, newest),
            )
            for checkpoint_id, write in await source.read_writes(thread_id, namespace)
        ]
        builder.add_writes(writes, namespace=make_line_name(namespace))
    return await builder.build(heads)


def make_aes_cipher() -> Cipher:
    """Return the cipher of LangGraph's ``from_pycryptodome_aes``, by ``LANGGRAPH_AES_KEY``.

    Raises:
        InvalidArgumentError: There is no such key, or it has a wrong length.
        MissingExtraError: langgraph-checkpoint or pycryptodome is not installed.
    """
    try:
        from langgraph.checkpoint.serde.encrypted import EncryptedSerializer  # noqa: PLC0415

        found: Cipher = EncryptedSerializer.from_pycryptodome_aes().cipher
    except ImportError as exc:
        raise MissingExtraError(
            f"to decrypt, {make_install_command('langgraph')} pycryptodome"
        ) from exc
    except ValueError as exc:
        raise InvalidArgumentError(str(exc)) from exc
    return found


async def _read_versions(
    source: TableSource, thread_id: str, namespace: str, parents: Mapping[str, str | None]
) -> AsyncIterator[NewVersion]:
    sends = _read_sends(await source.read_writes(thread_id, namespace))
    for checkpoint_id in sort_by_parent(parents):
        found = await source.read_checkpoint(thread_id, namespace, checkpoint_id)
        parent = parents[checkpoint_id]
        if parent in sends and found.state.get("v", 1) < _TASKS_FORMAT:
            found = replace(found, state=_with_tasks(found.state, sends[parent]))
        labels = {**found.labels, **make_line_labels(namespace)}
        yield replace(found, parent_id=parent if parent in parents else None, labels=labels)


def _read_sends(writes: Sequence[tuple[str, PendingWrite]]) -> dict[str | None, list[Any]]:
    """Return the sends of tasks to others, as stored, by the checkpoint that they ran on."""
    found: dict[str | None, list[Any]] = {}
    for checkpoint_id, write in sorted(writes, key=lambda it: order_of_writes(it[1])):
        if write.channel == _TASKS:
            found.setdefault(checkpoint_id, []).append(
                frames.decode_value(write.payload, UNLIMITED, packed=True)
            )
    return found


def _with_tasks(state: Mapping[str, Any], sends: list[Any]) -> dict[str, Any]:
    """Return a state of a format below 4 with a channel for sends, as in later formats.

    Until then, LangGraph found it in the parent's pending writes.

    Raises:
        InvalidArgumentError: It is encrypted.
    """
    if any(isinstance(it, dict) and it.get("$") == "t" for it in sends):
        raise InvalidArgumentError(
            "tasks that a checkpoint of an old format has to start are encrypted; give the key: "
            "--decrypt with the key in LANGGRAPH_AES_KEY, or cipher= in Python"
        )
    numbers = get_members(state.get("channel_versions"))
    newest = max(numbers.values(), default=f"{1:032}")
    return {
        **state,
        CHANNELS: {**state[CHANNELS], _TASKS: sends},
        "channel_versions": convert_to_json({**numbers, _TASKS: newest}),
    }


def sort_by_parent(parents: Mapping[str, str | None]) -> Iterator[str]:
    """Yield checkpoint ids in ascending order, as LangGraph does, but none before its parent.

    Ids are made of their hosts' clocks, and clocks differ.

    Raises:
        IntegrityError: A checkpoint is its own ancestor.
    """
    done: set[str] = set()
    for checkpoint_id in sorted(parents):
        path: list[str] = []
        at: str | None = checkpoint_id
        while at is not None and at in parents and at not in done:
            if at in path:
                raise IntegrityError(f"the parents of checkpoint {at!r} form a cycle")
            path.append(at)
            at = parents[at]
        yield from reversed(path)
        done.update(path)


async def _compare(source: TableSource, thread: ArchivedThread | None, thread_id: str) -> None:
    """Read both sides again and compare them.

    Raises:
        IntegrityError: They differ.
    """
    lines = {it.namespace: it for it in thread.lines} if thread else {}
    for namespace in await source.list_namespaces(thread_id):
        line = lines.get(make_line_name(namespace))
        kept = {it.checkpoint_id: it for it in line.records} if line else {}
        names = {it.sequence: it.checkpoint_id for it in kept.values()}
        parents = await source.read_parents(thread_id, namespace)
        async for version in _read_versions(source, thread_id, namespace, parents):
            record = kept.pop(version.checkpoint_id, None)
            digest = frames.compare_states(version.state, None, packed=True).tree.digest
            if (
                record is None
                or record.digest != digest
                or restore(record.metadata) != version.metadata
                or names.get(record.parent or 0) != version.parent_id
            ):
                raise _make_difference_error(f"checkpoint {version.checkpoint_id!r}")
        if kept:
            raise _make_difference_error(f"checkpoint {min(kept)!r}")
        there = {
            (entry.checkpoint_id, entry.write.task_id, entry.write.idx): entry.write
            for entry in (line.writes if line else [])
        }
        for checkpoint_id, write in await source.read_writes(thread_id, namespace):
            if there.pop((checkpoint_id, write.task_id, write.idx), None) != write:
                raise _make_difference_error(f"a pending write of checkpoint {checkpoint_id!r}")
        if there:
            raise _make_difference_error("a pending write")


def _make_difference_error(what: str) -> IntegrityError:
    return IntegrityError(
        f"{what} differs between LangGraph's tables and what was stored; if "
        "an agent is using the thread, stop it, delete the thread here, and import it again"
    )
