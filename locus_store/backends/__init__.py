"""One module per technology, and their factories."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from locus_store.backends.base import StorageBackend
from locus_store.backends.memory import MemoryBackend, MemoryCheckpointer, memory_checkpointer
from locus_store.checkpointer import StorageBackendAdapter

if TYPE_CHECKING:
    from locus_store.backends.postgresql import PostgreSQLBackend, postgresql_checkpointer
    from locus_store.backends.sqlite import SQLiteBackend, sqlite_checkpointer

__all__ = [
    "MemoryBackend",
    "MemoryCheckpointer",
    "PostgreSQLBackend",
    "SQLiteBackend",
    "StorageBackend",
    "StorageBackendAdapter",
    "memory_checkpointer",
    "postgresql_checkpointer",
    "sqlite_checkpointer",
]


_MODULES = {
    "PostgreSQLBackend": "postgresql",
    "postgresql_checkpointer": "postgresql",
    "SQLiteBackend": "sqlite",
    "sqlite_checkpointer": "sqlite",
}
"""What needs SQLAlchemy, and so is imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
