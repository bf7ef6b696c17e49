"""The connections of one event loop, and their leases to the driver's own statements."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy.util
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import AsyncAdaptedQueuePool, ConnectionPoolEntry
from sqlalchemy.util import memoized_property
from sqlalchemy.util.queue import AsyncAdaptedQueue

from locus_store.runtime import driven, loops, observe
from locus_store.sql.connections.database import (
    LostConnectionError,
    ServerDatabase,
    UnconfirmedError,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


PING_SECONDS: Final = 1.0
"""A connection that was idle for longer is tried before it is used.

A connection that is leased again and again goes through SQLAlchemy's checkout once in this time.
"""

PING_LIMIT_SECONDS: Final = 2.0
"""A connection that does not answer in this time is replaced, and so are all older ones."""

SILENT_SECONDS: Final = 3.0
"""A call that takes longer may wait for a connection that a firewall or a host has forgotten."""

READER_SECONDS: Final = 5.0
"""A database that is read-only by default is connected to again after this time, and not for each
save: it may be a primary that was fenced before the standby took its place."""

LOOK_SECONDS: Final = 1.0
"""Between two looks for such calls."""


@dataclass(slots=True)
class Lease:
    """A connection of the driver, in autocommit."""

    entry: Any
    """SQLAlchemy's: a ``ConnectionPoolEntry``, or what its checkout returns."""

    pool: ConnectionPool | None = None
    """The pool that it was taken from; ``None``: SQLAlchemy has checked it out."""

    @property
    def driver(self) -> Any:
        return self.entry.driver_connection


