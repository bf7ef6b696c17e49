"""Copy of a thread on the server; the number of statements does not grow with its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from locus_store.sql.columns.types import Minute, make_moment
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.statements import has_other_layout
from locus_store.sql.threads.thread_rows import has_thread, select_last_save
from locus_store.versions.archives import make_occupied_error
from locus_store.versions.sharding import require_layout

_KEPT: Final = ("tenant", "namespace", "head", "open_chain", "open_bytes", "floor", "last_sequence")
"""Columns of a line that its copy has as well."""


def copy_thread(repo: Repository, source: str, destination: str) -> bool:
    """See ``StoresThreads.copy_thread``; reads from one snapshot."""
    if not has_thread(repo, source):
        return False
    found = repo.read_row(destination)
    if found and found.live:
        raise make_occupied_error(destination, "copied")
    if found:
        repo.drop_threads([destination])
    _Copy(repo, source, destination).run()
    return True


class _Copy:
    """The statements of one copy."""

    def __init__(self, repo: Repository, source: str, destination: str) -> None:
        self._it = repo
        self._source = source
        self._destination = destination

    def run(self) -> None:
        """Copy all rows of the source to a thread that does not exist."""
        tables = self._it.tables
        self._copy_thread_row()
        self._copy_messages()
        self._copy_lines()
        # The text for the search index is copied with its version.
        for table in (tables.checkpoints, tables.segments, tables.writes):
            names = [column.name for column in table.c]  # the first one is the key of the line
            self._insert(table, names, self._select_for_new_lines(table, names[1:]))
        if self._it.has_index:
            self._it.copy_index(self._select_for_new_lines)

    def _copy_thread_row(self) -> None:
        """Insert the copy's row; a copy that has versions is active from its creation."""
        threads = self._it.tables.threads
        has_version = select_last_save(self._it.tables).is_not(None)
        made: dict[str, Any] = {
            "thread_id": sa.literal(self._destination, threads.c.thread_id.type),
            "active_at": sa.case((has_version, Minute()), else_=threads.c.active_at),
        }
        kept = [column for column in threads.c if column.name not in {"thread", *made}]
        rows = sa.select(*made.values(), *kept).where(*self._it.is_thread(self._source))
        rows = rows.where(~has_other_layout(self._it.tables, self._it.tenancy.layout))
        names = [*made, *(column.name for column in kept)]
        require_layout(self._insert(threads, names, rows))

    def _copy_messages(self) -> None:
        threads = self._it.tables.threads
        new, old = (
            sa.select(threads.c.thread).where(*self._it.is_thread(name)).scalar_subquery()
            for name in (self._destination, self._source)
        )
        for table in (self._it.tables.logs, self._it.tables.messages):
            owner, *kept = table.c
            rows = sa.select(new, *kept).where(owner == old)
            self._insert(table, [column.name for column in table.c], rows)

    def _copy_lines(self) -> None:
        """Copy the lines without writer and run, which refer to the source's last save."""
        lines = self._it.tables.lines
        made: dict[str, Any] = {
            "thread_id": sa.literal(self._destination, lines.c.thread_id.type),
            "updated_at": make_moment(),
        }
        kept = [lines.c[name] for name in _KEPT]
        rows = sa.select(*made.values(), *kept).where(*self._match(lines, self._source))
        self._insert(lines, [*made, *_KEPT], rows)

    def _select_for_new_lines(self, table: sa.FromClause, names: Sequence[str]) -> sa.Select[Any]:
        """Return a query for the source's rows, with the keys of the copied lines."""
        lines = self._it.tables.lines
        old, new = lines.alias("old_lines"), lines.alias("new_lines")
        return (
            sa.select(new.c.line, *(table.c[name] for name in names))
            .select_from(old)
            .join(new, new.c.namespace == old.c.namespace)
            .join(table, table.c.line == old.c.line)
            .where(*self._match(old, self._source), *self._match(new, self._destination))
        )

    def _match(self, lines: sa.FromClause, thread_id: str) -> tuple[sa.ColumnElement[bool], ...]:
        return lines.c.tenant == self._it.tenant, lines.c.thread_id == thread_id

    def _insert(self, table: sa.Table, names: Sequence[str], rows: sa.Select[Any]) -> int:
        made = table.insert().from_select(names, rows, include_defaults=False)
        return self._it.connection.execute(made).rowcount
