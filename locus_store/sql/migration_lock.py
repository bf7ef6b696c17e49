"""One migration at a time: in this process, and in the database."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from locus_store.errors import InvalidArgumentError
from locus_store.sql.failures import codes
from locus_store.sql.status import home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Connection

    from locus_store.sql.schema import Tables

_BUSY_MILLISECONDS: Final = 60_000
_POLL_SECONDS: Final = 0.01


class _Process:
    """Alembic's context is a global: 16 of 16 concurrent upgrades failed without this lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work: list[int] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Remember that this thread migrates, or a task of its event loop."""
        thread = threading.get_ident()
        self._at_work.append(thread)
        try:
            yield
        finally:
            self._at_work.remove(thread)

    def refuse_beneath_another(self) -> None:
        """Instead of waiting for ever for what this thread itself has to finish."""
        if threading.get_ident() in self._at_work:
            raise InvalidArgumentError(
                "a migration is under way on this thread's event loop; run another one there too"
                " (await connection.run_sync(...)), or on another thread (asyncio.to_thread)"
            )

    @contextmanager
    def alone(self, *, is_async: bool = False) -> Iterator[None]:
        """Hold the lock.

        Args:
            is_async: Whether this is beneath an event loop, which goes on while this waits, and so
                does the migration that is waited for.
        """
        if is_async:
            while not self._lock.acquire(blocking=False):
                await_only(asyncio.sleep(_POLL_SECONDS))
        else:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()


process: Final = _Process()


@contextmanager
def locked(connection: Connection, ours: Tables) -> Iterator[None]:
    """One transaction, alone in this database and in this process; committed at the end."""
    is_async = connection.dialect.is_async
    lock = _LOCKS.get(connection.dialect.name, _lock_table)
    if not is_async:
        process.refuse_beneath_another()
    with process.at_work():
        refuse_transaction(connection)
        # The database's first: who waits for it keeps no other database's migration waiting.
        with lock(connection, ours), process.alone(is_async=is_async):
            yield


def refuse_transaction(connection: Connection) -> None:
    """A transaction of the caller's would be ended here, or end what is done here."""
    if connection.in_transaction():
        raise InvalidArgumentError("a migration needs a connection without a transaction begun")


# --- SQLite ---------------------------------------------------------------------------------


@contextmanager
def _begin_immediate(connection: Connection, ours: Tables) -> Iterator[None]:
    # Python's sqlite3 begins no transaction for DDL, so it is begun and ended in SQL; this also
    # holds for a connection in autocommit and for engines that emit a BEGIN of their own.
    run = connection.exec_driver_sql
    with closing(connection.begin()):
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:
            run("COMMIT")
        with _pragmas(connection, busy_timeout=_BUSY_MILLISECONDS, legacy_alter_table=1):
            run("BEGIN IMMEDIATE")
            try:
                yield
                run("COMMIT")
            finally:
                if not connection.invalidated and driver.in_transaction:
                    run("ROLLBACK")


@contextmanager
def _pragmas(connection: Connection, **values: int) -> Iterator[None]:
    """Pragmas of the connection while it migrates; legacy_alter_table: views outlive a rename."""
    run = connection.exec_driver_sql
    previous = {name: run(f"PRAGMA {name}").scalar_one() for name in values}
    for name, value in values.items():
        run(f"PRAGMA {name} = {value}")
    try:
        yield
    finally:
        # An interrupt closes the connection, and takes its pragmas with it.
        for name, value in previous.items() if not connection.invalidated else ():
            run(f"PRAGMA {name} = {value}")


# --- PostgreSQL -----------------------------------------------------------------------------

_WAITING: Final = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', '0', true)"
_UNLIMITED: Final = """
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')
"""


@contextmanager
def _advisory_lock(connection: Connection, ours: Tables) -> Iterator[None]:
    with _read_committed(connection), connection.begin():
        place = home(connection, ours)
        # The application's limits would cut a migration short every time. All settings end with
        # the transaction, and so does the lock: a pooler may then give the connection to others.
        connection.exec_driver_sql(_UNLIMITED)
        lock_timeout = connection.exec_driver_sql(_WAITING).scalar_one()
        _lock(connection, f"{place} {ours.prefix}")
        if ours.schema is None:
            quoted = connection.dialect.identifier_preparer.quote_schema(f"{place}")
            _set_local(connection, "search_path", quoted)
        else:
            _make_schema(connection, ours.schema)
        # How long a migration may keep others waiting for a table is the user's to say.
        _set_local(connection, "lock_timeout", lock_timeout)
        yield


@contextmanager
def _read_committed(connection: Connection) -> Iterator[None]:
    """In a transaction, whatever the connection's own setting; what waited for a lock sees news."""
    dialect: Any = connection.dialect
    dialect.set_isolation_level(connection.connection.dbapi_connection, "READ COMMITTED")
    try:
        yield
    finally:
        if not connection.invalidated and not connection.closed:
            own = connection.get_execution_options().get("isolation_level")
            driver = connection.connection.dbapi_connection
            if own is None:
                dialect.reset_isolation_level(driver)
            else:
                dialect.set_isolation_level(driver, own)


def _set_local(connection: Connection, name: str, value: str) -> None:
    connection.execute(sa.select(sa.func.set_config(name, value, sa.true())))


def _lock(connection: Connection, what: str) -> None:
    key = sa.cast(sa.literal(advisory_key(what)), sa.BigInteger)
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def advisory_key(what: str) -> int:
    """Of the lock of ``schema prefix``, or of a schema that is being made."""
    digest = hashlib.blake2b(f"locus-store {what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _make_schema(connection: Connection, schema: str) -> None:
    """Where it is missing: asking for one that exists needs a right that few roles have."""
    query = sa.text("SELECT count(*) FROM pg_namespace WHERE nspname = :schema")
    if connection.scalar(query, {"schema": schema}):
        return
    # IF NOT EXISTS does not wait for who is making it, for another prefix.
    _lock(connection, schema)
    connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))


# --- Oracle ---------------------------------------------------------------------------------


@contextmanager
def _lock_table(connection: Connection, ours: Tables) -> Iterator[None]:
    # Where DDL commits (Oracle), a lock on the same connection would not outlive a statement.
    name = connection.dialect.identifier_preparer.format_table(
        sa.table(f"{ours.prefix}lock", schema=ours.schema)
    )
    with connection.engine.connect() as keeper:
        driver: Any = keeper.connection.dbapi_connection
        before, driver.autocommit = driver.autocommit, False  # in autocommit no lock is kept
        try:
            _make_lock(keeper, name)
            keeper.exec_driver_sql(f"LOCK TABLE {name} IN EXCLUSIVE MODE")
            with connection.begin():
                yield
        finally:
            if not keeper.invalidated:
                driver.rollback()
                driver.autocommit = before


def _make_lock(keeper: Connection, name: str) -> None:
    try:
        keeper.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {name} (held INTEGER)")
    except DBAPIError as error:
        if _TAKEN not in codes(error):  # another process made it meanwhile
            raise


_TAKEN: Final = "ORA-00955"

_LOCKS: Final[dict[str, Callable[[Connection, Tables], AbstractContextManager[None]]]] = {
    "sqlite": _begin_immediate,
    "postgresql": _advisory_lock,
}
