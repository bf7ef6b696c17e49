"""Versions of many lines, newest first, and what their states are made of."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from locus_store.sql import pending
from locus_store.sql.statements import VERSION, is_live
from locus_store.types import Contents, Version
from locus_store.versions import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.sql.reads import Reads
    from locus_store.types import PendingWrite, VersionsWanted

_PLACE: Final = ("created_at", "line", "sequence")
"""The columns of a version that order the list."""


def newest(it: Reads, wanted: VersionsWanted, limit: int) -> list[Version]:
    """See ``ListsVersions.newest``; nearly always one statement."""
    if wanted.is_all:
        rows = it.connection.execute(_with_rest(it, _recent(it, limit))).all()
        if not rows or rows[-1].created_at >= rows[-1].minute:
            return [_version(it, row) for row in rows]
    rows = it.connection.execute(_with_rest(it, _page(it, wanted, limit))).all()
    return [_version(it, row) for row in rows]


def _recent(it: Reads, limit: int) -> sa.Select[Any]:
    """Return a query for the newest versions of the threads that were active last.

    It has at least ``limit`` of those threads, and all of their last ``minute``. No version of
    another thread is so young; but the thread may have lost the versions that made it active.
    """
    t, threads, lines = it.tables, it.tables.threads, it.tables.lines
    # Without statistics, PostgreSQL reads all of a tenant's lines for each thread: it reckons with
    # one line of a tenant that is a constant, and here the tenant is none.
    tenant = sa.func.coalesce(threads.c.tenant, threads.c.thread_id)
    is_of_thread = sa.and_(lines.c.tenant == tenant, lines.c.thread_id == threads.c.thread_id)
    has_head = sa.exists().where(is_of_thread, lines.c.head.is_not(None)).correlate(threads)
    of_tenant = threads.c.tenant == it.scope.tenant, is_live(t), it.any_activity()
    active = (
        sa.select(threads.c.active_at)
        .where(*of_tenant, has_head)
        .order_by(threads.c.active_at.desc(), threads.c.thread.desc())
        .limit(limit)
        .cte("active")
    )
    first = sa.select(sa.func.min(active.c.active_at)).scalar_subquery()
    query = (
        _select(it, first.label("minute"))
        .join_from(threads, lines, is_of_thread)
        .join(t.checkpoints, t.checkpoints.c.line == lines.c.line)
        .where(*of_tenant, threads.c.active_at >= first, *_is_visible(it))
    )
    return _ordered(it, query, limit)


def _page(it: Reads, wanted: VersionsWanted, limit: int) -> sa.Select[Any]:
    lines, versions = it.tables.lines, it.tables.checkpoints
    query = _select(it)
    if wanted.thread_id is None:
        seen = sa.select(lines.c.line).where(
            lines.c.line == versions.c.line, *_is_visible(it), it.live_thread().is_not(None)
        )
        query = query.where(seen.correlate(versions).scalar_subquery().is_not(None))
    else:
        query = (
            query.join_from(lines, versions, versions.c.line == lines.c.line)
            .where(lines.c.tenant == it.scope.tenant, lines.c.thread_id == wanted.thread_id)
            .where(*_is_visible(it), it.live_thread().is_not(None))
        )
    if wanted.namespace is not None:
        query = query.where(lines.c.namespace == wanted.namespace)
    if wanted.checkpoint_id is not None:
        query = query.where(versions.c.checkpoint_id == wanted.checkpoint_id)
    if wanted.before is not None:
        query = query.where(_is_before(it, wanted.before))
    if (after := wanted.after) is not None:
        place = (after.created_at, after.mark.line, after.mark.sequence)
        columns = (versions.c[name] for name in _PLACE)
        query = query.where(it.below_row(dict(zip(columns, place, strict=True))))
    hints = (it.may_have(versions.c.metadata, key, value) for key, value in wanted.metadata)
    return _ordered(it, query.where(*hints), limit)


def _select(it: Reads, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return sa.select(*(it.tables.checkpoints.c[name] for name in _PLACE), *more)


def _ordered(it: Reads, query: sa.Select[Any], limit: int) -> sa.Select[Any]:
    columns = it.tables.checkpoints.c
    return query.order_by(*(columns[name].desc() for name in _PLACE)).limit(limit)


def _is_visible(it: Reads) -> tuple[sa.ColumnElement[bool], ...]:
    lines, sequence = it.tables.lines, it.tables.checkpoints.c.sequence
    return lines.c.head.is_not(None), sa.or_(sequence >= lines.c.floor, sequence == lines.c.head)


def _is_before(it: Reads, checkpoint_id: str) -> sa.ColumnElement[bool]:
    """Return the condition for versions below an id: by the line's order, or by the ids."""
    mine = it.tables.checkpoints
    other = mine.alias("before")
    at = (
        sa.select(other.c.sequence)
        .where(other.c.line == mine.c.line, other.c.checkpoint_id == checkpoint_id)
        .correlate(mine)
        .scalar_subquery()
    )
    by_id = sa.and_(at.is_(None), mine.c.checkpoint_id < checkpoint_id)
    return sa.or_(mine.c.sequence < at, by_id)


