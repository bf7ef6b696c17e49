"""Segments whose records change: these get their payloads back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from locus_store.sql.threads.reads import Reads

MOST: Final = 2**63 - 1
"""No sequence is greater."""


def open_segments(it: Reads, line: int, sequences: Sequence[int]) -> None:
    """Put back the payloads of the segments that have any of these records, and of later ones."""
    joined = [one for one in sequences if (line, one) not in it.own]
    near = it.all_segments(line, within=(min(joined), MOST)) if joined else []
    if not near:
        return
    c = it.tables.checkpoints.c
    first = sa.select(c.chain, sa.func.min(c.sequence)).where(c.line == line)
    rows = it.connection.execute(first.where(c.sequence.in_(joined)).group_by(c.chain))
    changed = {row[0]: row[1] for row in rows}
    for _, one in near:
        if one.last >= changed.get(one.chain, MOST):
            _put_back(it, line, one.last, one.records())


def _put_back(it: Reads, line: int, last: int, payloads: Mapping[int, bytes]) -> None:
    """Put the payloads of a segment into its records."""
    records, segments = it.tables.checkpoints, it.tables.segments
    its = sa.bindparam("its_sequence", type_=records.c.sequence.type)
    put = records.update().where(records.c.line == line, records.c.sequence == its)
    rows = [{"its_sequence": at, "payload": payload} for at, payload in payloads.items()]
    it.connection.execute(put.values(payload=sa.bindparam("payload")), rows)
    is_it = segments.c.line == line, segments.c.last == last
    it.connection.execute(segments.delete().where(*is_it))
    it.own.update((line, at) for at in payloads)
