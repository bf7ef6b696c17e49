"""The list of threads with what a list shows of each, by one statement; and sizes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from locus_store.errors import BackendError, IntegrityError
from locus_store.runtime.stepping import run_in_thread
from locus_store.sql.columns.types import make_clock
from locus_store.sql.threads import searching
from locus_store.sql.threads.listing import ListPlace, RunsQueries, make_order, select_page
from locus_store.sql.threads.pending import GROWTH, split_batches
from locus_store.sql.threads.reads import ROOT, Reads
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.statements import is_head, is_live, make_same_thread_condition
from locus_store.sql.threads.thread_rows import (
    MESSAGE,
    has_activity,
    make_message,
    make_user_condition,
)
from locus_store.types import FOREVER, ArchivedMessage
from locus_store.types.arguments import check_names
from locus_store.values.text import query_words
from locus_store.versions.archives import cut_to_minute
from locus_store.versions.lines import IS_SIDE_BRANCH, SIDE_BRANCH
from locus_store.versions.quotas import ROW_BYTES, Amounts
from locus_store.versions.sizes import (
    BADGES,
    GRAPH_SOURCES,
    INTERRUPT,
    RECORD_BYTES,
    SOON,
    ListsStatuses,
    MeasuresVersions,
    StatusesWanted,
    ThreadStatus,
    parse_place,
)


class StatusPage(NamedTuple):
    """Threads that may meet conditions."""

    rows: Sequence[Row[Any]]
    """In order; with a text, each with its ``line`` and the bytes ``stored`` in it."""

    statuses: list[ThreadStatus] | None
    """``None``: not read, as most threads may lack the text; there is no index for it."""

    records: Sequence[searching.FoundRecord] = ()


class SqlSizes(RunsQueries, MeasuresVersions, ListsStatuses):
    """Runs the queries below in the transactions of a backend."""

    _rank: Callable[[list[searching.Candidate], list[str]], Awaitable[list[searching.Ranked]]]

    async def measure_versions(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> dict[int, int]:
        check_names(thread_id, namespace)
        return await self._query(
            lambda it: _read_sizes(it, thread_id, namespace, first, last), self._reader
        )

    async def find_statuses(self, criteria: StatusesWanted) -> list[ThreadStatus]:
        """See ``ListsStatuses``; a statement, and more if some of its rows meet no condition."""
        if criteria.thread_ids is None:
            return await self._find_part(criteria)
        parts = [replace(criteria, thread_ids=some) for some in split_batches(criteria.thread_ids)]
        found = [status for part in parts for status in await self._find_part(part)]
        return sorted(found, key=lambda it: it.active_at or FOREVER, reverse=True)[: criteria.limit]

    async def _find_part(self, criteria: StatusesWanted) -> list[ThreadStatus]:
        found, size, database = list[ThreadStatus](), criteria.limit, self._database
        place: Any = _parse_place(criteria.place) if criteria.place else None
        while len(found) < criteria.limit:
            read = partial(read_page, criteria=criteria, size=size, place=place)
            try:
                page = await self._query(
                    partial(read, has_index=database.opened.has_index), self._reader
                )
            except BackendError:
                if criteria.text is None or not database.opened.has_index:
                    raise
                database.opened.has_index = False  # it may have been dropped
                page = await self._query(partial(read, has_index=False), self._reader)
            looked = page if criteria.text is None else await self._look_at_text(criteria, page)
            found += filter(criteria.takes, looked.statuses or ())
            if len(page.rows) < size and len(looked.rows) == len(page.rows):
                break
            size, place = size * GROWTH, looked.rows[-1]
        return found[: criteria.limit]

    async def _look_at_text(self, criteria: StatusesWanted, page: StatusPage) -> StatusPage:
        """Return the first rows, until enough have the text; compared outside any transaction."""
        words, lines = query_words(criteria.text or ""), {it.line for it in page.records}
        database, statuses = self._database, page.statuses
        database.opened.has_index |= statuses is not None
        matching = searching.Matching(words, database.max_state_bytes)
        await run_in_thread(partial(matching.add, page.records))
        ranked, rest = matching.ranked, (it for it in page.rows if it.line not in lines)
        sized = [searching.Candidate(it.line, int(it.stored)) for it in rest]
        for batch in searching.group_batches(sized):
            if len(ranked) >= criteria.limit:
                break
            ranked += await self._rank(batch, words)
            lines |= {it.line for it in batch}
        hits = {it.thread_id: it for it in ranked}
        if statuses is None:
            named = replace(criteria, text=None, place=None, thread_ids=[*hits], limit=len(hits))
            statuses = await self.find_statuses(named)
        rows = [it for it in page.rows if it.line in lines]
        return StatusPage(rows, [it.with_hit(hits.get(it.thread_id)) for it in statuses])


def _read_sizes(
    reads: Reads, thread_id: str, namespace: str, first: int, last: int
) -> dict[int, int]:
    line, c = reads.find_line(thread_id, namespace), reads.tables.checkpoints.c
    if line is None:
        return {}
    query = sa.select(c.sequence, sa.func.length(c.payload)).where(
        c.line == line.line, c.sequence.between(first, last)
    )
    sizes = {row[0]: row[1] for row in reads.connection.execute(query)}
    if None in sizes.values():
        for _, one in reads.read_all_segments(line.line, within=(first, last)):
            joined = {at: len(payload) for at, payload in one.split_records().items()}
            sizes |= {at: joined[at] for at in sizes.keys() & joined.keys()}
    return {at: size or 0 for at, size in sizes.items()}


def read_page(
    repo: Repository, *, criteria: StatusesWanted, size: int, place: Any, has_index: bool
) -> StatusPage:
    """Return a page of threads that may meet the conditions, by one statement.

    With a text, also the records of the first ones, up to ``BATCH_BYTES``.
    """
    has_index = criteria.text is not None and (has_index or repo.has_index)
    conditions = _make_conditions(repo, criteria, has_index=has_index)
    threads = select_page(repo, size, *conditions, place=place)
    page = threads if criteria.text is None else _add_lines(repo, threads)
    named = page.cte("page").prefix_with("MATERIALIZED", dialect="postgresql")
    if criteria.text is None:
        rows = repo.connection.execute(_select_statuses(repo, named)).all()
        return StatusPage(rows, [*map(_make_status, rows)])
    query = _select_statuses(repo, named) if has_index else sa.select(named)
    near = sa.select(named.c.line).where(named.c.until <= searching.BATCH_BYTES)
    records = searching.select_records(repo.tables, repo.tables.lines.c.line.in_(near))
    both = repo.connection.execute(_join_rows(query, records)).all()
    rows = [it for it in both if it.line is not None]
    rows.sort(key=lambda it: (it.active_at, it.exact, it.thread), reverse=True)
    width = len(query.selected_columns)
    found = searching.collect_records(it[width:] for it in both if it.line is None)
    return StatusPage(rows, [*map(_make_status, rows)] if has_index else None, found)


def _add_lines(repo: Repository, threads: sa.Select[Any]) -> sa.Select[Any]:
    """Return a query that also gives their root lines, the bytes of each and of all until it."""
    lines, page = repo.tables.lines, threads.subquery("found")
    is_root = (lines.c.thread_id == page.c.thread_id) & sa.and_(*searching.are_searched(repo, ()))
    its = sa.select(*page.c, lines.c.line, searching.measure_line(repo.tables).label("stored"))
    each = its.join_from(page, lines, is_root).subquery()
    until = sa.func.sum(each.c.stored).over(order_by=make_order(each.c))
    return sa.select(each, until.label("until"))


def _join_rows(threads: sa.Select[Any], records: sa.CompoundSelect[Any]) -> sa.CompoundSelect[Any]:
    """Return one query for both; records have the columns behind those of threads."""
    left, right = threads.order_by(None).subquery(), records.subquery()
    none = [sa.type_coerce(sa.null(), it.type).label(f"record_{it.name}") for it in right.c]
    return sa.select(left, *none).union_all(sa.select(*(sa.null() for _ in left.c), right))


def _parse_place(text: str) -> ListPlace:
    exact, thread = parse_place(text)
    is_key = thread.isascii() and thread.isdecimal() and len(thread) <= len(str(2**62)) - 1
    return ListPlace(cut_to_minute(exact), exact, int(thread) if is_key else 0)


def _make_conditions(
    reads: Reads, criteria: StatusesWanted, *, has_index: bool
) -> Iterator[sa.ColumnElement[bool]]:
    threads, c = reads.tables.threads.c, reads.tables.checkpoints.c
    if criteria.thread_ids is not None:
        yield threads.thread_id.in_(criteria.thread_ids)
    if criteria.text is not None:
        are_near = searching.are_searched(reads, query_words(criteria.text) if has_index else ())
        yield threads.thread_id.in_(sa.select(reads.tables.lines.c.thread_id).where(*are_near))
    if criteria.pattern != "*":
        is_match = reads.make_pattern_condition(threads.thread_id, criteria.pattern)
        yield sa.true() if is_match is None else is_match
    if criteria.user_id is not None:
        yield make_user_condition(reads, criteria.user_id) | _may_have(
            reads, "user_id", criteria.user_id
        )
    if criteria.metadata is not None:
        yield _may_have(reads, *criteria.metadata)
    if criteria.kind is not None:
        is_graph = sa.or_(*(reads.may_have(c.metadata, "source", name) for name in GRAPH_SOURCES))
        is_user = threads.user_id.is_not(None)
        yield {
            "graph": _has_head(reads, is_graph),
            "agent": _has_head(reads, sa.or_(c.metadata.is_(None), ~is_graph)),
            "session": ~_has_head(reads) & is_user,
            "log": ~_has_head(reads) & ~is_user,
        }[criteria.kind]
    if criteria.badge is not None:
        badges = _make_badges(reads)
        is_so = badges[criteria.badge]
        yield _has_head(reads, is_so) if criteria.badge in {"interrupted", "conflict"} else is_so
    if criteria.since is not None:
        yield threads.active_at >= cut_to_minute(criteria.since)
    if criteria.until is not None:
        yield threads.active_at <= criteria.until


def _may_have(reads: Reads, key: str, value: Any) -> sa.ColumnElement[bool]:
    """Return a condition that threads meet whose head, or which themselves, have a value."""
    threads, c = reads.tables.threads.c, reads.tables.checkpoints.c
    of_head = sa.or_(*(reads.may_have(column, key, value) for column in (c.metadata, c.labels)))
    return sa.or_(reads.may_have(threads.metadata, key, value), _has_head(reads, of_head))


def _has_head(reads: Reads, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return whether a thread has a head in its root namespace that meets the conditions."""
    t = reads.tables
    return (
        sa.exists()
        .select_from(t.lines.join(t.checkpoints, is_head(t, t.checkpoints)))
        .where(make_same_thread_condition(t), t.lines.c.namespace == ROOT, *conditions)
        .correlate(t.threads)
    )


