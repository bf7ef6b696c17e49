"""Conversations of the OpenAI Agents SDK's own SQL sessions. The source is only read."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from locus_store.adapters.openai_agents.items import message_of
from locus_store.backend import StoresThreads, needs
from locus_store.errors import (
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    SchemaError,
)
from locus_store.transfer.counts import Counts, Progress, Tally
from locus_store.types import ArchivedMessage, ArchivedThread
from locus_store.types.messages import put_of
from locus_store.versions.archives import minute_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from locus_store.backend import StorageBackend

TABLE: Final = "agent_messages"
"""The SDK's name of the table of items, unless the session was given another one."""

_NAME: Final = re.compile(r"[A-Za-z_]\w{0,62}", re.ASCII)
_IDS: Final = 'SELECT DISTINCT session_id FROM "{table}" ORDER BY 1'
_ITEMS: Final = (
    'SELECT id, message_data, created_at FROM "{table}" WHERE session_id = {value} '
    "ORDER BY created_at, id"
)


class Rows(Protocol):
    """The protocol for reading the SDK's table as of one point in time."""

    shown: str
    """The source as messages show it."""

    async def ids(self) -> list[str]:
        """Return the ids of all sessions with items."""

    async def items(self, session_id: str) -> Sequence[Any]:
        """Return the rows of a session, in their order."""


async def import_openai_agents(
    backend: StorageBackend,
    source: str,
    *,
    messages_table: str = TABLE,
    thread_ids: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Counts:
    """Store the items of ``SQLiteSession``, ``AsyncSQLiteSession`` and ``SQLAlchemySession``.

    A session becomes the message log of the thread with its id, and items keep their times. Threads
    that exist already are left unchanged. Each thread is written whole or not at all, read again,
    and compared. A session that cannot be imported does not stop the others; the error is raised at
    the end.

    Args:
        backend: Where to.
        source: ``sqlite:///file.db`` or ``postgresql://…``, with or without a driver.
        messages_table: The table of items.
        thread_ids: The sessions to import; ``None``: all.
        progress: See ``counts.Progress``.

    Raises:
        ConnectionFailedError: The source cannot be reached.
        SchemaError: The table is not there.
        NotFoundError: One of ``thread_ids`` is not there; nothing was written.
        ConflictError: ``backend`` has a thread of that id with other messages.
        IntegrityError: An item is damaged; names it.
        InvalidArgumentError: The scheme is not supported, or a name is not valid.
    """
    backend = needs(backend, StoresThreads)
    await backend.exists("-")  # creates its schema before the source is read
    if not _NAME.fullmatch(messages_table):
        raise InvalidArgumentError(f"messages_table={messages_table!r} is not a name of a table")
    tally = Tally(progress)
    async with _opened(source, messages_table) as rows:
        found = await rows.ids()
        for thread_id in found if thread_ids is None else thread_ids:
            if thread_id not in found:
                raise NotFoundError(f"{rows.shown} has no session {thread_id!r}")
        for thread_id in found if thread_ids is None else thread_ids:
            await tally.add(thread_id, _taken(backend, rows, thread_id))
        return tally.done(rows.shown)


async def _taken(backend: StoresThreads, rows: Rows, thread_id: str) -> bool:
    """Import a session; return whether its thread was new to the backend."""
    messages = [
        _archived(row, sequence, backend.max_state_bytes)
        for sequence, row in enumerate(await rows.items(thread_id), 1)
    ]
    thread = ArchivedThread(
        thread_id=thread_id,
        user_id=None,
        name=None,
        metadata={},
        created_at=messages[0].created_at,
        active_at=minute_of(messages[-1].created_at),
        expires_at=None,
        lines=[],
        messages=messages,
    )
    is_new = await backend.write_thread(thread)
    there = await backend.read_thread(thread_id)
    if there is None or there.messages != messages:
        raise IntegrityError(f"the thread {thread_id!r} is not what was imported; import it again")
    return is_new


def _archived(row: Any, sequence: int, max_state_bytes: int) -> ArchivedMessage:
    number, data, created_at = row
    try:
        message = message_of(json.loads(data))._replace(message_id=f"openai-agents-{number}")
    except (ValueError, AttributeError) as exc:
        raise IntegrityError(f"item {number} is not a JSON object") from exc
    put = put_of(message, "", {}, max_state_bytes)
    return ArchivedMessage(
        sequence=sequence,
        message_id=put.message_id,
        role=put.role,
        metadata=put.metadata,
        created_at=_time(created_at),
        text=put.text,
        payload=put.payload,
    )


def _time(stored: str | datetime) -> datetime:
    found = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@asynccontextmanager
async def _opened(url: str, table: str) -> AsyncIterator[Rows]:
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme == "sqlite":
        with _opened_sqlite(url, table) as rows:
            yield rows
    elif scheme in {"postgresql", "postgres"}:
        async with _opened_postgresql(url, table) as rows:
            yield rows
    else:
        raise InvalidArgumentError(
            f"sessions are read from sqlite:/// and postgresql:// URLs, not {scheme!r}"
        )


@contextmanager
def _opened_sqlite(url: str, table: str) -> Iterator[Rows]:
    path = Path(unquote(urlsplit(url).path.removeprefix("/"))).absolute()
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.OperationalError as exc:
        raise ConnectionFailedError(f"SQLite {path}: cannot be opened: check the path") from exc
    try:
        yield _SQLite(connection, path, table)
    except sqlite3.Error as exc:
        raise IntegrityError(f"SQLite {path}: {exc}") from exc
    finally:
        connection.close()


@asynccontextmanager
async def _opened_postgresql(url: str, table: str) -> AsyncIterator[Rows]:
    from locus_store.backends.postgresql import connecting, dsn  # noqa: PLC0415  (an extra)

    target = dsn.parse(url)
    client = await connecting.connect(target, statement_cache_size=0)
    try:
        if await client.fetchval("SELECT to_regclass($1)", f'"{table}"') is None:
            raise _no_table(f"PostgreSQL {target.shown}", table)
        async with client.transaction(isolation="repeatable_read", readonly=True):
            yield _PostgreSQL(client, target.shown, table)
    finally:
        await client.close()


def _no_table(shown: str, table: str) -> SchemaError:
    return SchemaError(
        f"{shown} has no table {table!r} of the OpenAI Agents SDK; name the database of its "
        "sessions, and their messages_table"
    )


class _SQLite:
    def __init__(self, connection: sqlite3.Connection, path: Path, table: str) -> None:
        self._connection, self._table = connection, table
        self.shown = f"SQLite {path}"
        connection.execute("BEGIN")
        known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        if connection.execute(known, (table,)).fetchone() is None:
            raise _no_table(self.shown, table)

    async def ids(self) -> list[str]:
        return [row[0] for row in self._connection.execute(_IDS.format(table=self._table))]

    async def items(self, session_id: str) -> Sequence[Any]:
        query = _ITEMS.format(table=self._table, value="?")
        return self._connection.execute(query, (session_id,)).fetchall()


class _PostgreSQL:
    def __init__(self, client: Any, shown: str, table: str) -> None:
        self._client, self._table = client, table
        self.shown = f"PostgreSQL {shown}"

    async def ids(self) -> list[str]:
        return [row[0] for row in await self._client.fetch(_IDS.format(table=self._table))]

    async def items(self, session_id: str) -> Sequence[Any]:
        query = _ITEMS.format(table=self._table, value="$1")
        rows: list[Any] = await self._client.fetch(query, session_id)
        return rows
