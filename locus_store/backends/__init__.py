"""One module per technology, and their factories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.base import StorageBackend
from locus_store.backends.memory import MemoryBackend, MemoryCheckpointer, memory_checkpointer
from locus_store.checkpointer import StorageBackendAdapter

if TYPE_CHECKING:
    from locus_store.backends.sqlite import SQLiteBackend, sqlite_checkpointer

__all__ = [
    "MemoryBackend",
    "MemoryCheckpointer",
    "SQLiteBackend",
    "StorageBackend",
    "StorageBackendAdapter",
    "memory_checkpointer",
    "sqlite_checkpointer",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from locus_store.backends import sqlite  # noqa: PLC0415  (SQLAlchemy, on first use)

    return getattr(sqlite, name)
