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
        MemoryBackend,
        MemoryCheckpointer,
        memory_checkpointer,
    )
    from locus_store.backends.memory.store import InMemoryStore
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
        oracle_checkpointer,
    )
    from locus_store.backends.oracle.store import OracleMessageLog, OracleStore
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

MODULES = {
    **dict.fromkeys(("FileBackend", "FileCheckpointer", "file_checkpointer"), "backends.file"),
    **dict.fromkeys(("HTTPBackend", "HTTPCheckpointer", "http_checkpointer"), "backends.http"),
    "FileStore": "backends.file.backend",
    "HTTPMessageLog": "backends.http.backend",
    "HTTPStore": "backends.http.backend",
    **dict.fromkeys(
        ("MemoryBackend", "MemoryCheckpointer", "memory_checkpointer"), "backends.memory"
    ),
    **dict.fromkeys(("OCIBucketBackend", "oci_bucket_checkpointer"), "backends.oci"),
    **dict.fromkeys(
        ("OpenSearchBackend", "OpenSearchCheckpointer", "opensearch_checkpointer"),
        "backends.opensearch",
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
    "InMemoryMessageLog": "backends.memory",
    "FileMessageLog": "backends.file",
    "OCIBucketMessageLog": "backends.oci",
    "OpenSearchMessageLog": "backends.opensearch",
    "InMemoryStore": "backends.memory.store",
    "OCIBucketStore": "backends.oci.backend",
    "OpenSearchStore": "backends.opensearch.store",
    "OracleMessageLog": "backends.oracle.store",
    "OracleStore": "backends.oracle.store",
    "PostgreSQLMessageLog": "backends.postgresql.store",
    "PostgreSQLStore": "backends.postgresql.store",
    "RedisMessageLog": "backends.redis",
    "RedisStore": "backends.redis.store",
    **dict.fromkeys(("S3Backend", "S3MessageLog", "S3Store", "s3_checkpointer"), "backends.s3"),
    "SQLiteMessageLog": "backends.sqlite.store",
    "SQLiteStore": "backends.sqlite.store",
    "StorageBackend": "backend",
    "StorageBackendAdapter": "checkpointer",
}
"""Loaded on first use, so that none of these modules loads another."""


def __getattr__(name: str) -> Any:
    return load_name(__name__, MODULES, name)


keep_available(__all__)