class LeasingPool(loops.LoopResources):
    """The connections of one event loop.

    Args:
        database: What differs per database.
        engine: Its connections.
        owns_engine: Whether the engine is ours, so that its connections are tried before use.
    """

    def __init__(self, database: ServerDatabase, engine: AsyncEngine, *, owns_engine: bool) -> None:
        super().__init__()
        self.database = database
        self._engine = engine
        self._sync = engine.sync_engine
        self._is_over = False
        """The pool was disposed of: connections still in use are closed afterwards."""
        self._lost_at = time.monotonic()
        self._dead_at = self._lost_at
        """Connections that were opened before are replaced when they are idle."""
        self._connections: WeakSet[Any] = WeakSet()
        self._readers: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        """Those to a database that is read-only by default, and the time until it is believed."""
        self._working: dict[Any, float] = {}
        """The connections with a call under way, and its beginning."""
        self._looking: asyncio.TimerHandle | None = None
        self._looked_at = self._lost_at
        self._is_watching = owns_engine
        if owns_engine:
            event.listen(self._sync, "connect", self._note_new)
            event.listen(self._sync, "checkin", _note_use)
            event.listen(self._sync, "checkout", self._try_idle)

    @asynccontextmanager
    async def lease_driver(self) -> AsyncIterator[Any]:
        """Borrow a connection of the driver, in autocommit."""
        lease = self._take_idle() or Lease(await spawn_greenlet(self._sync.raw_connection))
        async with self._lend(lease):
            yield lease.driver

    def send(
        self,
        query: str,
        values: tuple[Any, ...],
        callback: Callable[[list[Any] | BaseException], None],
        *,
        timeout_seconds: float | None = None,
    ) -> bool:
        """Send a statement in this step; ``False``: no connection was ready, nothing was sent.

        Args:
            query: The statement.
            values: Its parameters.
            callback: Called once with the rows or the error, even if the caller is cancelled.
            timeout_seconds: Of the statement; ``None``: the connection's.
        """
        lease = self._take_idle()
        if lease is None:
            return False
        self._watch(lease.driver)
        work = lease.driver.fetch(query, *values, timeout=timeout_seconds)
        self.step(work, partial(self._finish_call, lease, callback))
        return True

    def _finish_call(
        self, lease: Lease, callback: Callable[[Any], None], rows: list[Any] | BaseException
    ) -> None:
        self._working.pop(lease.driver, None)
        if self.database.is_unconfirmed(lease.driver):
            rows = UnconfirmedError()
        if isinstance(rows, BaseException) and self._is_spoilt(lease, rows):
            lease.entry.invalidate()
            if isinstance(rows, Exception):
                error = LostConnectionError()
                error.__cause__, rows = rows, error
        if not self._put_back(lease):
            self.spawn(spawn_greenlet(self._put_away, lease))
        callback(rows)

    def _take_idle(self) -> Lease | None:
        """Take an idle connection that needs no checkout; ``None`` if there is none."""
        pool = self._sync.pool
        if not isinstance(pool, ConnectionPool) or self._is_over:
            return None
        entry = pool.take(self._is_ready)
        return None if entry is None else Lease(entry, pool)

    def _is_ready(self, entry: ConnectionPoolEntry) -> bool:
        """Return whether SQLAlchemy has tried a connection lately, and nothing failed since."""
        tried_at = entry.info.get("tried_at")
        return (
            tried_at is not None
            and tried_at > max(self._lost_at, time.monotonic() - PING_SECONDS)
            and not self._is_old(entry)
            and entry.driver_connection is not None
        )

    @asynccontextmanager
    async def _lend(self, lease: Lease) -> AsyncIterator[None]:
        """Return a connection at the end, or drop it."""
        driver = lease.driver
        self._watch(driver)
        try:
            yield
            self._require_confirmed(driver)
        except BaseException as exc:
            self._working.pop(driver, None)
            if self._is_spoilt(lease, exc):
                await spawn_greenlet(lease.entry.invalidate)
                if isinstance(exc, Exception):
                    raise LostConnectionError from exc
            raise
        finally:
            self._working.pop(driver, None)
            if not self._put_back(lease):
                await spawn_greenlet(self._put_away, lease)

    def _require_confirmed(self, driver: Any) -> None:
        """Drop the connection of a commit that has not waited for its standby; raise."""
        if self.database.is_unconfirmed(driver):
            raise UnconfirmedError

    def _is_spoilt(self, lease: Lease, exc: BaseException) -> bool:
        """Return whether a connection is to be dropped after an error."""
        lease.entry.info.pop("tried_at", None)  # the answer to a statement may be outstanding
        lease.entry.info["is_unsure"] = True
        return not isinstance(exc, Exception) or self._is_dead(lease.driver, exc)

    def _put_back(self, lease: Lease) -> bool:
        """Return a connection without a greenlet; ``False`` if it takes one."""
        if lease.pool is None or self._is_over:
            return False
        lease.entry.info["used_at"] = time.monotonic()
        return lease.pool.put_back(lease.entry)

    def _put_away(self, lease: Lease) -> None:
        if lease.pool is None:
            if self._is_over:
                lease.entry.detach()
            lease.entry.close()
            return
        if self._is_over:
            lease.entry.close()
        lease.pool.put_away(lease.entry)

    def _is_dead(self, driver: Any, exc: Exception) -> bool:
        if self.database.is_lost_primary(exc) and self._readers.get(driver, 0) < time.monotonic():
            self._replace_all()  # the others lead to the same server
            return True
        return self.database.is_closed(driver) or self.database.is_lost_connection(exc)

    def _note_new(self, connection: Any, record: Any) -> None:
        driver = connection.driver_connection
        record.info["made_at"] = time.monotonic()
        self._connections.add(driver)
        if self.database.is_reader(driver):
            self._readers[driver] = time.monotonic() + READER_SECONDS

    def _is_old(self, record: Any) -> bool:
        return bool(record.info.get("made_at", self._dead_at) <= self._dead_at)

    def _replace_all(self) -> None:
        """Close the idle connections; those in use are replaced when they are lent again."""
        self._dead_at = time.monotonic()
        pool = self._sync.pool
        if isinstance(pool, ConnectionPool):
            for entry in list(pool.idle):
                if entry.driver_connection is not None:
                    entry.driver_connection.terminate()

    def _try_idle(self, connection: Any, record: Any, fairy: Any) -> None:
        """Test a connection before use if it was idle, or if others were lost since."""
        now = time.monotonic()
        used_at = record.info.get("used_at", now)
        is_unsure = record.info.pop("is_unsure", False)
        if self._is_old(record):
            connection.driver_connection.terminate()
            raise DisconnectionError
        if is_unsure or used_at <= max(self._lost_at, now - PING_SECONDS):
            try:
                self._ping(connection.driver_connection)
            except Exception as exc:
                observe.report_replaced("an idle connection is lost", exc)
                raise DisconnectionError from exc
        record.info["tried_at"] = time.monotonic()

    def _ping(self, driver: Any) -> None:
        try:
            await_only(asyncio.wait_for(self.database.ping(driver), PING_LIMIT_SECONDS))
        except TimeoutError:
            self._replace_all()
            driver.terminate()
            raise

    def _watch(self, driver: Any) -> None:
        """Note that a call has begun; see ``SILENT_SECONDS``."""
        if not self._is_watching:
            return
        self._working[driver] = time.monotonic()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        if self._is_over or not self._working:
            return
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        before, self._looked_at = self._looked_at, time.monotonic()
        silent = {
            driver: began_at
            for driver, began_at in self._working.items()
            if _count_questions(self._looked_at - began_at) > _count_questions(before - began_at)
        }
        if silent:
            self.spawn(self._end_forgotten(silent))

    async def _end_forgotten(self, silent: dict[Any, float]) -> None:
        """End the calls of which the server knows nothing; they are repeated where that is safe."""
        for driver in await self._find_forgotten([*silent]):
            if self._working.get(driver) == silent[driver]:  # else this is another call by now
                self._replace_all()
                driver.terminate()

    @abstractmethod
    async def _find_forgotten(self, drivers: list[Any]) -> list[Any]:
        """Return those of the connections on which the server does no work."""