def _make_badges(reads: Reads) -> dict[str, sa.ColumnElement[bool]]:
    """Return the conditions of the badges of a thread, its root line and head."""
    t = reads.tables
    threads, lines, c, held, w = t.threads, t.lines, t.checkpoints.c, t.turns.c, t.writes.c
    side, child = t.checkpoints.alias("side"), t.checkpoints.alias("child")
    is_beside = sa.and_(
        side.c.line == lines.c.line,
        side.c.sequence >= lines.c.floor,
        side.c.sequence != lines.c.head,
    )
    has_child = sa.exists().where(
        child.c.line == side.c.line,
        child.c.sequence > side.c.sequence,
        child.c.parent == side.c.sequence,
    )
    is_side = reads.may_have(side.c.labels, SIDE_BRANCH, IS_SIDE_BRANCH)
    waits = sa.exists().where(
        w.line == c.line, w.checkpoint_id == c.checkpoint_id, w.channel == INTERRUPT
    )
    is_its = (held.tenant == threads.c.tenant) & (held.thread_id == threads.c.thread_id)
    return {
        "interrupted": waits.correlate(t.checkpoints),
        "turn": sa.exists().where(is_its, held.expires_at > make_clock()).correlate(threads),
        "expires": threads.c.expires_at < datetime.now(UTC) + SOON,
        "conflict": sa.exists()
        .where(is_beside, is_side, ~has_child.correlate(side))
        .correlate(lines),
    }


