"""The options of the PostgreSQL backend, for type checkers; a test holds them to the signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy.ext.asyncio import AsyncEngine

    from locus_store.sql.migrate import AutoMigrate


class PostgreSQLOptions(TypedDict, total=False):
    """Of ``PostgreSQLBackend``, beside ``dsn`` and ``table_name``."""

    prefix: str | None
    schema: str | None
    schema_name: str | None
    host: str | None
    port: int | None
    database: str | None
    user: str | None
    password: str | Callable[[], str | Awaitable[str]] | None
    engine: AsyncEngine | None
    pool: Any
    tenant: str
    auto_migrate: AutoMigrate
    pool_size: int
    max_overflow: int
    min_pool_size: int | None
    max_pool_size: int | None
    pool_timeout_seconds: float
    pool_recycle_seconds: float | None
    connect_timeout_seconds: float | None
    statement_timeout_seconds: float | None
    pgbouncer: bool
    group_saves: bool
    max_state_bytes: int
