"""SQLite."""

from locus_store.backends.sqlite.backend import (
    SQLiteBackend,
    SQLiteCheckpointSaver,
    sqlite_checkpointer,
)

__all__ = ["SQLiteBackend", "SQLiteCheckpointSaver", "sqlite_checkpointer"]