def _count_questions(seconds: float) -> int:
    """Return how often the server is asked about a call in its first seconds.

    After ``SILENT_SECONDS``, and whenever twice the time has passed: the answer to a statement that
    the server was still at work on may be lost afterwards.
    """
    return int(max(0.0, seconds) / SILENT_SECONDS).bit_length()


def _note_use(connection: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


class FairQueue(asyncio.LifoQueue[Any]):
    """A stack that hands an item to the caller that has waited longest.

    asyncio's own queue wakes that caller, but gives the item to the next one that asks. A caller
    that returns a connection and takes one again in the same step would always get it.
    """

    def __init__(self, maxsize: int) -> None:
        super().__init__(maxsize)
        self._waiting: deque[asyncio.Future[Any]] = deque()

    def put_nowait(self, item: Any) -> None:
        """Hand the item to the first caller that waits, or keep it."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(item)
                return
        super().put_nowait(item)

    async def get(self) -> Any:
        """Return the item that was put last, or wait for one."""
        if not self.empty():
            return self.get_nowait()
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if not waiting.cancelled():  # an item was handed over in the same step
                self.put_nowait(waiting.result())
            raise


class _IdleConnections(AsyncAdaptedQueue[Any]):
    @memoized_property
    def _queue(self) -> asyncio.Queue[Any]:
        return FairQueue(self.maxsize)


class ConnectionPool(AsyncAdaptedQueuePool):
    """SQLAlchemy's pool, whose idle connections can also be taken without a checkout.

    A checkout and the return take two greenlet switches, events and a reset: 80 µs, where a
    statement takes 50. A connection that is taken counts as checked out.
    """

    __module__ = AsyncAdaptedQueuePool.__module__  # SQLAlchemy names its logger by it
    _queue_class = _IdleConnections

    def take(self, is_ready: Callable[[ConnectionPoolEntry], bool]) -> ConnectionPoolEntry | None:
        """Take the next idle connection; ``None`` if there is none, or if it is not ready."""
        idle = self.idle
        return idle.pop() if idle and is_ready(idle[-1]) else None

    @property
    def idle(self) -> list[ConnectionPoolEntry]:
        """The idle connections, the one that is taken next at the end."""
        queue: Any = self._pool
        return queue._queue._queue  # type: ignore[no-any-return]  # noqa: SLF001  (SQLAlchemy's queue, and asyncio's in it)

    def put_back(self, entry: ConnectionPoolEntry) -> bool:
        """Return a connection that was taken; ``False``: only ``put_away`` can."""
        if self._pool.full():
            return False
        self._pool.put_nowait(entry)
        return True

    def put_away(self, entry: ConnectionPoolEntry) -> None:
        """Return a connection that was taken, in a greenlet; close it if there are enough."""
        self._do_return_conn(entry)


T = TypeVar("T")


await_only = sqlalchemy.util.await_only
"""Wait in a greenlet, without ``await``."""


async def spawn_greenlet(work: Callable[..., T], *args: Any) -> T:
    """Run ``work`` in a greenlet, which cannot continue in another thread."""
    async with driven.OneThread():
        return await sqlalchemy.util.greenlet_spawn(work, *args)


async def dispose(engine: AsyncEngine) -> None:
    """Close an engine's connections, which takes a greenlet."""
    async with driven.OneThread():
        await engine.dispose()
