"""Durable, versioned memory for AI agents, in the database you already run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from locus_store import backends
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
    QuotaError,
    SchemaError,
    SerializationError,
    TurnError,
    UnsupportedError,
)
from locus_store.runtime.extras import load_name

if TYPE_CHECKING:
    from locus_store.backends import *  # noqa: F403
    from locus_store.backends.postgresql.options import limit_staleness
    from locus_store.checkpointer import BaseCheckpointer
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
    from locus_store.types.acting import acting_as
    from locus_store.types.items import SemanticSearchResult, StoreCapabilities, StoreItem
    from locus_store.types.messages import LoggedMessage, LogInfo, LogSnapshot, NewMessage, Popped
    from locus_store.types.state import AgentState, Message, Role, ToolCall
    from locus_store.types.tenants import Quota, QuotaUse
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
    "HeldTurn",
    "IntegrityError",
    "InvalidArgumentError",
    "KeyRing",
    "LocalKeyRing",
    "LocusStoreError",
    "LogInfo",
    "LogSnapshot",
    "LoggedMessage",
    "Message",
    "MissingExtraError",
    "NewMessage",
    "NotFoundError",
    "NotOwnerError",
    "OutcomeUnknownError",
    "Popped",
    "Quota",
    "QuotaError",
    "QuotaUse",
    "Role",
    "SchemaError",
    "SemanticSearchResult",
    "SerializationError",
    "Storage",
    "StoreCapabilities",
    "StoreItem",
    "Tenant",
    "ThreadTurn",
    "ToolCall",
    "TurnError",
    "UnsupportedError",
    "acting_as",
    "limit_staleness",
    "open_checkpointer",
    "open_message_log",
    "open_saver",
    "open_sharded",
    "open_storage",
    "open_store",
]
__all__ += backends.__all__

_LAZY = {
    **dict.fromkeys(backends.MODULES, "backends"),
    "limit_staleness": "backends.postgresql.options",
    "BaseCheckpointer": "checkpointer",
    "BaseMessageLog": "messages",
    **dict.fromkeys(("Storage", "open_checkpointer", "open_message_log", "open_saver"), "open"),
    **dict.fromkeys(("open_sharded", "open_storage", "open_store"), "open"),
    "CheckpointSaver": "saver",
    **dict.fromkeys(("Encryption", "KeyRing", "LocalKeyRing"), "encryption"),
    "BaseStore": "store",
    "HeldTurn": "turns",
    **dict.fromkeys(("CheckpointerCapabilities", "Tenant"), "types"),
    **dict.fromkeys(("SemanticSearchResult", "StoreCapabilities", "StoreItem"), "types.items"),
    **dict.fromkeys(
        ("LogInfo", "LogSnapshot", "LoggedMessage", "NewMessage", "Popped"), "types.messages"
    ),
    **dict.fromkeys(("AgentState", "Message", "Role", "ToolCall"), "types.state"),
    **dict.fromkeys(("Quota", "QuotaUse"), "types.tenants"),
    "ThreadTurn": "types.turns",
    "acting_as": "types.acting",
}
"""Loaded on first use: a command starts at once, and memory needs no driver."""


def __getattr__(name: str) -> Any:
    if name == "blocking":
        return import_module("locus_store.blocking")
    return load_name(__name__, _LAZY, name)
