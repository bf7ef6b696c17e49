"""The options of the Redis backend, for type checkers; a test holds them to the signatures."""

from __future__ import annotations

from typing import Any, TypedDict


class RedisOptions(TypedDict, total=False):
    """Of ``RedisBackend``, beside ``url`` and ``prefix``."""

    db: int
    client: Any
    cluster: bool
    wait_replicas: int
    wait_timeout_seconds: float
    pool_size: int
    retry_seconds: float
    timeout_seconds: float
    connect_timeout_seconds: float
    max_state_bytes: int
