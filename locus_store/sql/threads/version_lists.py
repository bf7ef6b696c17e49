"""Versions of many lines, newest first, and what their states are made of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from locus_store.sql.columns.compiled import Compiled
from locus_store.sql.columns.types import Key
from locus_store.sql.schema.tables import TENANT_LENGTH, Tables
from locus_store.sql.threads import pending
from locus_store.sql.threads.reads import PLACE, Reads
from locus_store.sql.threads.statements import VERSION, WRITE, compile_form, compile_other, is_live
from locus_store.types import LineContents, Version, VersionsWanted
from locus_store.versions.reading import is_plain
from locus_store.versions.segments import LinesFound, RecordSegment

MOST_BY_LINE: Final = 1_000
"""Versions that are looked for line by line: in each one's newest, which an index gives."""

_CREATED_AT: Final = 3 + VERSION.index("created_at")
_PLACED: Final = 3 + len(VERSION) + 1
"""Columns of a version with its thread, namespace, line and parent: ``_is_newest``'s follow."""

MORE_LINES: Final = 8
"""Lines that are looked at beyond the limit: those of one moment are not told apart."""

MORE_IF_ROUNDED: Final = 64
"""As ``MORE_LINES``, where the times of versions are rounded, so a moment is longer."""

_TENANT: Final = sa.bindparam("tenant", type_=Key(TENANT_LENGTH))
_LIMIT: Final = sa.bindparam("limit", type_=sa.Integer())
_OTHERS: Final = sa.bindparam("others", type_=sa.Integer())
"""One less than the limit."""

_LINES: Final = sa.bindparam("lines", type_=sa.Integer())

MOST_AT_ONCE: Final = pending.BATCH
"""Versions whose contents one statement reads."""

_LINE: Final = ("line", "thread_id", "namespace", "head", "floor", "updated_at")


def list_newest(reads: Reads, request: VersionsWanted, limit: int) -> list[Version]:
    """See ``ListsVersions.newest``; nearly always one statement."""
    if 0 < limit <= MOST_BY_LINE and is_plain(request):
        key = {"tenant": reads.tenant, "thread_id": request.thread_id}
        lines = limit + (MORE_IF_ROUNDED if reads.rounding else MORE_LINES)
        rows = _compile_by_line(reads, request).fetch_rows(
            reads.connection, {**key, "limit": limit, "others": limit - 1, "lines": lines}
        )
        if not rows or _is_newest(reads, rows[-1][_CREATED_AT], *rows[0][_PLACED:]):
            return [_make_version(reads, row) for row in rows]
    metadata = reads.tables.checkpoints.c.metadata
    hints = [reads.may_have(metadata, key, value) for key, value in request.metadata]
    fields = "thread_id", "namespace", "checkpoint_id", "before"
    named = {name: value for name in fields if (value := getattr(request, name)) is not None}
    if (after := request.after) is not None:
        named |= zip(PLACE, (after.created_at, after.mark.line, after.mark.sequence), strict=True)
    found = reads.sql.searches.fetch(
        reads.connection,
        (_select_page, type(reads), *named),
        lambda: _select_page(reads, hints, *named),
        conditions=hints,
        values={"tenant": reads.tenant, "limit": limit, **named},
    )
    return [_make_version(reads, row) for row in found]


def _make_version(reads: Reads, row: tuple[Any, ...]) -> Version:
    return reads.make_version(row[0], row[1], row[2], row[3:_PLACED])


def _compile_by_line(reads: Reads, request: VersionsWanted) -> Compiled:
    """Return the statement of ``_select_by_line``, which takes longer to compile than to run."""
    of_lines = _select_recent_lines if request.thread_id is None else _select_lines_of_thread
    key = type(reads), of_lines
    return compile_other(
        reads.sql, key, lambda: _with_parents(reads, _select_by_line(reads, of_lines(reads)))
    )


