"""Lists of threads, the most recently active first.

``threads.active_at`` is indexed, and to the minute: an index on the exact time would turn HOT
updates off. Within a minute the exact time decides, which is looked up thread by thread. So a page
is looked for in whole minutes: as many as the index says that it takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Row

from locus_store import versions
from locus_store.backend import TakesTurns
from locus_store.errors import NotFoundError
from locus_store.sql.columns.types import now
from locus_store.sql.threads import turns
from locus_store.sql.threads.pending import split_batches
from locus_store.sql.threads.reads import ROOT, Reads, make_head
from locus_store.sql.threads.statements import is_live, make_same_thread_condition
from locus_store.sql.threads.thread_rows import (
    find_facts,
    has_activity,
    make_user_condition,
    parse_facts,
    put_facts,
    select_last_active,
)
from locus_store.types import FOREVER, Active, Head
from locus_store.types.arguments import check_limit, check_names, check_text, compile_thread_pattern
from locus_store.types.thread_info import (
    DescribesThreads,
    PutThread,
    StoredFacts,
    ThreadFacts,
    ThreadsWanted,
    require_user_id,
)
from locus_store.types.turns import ThreadTurn, TurnStep
from locus_store.versions.archives import cut_to_minute
from locus_store.versions.lines import IS_SIDE_BRANCH, SIDE_BRANCH
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
from locus_store.versions.turns import describe_tickets, take_step

if TYPE_CHECKING:
    from locus_store.sql.threads.repository import Repository

PAGE: Final = 200
"""Threads that are matched in Python at first, at least."""

GROWTH: Final = 4
"""Each further page of them is larger by this factor."""


def list_threads(it: Reads, limit: int, pattern: str, after: str | None) -> list[Active]:
    """See ``ListsThreads.recent``."""
    place = None if after is None else _place(it, after)
    return list_threads_from(it, limit, pattern, place)


def list_threads_from(reads: Reads, limit: int, pattern: str, place: Any) -> list[Active]:
    """Return the threads behind a place: a row of ``select_page``, or of ``make_place``."""
    thread_id, is_match = reads.tables.threads.c.thread_id, compile_thread_pattern(pattern).match
    in_sql = sa.true() if pattern == "*" else reads.make_pattern_condition(thread_id, pattern)
    if in_sql is not None:
        page = select_page(reads, limit, in_sql, place=place)
        return [Active(row.thread_id, row.exact) for row in reads.connection.execute(page)]
    found: list[Active] = []
    size = max(limit, PAGE)
    while len(found) < limit:
        rows = reads.connection.execute(select_page(reads, size, place=place)).all()
        found += [Active(row.thread_id, row.exact) for row in rows if is_match(row.thread_id)]
        if len(rows) < size:
            break
        size, place = size * GROWTH, rows[-1]
    return found[:limit]


def list_heads(it: Reads, limit: int) -> list[Head]:
    """See ``ListsHeads.heads``."""
    return [head for _, head in list_active_heads(it, limit)]


def list_active_heads(reads: Reads, limit: int) -> list[tuple[datetime, Head]]:
    """Return heads with their threads' last activity; mostly in one statement.

    Few threads have no head.
    """
    found: list[tuple[datetime, Head]] = []
    place = None
    while len(found) < limit:
        rows = reads.connection.execute(
            _with_heads(reads, select_page(reads, limit, place=place))
        ).all()
        found += [(row.exact, make_head(row)) for row in rows if row.checkpoint_id is not None]
        if len(rows) < limit:
            break
        place = rows[-1]
    return found[:limit]


def _with_heads(it: Reads, threads: sa.Select[Any]) -> sa.Select[Any]:
    """Return the query's threads in order, with the heads of their root namespaces, if any."""
    checkpoints, lines, page = it.tables.checkpoints, it.tables.lines, threads.subquery("page")
    is_root = sa.and_(
        lines.c.tenant == it.scope.tenant,
        lines.c.thread_id == page.c.thread_id,
        lines.c.namespace == ROOT,
    )
    is_head = sa.and_(checkpoints.c.line == lines.c.line, checkpoints.c.sequence == lines.c.head)
    return (
        sa.select(page, *it.get_head_columns())
        .outerjoin_from(page, lines, is_root)
        .outerjoin(checkpoints, is_head)
        .order_by(*make_order(page.c))
    )


