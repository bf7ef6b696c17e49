"""Threads of LangGraph's own savers: langgraph-checkpoint-postgres and -sqlite.

Every checkpoint, channel value and pending write, with its parent, metadata and time, in the form
that this package's saver for LangGraph reads: a state is the checkpoint without its id, its values
in their stored form (``typed_values``). The source is only read.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Protocol

from locus_store.adapters.langgraph.typed_values import (
    convert_members,
    convert_to_json,
    get_members,
    store_value,
)
from locus_store.adapters.sql_sources import Rows, open_rows, parse_time
from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.errors import (
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    MissingExtraError,
    NotFoundError,
    SchemaError,
    make_install_command,
)
from locus_store.runtime.progress import expect_steps
from locus_store.saver import make_line_labels, make_line_name
from locus_store.transfer.building import NewVersion, ThreadBuilder
from locus_store.transfer.counts import Counts, Progress, Tally
from locus_store.types import ArchivedThread, ArchivedWrite, PendingWrite
from locus_store.values import frames
from locus_store.values.encoding import UNLIMITED
from locus_store.values.msgpack import MSGPACK, pack
from locus_store.values.surrogates import restore
from locus_store.values.times import EPOCH
from locus_store.versions import (
    CHANNELS,
    JSON_WRITE,
    REBUILT,
    make_write_sort_key as order_of_writes,
)

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

    Until then, LangGraph found it in the parent's pending writes; encrypted ones are refused.
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
    """Read both sides again; raise ``IntegrityError`` if they differ."""
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


class Cipher(Protocol):
    """LangGraph's ``CipherProtocol``, as far as an import needs it."""

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Return the plain bytes."""


@asynccontextmanager
async def open_source(url: str, cipher: Cipher | None = None) -> AsyncIterator[TableSource]:
    """Open the tables of a URL; see ``import_langgraph``."""
    readable = "LangGraph's threads are read from postgresql:// and sqlite:///"
    async with open_rows(url, readable) as rows:
        source = (_SQLite if rows.is_sqlite else _PostgreSQL)(rows, cipher)
        await source.require_tables()
        if "task_path" in await rows.list_columns(source.tables[-1]):
            source.task_path = "task_path"
        yield source


def _make_version(
    checkpoint_id: str, checkpoint: Mapping[str, Any], channels: Mapping[str, Any], metadata: Any
) -> NewVersion:
    kept = {name: it for name, it in checkpoint.items() if name not in {CHANNELS, "id"}}
    versions = get_members(kept.get("channel_versions"))
    counters = (metadata or {}).get(_COUNTERS) or {}
    rebuilt = sorted(it for it in counters if it in versions.keys() - channels.keys())
    return NewVersion(
        packed=True,
        checkpoint_id=checkpoint_id,
        parent_id=None,
        state={**kept, CHANNELS: dict(channels)},
        metadata={name: convert_to_json(it) for name, it in (metadata or {}).items()},
        labels={REBUILT: rebuilt} if rebuilt else {},
        created_at=_parse_moment(checkpoint.get("ts")),
    )


_COUNTERS: Final = "counters_since_delta_snapshot"


def _parse_json(text: str | bytes, what: str) -> Any:
    """Return the value of a JSON text, which may contain NaN; refuse what is none."""
    try:
        return json.loads(text)
    except ValueError as exc:
        raise IntegrityError(f"{what} is not JSON") from exc


def _parse_moment(text: Any) -> datetime:
    try:
        return parse_time(str(text))
    except ValueError:
        return EPOCH


class TableSource(ABC):
    """LangGraph's rows.

    Args:
        rows: The database.
        cipher: Decrypts values, if given.
    """

    tables: tuple[str, ...]
    """The tables of checkpoints and of pending writes, the latter last."""

    payload: str
    """The column with the value of a pending write."""

    task_path: str = "''"
    """The column with the path of a task; else SQL that stands for it."""

    def __init__(self, rows: Rows, cipher: Cipher | None) -> None:
        self._rows = rows
        self._cipher = cipher
        self.shown = rows.shown
        self.begin_snapshot = rows.take_snapshot

    @abstractmethod
    async def require_tables(self) -> None:
        """Refuse a database without one of LangGraph's tables."""

    @abstractmethod
    async def read_checkpoint(
        self, thread_id: str, namespace: str, checkpoint_id: str
    ) -> NewVersion:
        """Return one checkpoint, whatever its parent."""

    async def list_threads(self) -> list[str]:
        query = f"SELECT thread_id FROM checkpoints UNION SELECT thread_id FROM {self.tables[-1]}"  # noqa: S608
        return sorted(row[0] for row in await self._rows.fetch_all(query))

    async def list_namespaces(self, thread_id: str) -> list[str]:
        """Return the namespaces that have a checkpoint or a pending write."""
        query = (
            "SELECT checkpoint_ns FROM checkpoints WHERE thread_id = ?"  # noqa: S608
            f" UNION SELECT checkpoint_ns FROM {self.tables[-1]} WHERE thread_id = ?"
        )
        return sorted(row[0] for row in await self._rows.fetch_all(query, thread_id, thread_id))

    async def read_parents(self, thread_id: str, namespace: str) -> dict[str, str | None]:
        """Return the ids of checkpoints, each with its parent's."""
        query = (
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ?"
        )
        return {row[0]: row[1] for row in await self._rows.fetch_all(query, thread_id, namespace)}

    async def read_writes(self, thread_id: str, namespace: str) -> list[tuple[str, PendingWrite]]:
        """Return pending writes, each with the id of its checkpoint."""
        query = (
            f"SELECT checkpoint_id, task_id, idx, channel, type, {self.payload}, {self.task_path}"  # noqa: S608
            f" FROM {self.tables[-1]} WHERE thread_id = ? AND checkpoint_ns = ?"
        )
        return [self._write(it) for it in await self._rows.fetch_all(query, thread_id, namespace)]

    def _clear(self, kind: str | None, data: bytes | None) -> tuple[str, bytes]:
        """Return the type and bytes of a value, without its encryption if there is a cipher."""
        kind, data = kind or "", data or b""
        plain, _, name = kind.partition("+")
        if self._cipher is None or not name:
            return kind, data
        try:
            return plain, self._cipher.decrypt(name, data)
        except Exception as exc:  # a user's cipher may raise any error
            raise IntegrityError(
                f"a value of type {kind!r} cannot be decrypted: it was written with another key, "
                "or is damaged"
            ) from exc

    def _write(self, row: Any) -> tuple[str, PendingWrite]:
        checkpoint_id, task_id, idx, channel, kind, data, task_path = row
        value = store_value(*self._clear(kind, data))
        return checkpoint_id, PendingWrite(
            task_id=task_id,
            idx=idx,
            channel=channel,
            type=JSON_WRITE,
            payload=frames.encode_value(value, UNLIMITED, packed=True),
            task_path=task_path,
        )


