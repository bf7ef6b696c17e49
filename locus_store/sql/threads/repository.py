"""All queries that write; ``versions.Lines`` over SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from locus_store import versions
from locus_store.sql.columns.types import make_clock, make_cutoff, make_expiry
from locus_store.sql.schema.status import SEARCH_SETTING
from locus_store.sql.threads import pending, turns
from locus_store.sql.threads.pending import BATCH, split_batches
from locus_store.sql.threads.reads import Reads, read_all_records
from locus_store.sql.threads.statements import LINE_STATE, RECORD
from locus_store.sql.threads.thread_rows import (
    delete_of_threads,
    find_lines,
    find_versionless,
    has_thread,
    is_old,
    keep_place,
    put_facts,
    require_its_owner,
    select_lines,
)
from locus_store.sql.threads.version_queries import (
    delete_records,
    delete_writes_on,
    select_children,
    update_records,
)
from locus_store.types import Mark, PendingWrite, Removed, Save, Written
from locus_store.types.messages import LogEdit
from locus_store.versions import Line, Record
from locus_store.versions.erasing import Swept
from locus_store.versions.renewing import compute_ttl_slack
from locus_store.versions.sharding import require_layout

Copied: TypeAlias = "Callable[[sa.FromClause, Sequence[str]], sa.Select[Any]]"
"""Gives columns of the source's rows in a table, behind the keys of the copied lines."""