def _select_statuses(reads: Reads, page: sa.CTE) -> sa.Select[Any]:
    """Return a query for the threads of a page, in order, with what a list shows of them."""
    t = reads.tables
    lines, c = t.lines, t.checkpoints.c
    its = lines.c.tenant == reads.tenant
    is_visible = sa.or_(c.sequence >= lines.c.floor, c.sequence == lines.c.head)
    counts = (
        sa.select(
            lines.c.thread_id,
            sa.func.count().label("versions"),
            sa.func.sum(sa.func.length(c.payload)).label("own"),
        )
        .join(t.checkpoints, c.line == lines.c.line)
        .where(its, lines.c.thread_id.in_(sa.select(page.c.thread_id)), is_visible)
        .group_by(lines.c.thread_id)
        .subquery("counts")
    )
    joined = (
        sa.select(sa.func.sum(sa.func.length(t.segments.c.payload)))
        .join(lines, lines.c.line == t.segments.c.line)
        .where(its, lines.c.thread_id == page.c.thread_id)
        .correlate(page)
    )
    m, logs = t.messages.c, t.logs.c
    sizes = sa.select(sa.func.sum(_measure(m))).where(m.thread == page.c.thread).correlate(page)
    order = logs.changed_at.desc(), logs.namespace
    newest = sa.select(sa.func.max(m.sequence)).where(
        m.thread == logs.thread, m.namespace == logs.namespace
    )
    last = (  # the log of each thread that changed last
        sa.select(
            *(logs.thread, logs.namespace, newest.scalar_subquery().label("sequence")),
            sa.func.row_number().over(partition_by=logs.thread, order_by=order).label("nth"),
        )
        .where(logs.thread.in_(sa.select(page.c.thread)))
        .subquery("last_logs")
    )
    said = t.messages.alias("said")
    is_newest = sa.and_(
        *(said.c[name] == last.c[name] for name in ("thread", "namespace", "sequence")),
        _measure(said.c) <= RECORD_BYTES,
    )
    messages = sa.select(sa.func.sum(logs.message_count)).where(logs.thread == page.c.thread)
    badges = (
        sa.case((is_so, 1), else_=0).label(name) for name, is_so in _make_badges(reads).items()
    )
    record = sa.case((sa.func.length(c.payload) <= RECORD_BYTES, c.payload)).label("record")
    is_root = its & (lines.c.thread_id == page.c.thread_id) & (lines.c.namespace == ROOT)
    facts = t.threads.c.metadata.label("facts"), t.threads.c.user_id, t.threads.c.expires_at
    amounts = counts.c.versions, counts.c.own, joined.scalar_subquery().label("joined")
    return (
        sa.select(
            *(*page.c, lines.c.head, c.checkpoint_id, c.metadata, c.labels, c.digest, record),
            *(*facts, *amounts, *badges, sizes.scalar_subquery().label("sizes")),
            *(said.c[name].label(f"said_{name}") for name in MESSAGE),
            messages.correlate(page).scalar_subquery().label("messages"),
        )
        .join_from(page, t.threads, t.threads.c.thread == page.c.thread)
        .outerjoin(lines, is_root)
        .outerjoin(t.checkpoints, is_head(t, t.checkpoints))
        .outerjoin(counts, counts.c.thread_id == page.c.thread_id)
        .outerjoin(last, (last.c.thread == page.c.thread) & (last.c.nth == 1))
        .outerjoin(said, is_newest)
        .order_by(*make_order(page.c))
    )


