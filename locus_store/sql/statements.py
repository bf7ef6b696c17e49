"""The hot statements, built once per set of tables: SQLAlchemy caches their compiled form."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam as bind

from locus_store.sql.columns import minute, now

if TYPE_CHECKING:
    from locus_store.sql.schema import Tables

LINE_STATE = ("head", "open_chain", "open_bytes", "floor", "last_sequence", "writer", "run")
"""What a save changes of a line's row; names of ``versions.Line``."""


class Statements:
    """The statements of one set of tables."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    @cached_property
    def line(self) -> sa.Select[Any]:
        """The live line of a thread and namespace."""
        t, lines = self.tables, self.tables.lines
        return (
            sa.select(*lines.c)
            .join(t.threads, same_thread(t))
            .where(lines.c.tenant == bind("tenant"), lines.c.thread_id == bind("thread_id"))
            .where(lines.c.namespace == bind("namespace"), is_live(t))
        )

    @cached_property
    def new_line(self) -> sa.Insert:
        return self.tables.lines.insert().values(
            tenant=bind("tenant"),
            thread_id=bind("thread_id"),
            namespace=bind("namespace"),
            open_bytes=0,
            floor=0,
            last_sequence=0,
            updated_at=now(),
        )

    @cached_property
    def save_line(self) -> sa.Update:
        lines = self.tables.lines
        values: dict[str, Any] = {
            name: bind(f"new_{name}", type_=lines.c[name].type) for name in LINE_STATE
        }
        return (
            lines.update().where(lines.c.line == bind("of_line")).values(**values, updated_at=now())
        )

    @cached_property
    def touch(self) -> sa.Update:
        """Note activity, at most once a minute."""
        threads = self.tables.threads
        return (
            threads.update()
            .where(threads.c.tenant == bind("of_tenant"))
            .where(threads.c.thread_id == bind("of_thread_id"), threads.c.active_at != minute())
            .values(active_at=minute())
        )

    @cached_property
    def record(self) -> sa.Select[Any]:
        checkpoints = self.tables.checkpoints
        return sa.select(*record_columns(checkpoints)).where(
            checkpoints.c.line == bind("line"), checkpoints.c.sequence == bind("sequence")
        )

    @cached_property
    def named(self) -> sa.Select[Any]:
        checkpoints = self.tables.checkpoints
        return sa.select(*record_columns(checkpoints)).where(
            checkpoints.c.line == bind("line"), checkpoints.c.checkpoint_id == bind("checkpoint_id")
        )

    @cached_property
    def payloads(self) -> sa.Select[Any]:
        """A chain up to a sequence: its number is the sequence that its first record had."""
        checkpoints = self.tables.checkpoints
        return (
            sa.select(checkpoints.c.sequence, checkpoints.c.payload)
            .where(checkpoints.c.line == bind("line"), checkpoints.c.chain == bind("chain"))
            .where(checkpoints.c.sequence >= bind("chain"), checkpoints.c.sequence <= bind("upto"))
            .order_by(checkpoints.c.sequence)
        )

    @cached_property
    def new_record(self) -> sa.Insert:
        names = ("line", "sequence", "chain", "parent", "checkpoint_id", "digest", "codec")
        columns = self.tables.checkpoints.c
        values: dict[str, Any] = {
            name: bind(name, type_=columns[name].type)
            for name in (*names, "metadata", "labels", "text", "payload")
        }
        return self.tables.checkpoints.insert().values(**values, created_at=now())


@lru_cache(maxsize=64)
def statements(tables: Tables) -> Statements:
    """The statements of ``tables``."""
    return Statements(tables)


def same_thread(tables: Tables) -> sa.ColumnElement[bool]:
    """Joins a line to its thread."""
    lines, threads = tables.lines, tables.threads
    return sa.and_(threads.c.tenant == lines.c.tenant, threads.c.thread_id == lines.c.thread_id)


def is_live(tables: Tables) -> sa.ColumnElement[bool]:
    """The thread has not expired, by the server's clock."""
    expires_at = tables.threads.c.expires_at
    return sa.or_(expires_at.is_(None), expires_at > now())


def record_columns(checkpoints: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    """The columns of ``versions.Record``."""
    names = ("sequence", "chain", "parent", "checkpoint_id", "digest", "metadata", "labels")
    return [checkpoints.c[name] for name in names]