class Repository(Reads):
    """Portable statements in one transaction that holds the lock of the line it changes.

    See ``Reads`` for what a repository is. A database's subclass overrides the methods under
    "dialect hooks"; SQLite's also decides an append at the head, and PostgreSQL's deletes threads.
    """

    _is_save = False
    """The transaction recorded activity."""

    _has_index: bool | None = None
    """The result of the query; ``None`` before the query."""

    appended_bytes = 0
    """The payloads of the records that the transaction has added."""

    opened_threads = 0
    """Threads that the transaction has created."""

    removes_writes = False
    """The transaction removed pending writes of which its result says nothing."""

    # --- dialect hooks

    def lock(self, *thread_ids: str, namespace: str | None = None) -> bool:
        """Prevent other transactions from changing threads, or a line of them, until the commit.

        Does nothing where a writing transaction is alone. Later reads see what was committed before
        the lock was granted.

        Returns:
            True if any row was locked. Rows that are created later are not locked.
        """
        return True

    def lock_unheld(self, thread_id: str, namespace: str | None = None) -> bool:
        """Lock a thread and its lines, or one line; ``False`` if another transaction has any.

        The transaction that gets ``False`` may hold some of the locks: it should end.
        """
        return True

    def lock_thread(self, thread_id: str) -> Any:
        """Lock a thread's row against creating lines in it and against deletion; return it.

        Lock order: line first, then thread. Never lock a line while holding this lock.
        """
        return self.read_row(thread_id)

    @property
    def has_index(self) -> bool:
        """True if the database has a full-text index."""
        # Not by cached_property: Python 3.11's holds a lock of the class while it asks.
        if self._has_index is None:
            self._has_index = self.look_for_index()
        return self._has_index

    def look_for_index(self) -> bool:
        """Query the database for the full-text index."""
        return False

    def index_record(self, line: int, sequence: int, payload: bytes) -> str | None:
        """Add a record to the full-text index; return the text to store, if any."""
        return None

    def remove_payloads(self, line: int, sequences: Sequence[int]) -> None:
        for batch in split_batches(sequences):
            self._update_records(line, batch, payload=None)

    def unindex(self, lines: Sequence[int], sequences: Sequence[int] | None = None) -> None:
        """Remove records, or whole lines, from the full-text index before their deletion."""

    def copy_index(self, source: Copied) -> None:
        """Add a copied thread's lines to the full-text index, using the source's entries."""

    def finish(self) -> None:
        """Do the remaining work before the commit."""

    def read_oldest_transaction(self) -> int:
        """Return a transaction such that all older ones have ended; see ``versions.audit.Seal``.

        0 where a later statement sees all entries of the audit that were given a number before.
        """
        return 0

    def read_own_transaction(self) -> int:
        """Return the number of this transaction, where ``read_oldest_transaction`` has any."""
        return 0

    # --- versions.Lines

    def find(self, thread_id: str, namespace: str, *, beside: str | None = None) -> Line | None:
        is_locked = self.lock(thread_id, namespace=namespace)
        return self.find_line(thread_id, namespace, beside) if is_locked else None

    def has_thread(self, thread_id: str) -> bool:
        self.lock_thread(thread_id)
        return has_thread(self, thread_id)

    def create(self, save: Save) -> Line:
        self._is_save = True
        is_new = self.open_thread(save.thread_id)
        if not is_new or save.ttl_seconds is not None:
            self.touch(save)
        return self.open_line(save.thread_id, save.namespace)

    def open_thread(self, thread_id: str) -> bool:
        """Lock a thread, created if there is no live one; return whether it was created."""
        found = self.lock_thread(thread_id)
        if found and found.live:
            return False
        if found and self.lock(thread_id):
            self.drop_threads([thread_id])
        key = {"tenant": self.tenant, "thread_id": thread_id, "layout": self.tenancy.layout}
        require_layout(self.sql.new_thread.run(self.connection, key))
        self.opened_threads += 1
        return True

    def open_line(self, thread_id: str, namespace: str) -> Line:
        """Return the line of a locked thread; create it if missing. It may hold writes only.

        Does not wait for a lock: a locked line is a lost race, and the transaction is retried.
        """
        key = {"tenant": self.tenant, "thread_id": thread_id, "namespace": namespace}
        row = self.sql.any_line.fetch_first(self.connection, key)
        return Line(*row) if row else Line(line=self.add_line(thread_id, namespace))

    def read_row(self, thread_id: str) -> Any:
        """Return the row of ``Statements.thread``; ``None`` if there is no thread."""
        key = {"tenant": self.tenant, "thread_id": thread_id}
        [row] = self.sql.thread.fetch_named(self.connection, key)
        if self.is_outside_turns:
            turns.require_none(self, thread_id, row.turn)
        return None if row.thread is None else row

    def add_line(self, thread_id: str, namespace: str) -> int:
        """Create an empty line; return its key."""
        key = {"tenant": self.tenant, "thread_id": thread_id, "namespace": namespace}
        return self.sql.new_line.insert(self.connection, key)

    def update(self, line: Line) -> None:
        values = {f"new_{name}": getattr(line, name) for name in LINE_STATE}
        key = {"of_line": line.line, "is_save": int(self._is_save)}
        self.sql.save_line.run(self.connection, {**values, **key})

    def touch(self, save: Save | LogEdit) -> None:
        """Record activity at most once a minute, so that its index is rarely updated."""
        self._is_save = True
        key = {"of_tenant": self.tenant, "of_thread_id": save.thread_id}
        if save.ttl_seconds is None:
            if self.active_thread != save.thread_id:
                self.sql.touch.run(self.connection, key)
            return
        slack = compute_ttl_slack(save.ttl_seconds)
        self.sql.prolong.run(
            self.connection,
            {**key, "ttl": save.ttl_seconds, "ttl_and_slack": save.ttl_seconds + slack},
        )

    def renew(self, thread_id: str, ttl_seconds: float, *, begins: bool = False) -> bool:
        """See ``Expires.renew``; ``begins``: the thread is new and has no time to live."""
        threads = self.tables.threads
        slack = compute_ttl_slack(ttl_seconds)
        least, most = make_expiry(ttl_seconds), make_expiry(ttl_seconds + slack)
        is_it = threads.c.tenant == self.tenant, threads.c.thread_id == thread_id
        at = threads.c.expires_at
        is_short = at.is_(None) if begins else sa.and_(at > make_clock(), at <= least)
        renewed = threads.update().where(*is_it, is_short).values(expires_at=most)
        return bool(self.connection.execute(renewed).rowcount)

    def append(self, line: Line, record: Record, payload: bytes) -> None:
        self.appended_bytes += len(payload)
        self.sql.new_record.run(
            self.connection,
            {
                "line": line.line,
                **dict(zip(RECORD, _list_fields(record), strict=True)),
                "codec": 0,
                "text": self.index_record(line.line, record.sequence, payload),
                "payload": payload,
            },
        )

    def rewrite(self, line: Line, sequence: int, payload: bytes) -> None:
        _open_segments(self, line.line, [sequence])
        self.unindex([line.line], [sequence])
        text = self.index_record(line.line, sequence, payload)
        self._update_records(line.line, [sequence], payload=payload, text=text)

    def _update_records(self, line: int, sequences: Sequence[int], **values: Any) -> None:
        size, key = pending.fill_parameters("sequence", sequences)
        self.change(update_records, size, *values, **key, **values, of_line=line)

    def adopt(self, line: Line, sequence: int, parent: int | None) -> None:
        self.seen_records.clear()
        self._update_records(line.line, [sequence], parent=parent)

    def children(self, line: Line, sequences: Collection[int]) -> list[Record]:
        found: list[Record] = []
        for batch in split_batches(sorted(sequences)):
            size, key = pending.fill_parameters("parent", batch)
            rows = self.ask(select_children, size, **key, line=line.line)
            found += [Record(*row) for row in rows]
        return found

    def writes(self, line: Line, checkpoint_id: str) -> list[PendingWrite]:
        return pending.read_writes(self, line.line, checkpoint_id)

    def written(self, line: Line, checkpoint_id: str) -> Collection[tuple[str, int]]:
        if self.without_writes == (line.line, checkpoint_id):
            return ()
        key = {"line": line.line, "checkpoint_id": checkpoint_id}
        return {(row[0], row[1]) for row in self.sql.written.fetch_rows(self.connection, key)}

    def put_writes(self, line: Line, checkpoint_id: str, writes: Sequence[PendingWrite]) -> None:
        self.without_writes = None
        if not writes:  # a replaced version may have none
            return
        columns = pending.make_columns(line.line, checkpoint_id, writes)
        if min(columns["idx"]) < 0:  # of special channels, which replace existing ones
            for at, idx in enumerate(columns["idx"]):
                if idx < 0:
                    key = {name: values[at] for name, values in columns.items()}
                    self.sql.drop_write.run(self.connection, key)
        self.sql.new_write.run_all(self.connection, columns)

    def remove(self, line: Line, sequences: Sequence[int]) -> None:
        self.seen_records.clear()
        for batch in split_batches(sequences):
            _open_segments(self, line.line, batch)
            self.unindex([line.line], batch)
            size, key = pending.fill_parameters("sequence", batch)
            self.change(delete_writes_on, size, **key, of_line=line.line)
            self.change(delete_records, size, **key, of_line=line.line)

    def drop(self, line: Line) -> None:
        """Remove a line, and the thread too if nothing else of it is left."""
        lines = self.tables.lines
        self.seen_records.clear()
        self.active_thread = None
        found = sa.select(lines.c.thread_id, lines.c.updated_at).where(lines.c.line == line.line)
        # Its row is locked first, so that a concurrent write is waited for.
        thread_id, saved_at = self.connection.execute(found.with_for_update()).one()
        self.unindex([line.line])
        for table in (*self._of_lines, lines):
            self.connection.execute(table.delete().where(table.c.line == line.line))
        self.lock_thread(thread_id)  # another transaction may create or remove a line of it
        settle(self, thread_id, saved_at)

    def guard(self, thread_id: str, number: int | None) -> None:
        """Refuse a write that the turn of its thread does not permit; see ``Save.turn``.

        A write of no turn is refused by the next statement that reads its line or thread.
        """
        self.is_outside_turns = number is None
        if number is not None:
            turns.require_turn(self, thread_id, number)

    def save(self, save: Save) -> Written:
        self.guard(save.thread_id, save.turn)
        if save.claim is None:
            return versions.save(self, save)
        require_its_owner(self, save.claim)
        written = versions.save(self, save)
        self.open_thread(save.thread_id)  # lock order: line, then thread
        put_facts(self, save.claim)
        return written

    def delete(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_ids: Sequence[str],
        *,
        writer: str | None = None,
    ) -> int:
        line = self.find(thread_id, namespace)
        return versions.remove_named(self, line, checkpoint_ids, writer) if line else 0

    def delete_thread(self, thread_id: str, head: Mark | None, namespace: str) -> Removed:
        is_locked = self.lock(thread_id)
        if head is not None:
            versions.require_head(self, self.find_line(thread_id, namespace), head, thread_id)
        existed = is_locked and has_thread(self, thread_id)
        found = self.read_row(thread_id) if is_locked and not existed else None
        if not (existed or (found and found.live)):
            return Removed(existed=False, versions=0)
        self.removes_writes = not existed
        return Removed(existed, self.drop_threads([thread_id]).versions)

    def drop_threads(self, thread_ids: Sequence[str]) -> Swept:
        """Remove threads, expired or not, with all they own; return how much that was."""
        t, removed = self.tables, Counter[str]()
        for batch in split_batches(thread_ids):
            size, key = pending.fill_parameters("thread", batch)
            key["tenant"] = self.tenant
            self.unindex([line for (line,) in self.ask(select_lines, size, **key)])
            for table in (t.turns, t.messages, t.logs, *self._of_lines, t.lines, t.threads):
                removed[table.name] += self.change(delete_of_threads, table, size, **key)
        self.seen_records.clear()
        self.active_thread = None
        return Swept(removed[t.checkpoints.name], removed[t.messages.name], is_whole=True)

    @property
    def _of_lines(self) -> tuple[sa.Table, ...]:
        """The tables whose rows belong to a line."""
        return self.tables.writes, self.tables.segments, self.tables.checkpoints

    def find_lines_of(self, thread_ids: Sequence[str]) -> list[int]:
        size, named = pending.fill_parameters("thread", thread_ids)
        return [line for (line,) in self.ask(find_lines, size, tenant=self.tenant, **named)]

    def find_expired(self, among: Sequence[str] | None = None) -> list[str]:
        """Return a batch of threads whose time to live is over."""
        threads = self.tables.threads
        found = sa.select(threads.c.thread_id).where(
            threads.c.tenant == self.tenant, threads.c.expires_at <= make_clock()
        )
        if among is not None:
            found = found.where(threads.c.thread_id.in_(among))
        return list(self.connection.execute(found.limit(BATCH)).scalars())

    def expire(self) -> list[str]:
        """Remove a batch of expired threads, checked under the lock; return their ids."""
        over = self.find_expired()
        self.lock(*over)
        gone = self.find_expired(among=over)
        self.drop_threads(gone)
        turns.end_expired(self)
        return gone

    def find_aged(self, seconds: float) -> list[str]:
        """Return threads that may have data older than this by the server's clock."""
        checkpoints, lines = self.tables.checkpoints, self.tables.lines
        found = (
            sa.select(lines.c.thread_id)
            .join(checkpoints, checkpoints.c.line == lines.c.line)
            .where(lines.c.tenant == self.tenant)
            .where(checkpoints.c.created_at < make_cutoff(seconds))
            .distinct()
        )
        return [*self.connection.execute(found).scalars(), *find_versionless(self)]

    def vacuum_thread(self, thread_id: str, seconds: float) -> Swept | None:
        """Remove a thread's versions older than this, or all of it; return how much.

        ``None``: another transaction holds the thread, and nothing was removed.
        """
        if not self.lock_unheld(thread_id):
            return None
        if is_old(self, thread_id, seconds):
            return self.drop_threads([thread_id])
        c, removed = self.tables.checkpoints.c, 0
        for line in self._iterate_lines(thread_id):
            is_gone = c.line == line.line, c.created_at < make_cutoff(seconds)
            query = sa.select(c.sequence).where(*is_gone)
            if gone := list(self.connection.execute(query).scalars()):
                removed += versions.vacuum(self, line, gone)
        return Swept(removed)

    def prune(self, thread_id: str) -> int:
        """See ``StoresThreads.prune``; processes one line at a time."""
        return sum(versions.prune(self, line) for line in self._iterate_lines(thread_id))

    def _iterate_lines(self, thread_id: str) -> Iterator[Line]:
        lines = self.tables.lines
        names = sa.select(lines.c.namespace).where(
            lines.c.tenant == self.tenant, lines.c.thread_id == thread_id
        )
        for namespace in self.connection.execute(names).scalars().all():
            if line := self.find(thread_id, namespace):
                yield line

    def index_line(self, line: int) -> None:
        """Add a line's records to the full-text index."""
        for sequence, _, payload in read_all_records(self, line):
            text = self.index_record(line, sequence, payload)
            self._update_records(line, [sequence], text=text)

    def index_versions(self, kind: str) -> None:
        """Record that there is an index, and index all versions."""
        self.connection.execute(
            self.tables.settings.insert().values(name=SEARCH_SETTING, value=kind)
        )
        self._has_index = None
        lines = sa.select(self.tables.lines.c.line)
        for line in list(self.connection.execute(lines).scalars()):
            self.index_line(line)


