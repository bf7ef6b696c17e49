"""The options of all backends that a URL may name, for type checkers; a test checks them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from locus_store.sql.migrate import AutoMigrate
    from locus_store.types import OnConflict


class BackendOptions(TypedDict, total=False):
    """Of any backend that a URL may name; the backend refuses those of others."""

    table_name: str | None
    prefix: str | None
    schema: str | None
    schema_name: str | None
    host: str | None
    port: int | None
    database: str | None
    user: str | None
    password: str | Callable[[], str | Awaitable[str]] | None
    service_name: str | None
    wallet_location: str | None
    wallet_password: str | None
    config_dir: str | None
    engine: AsyncEngine | Engine | None
    pool: Any
    tenant: str
    audit: str | None
    audit_reads: bool
    auto_migrate: AutoMigrate
    busy_timeout_seconds: float
    pool_size: int
    max_overflow: int
    min_pool_size: int | None
    max_pool_size: int | None
    pool_timeout_seconds: float
    pool_recycle_seconds: float | None
    connect_timeout_seconds: float | None
    statement_timeout_seconds: float | None
    pgbouncer: bool
    replicas: str | None
    max_staleness_seconds: float | None
    group_saves: bool
    compartment_id: str | None
    profile_name: str
    auth_type: Literal["api_key", "security_token", "instance_principal", "resource_principal"]
    region: str | None
    config_file: str
    endpoint: str | None
    endpoint_url: str | None
    profile: str | None
    addressing_style: Literal["auto", "virtual", "path"]
    max_attempts: int
    username: str | None
    verify_certs: bool
    ca_certs: str | None
    language: str | None
    refresh: Literal["interval", "wait"]
    db: int
    client: Any
    cluster: bool
    wait_replicas: int
    wait_timeout_seconds: float
    retry_seconds: float
    timeout_seconds: float
    headers: Mapping[str, str] | None
    auth: Any
    token: str | None
    timeout: float
    max_state_bytes: int
    encryption: Any


class CheckpointerOptions(BackendOptions, total=False):
    """Of ``open_checkpointer``, beside ``state_type``, and of ``open_saver``."""

    on_conflict: OnConflict
    keep_last: int | None
    ttl_seconds: float | None
    refresh_on_read: bool


class StoreOptions(BackendOptions, total=False):
    """Of ``open_store``, beside ``dimension``, ``metric`` and ``embed``."""

    backend: Any
