"""PostgreSQL by the statements that Oracle gets: the portable ones."""

from __future__ import annotations

from locus_store.backends.postgresql import PostgreSQLBackend
from locus_store.sql.backend import SqlBackend


class PortableBackend(PostgreSQLBackend):
    """PostgreSQL by the portable statements of saves, loads and lists."""

    commit = SqlBackend.commit
    fetch = SqlBackend.fetch
    fetch_head = SqlBackend.fetch_head
    version = SqlBackend.version
    history = SqlBackend.history
    contents = SqlBackend.contents
    store_writes = SqlBackend.store_writes
