"""The records and pending writes of versions of any lines, in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from locus_store.sql.columns.types import decode_key, encode_key
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
        [encode_key(it.checkpoint_id) for it in versions],
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
        checkpoint_id = decode_key(row["checkpoint_id"])
        write = write_of(checkpoint_id, [row[name] for name in _WRITE])
        found.add_write(row["line"], checkpoint_id, write)
    return found.build_contents()


def write_of(checkpoint_id: str, values: Sequence[Any]) -> PendingWrite:
    """Return the pending write of the columns that a statement gives of it."""
    task_id, idx, channel, kind, *rest = values
    names = checkpoint_id, decode_key(task_id), idx, decode_key(channel), decode_key(kind or "")
    return pending.write_of((*names, *rest))


def parse_payloads(row: Mapping[str, Any], after: int) -> list[bytes]:
    """Return the payloads from another version to that of a row."""
    segments = [RecordSegment(*it) for it in row["segments"] or ()]
    found = collect_payloads((), segments, after=after, upto=row["sequence"])
    return found if row["payload"] is None else [*found, row["payload"]]
