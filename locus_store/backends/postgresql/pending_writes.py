"""Pending writes in groups: those that arrive while a statement runs share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain
from typing import Any
from weakref import proxy

from sqlalchemy.exc import TimeoutError as NoConnectionError

from locus_store.backends.postgresql.dialect import PostgreSQLDatabase
from locus_store.errors import ConnectionFailedError, LocusStoreError
from locus_store.runtime import observe
from locus_store.runtime.gathering import Failed, Gathering, GroupLimits, Undecided
from locus_store.sql.connections.backend import GROUP_BYTES
from locus_store.sql.connections.pool import LoopPool
from locus_store.sql.threads.pending import list_fields
from locus_store.versions import PutWrites
from locus_store.versions.archives import compute_write_checksum
from locus_store.versions.renewing import compute_ttl_slack


def _list_tasks(put: PutWrites) -> set[tuple[str, ...]]:
    place = put.thread_id, put.namespace, put.checkpoint_id
    return {(*place, it.task_id) for it in put.writes}


def _make_head(put: PutWrites) -> tuple[Any, ...]:
    """Return the statement's parameters for the place of the writes."""
    names = (put.thread_id, put.namespace, put.checkpoint_id)
    known, ttl = put.known, put.ttl_seconds
    version = (known.sequence, known.line, known.digest) if known else (None, None, None)
    slack = None if ttl is None else compute_ttl_slack(ttl)
    return (*names, *version, put.must_exist, ttl, slack, put.turn)


def _make_rows(put: PutWrites) -> list[tuple[Any, ...]]:
    name = put.checkpoint_id
    return [(*list_fields(it), compute_write_checksum(name, it) + it.payload) for it in put.writes]


class WriteBatches:
    """The pending writes of one event loop; no two of a batch are of the same task and index.

    Args:
        pool: Its connections.
        database: What is written to.
        size: Batches in one statement at most.
        workers: Statements under way at once.
    """

    def __init__(
        self, pool: LoopPool, database: PostgreSQLDatabase, *, size: int, workers: int
    ) -> None:
        self._pool: LoopPool = proxy(pool)
        self._database = database
        limits = GroupLimits(count=size, workers=workers, size=GROUP_BYTES)
        self._calls: Gathering[PutWrites, bool] = Gathering(
            self._answer, limits, _list_tasks, send=self._send, spawn=self._spawn
        )

    async def submit(self, batch: PutWrites) -> bool:
        """Store a batch; ``False``: nothing was stored, and only a transaction can decide."""
        return await self._calls.submit(batch, size=sum(len(it.payload) for it in batch.writes))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._pool.spawn(work)  # of a proxy: the method itself would keep the connections

    def _send(self, batch: PutWrites, answer: Callable[[bool | Failed | Undecided], None]) -> bool:
        def ended(rows: list[Any] | BaseException) -> None:
            self._pool.note_write(batch.thread_id)
            if not isinstance(rows, BaseException):
                answer(bool(rows))
                return
            self._pool.note(rows)
            if isinstance(rows, Exception) and self._database.is_lost_connection(rows):
                observe.report_retry("connection", rows)
                answer(Undecided.AGAIN)
            else:
                answer(Failed(rows))

        return self._pool.send(*self._make_statement([batch]), ended)

    async def _answer(
        self, batches: Sequence[PutWrites], is_alone: bool
    ) -> Sequence[bool | Failed | Undecided]:
        try:
            stored = await self._pool.retry(lambda: self._run(batches))
        except Exception as exc:
            is_known = isinstance(exc, (LocusStoreError, *self._database.driver_errors))
            is_away = isinstance(exc, (ConnectionFailedError, NoConnectionError))
            is_away = is_away or self._database.is_lost_connection(exc)  # each would wait again
            if len(batches) == 1 or is_away or not is_known:
                raise
            return [Undecided.ALONE] * len(batches)  # the faulty one is found by running each alone
        return [number in stored for number in range(len(batches))]

    async def _run(self, batches: Sequence[PutWrites]) -> set[int]:
        """Run the statement; return the positions of the batches that were stored."""
        try:
            async with self._pool.lease_driver() as connection:
                text, values = self._make_statement(batches)
                found = await connection.fetch(text, *values)
        finally:
            for thread_id in {it.thread_id for it in batches}:
                self._pool.note_write(thread_id)
        return {row["number"] for row in found}

    def _make_statement(self, batches: Sequence[PutWrites]) -> tuple[str, tuple[Any, ...]]:
        database, fast = self._database, self._database.fast
        common = database.tenant, database.opened.store
        [batch, *others] = batches
        # Which version has to be found; see ``contents.VERSIONS``.
        version = "known" if batch.known else "stored" if batch.must_exist else "any"
        lone = None if others else fast.put_lone.get((len(batch.writes), version))
        if lone is not None:
            return lone, (*common, *_make_head(batch), *chain.from_iterable(_make_rows(batch)))
        heads = [(number, *_make_head(it)) for number, it in enumerate(batches)]
        rows = [(number, *row) for number, it in enumerate(batches) for row in _make_rows(it)]
        places, writes = zip(*heads, strict=True), zip(*rows, strict=True)
        return fast.put_writes, (*common, *places, *writes)
