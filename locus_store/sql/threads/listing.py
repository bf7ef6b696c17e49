"""Lists of threads, the most recently active first.

``threads.active_at`` is indexed, and to the minute: an index on the exact time would turn HOT
updates off. Within a minute the exact time decides, which is looked up thread by thread. So a page
is looked for in whole minutes: as many as the index says that it takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import sqlalchemy as sa

from locus_store import versions
from locus_store.backend import TakesTurns
from locus_store.errors import NotFoundError
from locus_store.runtime.background import Background
from locus_store.runtime.gathering import PerLoop
from locus_store.sql.threads import turns
from locus_store.sql.threads.pending import iterate_rows
from locus_store.sql.threads.reads import ROOT, Reads, make_head
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.statements import compile_other, is_head, is_live
from locus_store.sql.threads.thread_rows import (
    find_facts,
    has_activity,
    make_user_condition,
    parse_facts,
    put_facts,
    select_last_active,
)
from locus_store.types import Active, Head
from locus_store.types.arguments import check_limit, check_text, compile_thread_pattern
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
from locus_store.versions.turns import describe_tickets, take_step

PAGE: Final = 200
"""Threads that are matched in Python at first, at least."""

_Select: TypeAlias = "Callable[..., sa.Select[Any]]"
"""Returns the query for a page of so many threads, behind the row ``place`` if one is given."""


def list_threads(reads: Reads, limit: int, pattern: str, after: str | None) -> list[Active]:
    """See ``ListsThreads.recent``."""
    place = None if after is None else _find_place(reads, after)
    return list_threads_from(reads, limit, pattern, place)


def list_threads_from(reads: Reads, limit: int, pattern: str, place: Any) -> list[Active]:
    """Return the threads behind a place: a row of ``select_page``, or of ``make_place``."""
    thread_id, is_match = reads.tables.threads.c.thread_id, compile_thread_pattern(pattern).match
    in_sql = None if pattern == "*" else reads.make_pattern_condition(thread_id, pattern)
    if in_sql is not None:
        rows = reads.connection.execute(select_page(reads, limit, in_sql, place=place)).all()
    elif pattern == "*":
        rows = _fetch_page(reads, select_page, limit, place)
    else:
        pages = iterate_rows(partial(_fetch_page, reads, select_page), max(limit, PAGE), place)
        rows = [*islice((row for row in pages if is_match(row.thread_id)), limit)]
    return [Active(row.thread_id, row.exact) for row in rows]


def _fetch_page(reads: Reads, select: _Select, size: int, place: Any) -> Sequence[Any]:
    """Return the rows of a page; the statement of the first one is compiled once."""
    if place is not None:
        return reads.connection.execute(select(reads, size, place=place)).all()
    first = compile_other(reads.sql, (type(reads), select), lambda: select(reads, size))
    return first.fetch_named(reads.connection, {"tenant": reads.tenant, "limit": size})


def list_heads(reads: Reads, limit: int) -> list[Head]:
    """See ``ListsHeads.heads``."""
    return [head for _, head in list_active_heads(reads, limit)]


def list_active_heads(reads: Reads, limit: int) -> list[tuple[datetime, Head]]:
    """Return heads with their threads' last activity; mostly in one statement.

    Few threads have no head.
    """
    rows = iterate_rows(partial(_fetch_page, reads, _select_heads), limit)
    found = ((row.exact, make_head(row)) for row in rows if row.checkpoint_id is not None)
    return [*islice(found, limit)]


def _select_heads(reads: Reads, size: int, *, place: Any = None) -> sa.Select[Any]:
    """Return a page of threads in order, with the heads of their root namespaces, if any."""
    checkpoints, lines = reads.tables.checkpoints, reads.tables.lines
    page = select_page(reads, size, place=place).subquery("page")
    is_root = sa.and_(
        lines.c.tenant == reads.bind_tenant(),
        lines.c.thread_id == page.c.thread_id,
        lines.c.namespace == ROOT,
    )
    return (
        sa.select(page, *reads.get_head_columns())
        .outerjoin_from(page, lines, is_root)
        .outerjoin(checkpoints, is_head(reads.tables, checkpoints))
        .order_by(*make_order(page.c))
    )


def select_page(
    reads: Reads, limit: int, *conditions: sa.ColumnElement[bool], place: Any = None
) -> sa.Select[Any]:
    """Return a query for a page of existing threads that meet the conditions, in order."""
    c, exact = reads.tables.threads.c, select_last_active(reads.tables)
    most = sa.bindparam("limit", limit, sa.Integer())
    is_listed = (
        c.tenant == reads.bind_tenant(),
        is_live(reads.tables),
        reads.make_any_activity_condition(),
        *conditions,
    )
    newest = sa.select(c.active_at).where(*is_listed, has_activity(reads.tables))
    if place is not None:  # its minute is looked at anyway
        newest = newest.where(c.active_at < place.active_at)
    minutes = newest.order_by(c.active_at.desc(), c.thread.desc()).limit(most).cte("minutes").c
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
    return page.order_by(*make_order(near.c)).limit(most)


def make_order(columns: Any) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the terms that order the rows of ``select_page``."""
    return columns.active_at.desc(), columns.exact.desc(), columns.thread.desc()


def _is_behind(columns: Any, place: Any) -> sa.ColumnElement[bool]:
    return sa.or_(
        columns.active_at < place.active_at,
        columns.exact < place.exact,
        sa.and_(columns.exact == place.exact, columns.thread < place.thread),
    )


