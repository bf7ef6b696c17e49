"""The rows of threads: existence, last activity, users, names and metadata; and of messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import bindparam as bind

from locus_store.sql.columns.dialect_columns import unescape_text
from locus_store.sql.columns.types import Later, make_cutoff
from locus_store.sql.schema.tables import Tables
from locus_store.sql.threads import turns
from locus_store.sql.threads.reads import Reads
from locus_store.sql.threads.statements import (
    RowAccess,
    is_live,
    is_of_thread,
    make_same_thread_condition,
)
from locus_store.types import FOREVER, ArchivedMessage
from locus_store.types.messages import require_sealed
from locus_store.types.thread_info import (
    PutThread,
    StoredFacts,
    ThreadFacts,
    is_user_id,
    make_facts,
    require_owner,
    require_user_id,
)
from locus_store.versions.archives import cut_to_minute

MESSAGE: Final = (
    *("namespace", "sequence", "message_id", "role", "metadata"),
    *("created_at", "text", "payload", "digest"),
)
"""The columns of a message; the last one is not a field of ``ArchivedMessage``."""


def select_last_active(t: Tables) -> sa.ColumnElement[Any]:
    """Return the time of a thread's last activity; NULL if it has only pending writes.

    It is the later of the last save and the last change of a message log; of a thread that has only
    a name or user, ``active_at``. Each is looked up by an index, for one thread at a time: as
    joins, without statistics, they read whole tables.
    """
    return sa.func.coalesce(Later(select_last_save(t), select_last_change(t)), _pick_time(t))


def has_activity(t: Tables) -> sa.ColumnElement[bool]:
    """Return whether ``select_last_active`` is not NULL; mostly by one lookup."""
    return sa.func.coalesce(select_last_save(t), select_last_change(t), _pick_time(t)).is_not(None)


def _pick_time(t: Tables) -> sa.ColumnElement[Any]:
    c = t.threads.c
    return sa.case((sa.or_(c.name.is_not(None), c.user_id.is_not(None)), c.active_at))


def select_last_save(t: Tables) -> sa.ScalarSelect[Any]:
    """Return the time of a thread's last save; NULL if it has no version in any namespace."""
    lines = t.lines
    return (
        sa.select(sa.func.max(lines.c.updated_at))
        .where(make_same_thread_condition(t), lines.c.head.is_not(None))
        .correlate(t.threads)
        .scalar_subquery()
    )


def select_last_change(t: Tables) -> sa.ScalarSelect[Any]:
    """Return the time of the last change of a thread's message logs; NULL if it has none."""
    return (
        sa.select(sa.func.max(t.logs.c.changed_at))
        .where(t.logs.c.thread == t.threads.c.thread)
        .correlate(t.threads)
        .scalar_subquery()
    )


def has_thread(repo: RowAccess, thread_id: str) -> bool:
    """See ``StorageBackend.has_thread``."""
    return bool(repo.ask(_select_thread, tenant=repo.tenant, thread_0=thread_id))


def _select_thread(t: Tables) -> sa.Select[Any]:
    is_it = is_of_threads(t.threads, 1), is_live(t), has_activity(t)
    return sa.select(t.threads.c.thread).where(*is_it)


def is_of_threads(table: sa.Table, size: int) -> sa.ColumnElement[bool]:
    """Return the condition that a row is of one of so many threads of a tenant."""
    c = table.c
    names = [bind(f"thread_{at}", type_=c.thread_id.type) for at in range(size)]
    return sa.and_(c.tenant == bind("tenant", type_=c.tenant.type), c.thread_id.in_(names))


def find_lines(t: Tables, size: int) -> sa.Select[Any]:
    """Return the query for the lines of so many threads."""
    return sa.select(t.lines.c.line).where(is_of_threads(t.lines, size))


def select_lines(t: Tables, size: int) -> sa.Select[Any]:
    """Return the query that locks them, too."""
    return find_lines(t, size).with_for_update()


def delete_of_threads(t: Tables, table: sa.Table, size: int) -> sa.Delete:
    """Return the statement that removes the rows of so many threads from a table."""
    if table is t.turns:
        return table.delete().where(is_of_threads(table, size), turns.has_ended(table))
    if "thread_id" in table.c:
        return table.delete().where(is_of_threads(table, size))
    owner = t.threads if "thread" in table.c else t.lines
    (key,) = owner.primary_key
    keys = sa.select(key).where(is_of_threads(owner, size))
    return table.delete().where(table.c[key.name].in_(keys))


def keep_place(repo: RowAccess, thread_id: str, saved_at: datetime) -> None:
    """Keep a thread's position in lists when a line or log changed at ``saved_at`` is deleted.

    A thread without versions is listed by the time of the last change of its logs. A line that
    another transaction has locked keeps its time: that transaction may wait for the thread.
    """
    its = {"of_tenant": repo.tenant, "of_thread_id": thread_id}
    if free := repo.ask(_lock_free_lines, **its):
        repo.change(_move_line, of_line=free[0].line, saved_at=saved_at)
        return
    for (logged_at,) in repo.ask(_select_last_change, **its):
        if logged_at is not None:
            repo.change(_move_thread, **its, minute=cut_to_minute(logged_at))


def _lock_free_lines(t: Tables) -> sa.Select[Any]:
    is_its = *is_of_thread(t.lines), t.lines.c.head.is_not(None)
    return sa.select(t.lines.c.line).where(*is_its).with_for_update(skip_locked=True)


def _move_line(t: Tables) -> sa.Update:
    c = t.lines.c
    saved_at = bind("saved_at", type_=c.updated_at.type)
    is_older = c.line == bind("of_line"), c.updated_at < saved_at
    return t.lines.update().where(*is_older).values(updated_at=saved_at)


