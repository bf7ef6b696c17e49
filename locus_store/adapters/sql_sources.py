"""A framework's own tables in SQLite or PostgreSQL, which are only read, and their message logs."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from locus_store.backend import StoresThreads
from locus_store.errors import ConnectionFailedError, IntegrityError, InvalidArgumentError
from locus_store.types import ArchivedMessage, ArchivedThread
from locus_store.types.arguments import check_url
from locus_store.types.messages import NewMessage, put_of
from locus_store.versions.archives import cut_to_minute


class Rows(Protocol):
    """A database of a framework."""

    shown: str
    """The source as messages show it."""

    is_sqlite: bool
    """It is SQLite, not PostgreSQL."""

    def take_snapshot(self) -> AbstractAsyncContextManager[Any]:
        """Read everything within the block as of one point in time."""

    async def fetch_all(self, query: str, *values: str) -> Sequence[Any]:
        """Return the rows of a query; each ``?`` stands for a value."""

    def iterate_pages(self, query: str, size: int) -> AsyncIterator[Sequence[Any]]:
        """Yield the rows of a query, ``size`` at a time; within a snapshot."""

    async def list_columns(self, table: str) -> set[str]:
        """Return the columns of a table; none if there is no such table."""


def get_scheme(url: str) -> str:
    """Return the scheme of a URL, without a driver.

    Raises:
        InvalidArgumentError: It is a path.
    """
    check_url(url)
    return urlsplit(url).scheme.partition("+")[0]


@asynccontextmanager
async def open_rows(url: str, readable: str) -> AsyncIterator[Rows]:
    """Open ``sqlite:///file.db`` or ``postgresql://…``, with or without a driver, for reading.

    Args:
        url: The database.
        readable: What is read from where, for the error about another scheme.

    Raises:
        ConnectionFailedError: The source cannot be reached.
        IntegrityError: SQLite cannot read the file.
        InvalidArgumentError: The scheme is not supported, or there is none.
    """
    scheme = get_scheme(url)
    if scheme == "sqlite":
        with _open_sqlite(url) as rows:
            yield rows
    elif scheme in {"postgresql", "postgres"}:
        from locus_store.backends.postgresql import connecting, dsn  # noqa: PLC0415  (an extra)

        target = dsn.parse(url)
        client = await connecting.connect(target, statement_cache_size=0)
        try:
            yield _PostgreSQL(client, target.shown)
        finally:
            await client.close()
    else:
        raise InvalidArgumentError(f"{readable}, not {scheme!r}")


@contextmanager
def _open_sqlite(url: str) -> Iterator[Rows]:
    path = Path(unquote(urlsplit(url).path.removeprefix("/"))).absolute()
    connection = connect_file(path)
    connection.row_factory = sqlite3.Row
    try:
        yield _SQLite(connection, path)
    except sqlite3.Error as exc:
        raise IntegrityError(f"SQLite {path}: {exc}") from exc
    finally:
        connection.close()


def connect_file(path: Path) -> sqlite3.Connection:
    """Return a connection to a file that is only read."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(uri, uri=True, isolation_level=None)
    except sqlite3.Error as exc:
        raise ConnectionFailedError(f"SQLite {path}: cannot be opened: check the path") from exc


class _SQLite:
    is_sqlite = True

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.shown = f"SQLite {path}"

    @asynccontextmanager
    async def take_snapshot(self) -> AsyncIterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.rollback()

    async def fetch_all(self, query: str, *values: str) -> Sequence[Any]:
        return self._connection.execute(query, values).fetchall()

    async def iterate_pages(self, query: str, size: int) -> AsyncIterator[Sequence[Any]]:
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(size):
            yield rows

    async def list_columns(self, table: str) -> set[str]:
        query = "SELECT name FROM pragma_table_info(?)"
        return {row[0] for row in await self.fetch_all(query, table)}


class _PostgreSQL:
    is_sqlite = False

    def __init__(self, client: Any, shown: str) -> None:
        self._client = client
        self.shown = f"PostgreSQL {shown}"

    def take_snapshot(self) -> AbstractAsyncContextManager[Any]:
        found: AbstractAsyncContextManager[Any] = self._client.transaction(
            isolation="repeatable_read", readonly=True
        )
        return found

    async def fetch_all(self, query: str, *values: str) -> Sequence[Any]:
        first, *others = query.split("?")
        numbered = (f"${n}{it}" for n, it in zip(count(1), others, strict=False))
        rows: list[Any] = await self._client.fetch("".join([first, *numbered]), *values)
        return rows

    async def iterate_pages(self, query: str, size: int) -> AsyncIterator[Sequence[Any]]:
        cursor = await self._client.cursor(query)
        while rows := await cursor.fetch(size):
            yield rows

    async def list_columns(self, table: str) -> set[str]:
        query = (
            "SELECT attname FROM pg_attribute "
            "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
        )
        return {row[0] for row in await self.fetch_all(query, f'"{table}"')}


def parse_time(value: str | float | datetime) -> datetime:
    """Return a time of a column: a timestamp, its text, or seconds since 1970."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found if found.tzinfo else found.replace(tzinfo=UTC)


READABLE: Final = "sessions are read from sqlite:/// and postgresql:// URLs"
"""Of a framework that has tables of sessions; see ``open_rows``."""


async def put_thread(
    backend: StoresThreads,
    thread_id: str,
    messages: list[ArchivedMessage],
    *,
    user_id: str | None = None,
    expires_at: datetime | None = None,
) -> bool:
    """Store a thread whole or not at all, and compare; return whether it was new.

    Args:
        backend: Where to.
        thread_id: The thread.
        messages: All of its messages.
        user_id: The thread's user.
        expires_at: The end of the thread's time to live.

    Raises:
        ConflictError: There is a thread of that id with other messages.
        IntegrityError: What was stored is something else.
    """
    times = [it.created_at for it in messages]
    thread = ArchivedThread(
        thread_id=thread_id,
        user_id=user_id,
        name=None,
        metadata={},
        created_at=min(times),
        active_at=cut_to_minute(max(times)),
        expires_at=expires_at,
        lines=[],
        messages=messages,
    )
    is_new = await backend.write_thread(thread)
    there = await backend.read_thread(thread_id)
    if there is None or there.messages != messages:
        raise IntegrityError(f"the thread {thread_id!r} is not what was imported; import it again")
    return is_new


def archive_message(
    message: NewMessage,
    sequence: int,
    created_at: str | float | datetime,
    backend: StoresThreads,
    namespace: str = "",
) -> ArchivedMessage:
    """Return a message with its place and time.

    Raises:
        SerializationError: JSON cannot keep it exactly, or it is too large.
    """
    put = put_of(message, namespace, {}, backend.max_state_bytes)
    return ArchivedMessage(
        namespace=namespace,
        sequence=sequence,
        message_id=put.message_id,
        role=put.role,
        metadata=put.metadata,
        created_at=parse_time(created_at),
        text=put.text,
        payload=put.payload,
    )
