"""The statements that read the records and pending writes of versions, and that store writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from locus_store.sql.threads import pending
from locus_store.types import LineContents, PendingWrite, Version
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
_WRITE: Final = ("task_id", "number", "channel", "type", "task_path", "basis", "payload")


def make_parameters(versions: Sequence[Version]) -> tuple[list[Any], ...]:
    """Return the parameters of the statement, after the tenant."""
    return (
        [it.mark.line for it in versions],
        [it.mark.sequence for it in versions],
        [it.checkpoint_id for it in versions],
    )


def parse_contents(
    rows: Sequence[Mapping[str, Any]], versions: Sequence[Version]
) -> list[LineContents]:
    """Return the contents of versions in rows of the statement."""
    found = LinesFound(versions)
    for row in rows:
        if row["last"] is not None:
            named = [row[it] for it in ("chain", "number", "last", "payload")]
            found.add_segment(row["line"], RecordSegment(*named))
            continue
        if row["chain"] is not None:
            found.add_record(row["line"], row["number"], row["chain"], row["payload"])
            continue
        checkpoint_id = row["checkpoint_id"]
        write = write_of(checkpoint_id, [row[name] for name in _WRITE])
        found.add_write(row["line"], checkpoint_id, write)
    return found.build_contents()


def write_of(checkpoint_id: str, values: Sequence[Any]) -> PendingWrite:
    """Return the pending write of the columns that a statement gives of it."""
    task_id, idx, channel, kind, *rest = values
    names = checkpoint_id, task_id, idx, channel, kind or ""
    return pending.write_of((*names, *rest))


def parse_payloads(row: Mapping[str, Any], after: int) -> list[bytes]:
    """Return the payloads from another version to that of a row."""
    segments = [RecordSegment(*it) for it in row["segments"] or ()]
    found = collect_payloads((), segments, after=after, upto=row["sequence"])
    return found if row["payload"] is None else [*found, row["payload"]]


# Batches of writes, each on a line of a live thread, which is created if it is missing. Where
# another transaction is about to remove versions or the line, a transaction has to decide.
PUT_WRITES: Final = """
WITH b AS MATERIALIZED (
  -- A thread whose time to live is due is locked; the holder of its lock is waited for elsewhere.
  SELECT b.*, d.thread AS due FROM {batches} b (number, thread_id, namespace, checkpoint_id,
    sequence, line, digest, must_exist, ttl, slack, turn)
  LEFT JOIN LATERAL (SELECT t.thread FROM {threads} t
    WHERE b.ttl IS NOT NULL AND t.tenant = $1 AND t.thread_id = b.thread_id
      AND t.expires_at < statement_timestamp() + make_interval(secs => b.ttl) OFFSET 0) d ON true
  WHERE (SELECT s.value FROM {settings} s WHERE s.name = 'store_id') = $2 AND {turn_of_batch}
    AND (d.thread IS NULL OR (SELECT t.thread FROM {threads} t WHERE t.thread = d.thread
      FOR NO KEY UPDATE SKIP LOCKED) IS NOT NULL)),
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
  SELECT b.number, b.checkpoint_id, b.ttl, b.slack, b.due, n.line
  FROM b JOIN new_lines n ON n.thread_id = b.thread_id AND n.namespace = b.namespace
  UNION ALL
  SELECT b.number, b.checkpoint_id, b.ttl, b.slack, b.due, l.line
  FROM b CROSS JOIN LATERAL (
    SELECT l.line FROM {lines} l
    WHERE l.tenant = $1 AND l.thread_id = b.thread_id AND l.namespace = b.namespace
      AND (SELECT t.expires_at IS NULL OR t.expires_at > statement_timestamp() FROM {threads} t
        WHERE t.tenant = $1 AND t.thread_id = b.thread_id)
      AND {has_version}
      -- The version may be gone since the snapshot: then the row is another one when it is locked.
      AND ((b.sequence IS NULL AND b.must_exist IS NULL)
        OR l.xmin = (SELECT m.xmin FROM {lines} m WHERE m.line = l.line))
    FOR KEY SHARE SKIP LOCKED) l),
renewed AS (
  UPDATE {threads} t SET expires_at = {expiry_of_writes}
  FROM (  -- The condition, always true of a time to live, lets the planner expect few rows.
    SELECT l.due, max(l.ttl) AS ttl, max(l.slack) AS slack FROM l
    WHERE l.ttl > 0::float8 GROUP BY l.due) l
  WHERE t.thread = l.due
    AND t.expires_at < statement_timestamp() + make_interval(secs => l.ttl)),
