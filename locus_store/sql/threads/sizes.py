"""The stored sizes, the numbers of versions, and the marks of threads in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa

from locus_store.sql.threads.pending import batches
from locus_store.sql.threads.reads import ROOT
from locus_store.types.arguments import check_names, check_text
from locus_store.versions.sizes import INTERRUPT, Marked, MeasuresVersions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from locus_store.sql.threads.reads import Reads
    from locus_store.sql.threads.repository import Repository

T = TypeVar("T")


class SqlSizes(MeasuresVersions):
    """Runs the queries below in the transactions of a backend."""

    _query: Callable[[Callable[[Repository], T]], Awaitable[T]]

    async def sizes(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> dict[int, int]:
        check_names(thread_id, namespace)
        return await self._query(lambda it: _sizes(it, thread_id, namespace, first, last))

    async def counts(self, thread_ids: Sequence[str]) -> dict[str, int]:
        for it in thread_ids:
            check_text("thread_id", it)
        return await self._query(lambda it: _counts(it, thread_ids)) if thread_ids else {}

    async def marks(self, thread_ids: Sequence[str]) -> dict[str, Marked]:
        for it in thread_ids:
            check_text("thread_id", it)
        return await self._query(lambda it: _marks(it, thread_ids)) if thread_ids else {}


def _sizes(it: Reads, thread_id: str, namespace: str, first: int, last: int) -> dict[int, int]:
    line, c = it.line_of(thread_id, namespace), it.tables.checkpoints.c
    if line is None:
        return {}
    query = sa.select(c.sequence, sa.func.length(c.payload)).where(
        c.line == line.line, c.sequence.between(first, last)
    )
    sizes = {row[0]: row[1] for row in it.connection.execute(query)}
    if None in sizes.values():
        for _, one in it.all_segments(line.line, within=(first, last)):
            joined = {at: len(payload) for at, payload in one.records().items()}
            sizes |= {at: joined[at] for at in sizes.keys() & joined.keys()}
    return {at: size or 0 for at, size in sizes.items()}


def _counts(it: Reads, thread_ids: Sequence[str]) -> dict[str, int]:
    return {name: n for some in batches(thread_ids) for name, n in _counted(it, some)}


def _counted(it: Reads, thread_ids: Sequence[str]) -> Sequence[tuple[str, int]]:
    lines, c = it.tables.lines.c, it.tables.checkpoints.c
    is_visible = sa.or_(c.sequence >= lines.floor, c.sequence == lines.head)
    query = (
        sa.select(lines.thread_id, sa.func.count())
        .join(it.tables.checkpoints, c.line == lines.line)
        .where(lines.tenant == it.scope.tenant, lines.thread_id.in_(thread_ids), is_visible)
        .group_by(lines.thread_id)
    )
    return [(row[0], row[1]) for row in it.connection.execute(query)]


def _marks(it: Reads, thread_ids: Sequence[str]) -> dict[str, Marked]:
    found: dict[str, Marked] = {}
    for some in batches(thread_ids):
        waiting, logged = _interrupted(it, some), _logged(it, some)
        names = waiting | logged.keys()
        found.update((name, Marked(name in waiting, logged.get(name))) for name in names)
    return found


def _interrupted(it: Reads, thread_ids: Sequence[str]) -> set[str]:
    lines, c, w = it.tables.lines.c, it.tables.checkpoints.c, it.tables.writes.c
    query = (
        sa.select(lines.thread_id)
        .join(it.tables.checkpoints, (c.line == lines.line) & (c.sequence == lines.head))
        .join(it.tables.writes, (w.line == c.line) & (w.checkpoint_id == c.checkpoint_id))
        .where(lines.tenant == it.scope.tenant, lines.thread_id.in_(thread_ids))
        .where(lines.namespace == ROOT, w.channel == INTERRUPT)
    )
    return set(it.connection.scalars(query))


def _logged(it: Reads, thread_ids: Sequence[str]) -> dict[str, int]:
    threads, logs = it.tables.threads.c, it.tables.logs.c
    query = (
        sa.select(threads.thread_id, sa.func.sum(logs.message_count))
        .join(it.tables.logs, logs.thread == threads.thread)
        .where(threads.tenant == it.scope.tenant, threads.thread_id.in_(thread_ids))
        .group_by(threads.thread_id)
    )
    return {row[0]: int(row[1]) for row in it.connection.execute(query)}
