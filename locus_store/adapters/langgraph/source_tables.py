"""Tables of LangGraph's own savers: langgraph-checkpoint-postgres and -sqlite."""

from __future__ import annotations

import json
import sqlite3
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from locus_store.adapters.langgraph.typed_values import (
    members,
    members_to_json,
    plain_to_json,
    stored,
)
from locus_store.errors import (
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    SchemaError,
)
from locus_store.transfer.building import NewVersion
from locus_store.types import PendingWrite
from locus_store.types.arguments import is_path, not_a_url
from locus_store.values import frames
from locus_store.values.encoding import UNLIMITED
from locus_store.values.msgpack import MSGPACK, pack
from locus_store.versions import CHANNELS, JSON_WRITE, REBUILT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping


UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)


class TableSource(Protocol):
    """The protocol for reading LangGraph's rows."""

    shown: str
    """The source as messages show it."""

    def snapshot(self) -> Any:
        """Read everything within the block as it was when the block began."""

    async def threads(self) -> list[str]:
        """Return all threads."""

    async def namespaces(self, thread_id: str) -> list[str]:
        """Return the namespaces that have a checkpoint or a pending write."""

    async def parents(self, thread_id: str, namespace: str) -> dict[str, str | None]:
        """Return the ids of checkpoints, each with its parent's."""

    async def checkpoint(self, thread_id: str, namespace: str, checkpoint_id: str) -> NewVersion:
        """Return one checkpoint, whatever its parent."""

    async def writes(self, thread_id: str, namespace: str) -> list[tuple[str, PendingWrite]]:
        """Return pending writes, each with the id of its checkpoint."""


class Cipher(Protocol):
    """LangGraph's ``CipherProtocol``, as far as an import needs it."""

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Return the plain bytes."""


Clear: TypeAlias = "Callable[[str, bytes], tuple[str, bytes]]"
"""Gives the type and bytes of a value without its encryption, where that is asked for."""


def clear_by(cipher: Cipher | None) -> Clear:
    """Return the function that decrypts values of an ``EncryptedSerializer``, given a cipher.

    Raises:
        IntegrityError: A value cannot be decrypted.
    """

    def clear(kind: str, data: bytes) -> tuple[str, bytes]:
        plain, _, name = kind.partition("+")
        if cipher is None or not name:
            return kind, data
        try:
            return plain, cipher.decrypt(name, data)
        except Exception as exc:  # a user's cipher may raise any error
            raise IntegrityError(
                f"a value of type {kind!r} cannot be decrypted: it was written with another key, "
                "or is damaged"
            ) from exc

    return clear


@asynccontextmanager
async def opened(url: str, cipher: Cipher | None = None) -> AsyncIterator[TableSource]:
    """Open the tables of a URL; see ``import_threads.import_langgraph``."""
    scheme, clear = scheme_of(url), clear_by(cipher)
    if scheme in {"postgresql", "postgres"}:
        async with _opened_postgresql(url, clear) as source:
            yield source
    elif scheme == "sqlite":
        with _opened_sqlite(url, clear) as source:
            yield source
    else:
        raise unsupported("LangGraph's threads", "postgresql:// and sqlite:///", scheme)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, without a driver.

    Raises:
        InvalidArgumentError: It is a path.
    """
    if is_path(url):
        raise not_a_url(url)
    return urlsplit(url).scheme.partition("+")[0]


def unsupported(what: str, places: str, scheme: str) -> InvalidArgumentError:
    """Return the error for a source that cannot be read."""
    return InvalidArgumentError(f"{what} are read from {places}, not {scheme!r}")


def _version(
    checkpoint_id: str,
    checkpoint: Mapping[str, Any],
    channels: Mapping[str, Any],
    metadata: Any,
) -> NewVersion:
    kept = {name: it for name, it in checkpoint.items() if name not in {CHANNELS, "id"}}
    versions = members(kept.get("channel_versions"))
    counters = (metadata or {}).get(_COUNTERS) or {}
    rebuilt = sorted(it for it in counters if it in versions.keys() - channels.keys())
    return NewVersion(
        packed=True,
        checkpoint_id=checkpoint_id,
        parent_id=None,
        state={**kept, CHANNELS: dict(channels)},
        metadata={name: plain_to_json(it) for name, it in (metadata or {}).items()},
        labels={REBUILT: rebuilt} if rebuilt else {},
        created_at=_moment(checkpoint.get("ts")),
    )