def _measure(message: sa.ColumnCollection[str, Any]) -> sa.ColumnElement[int]:
    """Return what ``measure_message`` does."""
    payload, text = map(sa.func.length, (message.payload, message.text))
    return sa.func.coalesce(payload, 0) + sa.func.coalesce(text, 0)


def _make_status(row: Row[Any]) -> ThreadStatus:
    return ThreadStatus(
        thread_id=row.thread_id,
        active_at=row.exact,
        place=f"{row.exact.isoformat()}/{row.thread}",
        badges=[name for name in BADGES if getattr(row, name)],
        checkpoint_id=row.checkpoint_id,
        metadata=None if row.head is None else row.metadata or {},
        labels=row.labels or {},
        digest=row.digest,
        facts=row.facts or {},
        user_id=row.user_id,
        expires_at=row.expires_at,
        record=row.record or None,  # some databases have empty bytes for NULL
        messages=None if row.messages is None else int(row.messages),
        message=_make_message(row),
        versions=row.versions or 0,
        stored_bytes=int(row.own or 0) + int(row.joined or 0) + int(row.sizes or 0),
    )


def _make_message(row: Row[Any]) -> ArchivedMessage | None:
    if row.said_sequence is None:
        return None
    with suppress(IntegrityError):  # damaged; its page says so
        return make_message([getattr(row, f"said_{name}") for name in MESSAGE], row.thread_id)
    return None