def _find_place(reads: Reads, thread_id: str) -> Any:
    """Return the position of a thread in the list; refuse one that does not exist."""
    c, exact = reads.tables.threads.c, select_last_active(reads.tables)
    found = reads.connection.execute(
        sa.select(c.active_at, exact.label("exact"), c.thread).where(
            c.tenant == reads.tenant, c.thread_id == thread_id
        )
    ).first()
    if found is None or found.exact is None:
        raise NotFoundError(
            f"there is no thread {thread_id!r} to list after; begin again without a cursor"
        )
    return found


def get_last_active_at(reads: Reads, thread_id: str) -> datetime:
    """Return the time by which a thread is placed; see ``_find_place`` for the error."""
    at: datetime = _find_place(reads, thread_id).exact
    return at


class ListPlace(NamedTuple):
    """A place among the rows of ``select_page``."""

    active_at: datetime
    exact: datetime
    thread: int


def make_place(at: datetime, *, with_ties: bool) -> ListPlace:
    """Return the place of a time, before or behind the threads that were last active then."""
    return ListPlace(cut_to_minute(at), at, 2**62 if with_ties else 0)


T = TypeVar("T")


class RunsQueries:
    """The methods and fields of ``ConnectedBackend`` that its parts use."""

    _background: PerLoop[Background]
    _database: Any
    _reader: Any
    _runner: Any
    _translating: Any
    _query: Callable[[Callable[[Repository], T], Any], Awaitable[T]]
    _read: Callable[[Callable[[Repository], T], Any], Awaitable[T]]
    _write: Callable[[Callable[[Repository], T]], Awaitable[T]]


class SqlThreadInfo(RunsQueries, DescribesThreads):
    """Runs the queries below in the transactions of a backend."""

    async def put_facts(self, put: PutThread) -> None:
        await self._write(lambda it: _put(it, put))

    async def facts_of(self, thread_id: str) -> ThreadFacts | None:
        return await self._query(lambda it: find_facts(it, thread_id), self._runner)

    async def find_facts(self, wanted: ThreadsWanted) -> list[ThreadFacts]:
        found = await self._query(lambda it: find_active_facts(it, wanted), self._reader)
        return [facts for _, facts in found]

    async def clear_versions(self, thread_id: str) -> None:
        check_text("thread_id", thread_id)
        await self._write(lambda it: versions.clear(it, thread_id, ""))


class SqlTurns(RunsQueries, TakesTurns):
    """Runs the queries of ``turns`` on the connections of a backend."""

    async def _write_at_once(
        self, body: Callable[[Repository], T], *, is_repeatable: bool = False
    ) -> T:
        """Run a body with one writing statement, without a transaction where others would wait."""
        return await self._write(body)

    async def step_turn(self, step: TurnStep) -> list[ThreadTurn]:
        thread_id = step.thread_id
        if step.entry == "none":  # mostly without effect
            guard, _ = await self._query(lambda it: turns.read_tickets(it, thread_id), self._runner)
            if take_step(guard.tickets, step, guard.now) == guard.tickets:
                return describe_tickets(*guard)

        def take(repo: Repository) -> list[ThreadTurn]:
            changed = turns.change_tickets(
                repo, thread_id, lambda tickets, at: take_step(tickets, step, at)
            )
            return describe_tickets(*changed)

        return await self._write_at_once(take, is_repeatable=True)

    async def end_turn(self, thread_id: str, turn_key: str | None = None) -> bool:
        check_text("thread_id", thread_id)
        return await self._write_at_once(
            lambda it: turns.end_turn(it, thread_id, turn_key), is_repeatable=turn_key is not None
        )

    async def list_turns(self, thread_id: str | None = None, limit: int = 100) -> list[ThreadTurn]:
        check_limit(limit)
        return await self._query(lambda it: turns.list_turns(it, thread_id, limit), self._runner)


def _put(repo: Repository, put: PutThread) -> None:
    require_user_id(put.user_id, repo.tables.user_id_type)
    repo.open_thread(put.thread_id)
    put_facts(repo, put)


def find_active_facts(reads: Reads, criteria: ThreadsWanted) -> list[tuple[datetime, ThreadFacts]]:
    """Return the facts of ``find_facts`` with their threads' last activity."""
    last = criteria.offset + criteria.limit
    size = last if criteria.needle is None else max(last, PAGE)

    def fetch(count: int, place: Any) -> Sequence[Any]:
        query = _select_facts(reads, criteria.user_id, count, place=place)
        return reads.connection.execute(query).all()

    rows = iterate_rows(fetch, size)
    found = (row for row in rows if criteria.takes(row.name, row.metadata))
    return [(row.exact, parse_facts(row)) for row in islice(found, criteria.offset, last)]


def _select_facts(reads: Reads, user_id: str | None, size: int, *, place: Any) -> sa.Select[Any]:
    """Return a query for a page of threads with their facts, in order."""
    threads = reads.tables.threads
    is_theirs = sa.true() if user_id is None else make_user_condition(reads, user_id)
    page = select_page(reads, size, is_theirs, place=place).subquery("page")
    return (
        sa.select(page, threads.c.created_at, *(threads.c[name] for name in StoredFacts._fields))
        .join_from(page, threads, threads.c.thread == page.c.thread)
        .order_by(*make_order(page.c))
    )
