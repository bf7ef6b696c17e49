"""Pending writes in groups: those that arrive while a statement runs share the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import proxy

from locus_store.errors import LocusStoreError
from locus_store.runtime import observe
from locus_store.runtime.gathering import Failed, Gathering, GroupLimits, Undecided
from locus_store.sql.columns.types import encode_key
from locus_store.sql.connections.backend import GROUP_BYTES
from locus_store.versions.archives import add_checksum
from locus_store.versions.renewing import compute_ttl_slack

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from locus_store.backends.postgresql.dialect import PostgreSQLDatabase
    from locus_store.sql.connections.pool import LoopPool
    from locus_store.types import Mark, MustExist, PendingWrite


# Batches of writes, each on a line of a live thread; the line is created if it is missing. If
# another transaction is about to remove versions or the line, a transaction has to decide. Two
# statements may add to one checkpoint. A version that is removed while the statement runs may leave
# a write behind, which every reader ignores. A SELECT hides the length of the first array: with one
# row, PostgreSQL would plan each statement anew.
PUT_WRITES: Final = """
WITH b AS MATERIALIZED (
  SELECT * FROM unnest((SELECT $3::int[]), $4::text[], $5::text[], $6::text[], $7::bigint[],
      $8::bigint[], $9::bytea[], $10::text[], $11::double precision[], $12::double precision[])
    b (number, thread_id, namespace, checkpoint_id, sequence, line, digest, must_exist, ttl, slack)
  WHERE (SELECT s.value FROM {settings} s WHERE s.name = 'store_id') = $2),
there AS MATERIALIZED (
  SELECT t.thread_id, b.namespace FROM b CROSS JOIN LATERAL (
    SELECT t.thread_id FROM {threads} t
    WHERE t.tenant = $1 AND t.thread_id = b.thread_id
      AND (t.expires_at IS NULL OR t.expires_at > statement_timestamp())
    FOR KEY SHARE SKIP LOCKED) t
  WHERE b.sequence IS NULL AND {may_come_first} AND (SELECT l.line FROM {lines} l
    WHERE l.tenant = $1 AND l.thread_id = b.thread_id AND l.namespace = b.namespace) IS NULL),
new_lines AS (
  INSERT INTO {lines} (tenant, thread_id, namespace, updated_at)
  SELECT $1, t.thread_id, t.namespace, statement_timestamp() FROM there t
  ORDER BY t.thread_id COLLATE "C", t.namespace COLLATE "C"
  ON CONFLICT (tenant, thread_id, namespace) DO NOTHING
  RETURNING line, thread_id, namespace),
l AS MATERIALIZED (
  SELECT b.number, b.checkpoint_id, b.thread_id, b.ttl, b.slack, n.line
  FROM b JOIN new_lines n ON n.thread_id = b.thread_id AND n.namespace = b.namespace
  UNION ALL
  SELECT b.number, b.checkpoint_id, b.thread_id, b.ttl, b.slack, l.line
  FROM b CROSS JOIN LATERAL (
    SELECT l.line FROM {lines} l
    WHERE l.tenant = $1 AND l.thread_id = b.thread_id AND l.namespace = b.namespace
      AND (SELECT t.expires_at IS NULL OR t.expires_at > statement_timestamp() FROM {threads} t
        WHERE t.tenant = $1 AND t.thread_id = b.thread_id)
      AND (b.sequence IS NULL OR (SELECT c.sequence FROM {checkpoints} c WHERE c.line = b.line
        AND c.line = l.line AND c.checkpoint_id = b.checkpoint_id AND c.digest = b.digest)
        = b.sequence)
      AND ({may_come_first} OR (SELECT c.sequence FROM {checkpoints} c
        WHERE c.line = l.line AND c.checkpoint_id = b.checkpoint_id) IS NOT NULL)
    FOR KEY SHARE SKIP LOCKED) l),
renewed AS (  -- It waits for no lock: whoever has it is active in the thread.
  UPDATE {threads} t SET expires_at = {expiry_of_writes}
  FROM (SELECT l.ttl, l.slack, o.thread FROM l CROSS JOIN LATERAL (
      SELECT t.thread FROM {threads} t WHERE t.tenant = $1 AND t.thread_id = l.thread_id
        AND t.expires_at < statement_timestamp() + make_interval(secs => l.ttl)
      FOR NO KEY UPDATE SKIP LOCKED) o
    WHERE l.ttl IS NOT NULL) l
  WHERE t.thread = l.thread),
