"""The stored sizes of versions in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa

from locus_store.types.arguments import check_names
from locus_store.versions.sizes import MeasuresVersions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from locus_store.sql.reads import Reads
    from locus_store.sql.repository import Repository

T = TypeVar("T")


class SqlSizes(MeasuresVersions):
    """Runs the query below in the transactions of a backend."""

    _query: Callable[[Callable[[Repository], T]], Awaitable[T]]

    async def sizes(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> dict[int, int]:
        check_names(thread_id, namespace)
        return await self._query(lambda it: _sizes(it, thread_id, namespace, first, last))


def _sizes(it: Reads, thread_id: str, namespace: str, first: int, last: int) -> dict[int, int]:
    line, c = it.line_of(thread_id, namespace), it.tables.checkpoints.c
    if line is None:
        return {}
    query = sa.select(c.sequence, sa.func.length(c.payload)).where(
        c.line == line.line, c.sequence.between(first, last)
    )
    return {row[0]: row[1] for row in it.connection.execute(query)}