def _is_newest(
    reads: Reads, last: datetime, older: datetime | None, minute: datetime | None
) -> bool:
    """Return whether the last version found is younger than all that were not looked at.

    Args:
        reads: The repository.
        last: The time of the version.
        older: When the newest of the other lines was saved.
        minute: When the newest of the other threads may have been active.
    """
    is_line = older is None or last - reads.rounding > older
    return is_line and (minute is None or last >= minute)


def _select_lines_of_thread(reads: Reads) -> sa.Select[Any]:
    """Return a query for the lines of a live thread."""
    c = reads.tables.lines.c
    thread_id: sa.BindParameter[str] = sa.bindparam("thread_id", type_=c.thread_id.type)
    minute = sa.cast(sa.null(), c.updated_at.type).label("minute")
    is_its = c.tenant == _TENANT, c.thread_id == thread_id, c.head.is_not(None)
    query = sa.select(*(c[name] for name in _LINE), minute)
    return query.where(*is_its, _is_live(reads, _TENANT, thread_id))


def _is_live(reads: Reads, tenant: Any, thread_id: Any) -> sa.ColumnElement[bool]:
    c = reads.tables.threads.c
    found = sa.select(c.thread).where(c.tenant == tenant, c.thread_id == thread_id)
    return found.where(is_live(reads.tables)).scalar_subquery().is_not(None)


def _select_recent_lines(reads: Reads) -> sa.Select[Any]:
    """Return a query for the lines of the threads that were active last.

    It has at least ``limit`` of those threads, and all of their last ``minute``. No version of
    another thread is so young; but the thread may have lost the versions that made it active.
    """
    t = reads.tables
    threads, lines = t.threads, t.lines
    # Without statistics, PostgreSQL reads all of a tenant's lines for each thread: it reckons with
    # one line of a tenant that is a constant, and here the tenant is none.
    tenant = sa.func.coalesce(threads.c.tenant, threads.c.thread_id)
    is_of_thread = sa.and_(lines.c.tenant == tenant, lines.c.thread_id == threads.c.thread_id)
    has_head = sa.exists().where(is_of_thread, lines.c.head.is_not(None)).correlate(threads)
    of_tenant = threads.c.tenant == _TENANT, is_live(t), reads.make_any_activity_condition()
    active = (
        sa.select(threads.c.active_at)
        .where(*of_tenant, has_head)
        .order_by(threads.c.active_at.desc(), threads.c.thread.desc())
        .limit(_LIMIT)
        .cte("active")
    )
    first = sa.func.min(active.c.active_at)
    minute = sa.case((sa.func.count() >= _LIMIT, first))
    return (
        sa.select(
            *(lines.c[name] for name in _LINE),
            sa.select(minute).select_from(active).scalar_subquery().label("minute"),
        )
        .join_from(threads, lines, is_of_thread)
        .where(*of_tenant, threads.c.active_at >= sa.select(first).scalar_subquery())
        .where(lines.c.head.is_not(None))
    )


def _select_by_line(reads: Reads, lines: sa.Select[Any]) -> sa.Select[Any]:
    """Return a query for the newest versions of the lines that were saved last.

    It looks at ``limit`` of the lines at least, and at as many versions of each, by sequence.
    ``older``: when the newest of the other lines was saved.
    """
    near, mine = lines.cte("near"), reads.tables.checkpoints
    others = mine.alias("others")
    at = near.c.updated_at
    last = sa.select(at).order_by(at.desc()).limit(1).offset(_LINES).scalar_subquery()
    older = sa.select(sa.func.max(at)).where(at < last).scalar_subquery()
    first = (
        sa.select(others.c.sequence)
        .where(others.c.line == near.c.line)
        .order_by(others.c.sequence.desc())
        .limit(1)
        .offset(_OTHERS)
        .correlate(near)
        .scalar_subquery()
    )
    columns = (
        near.c[name] for name in ("line", "thread_id", "namespace", "head", "floor", "minute")
    )
    its = (
        sa.select(*columns, sa.func.coalesce(first, 0).label("first"), older.label("older"))
        .where(at >= sa.func.coalesce(last, at))
        .cte("its")
        .prefix_with("MATERIALIZED", dialect="postgresql")  # else looked up for each version
        .c
    )
    is_new = mine.c.sequence >= its.first, mine.c.sequence >= its.floor
    query = (
        _select(reads, its.thread_id, its.namespace, its.older, its.minute)
        .where(mine.c.line == its.line)
        .where(sa.or_(sa.and_(*is_new), mine.c.sequence == its.head))
    )
    return _take_newest(reads, query, _LIMIT)


