"""Durable, versioned memory for AI agents, in the database you already run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.errors import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    EncryptionError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    MissingExtraError,
    NotFoundError,
    NotOwnerError,
    OutcomeUnknownError,
    SchemaError,
    SerializationError,
    TurnError,
    UnsupportedError,
)
from locus_store.runtime.extras import keep_available, load_name

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.backends import (
        FileMessageLog,
        FileStore,
        HTTPMessageLog,
        HTTPStore,
        InMemoryMessageLog,
        InMemoryStore,
        OCIBucketMessageLog,
        OCIBucketStore,
        OpenSearchMessageLog,
        OpenSearchStore,
        OracleMessageLog,
        OracleStore,
        PostgreSQLMessageLog,
        PostgreSQLStore,
        RedisStore,
        S3Backend,
        S3MessageLog,
        S3Store,
        SQLiteMessageLog,
        SQLiteStore,
        s3_checkpointer,
    )
    from locus_store.backends.file.backend import FileBackend, FileCheckpointer, file_checkpointer
    from locus_store.backends.http.backend import HTTPBackend, HTTPCheckpointer, http_checkpointer
    from locus_store.backends.memory.backend import (
        MemoryBackend,
        MemoryCheckpointer,
        memory_checkpointer,
    )
    from locus_store.backends.oci.backend import OCIBucketBackend, oci_bucket_checkpointer
    from locus_store.backends.opensearch.backend import (
        OpenSearchBackend,
        OpenSearchCheckpointer,
        opensearch_checkpointer,
    )
    from locus_store.backends.oracle.backend import (
        OracleBackend,
        OracleCheckpointSaver,
        oracle_checkpointer,
    )
    from locus_store.backends.postgresql.backend import (
        PostgreSQLBackend,
        PostgreSQLCheckpointSaver,
        postgresql_checkpointer,
    )
    from locus_store.backends.postgresql.options import limit_staleness
    from locus_store.backends.redis.backend import (
        RedisBackend,
        RedisCheckpointSaver,
        RedisMessageLog,
        redis_checkpointer,
    )
    from locus_store.backends.sqlite.backend import (
        SQLiteBackend,
        SQLiteCheckpointSaver,
        sqlite_checkpointer,
    )
    from locus_store.checkpointer import BaseCheckpointer, StorageBackendAdapter
    from locus_store.encryption import Encryption, KeyRing, LocalKeyRing
    from locus_store.messages import BaseMessageLog
    from locus_store.open import (
        Storage,
        open_checkpointer,
        open_message_log,
        open_saver,
        open_sharded,
        open_storage,
        open_store,
    )
    from locus_store.saver import CheckpointSaver
    from locus_store.store import BaseStore
    from locus_store.turns import HeldTurn
    from locus_store.types import CheckpointerCapabilities, Tenant
    from locus_store.types.items import SemanticSearchResult, StoreCapabilities, StoreItem
    from locus_store.types.messages import LoggedMessage, LogInfo, LogSnapshot, NewMessage, Popped
    from locus_store.types.state import AgentState, Message, Role, ToolCall
    from locus_store.types.turns import ThreadTurn

__version__ = "0.1.0"

__all__ = [
    "AgentState",
    "BackendError",
    "BaseCheckpointer",
    "BaseMessageLog",
    "BaseStore",
    "CheckpointSaver",
    "CheckpointerCapabilities",
    "ConflictError",
    "ConnectionFailedError",
    "Encryption",
    "EncryptionError",
    "FileBackend",
    "FileCheckpointer",
    "FileMessageLog",
    "FileStore",
    "HTTPBackend",
    "HTTPCheckpointer",
    "HTTPMessageLog",
    "HTTPStore",
    "HeldTurn",
    "InMemoryMessageLog",
    "InMemoryStore",
    "IntegrityError",
    "InvalidArgumentError",
    "KeyRing",
    "LocalKeyRing",
    "LocusStoreError",
    "LogInfo",
    "LogSnapshot",
    "LoggedMessage",
    "MemoryBackend",
    "MemoryCheckpointer",
    "Message",
    "MissingExtraError",
    "NewMessage",
    "NotFoundError",
    "NotOwnerError",
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
    "OutcomeUnknownError",
    "Popped",
    "PostgreSQLBackend",
    "PostgreSQLCheckpointSaver",
    "PostgreSQLMessageLog",
    "PostgreSQLStore",
    "RedisBackend",
    "RedisCheckpointSaver",
    "RedisMessageLog",
    "RedisStore",
    "Role",
    "S3Backend",
    "S3MessageLog",
    "S3Store",
    "SQLiteBackend",
    "SQLiteCheckpointSaver",
    "SQLiteMessageLog",
    "SQLiteStore",
    "SchemaError",
    "SemanticSearchResult",
    "SerializationError",
    "Storage",
    "StorageBackend",
    "StorageBackendAdapter",
    "StoreCapabilities",
    "StoreItem",
    "Tenant",
    "ThreadTurn",
    "ToolCall",
    "TurnError",
    "UnsupportedError",
    "file_checkpointer",
    "http_checkpointer",
    "limit_staleness",
    "memory_checkpointer",
    "oci_bucket_checkpointer",
    "open_checkpointer",
    "open_message_log",
    "open_saver",
    "open_sharded",
    "open_storage",
    "open_store",
    "opensearch_checkpointer",
    "oracle_checkpointer",
    "postgresql_checkpointer",
    "redis_checkpointer",
    "s3_checkpointer",
    "sqlite_checkpointer",
]

_LAZY = {
    **dict.fromkeys(("AgentState", "Message", "Role", "ToolCall"), "types.state"),
    **dict.fromkeys(("BaseCheckpointer", "StorageBackendAdapter"), "checkpointer"),
    **dict.fromkeys(("FileBackend", "FileCheckpointer", "file_checkpointer"), "backends"),
    **dict.fromkeys(("HTTPBackend", "HTTPCheckpointer", "http_checkpointer"), "backends"),
    **dict.fromkeys(("HTTPMessageLog", "HTTPStore"), "backends"),
    **dict.fromkeys(("MemoryBackend", "MemoryCheckpointer", "memory_checkpointer"), "backends"),
    **dict.fromkeys(("OCIBucketBackend", "oci_bucket_checkpointer"), "backends"),
    **dict.fromkeys(("OpenSearchBackend", "OpenSearchCheckpointer"), "backends"),
    "opensearch_checkpointer": "backends",
    **dict.fromkeys(("OracleBackend", "OracleCheckpointSaver", "oracle_checkpointer"), "backends"),
    **dict.fromkeys(("PostgreSQLBackend", "postgresql_checkpointer"), "backends"),
    **dict.fromkeys(("RedisBackend", "RedisCheckpointSaver", "redis_checkpointer"), "backends"),
    **dict.fromkeys(("S3Backend", "S3MessageLog", "S3Store", "s3_checkpointer"), "backends"),
    **dict.fromkeys(("SQLiteBackend", "sqlite_checkpointer", "StorageBackend"), "backends"),
    **dict.fromkeys(("PostgreSQLCheckpointSaver", "SQLiteCheckpointSaver"), "backends"),
    **dict.fromkeys(("Storage", "open_checkpointer", "open_message_log", "open_saver"), "open"),
    "open_sharded": "open",
    **dict.fromkeys(("open_storage", "open_store"), "open"),
    **dict.fromkeys(
        ("LogInfo", "LogSnapshot", "LoggedMessage", "NewMessage", "Popped"), "types.messages"
    ),
    **dict.fromkeys(("InMemoryMessageLog", "OracleMessageLog"), "backends"),
    **dict.fromkeys(("PostgreSQLMessageLog", "SQLiteMessageLog"), "backends"),
    **dict.fromkeys(("FileMessageLog", "OCIBucketMessageLog", "OpenSearchMessageLog"), "backends"),
    "RedisMessageLog": "backends",
    "BaseMessageLog": "messages",
    **dict.fromkeys(("SemanticSearchResult", "StoreCapabilities", "StoreItem"), "types.items"),
    **dict.fromkeys(("InMemoryStore", "PostgreSQLStore", "SQLiteStore"), "backends"),
    **dict.fromkeys(("OpenSearchStore", "OracleStore", "RedisStore"), "backends"),
    **dict.fromkeys(("FileStore", "OCIBucketStore"), "backends"),
    **dict.fromkeys(("Encryption", "KeyRing", "LocalKeyRing"), "encryption"),
    "BaseStore": "store",
    "CheckpointSaver": "saver",
    "limit_staleness": "backends.postgresql.options",
    "CheckpointerCapabilities": "types",
    "Tenant": "types",
    "HeldTurn": "turns",
    "ThreadTurn": "types.turns",
}
"""Loaded on first use: a command starts at once, and memory needs no driver."""


def __getattr__(name: str) -> Any:
    return load_name(__name__, _LAZY, name)


keep_available(__all__)
