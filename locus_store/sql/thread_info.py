"""The facts of threads in SQL: user, name, metadata."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from locus_store.sql.existence import last_active
from locus_store.sql.listing import GROWTH, PAGE, in_order, page_of
from locus_store.sql.statements import is_live
from locus_store.sql.user_ids import take
from locus_store.types.thread_info import DescribesThreads, StoredFacts, facts, require_owner
from locus_store.types.user_ids import is_user_id, require_user_id
from locus_store.versions.archives import minute_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from sqlalchemy.engine import Connection, Row

    from locus_store.sql.database import Database
    from locus_store.sql.reads import Reads
    from locus_store.sql.repository import Repository
    from locus_store.types.thread_info import PutThread, ThreadFacts, ThreadsWanted
    from locus_store.types.user_ids import UserIdType

T = TypeVar("T")


class SqlThreadInfo(DescribesThreads):
    """Runs the queries below in the transactions of a backend."""

    _database: Database
    _write: Callable[[Callable[[Repository], T]], Awaitable[T]]
    _query: Callable[[Callable[[Repository], T]], Awaitable[T]]

    async def put_facts(self, put: PutThread) -> None:
        """See ``DescribesThreads``, also for the following methods."""
        await self._write(lambda it: put_facts(it, put))

    async def facts_of(self, thread_id: str) -> ThreadFacts | None:
        return await self._query(lambda it: _facts_of(it, thread_id))

    async def find_facts(self, wanted: ThreadsWanted) -> list[ThreadFacts]:
        return await self._query(lambda it: _find(it, wanted))

    async def require_user_id_type(self, users: UserIdType) -> None:
        database = self._database
        if await self._query(lambda it: it.tables.user_id_type) == users:
            return
        await self._redefine(
            partial(take, ours=database.tables, users=users, may_create=database.may_create)
        )
        database.user_ids_changed(users)

    async def _redefine(self, body: Callable[[Connection], T]) -> T:
        """Run a body that changes the schema, and that is alone in doing so."""
        return await self._write(lambda it: body(it.connection))


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
    found = _facts_of(it, put.thread_id)
    require_owner(put.thread_id, found.user_id if found else None, put.user_id)


def put_facts(it: Repository, put: PutThread) -> None:
    """Store a thread's facts; see ``DescribesThreads.put_facts``."""
    require_user_id(put.user_id, it.tables.user_id_type)
    it.open_thread(put.thread_id)
    threads, exact = it.tables.threads, last_active(it.tables)
    active_at = sa.func.coalesce(exact, threads.c.active_at)
    which = it.is_thread(put.thread_id)
    columns = (*(threads.c[name] for name in StoredFacts._fields), threads.c.created_at)
    row = it.connection.execute(sa.select(*columns, active_at.label("exact")).where(*which)).one()
    stored = put.over(StoredFacts(row.user_id, row.name, row.metadata), _active_at(row))
    values = {threads.c[name]: value for name, value in stored._asdict().items()}
    it.connection.execute(threads.update().where(*which).values(values))


def _facts_of(it: Reads, thread_id: str) -> ThreadFacts | None:
    c, exact = it.tables.threads.c, last_active(it.tables)
    columns = (c.thread_id, *(c[name] for name in StoredFacts._fields), c.created_at)
    row = it.connection.execute(
        sa.select(*columns, exact.label("exact")).where(
            c.tenant == it.scope.tenant, c.thread_id == thread_id, is_live(it.tables)
        )
    ).first()
    return None if row is None or row.exact is None else _of_row(row)


def _find(it: Reads, wanted: ThreadsWanted) -> list[ThreadFacts]:
    found: list[Row[Any]] = []
    last = wanted.offset + wanted.limit
    size, place = last if wanted.needle is None else max(last, PAGE), None
    while len(found) < last:
        rows = it.connection.execute(_page(it, wanted.user_id, size, place)).all()
        found += [row for row in rows if wanted.takes(row.name, row.metadata)]
        if len(rows) < size:
            break
        size, place = size * GROWTH, rows[-1]
    return [_of_row(row) for row in found[wanted.offset : last]]


def _page(it: Reads, user_id: str | None, size: int, place: Any) -> sa.Select[Any]:
    """Return a query for a page of threads with their facts, in order."""
    threads = it.tables.threads
    is_theirs = sa.true() if user_id is None else of_user(it, user_id)
    page = page_of(it, size, is_theirs, place=place).subquery("page")
    return (
        sa.select(page, *(threads.c[name] for name in StoredFacts._fields), threads.c.created_at)
        .join_from(page, threads, threads.c.thread == page.c.thread)
        .order_by(*in_order(page.c))
    )


def _of_row(row: Any) -> ThreadFacts:
    return facts(row.thread_id, row.user_id, row.name, row.metadata, _active_at(row))


def _active_at(row: Any) -> datetime:
    """Return the last activity: a thread that only facts were put into has it to the minute.

    If that is the minute of its creation, the exact time is known.
    """
    exact: datetime = row.exact
    return row.created_at if minute_of(row.created_at) == exact else exact
