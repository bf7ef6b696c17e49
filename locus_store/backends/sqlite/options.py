"""The options of the SQLite backend, for type checkers; a test holds them to the signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from locus_store.sql.migrate import AutoMigrate


class SQLiteOptions(TypedDict, total=False):
    """Of ``SQLiteBackend``, beside ``path`` and ``table_name``."""

    prefix: str | None
    engine: AsyncEngine | Engine | None
    tenant: str
    auto_migrate: AutoMigrate
    busy_timeout_seconds: float
    max_state_bytes: int