kept AS (
  INSERT INTO {writes} AS w (line, checkpoint_id, task_id, idx, channel, type, task_path, basis,
    payload, created_at)
  SELECT l.line, l.checkpoint_id, i.task_id, i.idx, i.channel, i.type, i.task_path, i.basis,
    i.payload, statement_timestamp()
  FROM {rows} i (number, task_id, idx, channel, type, task_path, basis, payload)
  JOIN l ON l.number = i.number
  ORDER BY l.line, l.checkpoint_id COLLATE "C", i.task_id COLLATE "C", i.idx
  ON CONFLICT (line, checkpoint_id, task_id, idx) DO UPDATE SET channel = excluded.channel,
    type = excluded.type, task_path = excluded.task_path, basis = excluded.basis,
    payload = excluded.payload, created_at = excluded.created_at
  WHERE w.idx < 0)
SELECT number FROM l WHERE {mark}
"""
# IS TRUE: else the planner may look for the line that it finds, in all partitions.
_IS_KNOWN: Final = """(l.line = {line}) IS TRUE AND (SELECT c.sequence FROM {{checkpoints}} c
        WHERE c.line = {line} AND c.checkpoint_id = b.checkpoint_id AND c.digest = b.digest)
        = b.sequence"""
_IS_STORED: Final = """({may_come_first} OR (SELECT c.sequence FROM {checkpoints} c
        WHERE c.line = l.line AND c.checkpoint_id = b.checkpoint_id) IS NOT NULL)"""
_BATCH_TYPES: Final = (
    *("text", "text", "text", "bigint", "bigint", "bytea", "text"),
    *("double precision", "double precision", "bigint"),
)
"""SQL types of a batch of writes, without its number."""

_WRITE_TYPES: Final = ("text", "int", "text", "text", "text", "bigint", "bytea")
"""SQL types of a pending write, without the number of its batch."""

_FIRST: Final = 3
"""The first parameter of the batches, after the tenant and the store."""

LONE_WRITES: Final = 4
"""Writes of a lone batch whose statement has no arrays, at most. asyncpg takes twice as long to
encode arrays, and each number of writes is a statement that each connection prepares."""

VERSIONS: Final = {
    "known": _IS_KNOWN.format(line=f"${_FIRST + 4}::bigint"),
    "any": "true",
    "stored": _IS_STORED,
}
"""Conditions of a lone batch: its version is known, need not exist, or may have to exist."""


def _render_arrays(types: Sequence[str], first: int) -> str:
    """Return numbered rows of any number, from parameters that are arrays."""
    # A SELECT hides how many there are: with one of each, PostgreSQL planned each statement anew.
    columns = [f"${at}::{it}[]" for at, it in enumerate(types, first + 1)]
    return f"unnest((SELECT ${first}::int[]), {', '.join(columns)})"


def _render_rows(types: Sequence[str], first: int, length: int) -> str:
    """Return rows of the number 0, from a parameter for each value."""
    at = count(first)
    rows = [", ".join(f"${next(at)}::{it}" for it in types) for _ in range(length)]
    return f"(VALUES {', '.join(f'(0, {it})' for it in rows)})"


def make_batches() -> dict[str, str]:
    """Return the parts of ``PUT_WRITES`` for any number of batches."""
    first = _FIRST + len(_BATCH_TYPES) + 1
    is_known = _IS_KNOWN.format(line="b.line")
    return {
        "batches": _render_arrays(_BATCH_TYPES, _FIRST),
        "rows": _render_arrays(_WRITE_TYPES, first),
        "has_version": f"(b.sequence IS NULL OR {is_known}) AND {_IS_STORED}",
    }


def make_lone(length: int, version: str) -> dict[str, str]:
    """Return the parts of ``PUT_WRITES`` for one batch of so many writes.

    Args:
        length: The number of writes.
        version: ``VERSIONS``: which look-up of a version the batch needs. A partition is opened
            for each that is not left out, and all partitions if the line is not a parameter.
    """
    first = _FIRST + len(_BATCH_TYPES)
    return {
        "batches": _render_rows(_BATCH_TYPES, _FIRST, 1),
        "rows": _render_rows(_WRITE_TYPES, first, length),
        "has_version": VERSIONS[version],
    }
