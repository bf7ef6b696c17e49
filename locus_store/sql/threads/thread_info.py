"""The facts of threads in SQL: user, name, metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from locus_store import versions
from locus_store.sql.threads.listing import GROWTH, PAGE, in_order, page_of
from locus_store.sql.threads.thread_facts import facts_of, of_row, of_user, put_facts
from locus_store.types.arguments import check_text
from locus_store.types.thread_info import DescribesThreads, StoredFacts
from locus_store.types.user_ids import require_user_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy.engine import Row

    from locus_store.sql.threads.reads import Reads
    from locus_store.sql.threads.repository import Repository
    from locus_store.types.thread_info import PutThread, ThreadFacts, ThreadsWanted

T = TypeVar("T")


class SqlThreadInfo(DescribesThreads):
    """Runs the queries below in the transactions of a backend."""

    _write: Callable[[Callable[[Repository], T]], Awaitable[T]]
    _query: Callable[[Callable[[Repository], T]], Awaitable[T]]

    async def put_facts(self, put: PutThread) -> None:
        """See ``DescribesThreads``, also for the following methods."""
        await self._write(lambda it: _put(it, put))

    async def facts_of(self, thread_id: str) -> ThreadFacts | None:
        return await self._query(lambda it: facts_of(it, thread_id))

    async def find_facts(self, wanted: ThreadsWanted) -> list[ThreadFacts]:
        return await self._query(lambda it: _find(it, wanted))

    async def clear_versions(self, thread_id: str) -> None:
        check_text("thread_id", thread_id)
        await self._write(lambda it: versions.clear(it, thread_id, ""))


def _put(it: Repository, put: PutThread) -> None:
    require_user_id(put.user_id, it.tables.user_id_type)
    it.open_thread(put.thread_id)
    put_facts(it, put)


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
    return [of_row(row) for row in found[wanted.offset : last]]


def _page(it: Reads, user_id: str | None, size: int, place: Any) -> sa.Select[Any]:
    """Return a query for a page of threads with their facts, in order."""
    threads = it.tables.threads
    is_theirs = sa.true() if user_id is None else of_user(it, user_id)
    page = page_of(it, size, is_theirs, place=place).subquery("page")
    return (
        sa.select(page, threads.c.created_at, *(threads.c[name] for name in StoredFacts._fields))
        .join_from(page, threads, threads.c.thread == page.c.thread)
        .order_by(*in_order(page.c))
    )