def count_stored(reads: Reads, thread_id: str | None = None) -> Amounts:
    """Return what the tenant, or one thread of reads, stores; one statement."""
    t, tenant = reads.tables, reads.tenant
    is_line = t.lines.c.tenant == tenant
    is_thread = t.threads.c.tenant == tenant
    threads = sa.select(sa.func.count()).where(is_thread, is_live(t), has_activity(t))
    if thread_id is not None:
        is_line &= t.lines.c.thread_id == thread_id
        is_thread &= t.threads.c.thread_id == thread_id
    parts = [
        _sum(reads, t.checkpoints, t.lines, "line", is_line, "payload", "metadata", "labels"),
        _sum(reads, t.segments, t.lines, "line", is_line, "payload"),
        _sum(reads, t.writes, t.lines, "line", is_line, "payload"),
        _sum(reads, t.messages, t.threads, "thread", is_thread, "payload", "metadata", "text"),
    ]
    if thread_id is None:
        is_item = t.store.c.tenant == tenant
        parts.append(_sum(reads, t.store, t.store, "item", is_item, "value", "metadata"))
    row = reads.connection.execute(sa.select(threads.scalar_subquery(), *parts)).one()
    return {"threads": int(row[0]), "bytes": sum(int(size or 0) for size in row[1:])}


def _sum(
    reads: Reads,
    table: sa.Table,
    parent: sa.Table,
    key: str,
    condition: sa.ColumnElement[bool],
    *contents: str,
) -> sa.ScalarSelect[Any]:
    """Return the bytes of a table's rows, whose parent meets a condition."""
    sizes = (sa.func.coalesce(reads.measure_column(table.c[name]), 0) for name in contents)
    query = sa.select(sa.func.sum(sum(sizes, sa.literal(ROW_BYTES)))).where(condition)
    if parent is not table:
        query = query.select_from(table.join(parent, parent.c[key] == table.c[key]))
    return query.scalar_subquery()
