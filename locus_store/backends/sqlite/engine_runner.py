"""The runner over an asynchronous SQLAlchemy engine for SQLite that a caller handed in."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy.pool import QueuePool

from locus_store.errors import InvalidArgumentError
from locus_store.runtime import loops, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

    from locus_store.sql.connections.database import Database
    from locus_store.sql.connections.runner import Body

T = TypeVar("T")


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
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_pool = isinstance(engine.pool, QueuePool)
        self._loop: asyncio.AbstractEventLoop | None = None

    def _require_own_loop(self) -> None:
        """Require the event loop of the pool: SQLAlchemy's pool wakes no waiter of another loop."""
        loop, known = asyncio.get_running_loop(), self._loop
        if self._has_pool and known is not None and known is not loop and known.is_running():
            raise InvalidArgumentError(
                "an async engine with a pool belongs to one event loop at a time; make it with "
                "poolclass=NullPool to use it from several"
            )
        self._loop = loop

    async def write(self, body: Body[T]) -> T:
        """See ``Runner``; writes run in order of submission, which the database does not ensure."""
        self._require_own_loop()
        return await self._shielded(self._alone(self._in_transaction, body))

    async def read(self, body: Body[T]) -> T:
        """See ``Runner``."""
        self._require_own_loop()
        if self._shares_connection:
            return await self._shielded(self._alone(self._on_snapshot, body))
        await self._opened()
        async with self._engine.connect() as connection:
            return await connection.run_sync(self._on_snapshot, body)

    async def query(self, body: Body[T]) -> T:
        """See ``Runner``."""
        return await self.read(body)

    async def ready(self) -> None:
        """See ``Runner``."""
        self._require_own_loop()
        await self._opened()

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await loops.outlasting(task)

    async def _alone(self, run: Callable[[Connection, Body[T]], T], body: Body[T]) -> T:
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            await self._opened()
            async with self._engine.connect() as connection:
                return await connection.run_sync(run, body)

    async def _opened(self) -> None:
        """Open once: SQLAlchemy's lock around the first connection belongs to one event loop."""
        if self._is_opened:
            return
        await asyncio.to_thread(self._opening.acquire)
        try:
            if not self._is_opened:
                async with self._engine.connect() as connection:
                    await connection.run_sync(self._database.opened)
                self._is_opened = True
                observe.opened(self._database)
        finally:
            self._opening.release()

    def _in_transaction(self, connection: Connection, body: Body[T]) -> T:
        self._database.begin_write(connection)
        try:
            result = body(connection)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        return result

    def _on_snapshot(self, connection: Connection, body: Body[T]) -> T:
        self._database.begin_read(connection)
        try:
            return body(connection)
        finally:
            connection.rollback()

    async def close(self) -> None:
        """See ``Runner``; the engine stays open, as its owner closes it."""
        loop = asyncio.get_running_loop()
        if mine := {it for it in self._tasks if it.get_loop() is loop}:
            await asyncio.wait(mine)
