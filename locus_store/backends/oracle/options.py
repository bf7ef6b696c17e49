"""The options of the Oracle backend, for type checkers; a test holds them to the signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from locus_store.sql.migrate import AutoMigrate


class OracleOptions(TypedDict, total=False):
    """Of ``OracleBackend``, beside ``dsn``, ``user``, ``password`` and ``table_name``."""

    wallet_location: str | None
    wallet_password: str | None
    host: str | None
    port: int | None
    service_name: str | None
    schema_name: str | None
    min_pool_size: int
    max_pool_size: int
    engine: AsyncEngine | None
    pool: Any
    config_dir: str | None
    prefix: str | None
    tenant: str
    auto_migrate: AutoMigrate
    pool_timeout_seconds: float
    connect_timeout_seconds: float | None
    statement_timeout_seconds: float | None
    max_state_bytes: int