def _select_last_change(t: Tables) -> sa.Select[Any]:
    """Return the query for that time, of a thread without versions."""
    is_bare = select_last_save(t).is_(None)
    return sa.select(select_last_change(t)).where(*is_of_thread(t.threads), is_bare)


def _move_thread(t: Tables) -> sa.Update:
    minute = bind("minute", type_=t.threads.c.active_at.type)
    return t.threads.update().where(*is_of_thread(t.threads)).values(active_at=minute)


def find_versionless(repo: RowAccess) -> list[str]:
    """Return the threads without any version."""
    threads = repo.tables.threads
    found = sa.select(threads.c.thread_id).where(
        threads.c.tenant == repo.tenant, select_last_save(repo.tables).is_(None)
    )
    return list(repo.connection.execute(found).scalars())


def is_old(repo: RowAccess, thread_id: str, seconds: float) -> bool:
    """Return whether all versions, messages and pending writes of a thread are older than this.

    The age of a thread that has none of them is that of its last activity.
    """
    t, threads = repo.tables, repo.tables.threads
    thread = repo.connection.execute(
        sa.select(
            threads.c.thread,
            sa.case((threads.c.active_at < make_cutoff(seconds), 1), else_=0),
            threads.c.expires_at,
        ).where(*repo.is_thread(thread_id))
    ).one_or_none()
    if thread is None or thread.expires_at == FOREVER:  # None: another caller has removed it
        return False
    keys = repo.ask(find_lines, 1, tenant=repo.tenant, thread_0=thread_id)
    owned = [(table.c.line == key, table) for (key,) in keys for table in (t.checkpoints, t.writes)]
    ages = [_is_old(repo, table.c.created_at, is_its, seconds) for is_its, table in owned]
    logged = t.logs.c.thread == thread.thread
    ages.append(_is_old(repo, t.logs.c.changed_at, logged, seconds))
    known = [age for age in ages if age is not None]
    return all(known) if known else bool(thread[1])


def _is_old(
    repo: RowAccess, moments: sa.ColumnElement[Any], is_its: sa.ColumnElement[bool], seconds: float
) -> bool | None:
    """Return whether all rows are older than this; ``None`` if there are no rows."""
    newest = sa.func.max(moments)
    age = sa.case((newest < make_cutoff(seconds), 1), (newest.is_not(None), 0))
    found = repo.connection.execute(sa.select(age).where(is_its)).scalar()
    return None if found is None else bool(found)


def make_user_condition(reads: Reads, user_id: str) -> sa.ColumnElement[bool]:
    """Return the condition of a user's threads; an id that the column cannot hold has none."""
    if not is_user_id(user_id, reads.tables.user_id_type):
        return sa.false()
    return reads.tables.threads.c.user_id == user_id


def require_its_owner(reads: Reads, put: PutThread) -> None:
    """Refuse a put into another user's thread, which ``put_facts`` refuses again under the lock."""
    require_user_id(put.user_id, reads.tables.user_id_type)
    found = find_facts(reads, put.thread_id)
    require_owner(put.thread_id, found.user_id if found else None, put.user_id)


def put_facts(reads: Reads, put: PutThread) -> None:
    """Store the facts of a thread that was opened; see ``DescribesThreads.put_facts``."""
    threads, exact = reads.tables.threads, select_last_active(reads.tables)
    active_at = sa.func.coalesce(exact, threads.c.active_at)
    which = reads.is_thread(put.thread_id)
    columns = (*(threads.c[name] for name in StoredFacts._fields), threads.c.created_at)
    row = reads.connection.execute(
        sa.select(*columns, active_at.label("exact")).where(*which)
    ).one()
    stored = put.apply_to(StoredFacts(row.user_id, row.name, row.metadata), _get_activity(row))
    values = {threads.c[name]: value for name, value in stored._asdict().items()}
    reads.connection.execute(threads.update().where(*which).values(values))


def find_facts(reads: Reads, thread_id: str) -> ThreadFacts | None:
    """Return the facts of a live thread that exists."""
    c, exact = reads.tables.threads.c, select_last_active(reads.tables)
    row = reads.connection.execute(
        sa.select(
            *(c.thread_id, c.created_at, exact.label("exact")),
            *(c[name] for name in StoredFacts._fields),
        ).where(c.tenant == reads.tenant, c.thread_id == thread_id, is_live(reads.tables))
    ).first()
    return None if row is None or row.exact is None else parse_facts(row)


def parse_facts(row: Any) -> ThreadFacts:
    """Return the facts in a row of a query."""
    times = {"created_at": row.created_at, "active_at": _get_activity(row)}
    return make_facts(row.thread_id, row.user_id, row.name, row.metadata, **times)


def _get_activity(row: Any) -> datetime:
    """Return the last activity: a thread that only facts were put into has it to the minute.

    If that is the minute of its creation, the exact time is known.
    """
    exact: datetime = row.exact
    return row.created_at if cut_to_minute(row.created_at) == exact else exact


def make_message(row: Sequence[Any], thread_id: str) -> ArchivedMessage:
    """Return the message of a row of ``MESSAGE``; refuse one that is not what was stored."""
    namespace, sequence, message_id, role, metadata, created_at, text, payload, digest = row
    text = None if text is None else unescape_text(text)
    payload = payload or None  # the column reads NULL as b""
    found = ArchivedMessage(
        sequence, message_id, role, metadata, created_at, text, payload, namespace
    )
    require_sealed(thread_id, found, digest)
    return found
