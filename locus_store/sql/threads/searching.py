"""Full-text search over SQL: many lines per statement, matched outside the transaction.

Candidates, records and hits are read in transactions of their own. A batch holds a bounded number
of lines and bytes; a thread that is larger than a batch has one to itself, which is read in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from locus_store import versions
from locus_store.runtime.observe import report_too_large
from locus_store.sql.schema.tables import Tables
from locus_store.sql.threads.pending import BATCH, split_batches
from locus_store.sql.threads.reads import ROOT, Reads
from locus_store.sql.threads.repository import Repository
from locus_store.types import Hit
from locus_store.values.encoding import TooLargeError
from locus_store.values.frames import Folder
from locus_store.values.text import Match
from locus_store.versions.segments import RecordSegment

T = TypeVar("T")

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Payload that is read at once; one larger record is read whole."""

INDEXED_WORDS: Final = 64
"""Words of a query that the index is asked for; SQLite compounds 500 selects at most."""


class Candidate(NamedTuple):
    """A line that may match."""

    line: int
    stored_bytes: int


class FoundRecord(NamedTuple):
    """A record with columns of its line."""

    thread_id: str
    line: int
    floor: int
    head: int | None
    sequence: int
    chain: int
    created_at: datetime
    payload: bytes
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """A thread that matches."""

    thread_id: str
    line: int
    sequence: int
    """The version that matches best."""

    checkpoint_id: str
    """Of that version."""

    created_at: datetime
    score: float
    snippet: str


def measure_line(t: Tables) -> sa.ColumnElement[int]:
    """Return the bytes of a line's payloads."""
    own, joined = (
        sa.func.coalesce(
            sa.select(sa.func.sum(sa.func.length(table.c.payload)))
            .where(table.c.line == t.lines.c.line)
            .correlate(t.lines)
            .scalar_subquery(),
            0,
        )
        for table in (t.checkpoints, t.segments)
    )
    return own + joined


def find_candidates(repo: Repository, words: Sequence[str]) -> list[Candidate]:
    """Return the live lines that may match, newest first; without an index, all lines."""
    lines, indexed = repo.tables.lines, words if repo.has_index else ()
    query = (
        sa.select(lines.c.line, measure_line(repo.tables))
        .where(*are_searched(repo, indexed), repo.select_live_thread().is_not(None))
        .order_by(lines.c.line.desc())
    )
    return [Candidate(line, int(size)) for line, size in repo.connection.execute(query)]


