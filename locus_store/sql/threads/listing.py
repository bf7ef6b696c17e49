"""Lists of threads, the most recently active first.

``threads.active_at`` is indexed, and to the minute: an index on the exact time would turn HOT
updates off. Within a minute the exact time decides, which is looked up thread by thread. So a page
is looked for in whole minutes: as many as the index says that it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from locus_store.errors import NotFoundError
from locus_store.sql.threads.existence import has_activity, last_active
from locus_store.sql.threads.reads import ROOT, head_of_row
from locus_store.sql.threads.statements import is_live
from locus_store.types import Active
from locus_store.types.arguments import thread_pattern

if TYPE_CHECKING:
    from locus_store.sql.threads.reads import Reads
    from locus_store.types import Head

PAGE: Final = 200
"""Threads that are matched in Python at first, at least."""

GROWTH: Final = 4
"""Each further page of them is larger by this factor."""


def threads(it: Reads, limit: int, pattern: str, after: str | None) -> list[Active]:
    """See ``StorageBackend.recent``."""
    thread_id, is_match = it.tables.threads.c.thread_id, thread_pattern(pattern).match
    in_sql = sa.true() if pattern == "*" else it.matches(thread_id, pattern)
    place = None if after is None else _place(it, after)
    if in_sql is not None:
        page = page_of(it, limit, in_sql, place=place)
        return [Active(row.thread_id, row.exact) for row in it.connection.execute(page)]
    found: list[Active] = []
    size = max(limit, PAGE)
    while len(found) < limit:
        rows = it.connection.execute(page_of(it, size, place=place)).all()
        found += [Active(row.thread_id, row.exact) for row in rows if is_match(row.thread_id)]
        if len(rows) < size:
            break
        size, place = size * GROWTH, rows[-1]
    return found[:limit]


def heads(it: Reads, limit: int) -> list[Head]:
    """See ``StorageBackend.heads``; mostly in one statement, as few threads have no head."""
    found: list[Head] = []
    place = None
    while len(found) < limit:
        rows = it.connection.execute(_with_heads(it, page_of(it, limit, place=place))).all()
        found += [head_of_row(row) for row in rows if row.checkpoint_id is not None]
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
        sa.select(page, *it.head_columns())
        .outerjoin_from(page, lines, is_root)
        .outerjoin(checkpoints, is_head)
        .order_by(*in_order(page.c))
    )


def page_of(
    it: Reads, limit: int, *conditions: sa.ColumnElement[bool], place: Any = None
) -> sa.Select[Any]:
    """Return a query for a page of existing threads that meet the conditions, in order."""
    c, exact = it.tables.threads.c, last_active(it.tables)
    is_listed = (c.tenant == it.scope.tenant, is_live(it.tables), it.any_activity(), *conditions)
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
    return page.order_by(*in_order(near.c)).limit(limit)


def in_order(columns: Any) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the terms that order the rows of ``page_of``."""
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
    c, exact = it.tables.threads.c, last_active(it.tables)
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
