"""The runner of a database server: a pool of connections per event loop.

A connection belongs to the loop that made it, so each loop that uses a backend has its own pool.
There is no lock around a pool: as many callers work at once as it has connections.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

from sqlalchemy.engine import Connection

from locus_store.errors import ConnectionFailedError, LocusStoreError, SchemaError
from locus_store.runtime import observe
from locus_store.runtime.forks import make_lock
from locus_store.runtime.loops import ResourcesPerLoop
from locus_store.runtime.retries import retry_lost_races
from locus_store.sql.connections.backend import Body
from locus_store.sql.connections.database import LostConnectionError, ServerDatabase, is_overtime
from locus_store.sql.connections.lending import LeasingPool, dispose, spawn_greenlet
from locus_store.sql.migrate import load
from locus_store.versions.sharding import OldLayoutError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


T = TypeVar("T")
Work: TypeAlias = "Callable[[], Coroutine[Any, Any, T]]"

CLOSE_SECONDS: Final = 5.0
"""The time for which ``close`` waits for the server to close the connection."""

ONE_LOOP: Final = (
    "an async engine or pool belongs to one event loop at a time; pass a dsn instead to use a "
    "store from several"
)


class UndoneError(LostConnectionError):
    """The connection was closed before the commit was sent: nothing was written."""


class PooledRunner:
    """Runs bodies on connections of asynchronous engines, one engine per event loop.

    Args:
        database: What differs per database.
        make_engine: Gives the engine of a loop.
        owns_engines: Dispose of them on ``close``; else it is one, and its owner's.
        is_one_loops: Its connections may be used by one event loop at a time.
        make_opening_engine: For migrations, which no statement timeout may cut short.
        make_pool: Gives the pool of a loop; by default ``LoopPool``.
    """

    runs_in_threads = False

    def __init__(
        self,
        database: ServerDatabase,
        make_engine: Callable[[], AsyncEngine],
        *,
        owns_engines: bool = True,
        is_one_loops: bool = False,
        make_opening_engine: Callable[[], AsyncEngine] | None = None,
        make_pool: Callable[..., LoopPool] | None = None,
    ) -> None:
        self.database = database
        first = make_lock()

        def make() -> LoopPool:
            return (make_pool or LoopPool)(
                database,
                make_engine(),
                make_opening_engine or make_engine,
                owns_engine=owns_engines,
                first=first,
            )

        self._pools = ResourcesPerLoop(make, ONE_LOOP if is_one_loops else None)

    async def write(
        self, body: Body[T], begin: Body[None] | None = None, *, thread_id: str | None = None
    ) -> T:
        """See ``Runner``; retried if it wrote nothing and the cause was outside of it.

        Args:
            body: What runs.
            begin: Begins the transaction in another way than ``begin_write``.
            thread_id: See ``LoopPool.note_write``.
        """
        pool = await self.get_pool()
        return await pool.run_write(partial(pool.run_transaction, body, begin), thread_id)

    async def write_once(
        self, body: Body[T], *, thread_id: str | None = None, is_repeatable: bool = False
    ) -> T:
        """Run a body that is one writing statement, and so needs no transaction.

        Run again where it wrote nothing for no fault of its own; where that is not known, only if
        it ``is_repeatable``.
        """
        pool = await self.get_pool()
        run = partial(pool.run_transaction, body, self.database.begin_statement)
        return await pool.run_write(partial(pool.retry, run) if is_repeatable else run, thread_id)

    async def read(self, body: Body[T]) -> T:
        pool = await self.get_pool()
        return await pool.retry(lambda: pool.retry_lost_races(self.database.begin_read, body))

    async def query(self, body: Body[T]) -> T:
        """Run a body that is one statement, and so needs no transaction."""
        pool = await self.get_pool()
        return await pool.retry(lambda: pool.retry_lost_races(self.database.begin_statement, body))

    async def define(self, body: Body[T]) -> T:
        """Run a body that changes the schema, outside of any transaction."""
        pool = await self.get_pool()
        return await pool.run_write(partial(pool.define, body))

    async def open(self) -> None:
        await self.get_pool()

    async def get_pool(self) -> LoopPool:
        """Return the running loop's connections, with the schema verified."""
        pool = await self._pools.get()
        if not pool.is_open:
            await pool.open()
        return pool

    async def close(self) -> None:
        """See ``Runner``; the pools of other loops are closed by those loops."""
        await self._pools.close()


