"""Pending writes in groups: those that arrive while a statement runs share the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import proxy

from locus_store.errors import LocusStoreError
from locus_store.runtime import loops, observe
from locus_store.sql.columns.types import encode_key
from locus_store.sql.connections.runner import GROUP_BYTES
from locus_store.versions.archives import sealed
from locus_store.versions.renewing import ttl_slack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.backends.postgresql.dialect import PostgreSQLDatabase
    from locus_store.sql.connections.pool import LoopPool
    from locus_store.types import Mark, MustExist, PendingWrite


@dataclass(frozen=True, slots=True)
class Batch:
    """Writes on one checkpoint, no two of the same task and index."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    writes: Sequence[PendingWrite]
    known: Mark | None
    """The version that writes with a ``basis`` are frames against."""

    must_exist: MustExist | None
    ttl_seconds: float | None

    @property
    def size(self) -> int:
        """The payloads' size in bytes."""
        return sum(len(it.payload) for it in self.writes)

    @property
    def tasks(self) -> set[tuple[str, ...]]:
        """The tasks whose writes these are."""
        place = self.thread_id, self.namespace, self.checkpoint_id
        return {(*place, it.task_id) for it in self.writes}

    def head(self) -> tuple[Any, ...]:
        """Return the statement's parameters for the place of the writes."""
        names = (self.thread_id, self.namespace, self.checkpoint_id)
        known, ttl = self.known, self.ttl_seconds
        version = (known.sequence, known.line, known.digest) if known else (None, None, None)
        slack = None if ttl is None else ttl_slack(ttl)
        return (*map(encode_key, names), *version, self.must_exist, ttl, slack)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the writes as the statement's rows."""
        return [
            (
                encode_key(it.task_id),
                it.idx,
                encode_key(it.channel),
                encode_key(it.type),
                it.task_path,
                it.basis,
                sealed(self.checkpoint_id, it),
            )
            for it in self.writes
        ]


@dataclass(slots=True)
class _Item:
    batch: Batch
    done: asyncio.Future[bool]

    def answer(self, result: bool | BaseException) -> None:
        """Pass the result to the caller, unless it was cancelled."""
        if self.done.done():  # cancelled
            return
        if isinstance(result, BaseException):
            loops.fail(self.done, result)
        else:
            self.done.set_result(result)


class WriteBatches:
    """The pending writes of one event loop.

    Args:
        home: Its connections.
        database: What is written to.
        size: Batches in one statement at most.
        senders: Statements under way at once.
    """

    def __init__(
        self, home: LoopPool, database: PostgreSQLDatabase, *, size: int, senders: int
    ) -> None:
        self._home: LoopPool = proxy(home)
        self._database = database
        self._size = size
        self._idle_senders = senders
        self._last_size = 1
        """Batches of the last statement."""
        self._ready: deque[_Item] = deque()

    async def submit(self, batch: Batch) -> bool:
        """Store a batch; ``False``: nothing was stored, and only a transaction can decide."""
        item = _Item(batch, asyncio.get_running_loop().create_future())
        if not self._sends_now(item):
            self._ready.append(item)
            self._wake()
        return await item.done

    def _sends_now(self, item: _Item) -> bool:
        """Send a batch in its caller's step, if no other is there to share a statement."""
        if self._last_size > 1 or self._ready or not self._idle_senders:
            return False
        put_writes, values = self._database.hot.put_writes, self._values([item.batch])
        self._idle_senders -= 1
        is_sent = self._home.send(put_writes, values, partial(self._answered, item))
        if not is_sent:
            self._idle_senders += 1
        return is_sent

    def _answered(self, item: _Item, rows: list[Any] | BaseException) -> None:
        """Answer a batch that was sent in its caller's step."""
        self._idle_senders += 1
        if not isinstance(rows, BaseException):
            item.answer(bool(rows))
        elif isinstance(rows, Exception) and self._database.lost_connection(rows):
            self._home.note(rows)
            observe.retried("connection", rows)
            self._ready.appendleft(item)
        else:
            self._home.note(rows)
            item.answer(rows)
        self._wake()

    def _wake(self) -> None:
        while self._ready and self._ready[0].done.done():  # its caller was cancelled
            self._ready.popleft()
        if self._ready and self._idle_senders:
            self._idle_senders -= 1
            group = self._take()
            self._home.spawn(self._send(group)).add_done_callback(lambda it: self._ended(group, it))

    def _ended(self, group: list[_Item], sender: asyncio.Task[None]) -> None:
        self._idle_senders += 1
        if sender.cancelled() or sender.exception():
            for item in group:
                item.done.cancel()
        self._wake()

    def _take(self) -> list[_Item]:
        """Return the next group; each task is in it once, so that no row is written twice."""
        group: list[_Item] = []
        tasks: set[tuple[str, ...]] = set()
        size = 0
        while self._ready and len(group) < self._size:
            batch = self._ready[0].batch
            size += batch.size
            if group and (size > GROUP_BYTES or not tasks.isdisjoint(batch.tasks)):
                break
            tasks |= batch.tasks
            group.append(self._ready.popleft())
        return group

    async def _send(self, group: list[_Item]) -> None:
        self._last_size = len(group)
        try:
            stored = await self._home.again(lambda: self._run([it.batch for it in group]))
        except Exception as exc:
            if not isinstance(exc, (LocusStoreError, *self._database.driver_errors)):
                raise
            if len(group) == 1:
                group[0].answer(exc)
                return
            for item in group:  # the faulty one is found by running each alone
                await self._send([item])
            return
        for number, item in enumerate(group):
            item.answer(number in stored)

    async def _run(self, batches: Sequence[Batch]) -> set[int]:
        """Run the statement; return the positions of the batches that were stored."""
        async with self._home.driver() as connection:
            found = await connection.fetch(self._database.hot.put_writes, *self._values(batches))
        return {row["number"] for row in found}

    def _values(self, batches: Sequence[Batch]) -> tuple[Any, ...]:
        """Return the statement's parameters."""
        database = self._database
        heads = [(number, *it.head()) for number, it in enumerate(batches)]
        rows = [(number, *row) for number, it in enumerate(batches) for row in it.rows()]
        places, writes = zip(*heads, strict=True), zip(*rows, strict=True)
        return (encode_key(database.tenant), database.store, *places, *writes)
