"""The rows of threads with their users, names and metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from locus_store.sql.threads.existence import last_active
from locus_store.sql.threads.statements import is_live
from locus_store.types.thread_info import StoredFacts, facts, require_owner
from locus_store.types.user_ids import is_user_id, require_user_id
from locus_store.versions.archives import minute_of

if TYPE_CHECKING:
    from datetime import datetime

    from locus_store.sql.threads.reads import Reads
    from locus_store.types.thread_info import PutThread, ThreadFacts


def of_user(it: Reads, user_id: str) -> sa.ColumnElement[bool]:
    """Return the condition of a user's threads; an id that the column cannot hold has none."""
    if not is_user_id(user_id, it.tables.user_id_type):
        return sa.false()
    return it.tables.threads.c.user_id == user_id


def require_its_owner(it: Reads, put: PutThread) -> None:
    """Refuse a put into another user's thread, which ``put_facts`` refuses again under the lock.

    Raises:
        NotOwnerError: The thread is another user's.
    """
    require_user_id(put.user_id, it.tables.user_id_type)
    found = facts_of(it, put.thread_id)
    require_owner(put.thread_id, found.user_id if found else None, put.user_id)


def put_facts(it: Reads, put: PutThread) -> None:
    """Store the facts of a thread that was opened; see ``DescribesThreads.put_facts``."""
    threads, exact = it.tables.threads, last_active(it.tables)
    active_at = sa.func.coalesce(exact, threads.c.active_at)
    which = it.is_thread(put.thread_id)
    columns = (*(threads.c[name] for name in StoredFacts._fields), threads.c.created_at)
    row = it.connection.execute(sa.select(*columns, active_at.label("exact")).where(*which)).one()
    stored = put.over(StoredFacts(row.user_id, row.name, row.metadata), _active_at(row))
    values = {threads.c[name]: value for name, value in stored._asdict().items()}
    it.connection.execute(threads.update().where(*which).values(values))


def facts_of(it: Reads, thread_id: str) -> ThreadFacts | None:
    """Return the facts of a live thread that exists."""
    c, exact = it.tables.threads.c, last_active(it.tables)
    row = it.connection.execute(
        sa.select(
            *(c.thread_id, c.created_at, exact.label("exact")),
            *(c[name] for name in StoredFacts._fields),
        ).where(c.tenant == it.scope.tenant, c.thread_id == thread_id, is_live(it.tables))
    ).first()
    return None if row is None or row.exact is None else of_row(row)


def of_row(row: Any) -> ThreadFacts:
    """Return the facts in a row of a query."""
    times = {"created_at": row.created_at, "active_at": _active_at(row)}
    return facts(row.thread_id, row.user_id, row.name, row.metadata, **times)


def _active_at(row: Any) -> datetime:
    """Return the last activity: a thread that only facts were put into has it to the minute.

    If that is the minute of its creation, the exact time is known.
    """
    exact: datetime = row.exact
    return row.created_at if minute_of(row.created_at) == exact else exact