def select_page(
    it: Reads, limit: int, *conditions: sa.ColumnElement[bool], place: Any = None
) -> sa.Select[Any]:
    """Return a query for a page of existing threads that meet the conditions, in order."""
    c, exact = it.tables.threads.c, select_last_active(it.tables)
    is_listed = (
        c.tenant == it.scope.tenant,
        is_live(it.tables),
        it.make_any_activity_condition(),
        *conditions,
    )
    newest = sa.select(c.active_at).where(*is_listed, has_activity(it.tables))
    if place is not None:  # its minute is looked at anyway
        newest = newest.where(c.active_at < place.active_at)
    minutes = newest.order_by(c.active_at.desc(), c.thread.desc()).limit(limit).cte("minutes").c
    ends = sa.func.min(minutes.active_at), sa.func.max(minutes.active_at)
    first, last = (sa.select(end).scalar_subquery() for end in ends)
    if place is None:
        is_near = c.active_at.between(first, last)
    else:
        at = sa.literal(place.active_at, c.active_at.type)
        is_near = c.active_at.between(sa.func.coalesce(first, at), at)
    near = (
        sa.select(c.thread_id, c.active_at, c.thread, exact.label("exact"))
        .where(*is_listed, is_near)
        .cte("near")
        .prefix_with("MATERIALIZED", dialect="postgresql")  # looked up once
    )
    page = sa.select(near).where(near.c.exact.is_not(None))
    if place is not None:
        page = page.where(_is_behind(near.c, place))
    return page.order_by(*make_order(near.c)).limit(limit)


def make_order(columns: Any) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the terms that order the rows of ``select_page``."""
    return columns.active_at.desc(), columns.exact.desc(), columns.thread.desc()


def _is_behind(columns: Any, place: Any) -> sa.ColumnElement[bool]:
    return sa.or_(
        columns.active_at < place.active_at,
        columns.exact < place.exact,
        sa.and_(columns.exact == place.exact, columns.thread < place.thread),
    )


def _place(it: Reads, thread_id: str) -> Any:
    """Return the position of a thread in the list.

    Raises:
        NotFoundError: It does not exist.
    """
    c, exact = it.tables.threads.c, select_last_active(it.tables)
    found = it.connection.execute(
        sa.select(c.active_at, exact.label("exact"), c.thread).where(
            c.tenant == it.scope.tenant, c.thread_id == thread_id
        )
    ).first()
    if found is None or found.exact is None:
        raise NotFoundError(
            f"there is no thread {thread_id!r} to list after; begin again without a cursor"
        )
    return found


def get_last_active_at(reads: Reads, thread_id: str) -> datetime:
    """Return the time by which a thread is placed; see ``_place`` for the error."""
    at: datetime = _place(reads, thread_id).exact
    return at


class _Place(NamedTuple):
    """A place among the rows of ``select_page``."""

    active_at: datetime
    exact: datetime
    thread: int


def make_place(at: datetime, *, with_ties: bool) -> _Place:
    """Return the place of a time, before or behind the threads that were last active then."""
    return _Place(cut_to_minute(at), at, 2**62 if with_ties else 0)


T = TypeVar("T")


class SqlThreadInfo(DescribesThreads):
    """Runs the queries below in the transactions of a backend."""

    _reader: Any
    _runner: Any
    _write: Callable[[Callable[[Repository], T]], Awaitable[T]]
    _query: Callable[[Callable[[Repository], T], Any], Awaitable[T]]

    async def put_facts(self, put: PutThread) -> None:
        """See ``DescribesThreads``, also for the following methods."""
        await self._write(lambda it: _put(it, put))

    async def facts_of(self, thread_id: str) -> ThreadFacts | None:
        return await self._query(lambda it: find_facts(it, thread_id), self._runner)

    async def find_facts(self, wanted: ThreadsWanted) -> list[ThreadFacts]:
        found = await self._query(lambda it: find_active_facts(it, wanted), self._reader)
        return [facts for _, facts in found]

    async def clear_versions(self, thread_id: str) -> None:
        check_text("thread_id", thread_id)
        await self._write(lambda it: versions.clear(it, thread_id, ""))


class SqlTurns(TakesTurns):
    """Runs the queries of ``turns`` on the connections of a backend."""

    _runner: Any
    _write: Callable[[Callable[[Repository], T]], Awaitable[T]]
    _query: Callable[[Callable[[Repository], T], Any], Awaitable[T]]

    async def _write_at_once(self, body: Callable[[Repository], T]) -> T:
        """Run a body with one writing statement, without a transaction where others would wait."""
        return await self._write(body)

    async def step_turn(self, step: TurnStep) -> list[ThreadTurn]:
        """See ``TakesTurns``, also for the following methods."""
        thread_id = step.thread_id
        if step.entry == "none":  # mostly without effect
            guard, _ = await self._query(lambda it: turns.read_tickets(it, thread_id), self._runner)
            if take_step(guard.tickets, step, guard.now) == guard.tickets:
                return describe_tickets(*guard)

        def take(repository: Repository) -> list[ThreadTurn]:
            changed = turns.change_tickets(
                repository, thread_id, lambda tickets, at: take_step(tickets, step, at)
            )
            return describe_tickets(*changed)

        return await self._write_at_once(take)

    async def end_turn(self, thread_id: str, turn_key: str | None = None) -> bool:
        check_text("thread_id", thread_id)
        return await self._write_at_once(lambda it: turns.end_turn(it, thread_id, turn_key))

    async def list_turns(self, thread_id: str | None = None, limit: int = 100) -> list[ThreadTurn]:
        check_limit(limit)
        return await self._query(lambda it: turns.list_turns(it, thread_id, limit), self._runner)


def _put(it: Repository, put: PutThread) -> None:
    require_user_id(put.user_id, it.tables.user_id_type)
    it.open_thread(put.thread_id)
    put_facts(it, put)


def find_active_facts(it: Reads, criteria: ThreadsWanted) -> list[tuple[datetime, ThreadFacts]]:
    """Return the facts of ``find_facts`` with their threads' last activity."""
    found: list[Row[Any]] = []
    last = criteria.offset + criteria.limit
    size, place = last if criteria.needle is None else max(last, PAGE), None
    while len(found) < last:
        rows = it.connection.execute(_page(it, criteria.user_id, size, place)).all()
        found += [row for row in rows if criteria.takes(row.name, row.metadata)]
        if len(rows) < size:
            break
        size, place = size * GROWTH, rows[-1]
    return [(row.exact, parse_facts(row)) for row in found[criteria.offset : last]]