def _select_page(
    reads: Reads, hints: Sequence[sa.ColumnElement[bool]], *named: str
) -> sa.Select[Any]:
    """Return the query for a page of the versions that parameters of these names describe."""
    lines, versions = reads.tables.lines, reads.tables.checkpoints
    is_visible = sa.or_(versions.c.sequence >= lines.c.floor, versions.c.sequence == lines.c.head)
    is_shown = lines.c.head.is_not(None), is_visible
    is_its = [
        lines.c[name] == sa.bindparam(name, type_=lines.c[name].type)
        for name in ("thread_id", "namespace")
        if name in named
    ]
    if "thread_id" not in named:
        seen = sa.select(lines.c.line).where(
            lines.c.line == versions.c.line, *is_shown, reads.select_live_thread().is_not(None)
        )
        found = seen.where(*is_its).correlate(versions).scalar_subquery()
        query = _select(reads).where(*hints, found.is_not(None))
    else:
        query = (
            _select(reads, lines.c.thread_id, lines.c.namespace)
            .join_from(lines, versions, versions.c.line == lines.c.line)
            .where(lines.c.tenant == _TENANT, *is_its)
            .where(*is_shown, _is_live(reads, _TENANT, is_its[0].right), *hints)
        )
    column = versions.c.checkpoint_id
    if "checkpoint_id" in named:
        query = query.where(column == sa.bindparam("checkpoint_id", type_=column.type))
    if "before" in named:
        query = query.where(_is_before(reads, sa.bindparam("before", type_=column.type)))
    if "created_at" in named:
        place = {versions.c[name]: name for name in PLACE}
        query = query.where(
            reads.make_below_condition(
                {it: sa.bindparam(name, type_=it.type) for it, name in place.items()}
            )
        )
    return _with_parents(reads, _take_newest(reads, query, _LIMIT))


