"""SQLite's runners: writers that commit for each other, and concurrent readers.

A body is a plain function of a connection. A sync call runs its body in its own thread, an async
one hands it to a thread of the runner. Bodies that wait while another thread commits share the next
transaction, each under its own savepoint. Each caller is answered after the commit.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool

from locus_store.backends.sqlite.dialect import SQLiteDatabase, find_code
from locus_store.backends.sqlite.writer import SQLiteWriter, StoppedError, find_driver
from locus_store.errors import BackendError, InvalidArgumentError
from locus_store.runtime import loops, observe
from locus_store.runtime.forks import inherited
from locus_store.runtime.portals import call_when_dropped
from locus_store.runtime.stepping import may_block, run_in_thread, run_now
from locus_store.sql.connections.backend import Body
from locus_store.sql.connections.database import Database

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


T = TypeVar("T")
READERS = 4
"""Reading threads, for async calls."""


@dataclass(eq=False)
class ThreadRunner:
    """Runs bodies on synchronous engines, in threads."""

    runs_in_threads = True

    database: SQLiteDatabase
    make_engines: Callable[[], tuple[Engine, Engine | None]]
    """Gives (the writing engine, the reading engine or ``None`` to read on the writer's
    connection). It must not hold on to the runner."""

    owns_engines: bool = True
    """Dispose of them on ``close``."""

    keeps_open: bool = False
    """``close`` leaves the database open: one in memory would be lost. It ends with this object."""

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _open: _OpenDatabase | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.keeps_open:
            _runners.add(self)

    def write(self, body: Body[T], *, thread_id: str | None = None) -> Awaitable[T]:
        if may_block():
            return run_now(self._run_here, lambda it: it.writer.run(body))
        return self._run_async(lambda it: it.writer.run_async(body))

    def read(self, body: Body[T]) -> Awaitable[T]:
        if may_block():
            return run_now(self._run_here, lambda it: it.read(body))
        return self._run_async(lambda it: it.read_async(body))

    query = read

    def peek(self, body: Body[T]) -> T | None:
        """Run a small read in this thread, though it may have an event loop, without waiting.

        Returns:
            ``None``: the read would have to wait, or the body returned it.
        """
        found = self._get_open().read_at_once(body)
        return found[0] if found else None

    async def open(self) -> None:
        if may_block():
            await run_now(self._run_here, _OpenDatabase.open)
        else:
            await self._run_async(_OpenDatabase.open_async)

    def _run_here(self, run: Callable[[_OpenDatabase], T]) -> T:
        while True:
            try:
                return run(self._get_open())
            except StoppedError:  # another thread has closed it meanwhile: open it again
                continue

    async def _run_async(self, run: Callable[[_OpenDatabase], Awaitable[T]]) -> T:
        while True:
            try:
                return await run(self._get_open())
            except StoppedError:
                continue

    def _get_open(self) -> _OpenDatabase:
        found = self._open
        if found is not None and found.pid == os.getpid() and not found.is_closed:
            return found
        with self._lock:
            if self._open is not None and self._open.pid != os.getpid():
                inherited.append(self._open)  # the parent's: neither used nor closed here
                self._open.forget()
                self._open = None
            if self._open is not None and self._open.is_closed:
                raise BackendError("this process is ending; nothing more was read or written")
            if self._open is None:
                writes, reads = self.make_engines()
                self._open = _OpenDatabase(
                    self.database, writes, reads, owns_engines=self.owns_engines
                )
                self._open.finalizer = call_when_dropped(self, self._open.close)
            return self._open

    def hold(self) -> None:
        """Close all connections, and open none until ``resume``."""
        self._lock.acquire()
        here, self._open = self._open, None
        if here is not None:
            here.close()

    def resume(self) -> None:
        """Undo ``hold``: the next call opens the database again."""
        self._lock.release()

    async def close(self) -> None:
        if self.keeps_open:
            return
        with self._lock:
            here, self._open = self._open, None
        if here is not None and here.pid == os.getpid():
            try:
                await run_in_thread(here.close)
            except RuntimeError:  # a function of `atexit`: Python begins no more threads
                here.close()


_runners: WeakSet[ThreadRunner] = WeakSet()
_held: list[ThreadRunner] = []


def _prepare_fork() -> None:
    """Close the database: SQLite's locks are per process, and an inherited file has none.

    Its parent would then close as the last one and take the log away from under it.
    """
    for runner in list(_runners):
        runner.hold()
        _held.append(runner)


def _finish_fork() -> None:
    while _held:
        _held.pop().resume()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_prepare_fork, after_in_parent=_finish_fork, after_in_child=_finish_fork
    )


class _OpenDatabase:
    """The connections of one process. They do not keep the runner alive, which closes them."""

    def __init__(
        self, database: SQLiteDatabase, writes: Engine, reads: Engine | None, *, owns_engines: bool
    ) -> None:
        self.pid = os.getpid()
        self.finalizer: Any = None
        self._database = database
        self._writes, self._reads = writes, reads
        self._engines = [it for it in (writes, reads) if it is not None] if owns_engines else []
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="locus-store-reader")
        self._gate = threading.Condition()
        """Guards the two below."""

        self._reading = 0
        """Sync calls that read."""

        self.is_closed = False
        self._identity: object = None
        self._peeking = threading.Lock()
        """Guards the next two."""

        self._peeker: Connection | None = None
        self._driver: Any = None
        """The connection of ``read_at_once``, which never waits, and its ``find_driver``."""

        self.writer = SQLiteWriter(writes, database, self._release_readers)

    def open(self) -> None:
        """Verify the schema, or open the database again; wait for no writer if it is open."""
        if self._is_new():
            self.writer.run(None)
            self._identity = self._database.identify()

    async def open_async(self) -> None:
        """See ``open``; for a caller in an event loop."""
        if self._is_new():
            await self.writer.run_async(None)
            self._identity = self._database.identify()

    def read(self, body: Body[T]) -> T:
        """Run a body on one snapshot, in this thread."""
        if self._reads is None:
            return self.writer.run(body)
        if found := self.read_at_once(body):
            return found[0]
        self.open()
        with self._gate:
            self._require_open()
            self._reading += 1
        try:
            return self._read(self._reads, body)
        finally:
            with self._gate:
                self._reading -= 1
                if self.is_closed:
                    self._gate.notify_all()

    async def read_async(self, body: Body[T]) -> T:
        """Run a body on one snapshot, for a caller in an event loop."""
        if self._reads is None:
            return await self.writer.run_async(body)
        await self.open_async()
        loop = asyncio.get_running_loop()
        with self._gate:
            self._require_open()
            reading = loop.run_in_executor(self._readers, self._read, self._reads, body)
        return await reading

    def _is_new(self) -> bool:
        """Return whether the database is not the one that was read last."""
        return self._identity is None or self._identity != self._database.identify()

    def _require_open(self) -> None:
        if self.is_closed:
            raise StoppedError

    def _read(self, engine: Engine, body: Body[T]) -> T:
        with engine.connect() as connection:
            return _run_read(connection, self._database, body)

    def read_at_once(self, body: Body[T]) -> tuple[T] | None:
        """Run a body on the connection that never waits; ``None``: it would have to."""
        if self._reads not in self._engines or self._is_new() or not self._peeking.acquire(False):
            return None
        try:
            if self.is_closed:
                return None
            if self._peeker is None:
                self._peeker = self._writes.connect()
                self._peeker.connection.cursor().execute("PRAGMA busy_timeout=0")
                self._driver = find_driver(self._peeker)
            self._database.begin_read(self._peeker, self._driver)
            try:
                return (body(self._peeker),)
            finally:
                is_sqlalchemys = self._driver is None or self._peeker.in_transaction()
                (self._peeker if is_sqlalchemys else self._driver).rollback()
        except self._database.driver_errors:  # such as a lock
            self._drop_peeker()
            return None
        finally:
            self._peeking.release()

    def _drop_peeker(self) -> None:
        """Close the connection of ``read_at_once``, whose lock is held."""
        peeker, self._peeker, self._driver = self._peeker, None, None
        if peeker is not None:
            peeker.close()

    def _release_readers(self) -> None:
        """Close the connections to a database that is no longer there."""
        with self._peeking:
            self._drop_peeker()
        if self._reads is not None and self._reads in self._engines:
            self._reads.dispose()

    def forget(self) -> None:
        """Detach the finalizer: a forked child leaves the parent's resources open."""
        if self.finalizer is not None:
            self.finalizer.detach()

    def close(self) -> None:
        """Finish what was submitted, then close everything."""
        if self.pid != os.getpid():
            return
        self.forget()
        with self._gate:
            self.is_closed = True
        self.writer.stop()
        self._readers.shutdown()
        with self._gate:
            self._gate.wait_for(lambda: not self._reading)
        with self._peeking:
            self._drop_peeker()
        for engine in self._engines:
            engine.dispose()