class LoopPool(LeasingPool):
    """The connections of one event loop.

    Args:
        database, engine: See ``LeasingPool``.
        make_opening_engine: Gives the engine on which a schema is made.
        owns_engine: Whether ``close`` disposes of the engine.
        first: Held while a shared engine connects for the first time: SQLAlchemy's own lock
            around that belongs to one loop.
    """

    is_dispensable: ClassVar[bool] = False
    """Another server answers what this one does not: a server that is silent is left at once."""

    def __init__(
        self,
        database: ServerDatabase,
        engine: AsyncEngine,
        make_opening_engine: Callable[[], AsyncEngine],
        *,
        owns_engine: bool,
        first: threading.Lock,
    ) -> None:
        super().__init__(database, engine, owns_engine=owns_engine)
        self.is_open = False
        self._make_opening_engine = make_opening_engine
        self._owned = owns_engine
        self._first = first
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Verify or create the schema, once."""
        async with self._opening:
            if self.is_open:
                return
            await self.begin()
            await self.prepare()
            was_divided = self.database.opened.has_partitions
            await self.retry(self._open)
            if self._owned and self.database.opened.has_partitions != was_divided:
                self._replace_all()  # they were opened for the plans of plain tables
            if not self._is_over:
                self.is_open = True
                observe.report_opened(self.database)

    async def prepare(self) -> None:
        """Check what must hold before the schema is verified or created."""

    def note_write(self, thread_id: str | None = None) -> None:
        """Note that a write has ended, refused or not; reads from replicas have to see it.

        Args:
            thread_id: Only reads of this thread see it, and reads of several; ``None``: all may.
        """

    async def _open(self) -> None:
        if not self._owned:
            await _acquire(self._first)
        try:
            with suppress(SchemaError):
                await self._spawn(self._sync, self.database.verify)
                return
            if self.database.may_create:
                await asyncio.to_thread(load)
            await self.define(self.database.open)
        finally:
            if not self._owned:
                self._first.release()

    async def define(self, body: Body[T]) -> T:
        """Run a body that changes the schema, on a separate connection if the engine is ours."""
        own = self._make_opening_engine() if self._owned else None
        engine = own.sync_engine if own else self._sync
        try:
            return await retry_lost_races(
                lambda: self._spawn(engine, body), self.database.is_lost_race
            )
        finally:
            if own:
                await dispose(own)

    async def _spawn(self, engine: Any, body: Body[T]) -> T:
        return await spawn_greenlet(self._look_into, engine, body)

    def _look_into(self, engine: Any, look: Body[T]) -> T:
        with self._connect(engine) as connection:
            return look(connection)

    @contextmanager
    def _connect(self, engine: Any) -> Iterator[Connection]:
        with engine.connect() as connection:
            try:
                yield connection
            except BaseException as exc:
                self._undo(connection, exc)
                raise
            finally:
                if not connection.invalidated:
                    self.database.leave(connection)
                    if self._is_over:
                        connection.detach()

    def _undo(self, connection: Connection, exc: BaseException) -> None:
        """Roll back after an error; if that fails, drop the connection and keep ``exc``.

        A connection whose task was cancelled may be in the middle of a statement: it is dropped.
        """
        if not isinstance(exc, Exception) or self._is_lost(connection, exc):
            connection.invalidate()
            return
        try:
            connection.rollback()
        except self.database.driver_errors as failed:
            observe.report_replaced("a rollback failed on its connection", failed)
            connection.invalidate()

    async def _find_forgotten(self, drivers: list[Any]) -> list[Any]:
        engine = self._make_opening_engine()
        failures: tuple[type[Exception], ...] = (*self.database.driver_errors, LocusStoreError)
        try:
            return await self._spawn(
                engine.sync_engine, lambda it: self.database.find_forgotten(it, drivers)
            )
        except failures:
            # The server cannot be asked: the statements' own limits hold.
            return drivers if self.is_dispensable else []
        finally:
            await dispose(engine)

    async def run_write(self, work: Work[T], thread_id: str | None = None) -> T:
        """Run work that writes to its end, even if the caller is cancelled, and note it."""

        async def run() -> T:
            try:
                return await self.record_errors(work())
            finally:
                self.note_write(thread_id)

        return await self.run_shielded(run())

    async def run_transaction(self, body: Body[T], begin: Body[None] | None = None) -> T:
        """Run a body and commit; retry after a lost race or a lost connection."""
        begin = begin or self.database.begin_write
        try:
            return await self.retry_lost_races(begin, body)
        except UndoneError as exc:
            is_statement = begin == self.database.begin_statement  # it may have been executed
            if is_statement and not self.database.is_lost_primary(exc):
                raise LostConnectionError from exc
            self.note(exc)
            observe.report_retry("connection", exc)
        return await self.retry_lost_races(begin, body)

    async def retry_lost_races(self, begin: Body[None], body: Body[T]) -> T:
        """Run a body; retry after a lost race."""
        return await retry_lost_races(lambda: self.run(begin, body), self.database.is_lost_race)

    async def retry(self, work: Work[T]) -> T:
        """Run repeatable work; retry once if the connection was lost, or if time ran out."""
        try:
            return await self.record_errors(work())
        except Exception as exc:
            if not self.database.is_lost_connection(exc) and not is_overtime(exc):
                raise
            observe.report_retry("connection", exc)
        return await self.record_errors(work())

    async def record_errors(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and record its error; see ``note``."""
        try:
            return await work
        except Exception as exc:
            self.note(exc)
            raise

    def note(self, exc: BaseException) -> None:
        """Record what an error implies for the connections and the schema."""
        is_lost = self.database.is_lost_connection(exc) or is_overtime(exc)
        if is_lost or isinstance(exc, ConnectionFailedError):
            self._lost_at = time.monotonic()  # the others are probably lost too
        elif self.database.is_lost_schema(exc) or isinstance(exc, OldLayoutError):
            self.is_open = False

    async def run(self, begin: Body[None], body: Body[T]) -> T:
        """Run a body between ``begin`` and a commit."""
        return await spawn_greenlet(self._run, begin, body)

    def _run(self, begin: Body[None], body: Body[T]) -> T:
        with self._connect(self._sync) as connection, self._watch_during(connection):
            lost: type[LostConnectionError] = UndoneError
            try:
                begin(connection)
                result = body(connection)
                lost = LostConnectionError
                connection.commit()
                self._require_confirmed(connection.connection.driver_connection)
            except self.database.driver_errors as exc:
                # SQLAlchemy closes the connection of a statement that timed out.
                if self._is_lost(connection, exc) and not is_overtime(exc):
                    raise lost from exc
                raise
            return result

    @contextmanager
    def _watch_during(self, connection: Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        self._watch(driver)
        try:
            yield
        finally:
            self._working.pop(driver, None)

    def _is_lost(self, connection: Connection, exc: Exception) -> bool:
        """Return whether a connection is unusable after an error."""
        if connection.invalidated:  # SQLAlchemy saw it
            return True
        if connection.closed:
            return False
        driver: Any = connection.connection.driver_connection
        return driver is None or self._is_dead(driver, exc)

    def leave(self) -> None:
        """Close the pool in its own event loop; at once if no call is in progress."""
        pool: Any = self._engine.pool
        if self._tasks or not self._owned or pool.checkedout():
            super().leave()
            return
        self._owned = False  # what is closed here is not disposed of again
        for connection in list(self._connections):
            connection.terminate()
        observe.report_closed(self.database)

    async def _release(self) -> None:
        if not self._owned:
            return
        self._is_over = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await dispose(self._engine)
        if self.is_open:
            self.is_open = False
            observe.report_closed(self.database)


async def _acquire(lock: threading.Lock) -> None:
    """Wait for a lock between threads; a cancelled caller releases it."""
    waiting = asyncio.ensure_future(asyncio.to_thread(lock.acquire))
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        waiting.add_done_callback(lambda it: None if it.cancelled() else lock.release())
        raise
