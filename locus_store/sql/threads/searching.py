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
from locus_store.sql.threads.pending import BATCH, split_batches
from locus_store.sql.threads.reads import ROOT, Reads
from locus_store.types import Hit
from locus_store.values.encoding import TooLargeError
from locus_store.values.frames import Folder
from locus_store.values.text import Match
from locus_store.versions import Line
from locus_store.versions.segments import RecordSegment

T = TypeVar("T")

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Payload that is read at once; one larger record is read whole."""


class Candidate(NamedTuple):
    """A line that may match."""

    line: int
    stored_bytes: int


class Part(NamedTuple):
    """A part of a search that one statement reads."""

    lines: list[int]
    sequences: tuple[int, int] | None = None
    """First and last of one line; ``None``: all of them."""


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


@dataclass(frozen=True, slots=True)
class Ranked:
    """A thread that matches."""

    thread_id: str
    line: int
    sequence: int
    """The version that matches best."""

    created_at: datetime
    score: float
    snippet: str


def find_candidates(reads: Reads, words: Sequence[str]) -> list[Candidate]:
    """Return the live lines that may match, newest first; without an index, all lines."""
    lines, checkpoints = reads.tables.lines, reads.tables.checkpoints
    stored = [
        sa.func.coalesce(
            sa.select(sa.func.sum(sa.func.length(table.c.payload)))
            .where(table.c.line == lines.c.line)
            .correlate(lines)
            .scalar_subquery(),
            0,
        )
        for table in (checkpoints, reads.tables.segments)
    ]
    query = (
        sa.select(lines.c.line, stored[0] + stored[1])
        .where(lines.c.tenant == reads.tenant, reads.select_live_thread().is_not(None))
        .where(lines.c.namespace == ROOT, lines.c.head.is_not(None))
        .order_by(lines.c.line.desc())
    )
    indexed = reads.find_lines(words)
    if indexed is None:
        queries = [query]
    else:  # a statement takes so many parameters
        parts = split_batches(sorted(indexed, reverse=True))
        queries = [query.where(lines.c.line.in_(some)) for some in parts]
    return [
        Candidate(line, int(size or 0))
        for query in queries
        for line, size in reads.connection.execute(query)
    ]


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


def is_large(batch: Sequence[Candidate]) -> bool:
    """Return whether the batch is a single line that exceeds a batch's bytes."""
    return batch[0].stored_bytes > BATCH_BYTES


def split_parts(reads: Reads, batch: Sequence[Candidate]) -> list[Part]:
    """Return the parts of a large line, ascending."""
    [line] = lines = [candidate.line for candidate in batch]
    c = reads.tables.checkpoints.c
    sizes = sa.select(c.sequence, sa.func.length(c.payload)).where(c.line == line)
    found = reads.connection.execute(sizes.order_by(c.sequence)).all()
    segments = reads.tables.segments.c
    joined = sa.select(sa.func.sum(sa.func.length(segments.payload))).where(segments.line == line)
    lacking = sum(size is None for _, size in found)
    mean = (reads.connection.execute(joined).scalar() or 0) // lacking if lacking else 0
    each = [(at, mean if size is None else size) for at, size in found]
    return [Part(lines, (some[0], some[-1])) for some in _group(each)]


def read_records(reads: Reads, part: Part) -> list[FoundRecord]:
    """Return the records of a part by one statement, which also finds their segments."""
    t = reads.tables
    lines, checkpoints, segments = t.lines, t.checkpoints, t.segments
    c, s = checkpoints.c, segments.c
    its = [lines.c[name] for name in ("thread_id", "line", "floor", "head")]
    no_last = sa.cast(sa.null(), s.last.type).label("last")
    own = sa.select(*its, c.sequence, c.chain, c.created_at, c.payload, no_last)
    joined = sa.select(*its, s.first, s.chain, lines.c.updated_at, s.payload, s.last)
    own = own.join(checkpoints, c.line == lines.c.line).where(lines.c.line.in_(part.lines))
    joined = joined.join(segments, s.line == lines.c.line).where(lines.c.line.in_(part.lines))
    if part.sequences is not None:
        first, last = part.sequences
        own = own.where(c.sequence.between(first, last))
        joined = joined.where(s.last >= first, s.first <= last)
    found: list[FoundRecord] = []
    payloads: dict[tuple[int, int], bytes] = {}
    for *row, end in reads.connection.execute(own.union_all(joined)):
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
    times: dict[int, datetime] = field(default_factory=dict)
    hidden: dict[int, Folder] = field(default_factory=dict)

    def add(self, records: Iterable[FoundRecord], max_bytes: int) -> None:
        if self.is_skipped:
            return
        line = Line(line=self.first.line, head=self.first.head, floor=self.first.floor)
        try:
            for sequence, text in versions.iterate_visible_texts(
                line, self._note_times(records), max_bytes, self.hidden
            ):
                self.match.add(sequence, text)
        except TooLargeError:
            report_too_large(self.first.thread_id)
            self.is_skipped, self.match = True, Match(self.match.wanted)

    def _note_times(self, records: Iterable[FoundRecord]) -> Iterator[tuple[int, int, bytes]]:
        for record in records:
            self.times[record.sequence] = record.created_at
            yield record.sequence, record.chain, record.payload

    @property
    def ranked(self) -> Ranked:
        match, first, best = self.match, self.first, self.match.best[1]
        return Ranked(
            first.thread_id, first.line, best, self.times[best], match.score, match.snippet
        )
