"""Runners, which execute a database's transactions, and work inside a caller's transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sqlalchemy.engine import Connection

from locus_store.errors import InvalidArgumentError
from locus_store.runtime.retries import unraced

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from locus_store.sql.connections.database import Database

T = TypeVar("T")
Body = Callable[[Connection], T]

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Payload of a group of saves or changes at most, but for a single larger one."""


class Runner(Protocol):
    """Runs bodies in transactions; the caller translates errors."""

    runs_in_threads: bool
    """Bodies run in threads, where long work delays no other task of the caller's loop."""

    async def write(self, body: Body[T]) -> T:
        """Run ``body`` and commit; it continues after the caller is cancelled."""

    async def read(self, body: Body[T]) -> T:
        """Run ``body`` on one snapshot."""

    async def query(self, body: Body[T]) -> T:
        """Run ``body``, which is one statement and so its own snapshot."""

    async def ready(self) -> None:
        """Make sure that the database is open, and its schema verified."""

    async def close(self) -> None:
        """Finish what was submitted and release what was opened; usable again after."""


async def joined(database: Database, connection: object, body: Body[T]) -> T:
    """Run ``body`` under a savepoint of the caller's transaction, which stays open.

    Each attempt after a lost race has a savepoint of its own. A sync ``Connection`` is used on the
    calling thread, and blocks it.

    Raises:
        InvalidArgumentError: ``connection`` is not a connection with a transaction to the opened
            database. Nothing was written.
    """
    work = _under_savepoint(database, body)
    run = _runner(database, connection)
    return await unraced(lambda: run(work), database.lost_race)


def _runner(database: Database, given: object) -> Callable[[Body[T]], Awaitable[T]]:
    from sqlalchemy.ext.asyncio import AsyncConnection  # noqa: PLC0415  (slow: it imports the ORM)

    if not isinstance(given, AsyncConnection | Connection):
        raise InvalidArgumentError(
            "connection= must be a SQLAlchemy AsyncConnection or Connection, not a "
            f"{type(given).__name__}"
        )
    if given.closed:
        raise InvalidArgumentError("connection= is closed; pass an open one")
    wanted, found = database.dialect, given.dialect.name
    if found != wanted:
        raise InvalidArgumentError(f"connection= is of {found}, and these tables are in {wanted}")
    if isinstance(given, AsyncConnection):
        return given.run_sync
    if given.dialect.is_async:
        raise InvalidArgumentError(
            "connection= is the sync side of an AsyncConnection; pass the AsyncConnection"
        )

    async def run(work: Body[T]) -> T:
        return work(given)

    return run


def _under_savepoint(database: Database, body: Body[T]) -> Body[T]:
    def run(connection: Connection) -> T:
        if _commits_itself(connection):
            raise autocommit_refused()
        database.join(connection)
        nested = connection.begin_nested()
        try:
            database.require_opened(connection)
            database.keep_index(connection)
            result = body(connection)
        except BaseException:
            with suppress(*database.driver_errors):  # the first error is the one to raise
                nested.rollback()
            raise
        nested.commit()
        return result

    return run


def autocommit_refused() -> InvalidArgumentError:
    """Return the error for a connection in autocommit."""
    return InvalidArgumentError(
        "connection= commits each statement (AUTOCOMMIT): open a transaction instead, for example "
        "with engine.begin()"
    )


def _commits_itself(connection: Connection) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    driver: Any = connection.connection.dbapi_connection
    return getattr(driver, "autocommit", False) is True  # sqlite3's own default is -1