def _page(it: Reads, user_id: str | None, size: int, place: Any) -> sa.Select[Any]:
    """Return a query for a page of threads with their facts, in order."""
    threads = it.tables.threads
    is_theirs = sa.true() if user_id is None else make_user_condition(it, user_id)
    page = select_page(it, size, is_theirs, place=place).subquery("page")
    return (
        sa.select(page, threads.c.created_at, *(threads.c[name] for name in StoredFacts._fields))
        .join_from(page, threads, threads.c.thread == page.c.thread)
        .order_by(*make_order(page.c))
    )


class SqlSizes(MeasuresVersions, ListsStatuses):
    """Runs the queries below in the transactions of a backend."""

    _query: Callable[[Callable[[Repository], T]], Awaitable[T]]

    async def measure_versions(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> dict[int, int]:
        check_names(thread_id, namespace)
        return await self._query(lambda it: _sizes(it, thread_id, namespace, first, last))

    async def find_statuses(self, criteria: StatusesWanted) -> list[ThreadStatus]:
        return await self._query(lambda it: find_statuses(it, criteria))


def _sizes(it: Reads, thread_id: str, namespace: str, first: int, last: int) -> dict[int, int]:
    line, c = it.find_line(thread_id, namespace), it.tables.checkpoints.c
    if line is None:
        return {}
    query = sa.select(c.sequence, sa.func.length(c.payload)).where(
        c.line == line.line, c.sequence.between(first, last)
    )
    sizes = {row[0]: row[1] for row in it.connection.execute(query)}
    if None in sizes.values():
        for _, one in it.read_all_segments(line.line, within=(first, last)):
            joined = {at: len(payload) for at, payload in one.split_records().items()}
            sizes |= {at: joined[at] for at in sizes.keys() & joined.keys()}
    return {at: size or 0 for at, size in sizes.items()}


def find_statuses(reads: Reads, criteria: StatusesWanted) -> list[ThreadStatus]:
    """See ``ListsStatuses``; a statement, and more if some of its rows meet no condition."""
    place = _parse_place(criteria.after) if criteria.after else None
    if criteria.thread_ids is None:
        return _find_statuses(reads, criteria, sa.true(), place)
    name = reads.tables.threads.c.thread_id
    parts = [name.in_(some) for some in split_batches(criteria.thread_ids)]
    found = [status for part in parts for status in _find_statuses(reads, criteria, part, place)]
    found.sort(key=lambda it: it.active_at or FOREVER, reverse=len(parts) > 1)
    return found[: criteria.limit]


def _find_statuses(
    reads: Reads, criteria: StatusesWanted, condition: sa.ColumnElement[bool], place: Any
) -> list[ThreadStatus]:
    found: list[ThreadStatus] = []
    size, conditions = criteria.limit, [condition, *_make_conditions(reads, criteria)]
    while len(found) < criteria.limit:
        page = select_page(reads, size, *conditions, place=place)
        rows = reads.connection.execute(_select_statuses(reads, page)).all()
        statuses = map(_make_status, rows)
        found += [status for status in statuses if criteria.takes(status)]
        if len(rows) < size:
            break
        size, place = size * GROWTH, rows[-1]
    return found[: criteria.limit]


def _parse_place(text: str) -> _Place:
    exact, thread = parse_place(text)
    is_key = thread.isascii() and thread.isdecimal() and len(thread) <= len(str(2**62)) - 1
    return _Place(cut_to_minute(exact), exact, int(thread) if is_key else 0)


def _make_conditions(reads: Reads, criteria: StatusesWanted) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions that all criteria threads meet."""
    threads, c = reads.tables.threads.c, reads.tables.checkpoints.c
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
    is_head = (t.checkpoints.c.line == t.lines.c.line) & (
        t.checkpoints.c.sequence == t.lines.c.head
    )
    return (
        sa.exists()
        .select_from(t.lines.join(t.checkpoints, is_head))
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
        "turn": sa.exists().where(is_its, held.expires_at > now()).correlate(threads),
        "expires": threads.c.expires_at < datetime.now(UTC) + SOON,
        "conflict": sa.exists()
        .where(is_beside, is_side, ~has_child.correlate(side))
        .correlate(lines),
    }


def _select_statuses(reads: Reads, threads: sa.Select[Any]) -> sa.Select[Any]:
    """Return a query for the threads of a page, in order, with what a list shows of them."""
    t = reads.tables
    lines, c = t.lines, t.checkpoints.c
    page = threads.cte("page").prefix_with("MATERIALIZED", dialect="postgresql")
    its = lines.c.tenant == reads.scope.tenant
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
    messages = sa.select(sa.func.sum(t.logs.c.message_count)).where(
        t.logs.c.thread == page.c.thread
    )
    badges = (
        sa.case((is_so, 1), else_=0).label(name) for name, is_so in _make_badges(reads).items()
    )
    record = sa.case((sa.func.length(c.payload) <= RECORD_BYTES, c.payload)).label("record")
    is_root = its & (lines.c.thread_id == page.c.thread_id) & (lines.c.namespace == ROOT)
    facts = t.threads.c.metadata.label("facts"), t.threads.c.user_id, t.threads.c.expires_at
    amounts = counts.c.versions, counts.c.own, joined.scalar_subquery().label("joined")
    return (
        sa.select(
            *(*page.c, lines.c.head, c.metadata, c.labels, record, *facts, *amounts, *badges),
            messages.correlate(page).scalar_subquery().label("messages"),
        )
        .join_from(page, t.threads, t.threads.c.thread == page.c.thread)
        .outerjoin(lines, is_root)
        .outerjoin(t.checkpoints, (c.line == lines.c.line) & (c.sequence == lines.c.head))
        .outerjoin(counts, counts.c.thread_id == page.c.thread_id)
        .order_by(*make_order(page.c))
    )


def _make_status(row: Row[Any]) -> ThreadStatus:
    return ThreadStatus(
        thread_id=row.thread_id,
        active_at=row.exact,
        place=f"{row.exact.isoformat()}/{row.thread}",
        badges=[name for name in BADGES if getattr(row, name)],
        metadata=None if row.head is None else row.metadata or {},
        labels=row.labels or {},
        facts=row.facts or {},
        user_id=row.user_id,
        expires_at=row.expires_at,
        record=row.record or None,  # some databases have empty bytes for NULL
        messages=None if row.messages is None else int(row.messages),
        versions=row.versions or 0,
        stored_bytes=int(row.own or 0) + int(row.joined or 0),
    )