_list_fields = attrgetter(*RECORD)


def settle(repo: Repository, thread_id: str, changed_at: datetime) -> None:
    """Remove a thread that has lost its last line or log, changed then; else keep its place."""
    if repo.find_lines_of([thread_id]) or has_thread(repo, thread_id):
        keep_place(repo, thread_id, changed_at)
    else:
        repo.drop_threads([thread_id])


_MOST: Final = 2**63 - 1
"""No sequence is greater."""


def _open_segments(reads: Reads, line: int, sequences: Sequence[int]) -> None:
    """Put back the payloads of the segments that have any of these records, and of later ones."""
    joined = [one for one in sequences if (line, one) not in reads.own_payloads]
    near = reads.read_all_segments(line, within=(min(joined), _MOST)) if joined else []
    if not near:
        return
    c = reads.tables.checkpoints.c
    first = sa.select(c.chain, sa.func.min(c.sequence)).where(c.line == line)
    rows = reads.connection.execute(first.where(c.sequence.in_(joined)).group_by(c.chain))
    changed = {row[0]: row[1] for row in rows}
    for _, one in near:
        if one.last >= changed.get(one.chain, _MOST):
            _put_back(reads, line, one.last, one.split_records())


def _put_back(reads: Reads, line: int, last: int, payloads: Mapping[int, bytes]) -> None:
    """Put the payloads of a segment into its records."""
    records, segments = reads.tables.checkpoints, reads.tables.segments
    its = sa.bindparam("its_sequence", type_=records.c.sequence.type)
    put = records.update().where(records.c.line == line, records.c.sequence == its)
    rows = [{"its_sequence": at, "payload": payload} for at, payload in payloads.items()]
    reads.connection.execute(put.values(payload=sa.bindparam("payload")), rows)
    is_it = segments.c.line == line, segments.c.last == last
    reads.connection.execute(segments.delete().where(*is_it))
    reads.own_payloads |= {(line, at) for at in payloads}
