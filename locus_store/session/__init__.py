"""Session memory: the state, the messages and the facts of a thread in one object, with a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.session.cache import LocalCache, StateCache
from locus_store.session.checkpointer import SessionCheckpointer
from locus_store.session.models import AgentState, Block, ExecutionState, Message, ThreadInfo
from locus_store.session.ready import InMemoryCheckpointer, PgCheckpointer, SqliteCheckpointer

if TYPE_CHECKING:
    from locus_store.session.redis_cache import RedisCache

BaseCheckpointer = SessionCheckpointer
"""PyAgenity's name for the type of every checkpointer."""

__all__ = [
    "AgentState",
    "BaseCheckpointer",
    "Block",
    "ExecutionState",
    "InMemoryCheckpointer",
    "LocalCache",
    "Message",
    "PgCheckpointer",
    "RedisCache",
    "SessionCheckpointer",
    "SqliteCheckpointer",
    "StateCache",
    "ThreadInfo",
]


def __getattr__(name: str) -> Any:
    if name != "RedisCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from locus_store.session.redis_cache import RedisCache  # noqa: PLC0415  (needs a driver)

    return RedisCache