kept AS (
  INSERT INTO {writes} AS w (line, checkpoint_id, task_id, idx, channel, type, task_path, basis,
    payload, created_at)
  SELECT l.line, l.checkpoint_id, i.task_id, i.idx, i.channel, i.type, i.task_path, i.basis,
    i.payload, statement_timestamp()
  FROM unnest((SELECT $13::int[]), $14::text[], $15::int[], $16::text[], $17::text[], $18::text[],
      $19::bigint[], $20::bytea[])
    i (number, task_id, idx, channel, type, task_path, basis, payload)
  JOIN l ON l.number = i.number
  ORDER BY l.line, l.checkpoint_id COLLATE "C", i.task_id COLLATE "C", i.idx
  ON CONFLICT (line, checkpoint_id, task_id, idx) DO UPDATE SET channel = excluded.channel,
    type = excluded.type, task_path = excluded.task_path, basis = excluded.basis,
    payload = excluded.payload, created_at = excluded.created_at
  WHERE w.idx < 0)
SELECT number FROM l
"""


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

    def list_tasks(self) -> set[tuple[str, ...]]:
        """The tasks whose writes these are."""
        place = self.thread_id, self.namespace, self.checkpoint_id
        return {(*place, it.task_id) for it in self.writes}

    def make_head(self) -> tuple[Any, ...]:
        """Return the statement's parameters for the place of the writes."""
        names = (self.thread_id, self.namespace, self.checkpoint_id)
        known, ttl = self.known, self.ttl_seconds
        version = (known.sequence, known.line, known.digest) if known else (None, None, None)
        slack = None if ttl is None else compute_ttl_slack(ttl)
        return (*map(encode_key, names), *version, self.must_exist, ttl, slack)

    def make_rows(self) -> list[tuple[Any, ...]]:
        """Return the writes as the statement's rows."""
        return [
            (
                encode_key(it.task_id),
                it.idx,
                encode_key(it.channel),
                encode_key(it.type),
                it.task_path,
                it.basis,
                add_checksum(self.checkpoint_id, it),
            )
            for it in self.writes
        ]


class WriteBatches:
    """The pending writes of one event loop.

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
        self._calls: Gathering[Batch, bool] = Gathering(
            self._answers, limits, Batch.list_tasks, send=self._sends, spawn=self._spawn
        )

    async def submit(self, batch: Batch) -> bool:
        """Store a batch; ``False``: nothing was stored, and only a transaction can decide."""
        return await self._calls.submit(batch, size=batch.size)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._pool.spawn(work)  # of a proxy: the method itself would keep the connections

    def _sends(self, batch: Batch, answered: Callable[[bool | Failed | Undecided], None]) -> bool:
        def ended(rows: list[Any] | BaseException) -> None:
            self._pool.note_write(batch.thread_id)
            if not isinstance(rows, BaseException):
                answered(bool(rows))
                return
            self._pool.note(rows)
            if isinstance(rows, Exception) and self._database.is_lost_connection(rows):
                observe.report_retry("connection", rows)
                answered(Undecided.AGAIN)
            else:
                answered(Failed(rows))

        return self._pool.send(*self._statement([batch]), ended)

    async def _answers(
        self, batches: Sequence[Batch], is_alone: bool
    ) -> Sequence[bool | Failed | Undecided]:
        del is_alone
        try:
            stored = await self._pool.retry(lambda: self._run(batches))
        except Exception as exc:
            is_known = isinstance(exc, (LocusStoreError, *self._database.driver_errors))
            if len(batches) == 1 or not is_known:
                raise
            return [Undecided.ALONE] * len(batches)  # the faulty one is found by running each alone
        return [number in stored for number in range(len(batches))]

    async def _run(self, batches: Sequence[Batch]) -> set[int]:
        """Run the statement; return the positions of the batches that were stored."""
        try:
            async with self._pool.lease_driver() as connection:
                text, values = self._statement(batches)
                found = await connection.fetch(text, *values)
        finally:
            for thread_id in {it.thread_id for it in batches}:
                self._pool.note_write(thread_id)
        return {row["number"] for row in found}

    def _statement(self, batches: Sequence[Batch]) -> tuple[str, tuple[Any, ...]]:
        """Return the statement that stores batches, and its parameters."""
        heads = [(number, *it.make_head()) for number, it in enumerate(batches)]
        rows = [(number, *row) for number, it in enumerate(batches) for row in it.make_rows()]
        common = encode_key(self._database.tenant), self._database.store
        places, writes = zip(*heads, strict=True), zip(*rows, strict=True)
        return self._database.fast.put_writes, (*common, *places, *writes)