_COUNTERS = "counters_since_delta_snapshot"


def _parsed(text: str | bytes, what: str) -> Any:
    """Return the value of a JSON text, which may contain NaN.

    Raises:
        IntegrityError: It is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as exc:
        raise IntegrityError(f"{what} is not JSON") from exc


def _moment(text: Any) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return UNKNOWN_TIME
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _write(row: Any, payload: bytes | None, clear: Clear) -> tuple[str, PendingWrite]:
    return row["checkpoint_id"], PendingWrite(
        task_id=row["task_id"],
        idx=row["idx"],
        channel=row["channel"],
        type=JSON_WRITE,
        payload=frames.value_payload(
            stored(*clear(row["type"] or "", payload or b"")), UNLIMITED, packed=True
        ),
        task_path=row["task_path"],
    )


# --- SQLite

_SQLITE_PARTS = {"checkpoints": "checkpoint", "writes": "value"}


@contextmanager
def _opened_sqlite(url: str, clear: Clear) -> Iterator[_SQLite]:
    path = Path(unquote(urlsplit(url).path.removeprefix("/"))).absolute()
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.OperationalError as exc:
        raise ConnectionFailedError(f"SQLite {path}: cannot be opened: check the path") from exc
    connection.row_factory = sqlite3.Row
    try:
        source = _SQLite(connection, path, clear)
        yield source
    except sqlite3.Error as exc:
        raise IntegrityError(f"SQLite {path}: {exc}") from exc
    finally:
        connection.close()


class _SQLite:
    """The tables ``checkpoints`` and ``writes``."""

    def __init__(self, connection: sqlite3.Connection, path: Path, clear: Clear) -> None:
        self._connection = connection
        self._clear = clear
        self.shown = f"SQLite {path}"
        for table, column in _SQLITE_PARTS.items():
            found = {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
            if not {column, "checkpoint_ns", "thread_id"} <= found:
                raise SchemaError(
                    f"SQLite {path} has no table {table!r} of langgraph-checkpoint-sqlite; name "
                    "the database that its SqliteSaver wrote"
                )
            if table == "writes":
                self._task_path = "task_path" if "task_path" in found else "''"

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        with self._reading():
            yield

    def _rows(self, query: str, *values: str) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    async def threads(self) -> list[str]:
        query = "SELECT thread_id FROM checkpoints UNION SELECT thread_id FROM writes ORDER BY 1"
        return [row[0] for row in self._rows(query)]

    async def namespaces(self, thread_id: str) -> list[str]:
        query = (
            "SELECT checkpoint_ns FROM checkpoints WHERE thread_id = ?"
            " UNION SELECT checkpoint_ns FROM writes WHERE thread_id = ? ORDER BY 1"
        )
        return [row[0] for row in self._rows(query, thread_id, thread_id)]

    async def parents(self, thread_id: str, namespace: str) -> dict[str, str | None]:
        query = (
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ?"
        )
        return {row[0]: row[1] for row in self._rows(query, thread_id, namespace)}

    async def checkpoint(self, thread_id: str, namespace: str, checkpoint_id: str) -> NewVersion:
        query = (
            "SELECT type, checkpoint, metadata FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )
        (row,) = self._rows(query, thread_id, namespace, checkpoint_id)
        kind, data = row["type"] or "", row["checkpoint"] or b""
        fields = members_to_json(*self._clear(kind, data))
        metadata = _parsed(row["metadata"] or b"{}", f"the metadata of {checkpoint_id!r}")
        return _version(checkpoint_id, fields, fields[CHANNELS], metadata)

    async def writes(self, thread_id: str, namespace: str) -> list[tuple[str, PendingWrite]]:
        query = (
            f"SELECT checkpoint_id, task_id, idx, channel, type, value, {self._task_path} AS"  # noqa: S608
            " task_path FROM writes WHERE thread_id = ? AND checkpoint_ns = ?"
        )
        rows = self._rows(query, thread_id, namespace)
        return [_write(row, row["value"], self._clear) for row in rows]


# --- PostgreSQL


@asynccontextmanager
async def _opened_postgresql(url: str, clear: Clear) -> AsyncIterator[_PostgreSQL]:
    from locus_store.backends.postgresql import connecting, dsn  # noqa: PLC0415  (SQLAlchemy is not needed for SQLite)

    target = dsn.parse(url)
    connection = await connecting.connect(target, statement_cache_size=0)
    try:
        await _require_tables(connection, target.shown)
        yield _PostgreSQL(connection, target.shown, clear)
    finally:
        await connection.close()


async def _require_tables(connection: Any, shown: str) -> None:
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        if await connection.fetchval("SELECT to_regclass($1)", table) is None:
            raise SchemaError(
                f"PostgreSQL {shown} has no table {table!r} of langgraph-checkpoint-postgres; name "
                "the database (and the schema, by options=-csearch_path%3Dschema) that its "
                "PostgresSaver wrote"
            )


class _PostgreSQL:
    """The tables ``checkpoints``, ``checkpoint_blobs`` and ``checkpoint_writes``."""

    def __init__(self, connection: Any, shown: str, clear: Clear) -> None:
        self._connection = connection
        self._clear = clear
        self.shown = f"PostgreSQL {shown}"

    def snapshot(self) -> Any:
        return self._connection.transaction(isolation="repeatable_read", readonly=True)

    async def threads(self) -> list[str]:
        query = "SELECT thread_id FROM checkpoints UNION SELECT thread_id FROM checkpoint_writes"
        return sorted(row[0] for row in await self._connection.fetch(query))

    async def namespaces(self, thread_id: str) -> list[str]:
        query = (
            "SELECT checkpoint_ns FROM checkpoints WHERE thread_id = $1 UNION"
            " SELECT checkpoint_ns FROM checkpoint_writes WHERE thread_id = $1"
        )
        return sorted(row[0] for row in await self._connection.fetch(query, thread_id))

    async def parents(self, thread_id: str, namespace: str) -> dict[str, str | None]:
        query = (
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints"
            " WHERE thread_id = $1 AND checkpoint_ns = $2"
        )
        rows = await self._connection.fetch(query, thread_id, namespace)
        return {row[0]: row[1] for row in rows}

    async def checkpoint(self, thread_id: str, namespace: str, checkpoint_id: str) -> NewVersion:
        key = (thread_id, namespace, checkpoint_id)
        row = await self._connection.fetchrow(
            "SELECT checkpoint::text AS checkpoint, metadata::text AS metadata FROM checkpoints"
            " WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint_id = $3",
            *key,
        )
        blobs = await self._connection.fetch(
            "SELECT b.channel, b.type, b.blob FROM checkpoints c"
            " CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') v"
            " JOIN checkpoint_blobs b ON b.thread_id = c.thread_id"
            " AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = v.key AND b.version = v.value"
            " WHERE c.thread_id = $1 AND c.checkpoint_ns = $2 AND c.checkpoint_id = $3"
            " AND b.type <> 'empty'",
            *key,
        )
        checkpoint = _parsed(row["checkpoint"], f"checkpoint {checkpoint_id!r}")
        metadata = _parsed(row["metadata"], f"the metadata of {checkpoint_id!r}")
        channels = {
            name: stored(MSGPACK, pack(it)) for name, it in (checkpoint.get(CHANNELS) or {}).items()
        }
        channels |= {
            it["channel"]: stored(*self._clear(it["type"], it["blob"] or b"")) for it in blobs
        }
        fields = {name: plain_to_json(it) for name, it in checkpoint.items()}
        return _version(checkpoint_id, fields, channels, metadata)

    async def writes(self, thread_id: str, namespace: str) -> list[tuple[str, PendingWrite]]:
        query = (
            "SELECT checkpoint_id, task_id, idx, channel, type, blob, task_path"
            " FROM checkpoint_writes WHERE thread_id = $1 AND checkpoint_ns = $2"
        )
        rows = await self._connection.fetch(query, thread_id, namespace)
        return [_write(row, row["blob"], self._clear) for row in rows]
