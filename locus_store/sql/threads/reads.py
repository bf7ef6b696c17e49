"""Read-only queries: versions, lists and metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.engine import Row

from locus_store import versions
from locus_store.runtime.notebooks import Table
from locus_store.sql.threads import pending, turns
from locus_store.sql.threads.statements import (
    LINE_STATE,
    RowAccess,
    compile_form,
    is_live,
    list_segment_columns,
    make_same_thread_condition,
)
from locus_store.sql.threads.version_queries import (
    select_below,
    select_line_beside,
    select_lone_version,
    select_measured_head,
    select_newest,
)
from locus_store.types import Head, Mark, PendingWrite, Stored, Version
from locus_store.values.filters import is_found
from locus_store.versions import Line, Record
from locus_store.versions.segments import RecordSegment, collect_payloads, fill_payloads

ROOT = ""
"""The namespace that lists, searches and metadata queries look at."""

MOST_CONFIRMED: Final = 64 * 1024
"""Bytes of pending writes that are read in the thread of an event loop."""

PLACE: Final = ("created_at", "line", "sequence")
"""The columns of a version that order it among those of all lines."""

QUERY_BATCH = 200
"""Candidates of a metadata query that are read at first, at least."""


_LINE: Final = 1 + len(LINE_STATE)
"""Columns of a line in a row of ``select_live_line``."""


class Reads(RowAccess):
    """Portable queries within one transaction, on a synchronous connection.

    Never opens, commits or closes anything. The methods under "dialect hooks" are all that may
    differ between databases; without overrides they are correct on any.
    """

    active_thread: str | None = None
    """A thread whose row has the activity of this minute, so that a save need not write it."""

    without_writes: tuple[int, str] | None = None
    """A line and a checkpoint of it that has no pending writes."""

    own_payloads: frozenset[tuple[int, int]] = frozenset()
    """Records that were read with payloads of their own, by line and sequence."""

    is_outside_turns = False
    """The transaction belongs to no turn, and writes what a turn that is held refuses."""

    # --- dialect hooks

    rounding: ClassVar = timedelta(milliseconds=1)
    """The time of a version exceeds the one of its line by this at most."""

    def see_all_tenants(self) -> None:
        """Show the rows of all tenants, if the server hides them and the role owns the tables."""

    def make_pattern_condition(
        self, column: sa.ColumnElement[str], pattern: str
    ) -> sa.ColumnElement[bool] | None:
        """Return the shell-style pattern as SQL; ``None`` if rows are to be matched in Python."""
        return None

    def may_have(
        self, column: sa.ColumnElement[Any], key: str, value: Any
    ) -> sa.ColumnElement[bool]:
        """Return a condition that all rows with ``value`` at ``key`` meet; others may, too."""
        return column.is_not(None)

    def make_below_condition(
        self, row: Mapping[sa.ColumnElement[Any], sa.BindParameter[Any]]
    ) -> sa.ColumnElement[bool]:
        """Return the condition that the columns sort below the values, from left to right."""
        (first, value), *rest = row.items()
        if not rest:
            return sa.and_(first < value)
        return sa.and_(first <= value, sa.or_(first < value, self.make_below_condition(dict(rest))))

    def make_any_activity_condition(self) -> sa.ColumnElement[bool]:
        """Return a condition that is always true; it may help the planner to use an index."""
        return sa.true()

    def select_lines(self, word: str) -> sa.Select[Any]:
        """Return a query for the lines that have a word in some version, by the index."""
        raise NotImplementedError

    def find_faults(self) -> list[str]:
        """Return the faults that the database finds in its own storage."""
        return []

    # --- one line

    def find_line(self, thread_id: str, namespace: str, beside: str | None = None) -> Line | None:
        """Return the live line, if it has a head; ``beside`` is a checkpoint to read with it."""
        key = {"tenant": self.tenant, "thread_id": thread_id, "namespace": namespace}
        if beside is None:
            row = self.sql.line.fetch_first(self.connection, key)
        else:
            key["checkpoint_id"] = beside
            row = compile_form(self.sql, select_line_beside).fetch_first(self.connection, key)
        if row is None:
            return None
        line = Line(*row[:_LINE])
        is_active, turn = row[_LINE : _LINE + 2]
        if turn is not None and self.is_outside_turns:
            turns.require_none(self, thread_id, turn)
        if is_active:
            self.active_thread = thread_id
        if beside is not None:
            has_writes, sequence, *rest = row[_LINE + 2 :]
            self.without_writes = None if has_writes else (line.line, beside)
            if sequence is not None:
                self.seen_records[line.line, beside] = Record(sequence, *rest)
        return line if line.head is not None else None

    def record(self, line: Line, sequence: int) -> Record | None:
        found = self.seen_records.get((line.line, sequence))
        if found is None:
            key = {"line": line.line, "sequence": sequence}
            found = self._remember(line, self.sql.record.fetch_first(self.connection, key))
        return found

    def named(self, line: Line, checkpoint_id: str) -> Record | None:
        found = self.seen_records.get((line.line, checkpoint_id))
        if found is not None:
            return found
        key = {"line": line.line, "checkpoint_id": checkpoint_id}
        return self._remember(line, self.sql.named.fetch_first(self.connection, key))

    def _remember(self, line: Line, row: Sequence[Any] | None) -> Record | None:
        if row is None:
            return None
        record = Record(*row)
        self.seen_records[line.line, record.sequence] = record
        return record

    def newest(self, line: Line, nth: int = 1) -> int | None:
        found = self.ask(select_newest, line=line.line, offset=nth - 1)
        return found[0][0] if found else None

    def below(self, line: Line, sequence: int, limit: int) -> list[int]:
        found = self.ask(select_below, line=line.line, sequence=sequence, limit=limit)
        return [below for (below,) in found]

    def payloads(
        self, line: Line, chain: int, *, upto: int | None = None
    ) -> list[tuple[int, bytes]]:
        end = line.last_sequence if upto is None else upto
        key = {"line": line.line, "chain": chain, "first": chain, "upto": end}
        rows = self.sql.payloads.fetch_rows(self.connection, key)
        own = {(line.line, sequence) for sequence, payload in rows if payload}
        self.own_payloads |= own
        if len(own) == len(rows):
            return rows
        return [*fill_payloads(rows, self.read_segments(line.line, chain, upto=end)).items()]

    def read_segments(
        self, line: int, chain: int, *, after: int = 0, upto: int
    ) -> list[RecordSegment]:
        """Return the segments of a chain that have records in a range."""
        key = {"line": line, "chain": chain, "after": after, "upto": upto}
        rows = self.sql.segments.fetch_rows(self.connection, key)
        return list(map(RecordSegment._make, rows))

    def read_all_segments(
        self, *lines: int, within: tuple[int, int] | None = None
    ) -> list[tuple[int, RecordSegment]]:
        """Return the segments of lines, each behind its line; those of a line in their order.

        ``within`` leaves out those that end before a sequence or begin after another.
        """
        c = self.tables.segments.c
        query = (
            sa.select(c.line, *list_segment_columns(c)).where(c.line.in_(lines)).order_by(c.last)
        )
        if within is not None:
            query = query.where(c.last >= within[0], c.first <= within[1])
        return [(row[0], RecordSegment(*row[1:])) for row in self.connection.execute(query)]

    def read_version(
        self, thread_id: str, namespace: str, checkpoint_id: str | None = None
    ) -> Version | None:
        """See ``StorageBackend.version``; one statement, which reads no payload.

        Raises:
            IntegrityError: The head's record is missing.
        """
        row = self._fetch_version(thread_id, namespace, checkpoint_id)
        return None if row is None else self.make_version(thread_id, namespace, row[0], row[1:-4])

    def _fetch_version(
        self, thread_id: str, namespace: str, checkpoint_id: str | None
    ) -> tuple[Any, ...] | None:
        """Return the row of ``select_lone_version``; ``None`` if there is no such version."""
        key = {"tenant": self.tenant, "thread_id": thread_id, "namespace": namespace}
        if checkpoint_id is not None:
            key["checkpoint_id"] = checkpoint_id
        rows = self.ask(select_lone_version, "head" if checkpoint_id is None else "id", **key)
        if not rows:
            self.require_none(thread_id, namespace, checkpoint_id)
        return rows[0] if rows else None

    def require_none(self, thread_id: str, namespace: str, checkpoint_id: str | None) -> None:
        """Check that a head was not found because there is none.

        Raises:
            IntegrityError: The head's record is missing.
        """
        if checkpoint_id is None and (line := self.find_line(thread_id, namespace)):
            versions.target(self, line, None)

    def fetch(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None = None,
        known_mark: Mark | None = None,
        *,
        with_writes: bool = False,
    ) -> Stored | None:
        """See ``StorageBackend.fetch`` and ``fetch_head``."""
        row = self._fetch_version(thread_id, namespace, checkpoint_id)
        if row is None:
            return None
        key_of_line, *fields, chain, parent, head, head_digest = row
        version = self.make_version(thread_id, namespace, key_of_line, tuple(fields))
        sequence, name, digest, metadata, labels, _, _ = fields
        record = Record(sequence, chain, parent, name, digest, metadata, labels)
        line = Line(line=key_of_line, head=head)
        self.seen_records[line.line, record.sequence] = record
        mark = Mark(self.store, line.line, head, head_digest)
        writes = self.read_writes(line.line, record.checkpoint_id) if with_writes else None
        basis = versions.find_basis(self, line, record, known_mark, self.store)
        after = basis.sequence if basis else 0
        payloads = []
        if after < record.sequence:
            upto = record.sequence
            raw = {"line": line.line, "chain": chain, "first": after + 1, "upto": upto}
            own = self.sql.own_payloads.fetch_rows(self.connection, raw)
            joined = []
            if len(own) < upto - after:  # the others are in segments, or were removed
                joined = self.read_segments(line.line, chain, after=after, upto=upto)
            with versions.name_version_in_errors(version):
                payloads = collect_payloads(own, joined, after=after, upto=upto)
        return Stored(version=version, head=mark, payloads=payloads, basis=basis, writes=writes)

    def confirm(self, thread_id: str, namespace: str, mark: Mark, *, writes: bool) -> Stored | None:
        """Return the version of a mark, if it is the head and has few pending writes."""
        key = {"tenant": self.tenant, "thread_id": thread_id, "namespace": namespace}
        rows = self.ask(select_measured_head, **key)
        if not rows:
            return None
        line, *fields, _, _, _, _, size = rows[0]
        version, pending_writes = self.make_version(thread_id, namespace, line, tuple(fields)), None
        if version.mark != mark or (writes and size > MOST_CONFIRMED):
            return None
        if writes:
            pending_writes = self.read_writes(line, version.checkpoint_id) if size else []
        return Stored(version=version, head=mark, payloads=[], basis=mark, writes=pending_writes)

    def read_writes(self, line: int, checkpoint_id: str) -> list[PendingWrite]:
        """Return a checkpoint's pending writes, in their order."""
        return sorted(
            pending.read_writes(self, line, checkpoint_id), key=versions.make_write_sort_key
        )

    def read_records(
        self, thread_id: str, namespace: str, first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        line, checkpoints = self.find_line(thread_id, namespace), self.tables.checkpoints
        if line is None:
            return []
        is_in = checkpoints.c.line == line.line, checkpoints.c.sequence <= last
        chains = sa.select(checkpoints.c.chain).where(*is_in, checkpoints.c.sequence >= first)
        query = (
            sa.select(checkpoints.c.sequence, checkpoints.c.chain, checkpoints.c.payload)
            .where(*is_in, checkpoints.c.chain.in_(chains.distinct()))
            .order_by(checkpoints.c.sequence)
        )
        return _fill_rows(self, line.line, self.connection.execute(query).all(), first)

    def list_history(
        self, thread_id: str, namespace: str, *, limit: int, before: str | None
    ) -> list[Version]:
        line = self.find_line(thread_id, namespace)
        if line is None:
            return []
        end = line.last_sequence + 1
        if before is not None:
            end = versions.cursor(self, line, thread_id, before)
        visible = {"line": line.line, "floor": line.floor, "head": line.head}
        rows = self.sql.versions.fetch_rows(
            self.connection, {**visible, "end": end, "limit": limit}
        )
        return Table(self.make_version(thread_id, namespace, line.line, row) for row in rows)

    def make_version(
        self, thread_id: str, namespace: str, line: int, row: tuple[Any, ...]
    ) -> Version:
        """Return a row of ``Statements.versions``."""
        sequence, checkpoint_id, digest, metadata, labels, created_at, parent_id = row
        return Version(
            mark=Mark(self.store, line, sequence, digest),
            thread_id=thread_id,
            namespace=namespace,
            checkpoint_id=checkpoint_id,
            parent_id=parent_id,
            metadata=metadata,
            labels=labels,
            created_at=created_at,
        )

    def get_head_columns(self) -> list[sa.ColumnElement[Any]]:
        """Return the columns of a version that lists show."""
        names = ("checkpoint_id", "metadata", "labels", "created_at")
        return [self.tables.checkpoints.c[name] for name in names]

    def query(self, key: str, value: Any, limit: int) -> list[Head]:
        """See ``QueriesMetadata.query``; candidates are read in batches, of any tenant."""
        c = self.tables.checkpoints.c
        conditions = [sa.or_(*(self.may_have(it, key, value) for it in (c.metadata, c.labels)))]

        def fetch(size: int, last: Any) -> Sequence[Any]:
            after = {it: getattr(last, it) for it in PLACE} if last else {}
            return self.sql.searches.fetch(
                self.connection,
                (PLACE, type(self), *after),
                partial(self._select_candidates, conditions, is_first=not after),
                conditions=conditions,
                values={"tenant": self.tenant, "limit": size, **after},
            )

        rows = pending.iterate_rows(fetch, max(limit, QUERY_BATCH))
        seen = (it for it in rows if it.thread_id is not None)
        found = (it for it in seen if is_found(it.metadata, it.labels, key, value))
        return [*map(make_head, islice(found, limit))]

    def _select_candidates(
        self, conditions: Sequence[sa.ColumnElement[bool]], *, is_first: bool
    ) -> sa.Select[Any]:
        """Return a query for versions of any tenant that may match, with the thread if visible."""
        columns = [self.tables.checkpoints.c[name] for name in PLACE]
        query = sa.select(*columns[1:], *self.get_head_columns()).where(*conditions)
        if not is_first:
            query = query.where(
                self.make_below_condition(
                    {it: sa.bindparam(it.name, type_=it.type) for it in columns}
                )
            )
        newest = query.order_by(*(it.desc() for it in columns)).limit(sa.bindparam("limit"))
        page = newest.subquery("page")
        return sa.select(page, self._select_visible_thread(page).label("thread_id")).order_by(
            *(page.c[name].desc() for name in PLACE)
        )

    def _select_visible_thread(self, versions: sa.FromClause) -> sa.ScalarSelect[str]:
        """Return the thread of a version if this tenant can see it."""
        lines = self.tables.lines
        is_visible = sa.or_(
            versions.c.sequence >= lines.c.floor, versions.c.sequence == lines.c.head
        )
        return (
            sa.select(lines.c.thread_id)
            .where(lines.c.line == versions.c.line, lines.c.namespace == ROOT)
            .where(lines.c.head.is_not(None), is_visible, self.select_live_thread().is_not(None))
            .correlate(versions)
            .scalar_subquery()
        )

    def select_live_thread(self) -> sa.ScalarSelect[int]:
        """Return the live thread of a line, if it is this tenant's.

        Without statistics an index on the tenant looks as good as any: as a join, it was read from
        end to end for each line.
        """
        threads = self.tables.threads
        return (
            sa.select(threads.c.thread)
            .where(make_same_thread_condition(self.tables), threads.c.tenant == self.bind_tenant())
            .where(is_live(self.tables))
            .correlate(self.tables.lines)
            .scalar_subquery()
        )


def read_all_records(reads: Reads, line: int) -> list[tuple[int, int, bytes]]:
    """Return a line's (sequence, chain, payload), ascending."""
    c = reads.tables.checkpoints.c
    query = sa.select(c.sequence, c.chain, c.payload).where(c.line == line).order_by(c.sequence)
    return _fill_rows(reads, line, reads.connection.execute(query).all())


def _fill_rows(
    reads: Reads, line: int, rows: Sequence[Sequence[Any]], first: int = 0
) -> list[tuple[int, int, bytes]]:
    """Return a line's (sequence, chain, payload) with the payloads of its segments."""
    found = [] if all(row[2] for row in rows) else [one for _, one in reads.read_all_segments(line)]
    payloads = fill_payloads([(row[0], row[2]) for row in rows], found, first)
    return [(at, chain, payloads[at]) for at, chain, _ in rows if at in payloads]


def make_head(row: Row[Any]) -> Head:
    """Return the head of a row: the thread's id, then ``Reads.get_head_columns``."""
    return Head(
        thread_id=row.thread_id,
        checkpoint_id=row.checkpoint_id,
        metadata=row.metadata,
        updated_at=row.created_at,
    )
