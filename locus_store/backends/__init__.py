"""One folder per technology, and the factories of all backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.runtime.extras import keep_available, load_name

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.backends.file.backend import (
        FileBackend,
        FileCheckpointer,
        FileMessageLog,
        FileStore,
        file_checkpointer,
    )
    from locus_store.backends.http.backend import (
        HTTPBackend,
        HTTPCheckpointer,
        HTTPMessageLog,
        HTTPStore,
        http_checkpointer,
    )
    from locus_store.backends.memory.backend import (
        InMemoryMessageLog,
        InMemoryStore,
        MemoryBackend,
        MemoryCheckpointer,
        memory_checkpointer,
    )
    from locus_store.backends.oci.backend import (
        OCIBucketBackend,
        OCIBucketMessageLog,
        OCIBucketStore,
        oci_bucket_checkpointer,
    )
    from locus_store.backends.opensearch.backend import (
        OpenSearchBackend,
        OpenSearchCheckpointer,
        OpenSearchMessageLog,
        opensearch_checkpointer,
    )
    from locus_store.backends.opensearch.store import OpenSearchStore
    from locus_store.backends.oracle.backend import (
        OracleBackend,
        OracleCheckpointSaver,
        OracleMessageLog,
        OracleStore,
        oracle_checkpointer,
    )
    from locus_store.backends.postgresql.backend import (
        PostgreSQLBackend,
        PostgreSQLCheckpointSaver,
        postgresql_checkpointer,
    )
    from locus_store.backends.postgresql.store import PostgreSQLMessageLog, PostgreSQLStore
    from locus_store.backends.redis.backend import (
        RedisBackend,
        RedisCheckpointSaver,
        RedisMessageLog,
        redis_checkpointer,
    )
    from locus_store.backends.redis.store import RedisStore
    from locus_store.backends.s3.backend import S3Backend, S3MessageLog, S3Store, s3_checkpointer
    from locus_store.backends.sqlite.backend import (
        SQLiteBackend,
        SQLiteCheckpointSaver,
        sqlite_checkpointer,
    )
    from locus_store.backends.sqlite.store import SQLiteMessageLog, SQLiteStore
    from locus_store.checkpointer import StorageBackendAdapter

__all__ = [
    "FileBackend",
    "FileCheckpointer",
    "FileMessageLog",
    "FileStore",
    "HTTPBackend",
    "HTTPCheckpointer",
    "HTTPMessageLog",
    "HTTPStore",
    "InMemoryMessageLog",
    "InMemoryStore",
    "MemoryBackend",
    "MemoryCheckpointer",
    "OCIBucketBackend",
    "OCIBucketMessageLog",
    "OCIBucketStore",
    "OpenSearchBackend",
    "OpenSearchCheckpointer",
    "OpenSearchMessageLog",
    "OpenSearchStore",
    "OracleBackend",
    "OracleCheckpointSaver",
    "OracleMessageLog",
    "OracleStore",
    "PostgreSQLBackend",
    "PostgreSQLCheckpointSaver",
    "PostgreSQLMessageLog",
    "PostgreSQLStore",
    "RedisBackend",
    "RedisCheckpointSaver",
    "RedisMessageLog",
    "RedisStore",
    "S3Backend",
    "S3MessageLog",
    "S3Store",
    "SQLiteBackend",
    "SQLiteCheckpointSaver",
    "SQLiteMessageLog",
    "SQLiteStore",
    "StorageBackend",
    "StorageBackendAdapter",
    "file_checkpointer",
    "http_checkpointer",
    "memory_checkpointer",
    "oci_bucket_checkpointer",
    "opensearch_checkpointer",
    "oracle_checkpointer",
    "postgresql_checkpointer",
    "redis_checkpointer",
    "s3_checkpointer",
    "sqlite_checkpointer",
]

_NAMES = {
    "file": ("FileBackend", "FileCheckpointer", "FileMessageLog", "file_checkpointer"),
    "file.backend": ("FileStore",),
    "http": ("HTTPBackend", "HTTPCheckpointer", "http_checkpointer"),
    "http.backend": ("HTTPMessageLog", "HTTPStore"),
    "memory": ("InMemoryMessageLog", "MemoryBackend", "MemoryCheckpointer", "memory_checkpointer"),
    "memory.backend": ("InMemoryStore",),
    "oci": ("OCIBucketBackend", "OCIBucketMessageLog", "oci_bucket_checkpointer"),
    "oci.backend": ("OCIBucketStore",),
    "opensearch": ("OpenSearchBackend", "OpenSearchCheckpointer", "opensearch_checkpointer"),
    "opensearch.backend": ("OpenSearchMessageLog",),
    "opensearch.store": ("OpenSearchStore",),
    "oracle": ("OracleBackend", "OracleCheckpointSaver", "oracle_checkpointer"),
    "oracle.backend": ("OracleMessageLog", "OracleStore"),
    "postgresql": ("PostgreSQLBackend", "PostgreSQLCheckpointSaver", "postgresql_checkpointer"),
    "postgresql.store": ("PostgreSQLMessageLog", "PostgreSQLStore"),
    "redis": ("RedisBackend", "RedisCheckpointSaver", "RedisMessageLog", "redis_checkpointer"),
    "redis.store": ("RedisStore",),
    "s3": ("S3Backend", "S3MessageLog", "S3Store", "s3_checkpointer"),
    "sqlite": ("SQLiteBackend", "SQLiteCheckpointSaver", "sqlite_checkpointer"),
    "sqlite.store": ("SQLiteMessageLog", "SQLiteStore"),
}
"""By the module that has them."""

MODULES = {
    **{name: f"backends.{module}" for module, names in _NAMES.items() for name in names},
    "StorageBackend": "backend",
    "StorageBackendAdapter": "checkpointer",
}
"""Loaded on first use, so that none of these modules loads another."""


def __getattr__(name: str) -> Any:
    return load_name(__name__, MODULES, name)


keep_available(__all__, MODULES)
