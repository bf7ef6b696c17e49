"""One module per technology."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from locus_store.store_backends.memory import InMemoryStore
    from locus_store.store_backends.oracle import OracleStore
    from locus_store.store_backends.postgresql import PostgreSQLStore
    from locus_store.store_backends.redis import RedisStore
    from locus_store.store_backends.sqlite import SQLiteStore

__all__ = ["InMemoryStore", "OracleStore", "PostgreSQLStore", "RedisStore", "SQLiteStore"]

_MODULES = {
    "InMemoryStore": "memory",
    "OracleStore": "oracle",
    "PostgreSQLStore": "postgresql",
    "RedisStore": "redis",
    "SQLiteStore": "sqlite",
}
"""Loaded on first use, so that none of these modules loads another."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
