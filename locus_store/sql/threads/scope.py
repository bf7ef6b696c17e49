"""The base of all queries: a transaction on the tables of one tenant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from locus_store.sql.threads.statements import statements

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection

    from locus_store.sql.schema.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The tables, the tenant and the limits of one opened backend."""

    tables: Tables
    tenant: str
    store: str
    """``store_id`` of the database: marks carry it."""

    max_state_bytes: int
    """The largest state that is folded."""


class Scoped:
    """A synchronous connection in a transaction, and its scope."""

    def __init__(self, connection: Connection, scope: Scope) -> None:
        self.connection = connection
        self.scope = scope
        self.tables = scope.tables
        self.sql = statements(scope.tables, connection.dialect)

    def is_thread(self, *thread_ids: str) -> tuple[sa.ColumnElement[bool], ...]:
        """Return conditions of the rows of ``threads`` of these ids."""
        threads = self.tables.threads
        return threads.c.tenant == self.scope.tenant, threads.c.thread_id.in_(thread_ids)