class _SQLite(TableSource):
    tables = ("checkpoints", "writes")
    payload = "value"

    async def require_tables(self) -> None:
        for table, column in zip(self.tables, ("checkpoint", self.payload), strict=True):
            if not {column, "checkpoint_ns", "thread_id"} <= await self._rows.list_columns(table):
                raise SchemaError(
                    f"{self.shown} has no table {table!r} of langgraph-checkpoint-sqlite; name "
                    "the database that its SqliteSaver wrote"
                )

    async def read_checkpoint(
        self, thread_id: str, namespace: str, checkpoint_id: str
    ) -> NewVersion:
        query = (
            "SELECT type, checkpoint, metadata FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )
        ((kind, data, stored),) = await self._rows.fetch_all(
            query, thread_id, namespace, checkpoint_id
        )
        fields = convert_members(*self._clear(kind, data))
        metadata = _parse_json(stored or b"{}", f"the metadata of {checkpoint_id!r}")
        return _make_version(checkpoint_id, fields, fields[CHANNELS], metadata)


class _PostgreSQL(TableSource):
    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    payload = "blob"

    async def require_tables(self) -> None:
        for table in self.tables:
            if not await self._rows.list_columns(table):
                raise SchemaError(
                    f"{self.shown} has no table {table!r} of langgraph-checkpoint-postgres; name "
                    "the database (and the schema, by options=-csearch_path%3Dschema) that its "
                    "PostgresSaver wrote"
                )

    async def read_checkpoint(
        self, thread_id: str, namespace: str, checkpoint_id: str
    ) -> NewVersion:
        key = (thread_id, namespace, checkpoint_id)
        ((text, stored),) = await self._rows.fetch_all(
            "SELECT checkpoint::text, metadata::text FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            *key,
        )
        blobs = await self._rows.fetch_all(
            "SELECT b.channel, b.type, b.blob FROM checkpoints c"
            " CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') v"
            " JOIN checkpoint_blobs b ON b.thread_id = c.thread_id"
            " AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = v.key AND b.version = v.value"
            " WHERE c.thread_id = ? AND c.checkpoint_ns = ? AND c.checkpoint_id = ?"
            " AND b.type <> 'empty'",
            *key,
        )
        checkpoint = _parse_json(text, f"checkpoint {checkpoint_id!r}")
        metadata = _parse_json(stored, f"the metadata of {checkpoint_id!r}")
        inline = checkpoint.get(CHANNELS) or {}
        channels = {name: store_value(MSGPACK, pack(it)) for name, it in inline.items()}
        channels |= {name: store_value(*self._clear(kind, it)) for name, kind, it in blobs}
        fields = {name: convert_to_json(it) for name, it in checkpoint.items()}
        return _make_version(checkpoint_id, fields, channels, metadata)
