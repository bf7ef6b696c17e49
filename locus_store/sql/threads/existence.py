"""Existence and last activity of threads, by one expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from locus_store.sql.columns.types import Later, before
from locus_store.sql.threads.statements import is_live, same_thread
from locus_store.types import FOREVER
from locus_store.versions.archives import minute_of

if TYPE_CHECKING:
    from datetime import datetime

    from locus_store.sql.schema.tables import Tables
    from locus_store.sql.threads.scope import Scoped


def last_active(t: Tables) -> sa.ColumnElement[Any]:
    """Return the time of a thread's last activity; NULL if it has only pending writes.

    It is the later of the last save and the last change of a message log; of a thread that has only
    a name or user, ``active_at``. Each is looked up by an index, for one thread at a time: as
    joins, without statistics, they read whole tables.
    """
    return sa.func.coalesce(Later(last_save(t), last_change(t)), _named(t))


def has_activity(t: Tables) -> sa.ColumnElement[bool]:
    """Return whether ``last_active`` is not NULL; mostly by one lookup."""
    return sa.func.coalesce(last_save(t), last_change(t), _named(t)).is_not(None)


def _named(t: Tables) -> sa.ColumnElement[Any]:
    c = t.threads.c
    return sa.case((sa.or_(c.name.is_not(None), c.user_id.is_not(None)), c.active_at))


def last_save(t: Tables) -> sa.ScalarSelect[Any]:
    """Return the time of a thread's last save; NULL if it has no version in any namespace."""
    lines = t.lines
    return (
        sa.select(sa.func.max(lines.c.updated_at))
        .where(same_thread(t), lines.c.head.is_not(None))
        .correlate(t.threads)
        .scalar_subquery()
    )


def last_change(t: Tables) -> sa.ScalarSelect[Any]:
    """Return the time of the last change of a thread's message logs; NULL if it has none."""
    return (
        sa.select(sa.func.max(t.logs.c.changed_at))
        .where(t.logs.c.thread == t.threads.c.thread)
        .correlate(t.threads)
        .scalar_subquery()
    )


def has_thread(it: Scoped, thread_id: str) -> bool:
    """See ``StorageBackend.has_thread``."""
    threads = it.tables.threads
    found = sa.select(threads.c.thread).where(
        threads.c.tenant == it.scope.tenant,
        threads.c.thread_id == thread_id,
        is_live(it.tables),
        has_activity(it.tables),
    )
    return it.connection.execute(found).first() is not None


def keep_place(it: Scoped, thread_id: str, saved_at: datetime) -> None:
    """Keep a thread's position in lists when a line or log changed at ``saved_at`` is deleted.

    A thread without versions is listed by the time of the last change of its logs.
    """
    lines, threads = it.tables.lines, it.tables.threads
    c = lines.c.updated_at
    saved = sa.literal(saved_at, c.type)
    moved = lines.update().values(updated_at=sa.case((c < saved, saved), else_=c))
    mine = lines.c.tenant == it.scope.tenant, lines.c.thread_id == thread_id
    if it.connection.execute(moved.where(*mine, lines.c.head.is_not(None))).rowcount:
        return
    newest = sa.select(last_change(it.tables)).where(*it.is_thread(thread_id))
    logged_at = it.connection.execute(newest).scalar()
    if logged_at is not None:
        moved = threads.update().values(active_at=minute_of(logged_at))
        it.connection.execute(moved.where(*it.is_thread(thread_id)))


def versionless(it: Scoped) -> list[str]:
    """Return the threads without any version."""
    threads = it.tables.threads
    found = sa.select(threads.c.thread_id).where(
        threads.c.tenant == it.scope.tenant, last_save(it.tables).is_(None)
    )
    return list(it.connection.execute(found).scalars())


def is_old(it: Scoped, thread_id: str, seconds: float) -> bool:
    """Return whether all versions, messages and pending writes of a thread are older than this.

    The age of a thread that has none of them is that of its last activity.
    """
    t, threads, lines = it.tables, it.tables.threads, it.tables.lines
    thread = it.connection.execute(
        sa.select(
            threads.c.thread,
            sa.case((threads.c.active_at < before(seconds), 1), else_=0),
            threads.c.expires_at,
        ).where(threads.c.tenant == it.scope.tenant, threads.c.thread_id == thread_id)
    ).one_or_none()
    if thread is None or thread.expires_at == FOREVER:  # None: another caller has removed it
        return False
    keys = it.connection.execute(
        sa.select(lines.c.line).where(
            lines.c.tenant == it.scope.tenant, lines.c.thread_id == thread_id
        )
    ).scalars()
    owned = [(table.c.line == key, table) for key in keys for table in (t.checkpoints, t.writes)]
    ages = [_is_old(it, table.c.created_at, is_its, seconds) for is_its, table in owned]
    logged = t.logs.c.thread == thread.thread
    ages.append(_is_old(it, t.logs.c.changed_at, logged, seconds))
    known = [age for age in ages if age is not None]
    return all(known) if known else bool(thread[1])


def _is_old(
    it: Scoped, moments: sa.ColumnElement[Any], is_its: sa.ColumnElement[bool], seconds: float
) -> bool | None:
    """Return whether all rows are older than this; ``None`` if there are no rows."""
    newest = sa.func.max(moments)
    age = sa.case((newest < before(seconds), 1), (newest.is_not(None), 0))
    found = it.connection.execute(sa.select(age).where(is_its)).scalar()
    return None if found is None else bool(found)
