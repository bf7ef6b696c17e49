"""One module per technology, and their factories."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from locus_store.backends.base import StorageBackend
    from locus_store.backends.file import FileBackend, FileCheckpointer, file_checkpointer
    from locus_store.backends.memory import MemoryBackend, MemoryCheckpointer, memory_checkpointer
    from locus_store.backends.oracle import (
        OracleBackend,
        OracleCheckpointSaver,
        oracle_checkpointer,
    )
    from locus_store.backends.postgresql import (
        PostgreSQLBackend,
        PostgreSQLCheckpointSaver,
        postgresql_checkpointer,
    )
    from locus_store.backends.redis import (
        RedisBackend,
        RedisCheckpointSaver,
        redis_checkpointer,
    )
    from locus_store.backends.sqlite import (
        SQLiteBackend,
        SQLiteCheckpointSaver,
        sqlite_checkpointer,
    )
    from locus_store.checkpointer import StorageBackendAdapter

__all__ = [
    "FileBackend",
    "FileCheckpointer",
    "MemoryBackend",
    "MemoryCheckpointer",
    "OracleBackend",
    "OracleCheckpointSaver",
    "PostgreSQLBackend",
    "PostgreSQLCheckpointSaver",
    "RedisBackend",
    "RedisCheckpointSaver",
    "SQLiteBackend",
    "SQLiteCheckpointSaver",
    "StorageBackend",
    "StorageBackendAdapter",
    "file_checkpointer",
    "memory_checkpointer",
    "oracle_checkpointer",
    "postgresql_checkpointer",
    "redis_checkpointer",
    "sqlite_checkpointer",
]

_MODULES = {
    **dict.fromkeys(("FileBackend", "FileCheckpointer", "file_checkpointer"), "backends.file"),
    **dict.fromkeys(
        ("MemoryBackend", "MemoryCheckpointer", "memory_checkpointer"), "backends.memory"
    ),
    **dict.fromkeys(
        ("OracleBackend", "OracleCheckpointSaver", "oracle_checkpointer"), "backends.oracle"
    ),
    **dict.fromkeys(
        ("PostgreSQLBackend", "PostgreSQLCheckpointSaver", "postgresql_checkpointer"),
        "backends.postgresql",
    ),
    **dict.fromkeys(
        ("RedisBackend", "RedisCheckpointSaver", "redis_checkpointer"), "backends.redis"
    ),
    **dict.fromkeys(
        ("SQLiteBackend", "SQLiteCheckpointSaver", "sqlite_checkpointer"), "backends.sqlite"
    ),
    "StorageBackend": "backends.base",
    "StorageBackendAdapter": "checkpointer",
}
"""Loaded on first use, so that none of these modules loads another."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"locus_store.{_MODULES[name]}"), name)
