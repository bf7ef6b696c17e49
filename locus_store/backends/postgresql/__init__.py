"""PostgreSQL."""

from locus_store.backends.postgresql.backend import (
    PostgreSQLBackend,
    PostgreSQLCheckpointSaver,
    postgresql_checkpointer,
)

__all__ = ["PostgreSQLBackend", "PostgreSQLCheckpointSaver", "postgresql_checkpointer"]