def _with_rest(it: Reads, query: sa.Select[Any]) -> sa.Select[Any]:
    """Return the query's versions in order, with their other columns."""
    lines, mine = it.tables.lines, it.tables.checkpoints
    page, parents = query.subquery("page"), mine.alias("parents")
    is_it = sa.and_(mine.c.line == page.c.line, mine.c.sequence == page.c.sequence)
    is_parent = sa.and_(parents.c.line == mine.c.line, parents.c.sequence == mine.c.parent)
    more = [page.c.minute] if "minute" in page.c else []
    return (
        sa.select(
            *(lines.c.thread_id, lines.c.namespace, lines.c.line),
            *(mine.c[name] for name in VERSION),
            parents.c.checkpoint_id.label("parent_id"),
            *more,
        )
        .join_from(page, mine, is_it)
        .join(lines, lines.c.line == mine.c.line)
        .outerjoin(parents, is_parent)
        .order_by(*(page.c[name].desc() for name in _PLACE))
    )


def _version(it: Reads, row: sa.Row[Any]) -> Version:
    return it.version(row.thread_id, row.namespace, row.line, tuple(row[3:10]))


def contents(it: Reads, versions: Sequence[Version]) -> Contents:
    """See ``ListsVersions.contents``; a statement or two for each batch of lines."""
    wanted: defaultdict[int, list[Version]] = defaultdict(list)
    for version in versions:
        wanted[version.mark.line].append(version)
    found = Contents(defaultdict(list), defaultdict(list))
    for lines in pending.batches(list(wanted)):
        _add(it, {line: wanted[line] for line in lines}, found)
    for records in found.records.values():
        records.sort(key=lambda it: it[0])
    for writes in found.writes.values():
        writes.sort(key=in_order)
    return found


def _add(it: Reads, wanted: dict[int, list[Version]], found: Contents) -> None:
    """Read more of some lines than is wanted: chains of others that have the same number too."""
    mine, writes = it.tables.checkpoints, it.tables.writes
    sequences = {one.mark.sequence for some in wanted.values() for one in some}
    is_of_lines = mine.c.line.in_(wanted)
    chains: set[int] = set()
    for batch in pending.batches(sorted(sequences)):
        of_batch = sa.select(mine.c.chain).where(is_of_lines, mine.c.sequence.in_(batch))
        chains.update(it.connection.execute(of_batch.distinct()).scalars())
    columns = (mine.c[name] for name in ("line", "sequence", "chain", "payload"))
    of_lines = sa.select(*columns).where(is_of_lines, mine.c.sequence <= max(sequences))
    for batch in pending.batches(sorted(chains)):
        query = of_lines.where(mine.c.chain.in_(batch))
        for line, sequence, chain, payload in it.connection.execute(query):
            found.records[line].append((sequence, chain, payload))
    names = {one.checkpoint_id for some in wanted.values() for one in some}
    for batch in pending.batches(sorted(names)):
        is_of_them = writes.c.line.in_(wanted), writes.c.checkpoint_id.in_(batch)
        for row in it.connection.execute(sa.select(writes).where(*is_of_them)).mappings():
            put: PendingWrite = pending.write_of(row)
            found.writes[row["line"], row["checkpoint_id"]].append(put)