class AsyncEngineRunner:
    """Runs bodies on an async engine that the caller handed in, and leaves it open.

    Args:
        database: What differs per database.
        engine: Used, never disposed of.
        shares_connection: All share one connection, so that reads wait for writes too.
    """

    runs_in_threads = False

    def __init__(
        self, database: Database, engine: AsyncEngine, *, shares_connection: bool = False
    ) -> None:
        self._database = database
        self._engine = engine
        self._shares_connection = shares_connection
        self._is_opened = False
        self._opening = threading.Lock()
        self._locks = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_pool = isinstance(engine.pool, QueuePool)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._blocked: tuple[float, Exception] | None = None
        """When the last write began to wait for the lock, if it did so in vain, and its error."""

    def _require_own_loop(self) -> None:
        """Require the event loop of the pool: SQLAlchemy's pool wakes no waiter of another loop."""
        loop, known = asyncio.get_running_loop(), self._loop
        if self._has_pool and known is not None and known is not loop and known.is_running():
            raise InvalidArgumentError(
                "an async engine with a pool belongs to one event loop at a time; make it with "
                "poolclass=NullPool to use it from several"
            )
        self._loop = loop

    async def write(self, body: Body[T], *, thread_id: str | None = None) -> T:
        """See ``Runner``; writes run in order of submission, which the database does not ensure."""
        self._require_own_loop()
        return await self._run_shielded(self._run_alone(_run_write, body))

    async def read(self, body: Body[T]) -> T:
        self._require_own_loop()
        if self._shares_connection:
            return await self._run_shielded(self._run_alone(_run_read, body))
        await self._ensure_open()
        async with self._engine.connect() as connection:
            return await connection.run_sync(_run_read, self._database, body)

    query = read

    async def open(self) -> None:
        self._require_own_loop()
        await self._ensure_open()

    async def _run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await loops.await_to_end(task)

    async def _run_alone(
        self, run: Callable[[Connection, Database, Body[T]], T], body: Body[T]
    ) -> T:
        since = monotonic()
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            if self._blocked is not None and since <= self._blocked[0]:
                raise self._blocked[1]  # this write has waited for as long
            await self._ensure_open()
            async with self._engine.connect() as connection:
                begun, self._blocked = monotonic(), None
                try:
                    return await connection.run_sync(run, self._database, body)
                except Exception as exc:
                    if find_code(exc) == "SQLITE_BUSY":
                        self._blocked = begun, exc
                    raise

    async def _ensure_open(self) -> None:
        """Open once: SQLAlchemy's lock around the first connection belongs to one event loop."""
        if self._is_opened:
            return
        await asyncio.to_thread(self._opening.acquire)
        try:
            if not self._is_opened:
                async with self._engine.connect() as connection:
                    await connection.run_sync(self._database.open)
                self._is_opened = True
                observe.report_opened(self._database)
        finally:
            self._opening.release()

    async def close(self) -> None:
        """See ``Runner``; the engine stays open, as its owner closes it."""
        loop = asyncio.get_running_loop()
        if mine := {it for it in self._tasks if it.get_loop() is loop}:
            await asyncio.wait(mine)


def _run_read(connection: Connection, database: Database, body: Body[T]) -> T:
    database.begin_read(connection)
    try:
        return body(connection)
    finally:
        connection.rollback()


def _run_write(connection: Connection, database: Database, body: Body[T]) -> T:
    database.begin_write(connection)
    try:
        result = body(connection)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return result
