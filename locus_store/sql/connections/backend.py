"""The part of a SQL backend that has the database and its connections, and runs transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from locus_store.backend import FullBackend, JoinsTransactions, SharedByTenants
from locus_store.errors import BackendError, InvalidArgumentError, LocusStoreError
from locus_store.runtime.background import Background
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.retries import retry_lost_races
from locus_store.sql.audit import OF_THREADS, READS_OF_THREADS, get_call, make_audit, record_calls
from locus_store.sql.connections.database import Database
from locus_store.sql.quotas import charged_call
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.statements import RowAccess, has_other_layout
from locus_store.types.arguments import check_tenant
from locus_store.versions.sharding import is_routed, require_layout

T = TypeVar("T")
Body = Callable[[Connection], T]

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Payload of a group of saves or changes at most, but for a single larger one."""

BACKGROUND_SECONDS: Final = 5.0
"""``close`` waits no longer than this for the work beside calls, such as records to be joined."""


class Reader(Protocol):
    """Runs bodies that read; the caller translates errors."""

    def read(self, body: Body[T]) -> Awaitable[T]:
        """Run ``body`` on one snapshot."""

    def query(self, body: Body[T]) -> Awaitable[T]:
        """Run ``body``, which is one statement and so its own snapshot."""


class Runner(Reader, Protocol):
    """Runs bodies in transactions; the caller translates errors."""

    runs_in_threads: bool
    """Bodies run in threads, where long work delays no other task of the caller's loop."""

    def write(self, body: Body[T], *, thread_id: str | None = None) -> Awaitable[T]:
        """Run ``body`` and commit; it continues after the caller is cancelled.

        ``thread_id`` is the thread that it writes, if it is only one: other reads of one thread
        need not see it.
        """

    async def open(self) -> None:
        """Make sure that the database is open, and its schema verified."""

    async def close(self) -> None:
        """Finish what was submitted and release what was opened; usable again after."""


class Shared(NamedTuple):
    """The objects that a store shares with the backend of its connections."""

    database: Database
    runner: Runner
    reader: Reader
    """Runs reads on whose answer no write depends; it may be the runner itself."""

    translating: Translation


class Translation:
    """A context in which a driver's errors are raised as those of this library."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        if exc is None or isinstance(exc, LocusStoreError):  # some are OSErrors too
            return
        if isinstance(exc, self._database.driver_errors):
            raise self._database.translate_error(exc) from exc


class ConnectedBackend(FullBackend, SharedByTenants, JoinsTransactions):
    """Runs a repository's methods in transactions.

    Args:
        database: What differs per dialect.
        runner: Where the transactions run.
        options: See ``options.SqlOptions``.
    """

    def __init__(self, database: Database, runner: Runner, options: Mapping[str, Any]) -> None:
        audit = make_audit(options)
        super().__init__(max_state_bytes=options["max_state_bytes"])
        self._database = database
        self._translating = Translation(database)
        database.audit = audit
        database.max_state_bytes = self.max_state_bytes
        self._runner: Runner = runner
        self._reader: Reader = runner
        self._lists: Reader = runner
        """Runs lists of threads and searches."""
        self._owns_runner = True
        self._background = PerLoop(Background)
        """Shared by the objects of all tenants."""

        record_calls(self, audit, OF_THREADS, READS_OF_THREADS)

    @property
    def shared(self) -> Shared:
        """Return the objects that a store shares with this backend."""
        return Shared(self._database, self._runner, self._reader, self._translating)

    async def _write(self, body: Callable[[Repository], T], *, thread_id: str | None = None) -> T:
        with self._translating:
            work = make_writing(self._database, body, thread_id)
            return await self._runner.write(work, thread_id=thread_id)

    async def _write_copy(self, body: Callable[[Repository], T]) -> T:
        """Run a body that writes what it reads of one snapshot."""
        return await self._write(body)

    async def _write_unrecorded(
        self, body: Callable[[Repository], T], connection: object = None
    ) -> T:
        """Run a body that belongs to no call, in a transaction of its own or of the caller's."""
        work = self._wrap(body)
        with self._translating:
            if connection is None:
                return await self._write_by_itself(work)
            return await run_joined(self._database, connection, work)

    async def _write_by_itself(self, work: Body[T]) -> T:
        """Run statements of which each, where several transactions write, may commit by itself.

        A process that stands still between two of them then holds no lock.
        """
        return await self._runner.write(work)

    async def _read(self, body: Callable[[Repository], T], reader: Reader | None = None) -> T:
        """Run a body on one snapshot, of the runner if a write depends on its answer."""
        with self._translating:
            return await (reader or self._reader).read(self._wrap(body))

    async def _query(self, body: Callable[[Repository], T], reader: Reader | None = None) -> T:
        """Run a body of one statement, on the runner if a write depends on its answer."""
        with self._translating:
            return await (reader or self._reader).query(self._wrap(body))

    def _wrap(self, body: Callable[[Repository], T]) -> Body[T]:
        make = self._database.make_repository
        return lambda connection: body(make(connection))

    async def open(self) -> None:
        await self._read(lambda _: None, self._runner)

    async def close(self) -> None:
        if self._owns_runner:
            await self._background.get().finish(BACKGROUND_SECONDS)
            await self._runner.close()

    @property
    def tenant(self) -> str:
        return self._database.tenant

    def _enter(self, tenant: str) -> None:
        check_tenant(tenant)
        self._database = self._database.for_tenant(tenant)
        self._translating = Translation(self._database)
        self._owns_runner = False