def are_searched(reads: Reads, words: Sequence[str]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions of the lines that a search looks at: those with words by the index."""
    c = reads.tables.lines.c
    yield from (c.tenant == reads.tenant, c.namespace == ROOT, c.head.is_not(None))
    if words:
        yield c.line.in_(sa.intersect(*map(reads.select_lines, words[:INDEXED_WORDS])))


def group_batches(candidates: Iterable[Candidate]) -> Iterator[list[Candidate]]:
    """Group candidates into batches that are read together."""
    return _group(((it, it.stored_bytes) for it in candidates), most=BATCH)


def _group(items: Iterable[tuple[T, int]], *, most: float = inf) -> Iterator[list[T]]:
    """Group items, each with its size in bytes, so that a group fits in a batch if it can."""
    group: list[T] = []
    total = 0
    for one, size in items:
        total += size
        if group and (total > BATCH_BYTES or len(group) == most):
            yield group
            group, total = [], size
        group.append(one)
    if group:
        yield group


def split_parts(reads: Reads, line: int) -> list[tuple[int, int]]:
    """Return the first and last sequence of each part of a large line, ascending."""
    c = reads.tables.checkpoints.c
    sizes = sa.select(c.sequence, sa.func.length(c.payload)).where(c.line == line)
    found = reads.connection.execute(sizes.order_by(c.sequence)).all()
    segments = reads.tables.segments.c
    joined = sa.select(sa.func.sum(sa.func.length(segments.payload))).where(segments.line == line)
    lacking = sum(size is None for _, size in found)
    mean = (reads.connection.execute(joined).scalar() or 0) // lacking if lacking else 0
    each = [(at, mean if size is None else size) for at, size in found]
    return [(some[0], some[-1]) for some in _group(each)]


def read_records(
    reads: Reads, lines: Sequence[int], sequences: tuple[int, int] | None
) -> list[FoundRecord]:
    """Return records of lines by one statement, which also finds their segments."""
    query = select_records(reads.tables, reads.tables.lines.c.line.in_(lines), sequences)
    return collect_records(reads.connection.execute(query))


def select_records(
    t: Tables, is_wanted: sa.ColumnElement[bool], sequences: tuple[int, int] | None = None
) -> sa.CompoundSelect[Any]:
    """Return a query for the records of lines, and for their segments."""
    lines, checkpoints, segments = t.lines, t.checkpoints, t.segments
    c, s = checkpoints.c, segments.c
    its = [lines.c[name] for name in ("thread_id", "line", "floor", "head")]
    last = sa.cast(sa.null(), s.last.type).label("last")
    own = sa.select(*its, c.sequence, c.chain, c.created_at, c.payload, c.checkpoint_id, last)
    joined = sa.select(*its, s.first, s.chain, lines.c.updated_at, s.payload, sa.null(), s.last)
    own = own.join(checkpoints, c.line == lines.c.line).where(is_wanted)
    joined = joined.join(segments, s.line == lines.c.line).where(is_wanted)
    if sequences is not None:
        own = own.where(c.sequence.between(*sequences))
        joined = joined.where(s.last >= sequences[0], s.first <= sequences[1])
    return own.union_all(joined)


def collect_records(rows: Iterable[Sequence[Any]]) -> list[FoundRecord]:
    """Return the records in rows of ``select_records``, with their payloads."""
    found: list[FoundRecord] = []
    payloads: dict[tuple[int, int], bytes] = {}
    for *row, end in rows:
        one = FoundRecord(*row)
        if end is None:
            found.append(one)
        else:
            segment = RecordSegment(one.chain, one.sequence, end, one.payload)
            payloads |= {(one.line, at): payload for at, payload in segment.split_records().items()}
    found.sort(key=lambda one: (-one.line, one.sequence))
    return [
        one._replace(payload=one.payload or payloads.get((one.line, one.sequence), b""))
        for one in found
    ]


def make_hits(reads: Reads, best: Sequence[Ranked]) -> list[Hit]:
    """Return the hits in order, without versions that were removed meanwhile."""
    lines, checkpoints = reads.tables.lines, reads.tables.checkpoints
    c = checkpoints.c
    found: dict[tuple[int, int], Any] = {}
    for some in split_batches([(match.line, match.sequence) for match in best]):
        query = (
            sa.select(c.line, c.sequence, c.checkpoint_id, c.metadata, c.created_at)
            .join(lines, lines.c.line == c.line)
            .where(sa.tuple_(c.line, c.sequence).in_(some), reads.select_live_thread().is_not(None))
        )
        found |= {(row.line, row.sequence): row for row in reads.connection.execute(query)}
    return [
        Hit(
            thread_id=match.thread_id,
            checkpoint_id=row.checkpoint_id,
            metadata=row.metadata,
            updated_at=row.created_at,
            score=match.score,
            snippet=match.snippet,
        )
        for match in best
        if (row := found.get((match.line, match.sequence))) is not None
    ]


class Matching:
    """Finds the lines of a batch that have all words, part by part.

    A line that holds a state larger than ``max_bytes`` is left out and reported.
    """

    def __init__(self, words: list[str], max_bytes: int) -> None:
        self._wanted = words
        self._max_bytes = max_bytes
        self._lines: dict[int, _Line] = {}

    def add(self, records: Iterable[FoundRecord]) -> None:
        """Match a part, in which the records of a line are contiguous and ascending."""
        for number, some in groupby(records, key=lambda it: it.line):
            of_line = list(some)
            line = _Line(of_line[0], Match(self._wanted))
            self._lines.setdefault(number, line).add(of_line, self._max_bytes)

    @property
    def ranked(self) -> list[Ranked]:
        """Return the lines that match."""
        return [it.ranked for it in self._lines.values() if it.match.is_complete]


@dataclass(slots=True)
class _Line:
    """A line and the matches found in it so far."""

    first: FoundRecord
    match: Match
    is_skipped: bool = False
    versions: dict[int, tuple[str, datetime]] = field(default_factory=dict)
    hidden: dict[int, Folder] = field(default_factory=dict)

    def add(self, records: Iterable[FoundRecord], max_bytes: int) -> None:
        if self.is_skipped:
            return
        line = versions.Line(line=self.first.line, head=self.first.head, floor=self.first.floor)
        try:
            for sequence, text in versions.iterate_visible_texts(
                line, self._note_versions(records), max_bytes, self.hidden
            ):
                self.match.add(sequence, text)
        except TooLargeError:
            report_too_large(self.first.thread_id)
            self.is_skipped, self.match = True, Match(self.match.wanted)

    def _note_versions(self, records: Iterable[FoundRecord]) -> Iterator[tuple[int, int, bytes]]:
        for record in records:
            self.versions[record.sequence] = record.checkpoint_id, record.created_at
            yield record.sequence, record.chain, record.payload

    @property
    def ranked(self) -> Ranked:
        match, first, best = self.match, self.first, self.match.best[1]
        return Ranked(
            first.thread_id, first.line, best, *self.versions[best], match.score, match.snippet
        )
