"""Statements of pending writes: read with the records of any versions, and stored in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from locus_store.sql.columns.types import decode_key, encode_key
from locus_store.types import LineContents, PendingWrite, Version
from locus_store.versions.archives import verify_checksum
from locus_store.versions.segments import LinesFound, RecordSegment, collect_payloads

# What the states of versions are made of, then their pending writes. OFFSET 0: looked up by key,
# where a join would read the whole of a small table. IS TRUE: without statistics, an index on the
# tenant looked better than one on the line.
CONTENTS: Final = """
WITH w AS MATERIALIZED (
  SELECT DISTINCT w.* FROM unnest($2::bigint[], $3::bigint[], $4::text[])
    w (line, sequence, checkpoint_id)
  CROSS JOIN LATERAL (SELECT FROM {lines} l
    WHERE l.line = w.line AND (l.tenant = $1) IS TRUE OFFSET 0) l),
k AS MATERIALIZED (
  SELECT c.line, c.chain, max(c.sequence) AS last
  FROM w CROSS JOIN LATERAL {wanted} c WHERE c.sequence = w.sequence GROUP BY c.line, c.chain)
SELECT r.line, r.sequence AS number, r.chain, NULL::bigint AS last, r.payload,
  NULL AS checkpoint_id, NULL AS task_id, NULL AS channel, NULL AS type, NULL AS task_path,
  NULL::bigint AS basis
FROM k CROSS JOIN LATERAL (SELECT c.line, c.sequence, c.chain, c.payload FROM {checkpoints} c
  WHERE c.line = k.line AND c.chain = k.chain AND c.sequence BETWEEN k.chain AND k.last OFFSET 0) r
UNION ALL
SELECT s.line, s.first, s.chain, s.last, s.payload, NULL, NULL, NULL, NULL, NULL, NULL
FROM k CROSS JOIN LATERAL (SELECT * FROM {segments} s
  WHERE s.line = k.line AND s.chain = k.chain AND s.first <= k.last OFFSET 0) s
UNION ALL
SELECT x.line, x.idx, NULL, NULL, x.payload, x.checkpoint_id, x.task_id, x.channel, x.type,
  x.task_path, x.basis
FROM w CROSS JOIN LATERAL (SELECT * FROM {writes} x
  WHERE x.line = w.line AND x.checkpoint_id = w.checkpoint_id OFFSET 0) x
"""
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
_WRITE: Final = ("task_id", "number", "channel", "type", "task_path", "basis", "payload")


def make_parameters(versions: Sequence[Version]) -> tuple[list[Any], ...]:
    """Return the parameters of the statement, after the tenant."""
    return (
        [it.mark.line for it in versions],
        [it.mark.sequence for it in versions],
        [encode_key(it.checkpoint_id) for it in versions],
    )


def parse_contents(rows: Sequence[Mapping[str, Any]]) -> list[LineContents]:
    """Return the contents in rows of the statement."""
    found = LinesFound()
    for row in rows:
        if row["last"] is not None:
            named = [row[it] for it in ("chain", "number", "last", "payload")]
            found.add_segment(row["line"], RecordSegment(*named))
            continue
        if row["chain"] is not None:
            found.add_record(row["line"], row["number"], row["chain"], row["payload"])
            continue
        checkpoint_id = decode_key(row["checkpoint_id"])
        write = write_of(checkpoint_id, [row[name] for name in _WRITE])
        found.add_write(row["line"], checkpoint_id, write)
    return found.build_contents()


def write_of(checkpoint_id: str, values: Sequence[Any]) -> PendingWrite:
    """Return the pending write of the columns that a statement gives of it."""
    task_id, idx, channel, kind, path, basis, payload = values
    stored = PendingWrite(
        task_id=decode_key(task_id),
        idx=idx,
        channel=decode_key(channel),
        type=decode_key(kind or ""),
        payload=payload or b"",
        task_path=path or "",
        basis=basis,
    )
    return verify_checksum(checkpoint_id, stored)


def parse_payloads(row: Mapping[str, Any], after: int) -> list[bytes]:
    """Return the payloads from another version to that of a row."""
    segments = [RecordSegment(*it) for it in row["segments"] or ()]
    found = collect_payloads((), segments, after=after, upto=row["sequence"])
    return found if row["payload"] is None else [*found, row["payload"]]
