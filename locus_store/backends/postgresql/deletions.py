"""Deletion of whole threads: a statement that locks, and one that deletes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from locus_store.backends.postgresql.columns import BoundText
from locus_store.sql.columns.types import Key
from locus_store.sql.schema.tables import TENANT_LENGTH
from locus_store.sql.threads.pending import split_batches
from locus_store.sql.threads.server_repository import IndexedRepository, is_setting
from locus_store.sql.threads.statements import compile_other, is_live
from locus_store.sql.threads.thread_rows import has_activity
from locus_store.types import Removed
from locus_store.versions.erasing import Swept

_TENANT: Final = sa.bindparam("tenant", type_=Key(TENANT_LENGTH))
_THREADS: Final = sa.any_(sa.bindparam("thread_ids", type_=sa.ARRAY(BoundText())))
_LINES: Final = sa.bindparam("lines", type_=sa.BigInteger())
_FEW: Final = [sa.bindparam(f"line_{at}", type_=sa.BigInteger()) for at in range(4)]
"""A statement names one line, or four, some repeatedly. It finds more, which are in many partitions
anyway."""

_STORE: Final = sa.bindparam("store", type_=BoundText())
_SETTING_ROWS: Final = sa.bindparam("setting_rows", type_=sa.BigInteger())


def delete_thread(repo: IndexedRepository, thread_id: str, *, has_index: bool) -> Removed | None:
    """Remove a live thread in two statements; ``None``: the full rules decide, nothing was removed.

    They decide if lines were created while the thread's lock was waited for, and in a database
    that was replaced or got a text index.

    Args:
        repo: The repository.
        thread_id: The thread.
        has_index: As far as is known, there is a full-text index.
    """
    key: dict[str, Any] = {"tenant": repo.tenant, "thread_ids": [thread_id]}
    locked = compile_other(repo.sql, _lock, lambda: _lock(repo)).fetch_first(repo.connection, key)
    if locked is None:
        return Removed(existed=False, versions=0)
    lines = locked[1]
    key |= {"lines": len(lines), "store": repo.tenancy.store, "setting_rows": 1 + has_index}
    [(versions, _, existed, is_decided)] = _run(repo, key, lines, has_index=has_index, is_sole=True)
    return Removed(existed is not None, versions) if is_decided else None


def drop_threads(repo: IndexedRepository, thread_ids: Sequence[str]) -> Swept:
    """Remove locked threads with all they own, a batch in a statement; return how much that was."""
    versions = messages = 0
    for some in split_batches(thread_ids):
        key = {"tenant": repo.tenant, "thread_ids": [*some]}
        lines = repo.find_lines_of(some)
        [gone] = _run(repo, key, lines, has_index=repo.has_index, is_sole=False)
        versions, messages = versions + gone[0], messages + gone[1]
    repo.seen_records.clear()
    repo.active_thread = None
    return Swept(versions, messages, is_whole=True)


def _run(
    repo: IndexedRepository, key: dict[str, Any], lines: Sequence[int], **how: bool
) -> list[tuple[Any, ...]]:
    """Run the statement of ``_drop``, which takes longer to compile than to run."""
    few = 0
    if len(lines) <= len(_FEW):
        few = 1 if len(lines) <= 1 else len(_FEW)
        named = [*lines, *[max(lines, default=0)] * few]
        key = key | {bound.key: line for bound, line in zip(_FEW[:few], named, strict=False)}
    statement = compile_other(
        repo.sql, (_drop, few, *how.values()), lambda: _drop(repo, few=few, **how)
    )
    return statement.fetch_rows(repo.connection, key)


def _lock(repo: IndexedRepository) -> sa.Select[Any]:
    """Return the statement that locks a thread behind its lines, and names them."""
    lines, threads = repo.tables.lines.c, repo.tables.threads.c
    locked = (
        sa.select(lines.line)
        .where(lines.tenant == _TENANT, lines.thread_id == _THREADS)
        .order_by(lines.namespace)
        .with_for_update()
        .cte("locked")
    )
    its = sa.func.array(sa.select(locked.c.line).scalar_subquery(), type_=sa.ARRAY(sa.BigInteger()))
    found = sa.select(threads.thread, its.label("lines"))
    is_it = threads.tenant == _TENANT, threads.thread_id == _THREADS
    is_first = sa.func.pg_catalog.cardinality(its) >= 0
    return found.where(*is_it, is_first).with_for_update(of=repo.tables.threads)


def _drop(repo: IndexedRepository, *, few: int, has_index: bool, is_sole: bool) -> sa.Select[Any]:
    """Return the statement that removes threads, and counts their versions and messages.

    Rows are found by arrays of keys: with a long list of them or a join, PostgreSQL reads whole
    tables without statistics. It leaves out partitions only by a list of parameters.

    Args:
        repo: The repository.
        few: The number of parameters that name all lines, or 0.
        has_index: There is a full-text index.
        is_sole: One thread, if it is live, and only if the statement before locked all its lines.
    """
    t = repo.tables
    lines, threads = t.lines.c, t.threads.c
    is_thread = threads.tenant == _TENANT, threads.thread_id == _THREADS
    of_threads = sa.select(threads.thread).where(*is_thread)
    of_lines = sa.select(lines.line).where(lines.tenant == _TENANT, lines.thread_id == _THREADS)
    more: list[sa.ColumnElement[Any]] = []
    if is_sole:
        found = sa.select(sa.func.count()).select_from(of_lines.subquery()).scalar_subquery()
        settings = sa.select(sa.func.count()).where(is_setting(t, _STORE)).scalar_subquery()
        is_it = sa.and_(found == _LINES, settings == _SETTING_ROWS)
        decided = sa.select(is_it.label("is_it")).cte("decided")
        is_decided = sa.select(decided.c.is_it).scalar_subquery()
        existed = of_threads.where(is_live(t), has_activity(t)).scalar_subquery()
        more = [existed, is_decided]
        of_threads = of_threads.where(is_live(t), is_decided)
    thread_keys = of_threads.cte("thread_keys")
    if is_sole:
        of_lines = of_lines.where(sa.exists().select_from(thread_keys))
    line_keys = of_lines.cte("line_keys")
    is_its = sa.any_(sa.func.array(sa.select(thread_keys.c.thread).scalar_subquery()))
    all_lines = sa.any_(sa.func.array(sa.select(line_keys.c.line).scalar_subquery()))

    def is_of_line(line: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        if not few:
            return line == all_lines
        is_one = line.in_(_FEW[:few])
        return sa.and_(is_one, sa.exists().select_from(thread_keys)) if is_sole else is_one

    by_line: list[Any] = [t.lines, t.writes, t.segments, *([repo.index] if has_index else [])]
    gone = [it.delete().where(is_of_line(it.c.line)).cte(f"gone_{it.name}") for it in by_line]
    gone += [
        table.delete().where(table.c.thread == is_its).cte(f"gone_{table.name}")
        for table in (t.threads, t.logs)
    ]
    counted = (
        (t.checkpoints, is_of_line(t.checkpoints.c.line), "gone_versions"),
        (t.messages, t.messages.c.thread == is_its, "gone_messages"),
    )
    removed = (
        table.delete().where(is_one).returning(sa.literal_column("1").label("one")).cte(name)
        for table, is_one, name in counted
    )
    counts = (sa.select(sa.func.count()).select_from(one).scalar_subquery() for one in removed)
    return sa.select(*counts, *more).add_cte(*gone)