def _select(reads: Reads, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return sa.select(
        *(reads.tables.checkpoints.c[name] for name in ("line", *VERSION, "parent")), *more
    )


def _take_newest(reads: Reads, query: sa.Select[Any], limit: Any) -> sa.Select[Any]:
    columns = reads.tables.checkpoints.c
    return query.order_by(*(columns[name].desc() for name in PLACE)).limit(limit)


def _is_before(reads: Reads, checkpoint_id: sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    """Return the condition for versions below an id: by the line's order, or by the ids."""
    mine = reads.tables.checkpoints
    other = mine.alias("before")
    at = (
        sa.select(other.c.sequence)
        .where(other.c.line == mine.c.line, other.c.checkpoint_id == checkpoint_id)
        .correlate(mine)
        .scalar_subquery()
    )
    by_id = sa.and_(at.is_(None), mine.c.checkpoint_id < checkpoint_id)
    return sa.or_(mine.c.sequence < at, by_id)


def _with_parents(reads: Reads, query: sa.Select[Any]) -> sa.Select[Any]:
    """Return the query's versions in order, with their places and the ids of their parents.

    Each is looked up by its key: as joins, PostgreSQL read whole tables of a small database.
    """
    page, lines, parents = query.subquery("page"), reads.tables.lines, reads.tables.checkpoints
    parent = (
        sa.select(parents.c.checkpoint_id)
        .where(parents.c.line == page.c.line, parents.c.sequence == page.c.parent)
        .scalar_subquery()
    )
    names = [
        page.c[name]
        if name in page.c
        else sa.select(lines.c[name]).where(lines.c.line == page.c.line).scalar_subquery()
        for name in ("thread_id", "namespace")
    ]
    more = [page.c[name] for name in ("older", "minute") if name in page.c]
    versions = [page.c[name] for name in ("line", *VERSION)]
    return sa.select(
        *(it.label(name) for it, name in zip(names, ("thread_id", "namespace"), strict=True)),
        *(*versions, parent.label("parent_id"), *more),
    ).order_by(*(page.c[name].desc() for name in PLACE))


def read_contents(reads: Reads, versions: Sequence[Version]) -> list[LineContents]:
    """See ``ListsVersions.contents``; one statement for each batch of versions."""
    rows: set[tuple[Any, ...]] = set()
    for batch in pending.split_batches(versions, MOST_AT_ONCE):
        size, lines = pending.fill_parameters("line", [one.mark.line for one in batch])
        _, key = pending.fill_parameters("sequence", [one.mark.sequence for one in batch])
        query = compile_form(reads.sql, _select_contents, size)
        rows.update(query.fetch_rows(reads.connection, {**key, **lines, "tenant": reads.tenant}))
    found = LinesFound(versions)
    for line, sequence, chain, last, *write, payload in rows:
        if last is not None:
            found.add_segment(line, RecordSegment(chain, sequence, last, payload))
        elif chain is not None:
            found.add_record(line, sequence, chain, payload)
        else:
            stored = pending.write_of((*write, payload))
            found.add_write(line, write[0], stored)
    return found.build_contents()


def _select_contents(t: Tables, size: int) -> sa.CompoundSelect[Any]:
    """Return the query for what the states of versions are made of, and for the writes on them.

    A caller may name versions of other tenants.
    """
    mine, its, writes = t.checkpoints, t.checkpoints.alias("its").c, t.writes
    key = (its.line, its.sequence)
    each = (
        sa.select(*(sa.bindparam(f"{it.name}_{at}", type_=it.type).label(it.name) for it in key))
        for at in range(size)
    )
    named = sa.union(*each).subquery("named").c
    tenant = sa.select(t.lines.c.tenant).where(t.lines.c.line == named.line).scalar_subquery()
    wanted = (
        sa.select(*key, its.chain, its.checkpoint_id)
        .where(its.line == named.line, its.sequence == named.sequence, tenant == _TENANT)
        .cte("wanted")
    )
    chain = wanted.c.line, wanted.c.chain
    last = sa.func.max(wanted.c.sequence).label("last")
    chains = sa.select(*chain, last).group_by(*chain).subquery("chains")
    is_of_chain = sa.and_(
        mine.c.line == chains.c.line,
        mine.c.chain == chains.c.chain,
        mine.c.sequence.between(chains.c.chain, chains.c.last),
    )
    *columns, payload = (writes.c[name] for name in WRITE)
    no_write = (  # NULLs of the columns' types: Oracle casts none to CLOB
        sa.select(column).where(writes.c.line.is_(None)).scalar_subquery().label(column.name)
        for column in columns
    )
    of_write = list(no_write)
    no_number = sa.cast(sa.null(), sa.BigInteger())
    records = sa.select(
        mine.c.line, mine.c.sequence, mine.c.chain, no_number, *of_write, mine.c.payload
    )
    its = t.segments.c
    joined = sa.select(its.line, its.first, its.chain, its.last, *of_write, its.payload)
    is_joined = sa.and_(
        its.line == chains.c.line, its.chain == chains.c.chain, its.first <= chains.c.last
    )
    on_them = sa.select(writes.c.line, no_number, no_number, no_number, *columns, payload)
    is_on_it = sa.and_(
        writes.c.line == wanted.c.line, writes.c.checkpoint_id == wanted.c.checkpoint_id
    )
    return records.join_from(chains, mine, is_of_chain).union_all(
        joined.join_from(chains, t.segments, is_joined), on_them.join_from(wanted, writes, is_on_it)
    )