def make_writing(
    database: Database, body: Callable[[Repository], T], thread_id: str | None = None
) -> Callable[[Connection], T]:
    """Return a body that writes, and records the call that is under way."""
    call = get_call(database.audit) if database.audit else None
    charge, routed = charged_call.get(), is_routed.get()

    def run(connection: Connection) -> T:
        repository = database.make_repository(connection)
        result = body(repository)
        repository.finish()
        if routed:
            _require_place(repository, result)
        if charge is not None:
            charge.note_written(repository.opened_threads, repository.appended_bytes)
        if call is not None:
            done = None if repository.removes_writes else result
            call.record(connection, repository.tenancy, done, thread_id)
        return result

    return run


def _require_place(repository: RowAccess, result: object) -> None:
    """Raise ``OldLayoutError`` if a thread that was not found may have moved."""
    if not (any(result) if isinstance(result, tuple) else result):
        is_other = has_other_layout(repository.tables, repository.tenancy.layout)
        query = sa.select(sa.literal(1)).where(is_other)
        require_layout(repository.connection.execute(query).first() is None)


async def run_joined(database: Database, connection: object, body: Body[T]) -> T:
    """Run ``body`` under a savepoint of the caller's transaction, which stays open.

    Each attempt after a lost race has a savepoint of its own. A sync ``Connection`` is used on the
    calling thread, and blocks it.

    Raises:
        InvalidArgumentError: ``connection`` is not a connection with a transaction to the opened
            database. Nothing was written.
    """
    work = _wrap_in_savepoint(database, body)
    run = _get_runner(database, connection)
    return await retry_lost_races(
        lambda: run(work),
        lambda exc, at: not isinstance(exc, BackendError) and database.is_lost_race(exc, at),
    )


def _get_runner(database: Database, connection: object) -> Callable[[Body[T]], Awaitable[T]]:
    from sqlalchemy.ext.asyncio import AsyncConnection  # noqa: PLC0415  (slow: it imports the ORM)

    if not isinstance(connection, AsyncConnection | Connection):
        raise InvalidArgumentError(
            "connection= must be a SQLAlchemy AsyncConnection or Connection, not a "
            f"{type(connection).__name__}"
        )
    if connection.closed:
        raise InvalidArgumentError("connection= is closed; pass an open one")
    wanted, found = database.dialect, connection.dialect.name
    if found != wanted:
        raise InvalidArgumentError(f"connection= is of {found}, and these tables are in {wanted}")
    if isinstance(connection, AsyncConnection):
        return connection.run_sync
    if connection.dialect.is_async:
        raise InvalidArgumentError(
            "connection= is the sync side of an AsyncConnection; pass the AsyncConnection"
        )

    async def run(work: Body[T]) -> T:
        return work(connection)

    return run


def _wrap_in_savepoint(database: Database, body: Body[T]) -> Body[T]:
    def run(connection: Connection) -> T:
        if _is_autocommit(connection):
            raise make_autocommit_error()
        database.join(connection)
        nested = connection.begin_nested()
        try:
            database.require_opened(connection)
            database.keep_index(connection)
            result = body(connection)
        except BaseException as exc:
            with suppress(*database.driver_errors):  # the first error is the one to raise
                nested.rollback()
                if database.is_lost_race(exc, 1):
                    _require_new_snapshots(connection, exc)
            raise
        nested.commit()
        return result

    return run


def _require_new_snapshots(connection: Connection, exc: BaseException) -> None:
    """Raise ``BackendError`` in a transaction in which a lost race cannot be run again."""
    level = connection.get_isolation_level()
    if level in {"REPEATABLE READ", "SERIALIZABLE"}:
        raise BackendError(
            f"the transaction of connection= ({level}) has a snapshot from before another one "
            "wrote; nothing was written: roll it back and run it again"
        ) from exc


def make_autocommit_error() -> InvalidArgumentError:
    """Return the error for a connection in autocommit."""
    return InvalidArgumentError(
        "connection= commits each statement (AUTOCOMMIT): open a transaction instead, for example "
        "with engine.begin()"
    )


def _is_autocommit(connection: Connection) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    driver: Any = connection.connection.dbapi_connection
    return getattr(driver, "autocommit", False) is True  # sqlite3's own default is -1
