"""Deletion of whole threads in one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from locus_store.sql.pending import batches
from locus_store.versions.sweeping import Swept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from locus_store.sql.repository import Repository


def drop_threads(it: Repository, thread_ids: Sequence[str], index: sa.TableClause | None) -> Swept:
    """Remove locked threads with all they own, a batch in a statement; return how much that was."""
    gone = [_drop(it, some, index) for some in batches(thread_ids)]
    it.seen.clear()
    it.noted = None
    return Swept(sum(it[0] for it in gone), sum(it[1] for it in gone), is_whole=True)


def _drop(
    it: Repository, thread_ids: Sequence[str], index: sa.TableClause | None
) -> tuple[int, int]:
    """Remove a batch; return the numbers of versions and messages.

    Rows are found by arrays of keys: with a list of them or a join, PostgreSQL reads whole tables
    without statistics.

    Args:
        it: The repository.
        thread_ids: The threads.
        index: The full-text index, if there is one.
    """
    t = it.tables
    threads, lines = t.threads, t.lines
    of_lines = sa.select(lines.c.line).where(
        lines.c.tenant == it.scope.tenant, lines.c.thread_id.in_(thread_ids)
    )
    of_threads = sa.select(threads.c.thread).where(*it.is_thread(*thread_ids))
    line_keys, thread_keys = of_lines.cte("line_keys"), of_threads.cte("thread_keys")
    is_line = sa.any_(sa.func.array(sa.select(line_keys.c.line).scalar_subquery()))
    is_thread = sa.any_(sa.func.array(sa.select(thread_keys.c.thread).scalar_subquery()))
    by_line: list[Any] = [lines, t.writes, t.packs, *([] if index is None else [index])]
    gone = [it.delete().where(it.c.line == is_line).cte(f"gone_{it.name}") for it in by_line]
    gone += [
        it.delete().where(it.c.thread == is_thread).cte(f"gone_{it.name}")
        for it in (threads, t.logs)
    ]
    versions, messages = (
        table.delete().where(is_its).returning(sa.literal_column("1").label("one")).cte(name)
        for table, is_its, name in (
            (t.checkpoints, t.checkpoints.c.line == is_line, "gone_versions"),
            (t.messages, t.messages.c.thread == is_thread, "gone_messages"),
        )
    )
    counts = (
        sa.select(sa.func.count()).select_from(made).scalar_subquery()
        for made in (versions, messages)
    )
    row = it.connection.execute(sa.select(*counts).add_cte(*gone)).one()
    return row[0], row[1]
