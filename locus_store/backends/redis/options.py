"""The options of Redis."""

from __future__ import annotations

from typing import Annotated, Any

from locus_store.types.arguments import MAX_COUNT
from locus_store.types.options import (
    IN_PYTHON,
    Bounds,
    CheckpointOptions,
    Count,
    Option,
    Patience,
    SavingOptions,
    Seconds,
    StateOptions,
    split_url,
)

Number = Annotated[int, Bounds(ge=0, le=MAX_COUNT)]


class RedisConnections(StateOptions, total=False):
    """Of ``RedisBackend``, beside ``url``, ``prefix``, ``db`` and ``client``."""

    tenant: Annotated[str, Option("default", "the tenant whose threads this object sees")]
    cluster: Annotated[bool, Option(False, "`url` is a node of a cluster")]
    wait_replicas: Annotated[
        Number, Option(0, "how many replicas must have a write before it is acknowledged (`WAIT`)")
    ]
    wait_timeout_seconds: Annotated[
        Seconds,
        Option(
            5.0,
            "how long to wait for them. After that the call raises `BackendError`, although the"
            " write is done",
        ),
    ]
    pool_size: Annotated[
        Count, Option(50, "most calls at once, and most connections to a server, per event loop")
    ]
    retry_seconds: Annotated[
        Patience,
        Option(
            10.0,
            "how long a call is retried while a server is lost, loads its data, or a cluster makes"
            " a replica a master",
        ),
    ]
    timeout_seconds: Annotated[
        Seconds, Option(30.0, "time limit of each answer, and of waiting for a connection")
    ]
    connect_timeout_seconds: Annotated[Seconds, Option(10.0, "time limit of each connection")]


class RedisOptions(RedisConnections, total=False):
    """Of ``RedisBackend``, beside ``url`` and ``prefix``."""

    db: Annotated[Number, Option(0, "the number of the database; also `/2` in the URL")]
    client: Annotated[
        Any,
        Option(
            None,
            "a `redis.asyncio.Redis` or `RedisCluster` instead of `url`, left open: see"
            " [a client of your own](#a-client-of-your-own)",
        ),
        IN_PYTHON,
    ]


class RedisCheckpointerOptions(RedisConnections, SavingOptions, total=False):
    """Of ``redis_checkpointer``, beside ``RedisOptions`` that have a place, and ``state_type``."""


class RedisSaverOptions(RedisOptions, CheckpointOptions, total=False):
    """Of ``RedisCheckpointSaver``, beside ``url`` and ``prefix``."""


class RedisURLOptions(RedisOptions, total=False):
    """Of a URL's query string; the rest is redis-py's."""

    prefix: Annotated[
        str, Option("locus:state:", "prefix of all keys; each prefix is a separate store")
    ]


URL_OPTIONS = RedisURLOptions


def parse_place(url: str) -> tuple[dict[str, str], str]:
    """Return the URL for redis-py, and this library's part of its query string."""
    found, query = split_url(url, URL_OPTIONS)
    return {"url": found}, query
