"""Tables of LangGraph's own savers: langgraph-checkpoint-postgres and -sqlite."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Protocol

from locus_store.adapters.langgraph.typed_values import (
    convert_members,
    convert_to_json,
    get_members,
    store_value,
)
from locus_store.adapters.sql_sources import Rows, open_rows, parse_time
from locus_store.errors import IntegrityError, SchemaError
from locus_store.transfer.building import NewVersion
from locus_store.types import PendingWrite
from locus_store.values import frames
from locus_store.values.encoding import UNLIMITED
from locus_store.values.msgpack import MSGPACK, pack
from locus_store.values.times import EPOCH
from locus_store.versions import CHANNELS, JSON_WRITE, REBUILT


class Cipher(Protocol):
    """LangGraph's ``CipherProtocol``, as far as an import needs it."""

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Return the plain bytes."""


@asynccontextmanager
async def open_source(url: str, cipher: Cipher | None = None) -> AsyncIterator[TableSource]:
    """Open the tables of a URL; see ``import_threads.import_langgraph``."""
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
    """Return the value of a JSON text, which may contain NaN.

    Raises:
        IntegrityError: It is not JSON.
    """
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
        """Return the type and bytes of a value, without its encryption if there is a cipher.

        Raises:
            IntegrityError: It cannot be decrypted.
        """
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
