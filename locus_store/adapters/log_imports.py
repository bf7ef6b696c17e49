"""Import of message logs from a framework's own SQL tables. The source is only read."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from locus_store.errors import ConnectionFailedError, IntegrityError, InvalidArgumentError
from locus_store.types import ArchivedMessage, ArchivedThread
from locus_store.types.arguments import is_path, not_a_url
from locus_store.types.messages import put_of
from locus_store.versions.archives import minute_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from locus_store.backend import StoresThreads
    from locus_store.messages import NewMessage


class Rows(Protocol):
    """A database of a framework, as of one point in time."""

    shown: str
    """The source as messages show it."""

    tie: str
    """The column that orders rows of one time: that of the insertion, if there is one."""

    async def all(self, query: str, *values: str) -> Sequence[Any]:
        """Return the rows of a query; each ``?`` stands for a value."""

    async def columns(self, table: str) -> set[str]:
        """Return the columns of a table; none if there is no such table."""


@asynccontextmanager
async def opened_rows(url: str) -> AsyncIterator[Rows]:
    """Open ``sqlite:///file.db`` or ``postgresql://…``, with or without a driver, for reading.

    Raises:
        ConnectionFailedError: The source cannot be reached.
        IntegrityError: SQLite cannot read the file.
        InvalidArgumentError: The scheme is not supported, or there is none.
    """
    if is_path(url):
        raise not_a_url(url)
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme == "sqlite":
        with _opened_sqlite(url) as rows:
            yield rows
    elif scheme in {"postgresql", "postgres"}:
        async with _opened_postgresql(url) as rows:
            yield rows
    else:
        raise InvalidArgumentError(
            f"sessions are read from sqlite:/// and postgresql:// URLs, not {scheme!r}"
        )


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
        active_at=minute_of(max(times)),
        expires_at=expires_at,
        lines=[],
        messages=messages,
    )
    is_new = await backend.write_thread(thread)
    there = await backend.read_thread(thread_id)
    if there is None or there.messages != messages:
        raise IntegrityError(f"the thread {thread_id!r} is not what was imported; import it again")
    return is_new


def archived(
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
        created_at=time_of(created_at),
        text=put.text,
        payload=put.payload,
    )


def time_of(stored: str | float | datetime) -> datetime:
    """Return a time of a column: a timestamp, its text, or seconds since 1970."""
    if isinstance(stored, int | float):
        return datetime.fromtimestamp(stored, UTC)
    found = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@contextmanager
def _opened_sqlite(url: str) -> Iterator[Rows]:
    path = Path(unquote(urlsplit(url).path.removeprefix("/"))).absolute()
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.OperationalError as exc:
        raise ConnectionFailedError(f"SQLite {path}: cannot be opened: check the path") from exc
    try:
        connection.execute("BEGIN")
        yield _SQLite(connection, path)
    except sqlite3.Error as exc:
        raise IntegrityError(f"SQLite {path}: {exc}") from exc
    finally:
        connection.close()


@asynccontextmanager
async def _opened_postgresql(url: str) -> AsyncIterator[Rows]:
    from locus_store.backends.postgresql import connecting, dsn  # noqa: PLC0415  (an extra)

    target = dsn.parse(url)
    client = await connecting.connect(target, statement_cache_size=0)
    try:
        async with client.transaction(isolation="repeatable_read", readonly=True):
            yield _PostgreSQL(client, target.shown)
    finally:
        await client.close()


class _SQLite:
    tie = "rowid"

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.shown = f"SQLite {path}"

    async def all(self, query: str, *values: str) -> Sequence[Any]:
        return self._connection.execute(query, values).fetchall()

    async def columns(self, table: str) -> set[str]:
        rows = self._connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
        return {row[0] for row in rows}


class _PostgreSQL:
    tie = "id"

    def __init__(self, client: Any, shown: str) -> None:
        self._client = client
        self.shown = f"PostgreSQL {shown}"

    async def all(self, query: str, *values: str) -> Sequence[Any]:
        first, *others = query.split("?")
        numbered = (f"${n}{it}" for n, it in zip(count(1), others, strict=False))
        rows: list[Any] = await self._client.fetch("".join([first, *numbered]), *values)
        return rows

    async def columns(self, table: str) -> set[str]:
        query = (
            "SELECT attname FROM pg_attribute "
            "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
        )
        return {row[0] for row in await self.all(query, f'"{table}"')}
