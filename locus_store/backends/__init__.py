"""One module per technology, and their factories."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from locus_store.backends.base import StorageBackend
from locus_store.backends.memory import MemoryBackend, MemoryCheckpointer, memory_checkpointer
from locus_store.checkpointer import StorageBackendAdapter

if TYPE_CHECKING:
    from locus_store.backends.file import FileBackend, FileCheckpointer, file_checkpointer
    from locus_store.backends.postgresql import (
        PostgreSQLBackend,
        PostgreSQLCheckpointSaver,
        postgresql_checkpointer,
    )
    from locus_store.backends.sqlite import (
        SQLiteBackend,
        SQLiteCheckpointSaver,
        sqlite_checkpointer,
    )

__all__ = [
    "FileBackend",
    "FileCheckpointer",
    "MemoryBackend",
    "MemoryCheckpointer",
    "PostgreSQLBackend",
    "PostgreSQLCheckpointSaver",
    "SQLiteBackend",
    "SQLiteCheckpointSaver",
    "StorageBackend",
    "StorageBackendAdapter",
    "file_checkpointer",
    "memory_checkpointer",
    "postgresql_checkpointer",
    "sqlite_checkpointer",
]


_MODULES = {
    "FileBackend": "file",
    "FileCheckpointer": "file",
    "file_checkpointer": "file",
    "PostgreSQLBackend": "postgresql",
    "PostgreSQLCheckpointSaver": "postgresql",
    "postgresql_checkpointer": "postgresql",
    "SQLiteBackend": "sqlite",
    "SQLiteCheckpointSaver": "sqlite",
    "sqlite_checkpointer": "sqlite",
}
"""What needs SQLAlchemy or POSIX locks, and so is imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
