"""Addresses of Redis servers: URLs, clients of the caller, and facts about a server."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Unpack

import redis.asyncio as driver
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

from locus_store.backends.redis import sentinels
from locus_store.backends.redis.connections import IDLE_SECONDS, Connections, LoopClient, Tried
from locus_store.backends.redis.options import RedisOptions
from locus_store.errors import InvalidArgumentError
from locus_store.runtime.loops import bind_to_loop
from locus_store.types.arguments import check_url
from locus_store.types.facts import Fact
from locus_store.types.options import fill_defaults, suggest_option

ALIVE: Final = {
    "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000,
}  # fmt: skip
"""As for PostgreSQL; the last one is in milliseconds."""

_HOST: Final = r"(\[[\w:.%]*\]|[^@/?#:\[,]*)(:\d*)?"
_URL: Final = re.compile(
    r"(?P<scheme>rediss?|valkeys?|unix)(\+(?P<kind>cluster|sentinel))?://(?P<user>([^@/?#]*@)?)"
    rf"(?P<place>{_HOST}(,{_HOST})*)(?P<path>(/[^@?#]*)?)(?P<query>(\?[^@#]*)?)"
)
"""No ``@``, ``/`` or ``#`` of a password is taken for the end of one: it would be shown."""

_SAME: Final = {"valkey": "redis", "valkeys": "rediss"}


def connect(url: str, **options: Unpack[RedisOptions]) -> Connections:
    """Return connections to the server, cluster or service that a URL names, or over ``client``.

    Raises:
        InvalidArgumentError: It names nothing, or another database than ``db``; or the client
            cannot be used.
    """
    settings = fill_defaults(RedisOptions, options, "connect")
    if settings["client"] is not None:
        return _connect_client(settings)
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        raise InvalidArgumentError(
            "url must be redis://user:password@host:port/db, rediss://, redis+cluster://, "
            "rediss+cluster://, redis+sentinel://host1,host2/service/db, rediss+sentinel://, "
            "valkey://, valkeys:// or unix:///socket; percent-encode what is neither letter nor "
            "digit in user and password"
        )
    check_url(url)
    scheme, where = _SAME.get(found["scheme"], found["scheme"]), found["place"] + found["path"]
    is_cluster, db = settings["cluster"] or found["kind"] == "cluster", settings["db"]
    path, service = found["path"], ""
    if found["kind"] == "sentinel":
        service, path = sentinels.split_path(path)
    _require_one_place(scheme, found["place"], path, db, is_cluster=is_cluster, service=service)
    pool: dict[str, Any] = {
        "socket_timeout": None,  # connections have a limit of their own
        "socket_connect_timeout": settings["connect_timeout_seconds"],
        "max_connections": settings["pool_size"],
        "retry": Retry(NoBackoff(), 0),  # this library knows which calls may be repeated
        "decode_responses": False,
    }
    pool["health_check_interval"] = IDLE_SECONDS
    if scheme != "unix":
        # The system ends connections a minute after a host has vanished.
        alive = {getattr(socket, name, 0): value for name, value in ALIVE.items()}
        alive.pop(0, None)
        pool["socket_keepalive"], pool["socket_keepalive_options"] = True, alive
    if is_cluster:  # else every fifth MOVED closes all connections, with the calls on them
        pool["reinitialize_steps"] = 0
    pool |= {"db": db} if db else {}
    if service:
        plain = f"{scheme}://{found['user']}/{path}{found['query']}"
        places = sentinels.parse_places(found["place"])
        make = partial(sentinels.make_client, plain, places, service, pool)
    else:
        kind: Any = driver.RedisCluster if is_cluster else driver.Redis
        plain = f"{scheme}://{url[found.start('user') :]}"
        make = partial(_test_connections, partial(kind.from_url, plain, **pool))
    _try_out(make, where, is_cluster=is_cluster)
    return Connections(settings, where, make, is_owner=True)


def _test_connections(client: Callable[[], Any]) -> Any:
    """Return a client whose connections are tried within a limit of their own."""
    made = client()
    if isinstance(made, driver.RedisCluster):
        nodes = made.nodes_manager
        kind = _make_tested_class(nodes.connection_kwargs["connection_class"])
        nodes.connection_kwargs["connection_class"] = kind  # of the nodes that it will find
        for node in nodes.startup_nodes.values():
            node.connection_class = kind
    else:
        pool = made.connection_pool
        pool.connection_class = _make_tested_class(pool.connection_class)
    return made


def _make_tested_class(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (Tried, kind), {})


def _require_one_place(
    scheme: str, place: str, path: str, db: int, *, is_cluster: bool, service: str
) -> None:
    if service and (is_cluster or scheme == "unix"):
        raise InvalidArgumentError("sentinels name a server, neither a cluster nor a socket")
    if "," in place and not service:
        raise InvalidArgumentError("several hosts are sentinels: redis+sentinel://h1,h2/service")
    if scheme == "unix":
        if place or is_cluster:
            raise InvalidArgumentError("write unix:///absolute/socket, which is not a cluster")
        return
    in_path = path.strip("/")
    if in_path and not in_path.isdecimal():
        raise InvalidArgumentError("the path of the URL is a database number: redis://host/0")
    if db and in_path and int(in_path) != db:
        raise InvalidArgumentError(f"the URL names database {in_path}, and db= names {db}")
    if is_cluster and (db or int(in_path or 0)):
        raise InvalidArgumentError("a cluster has database 0 only")


def _try_out(make: Callable[[], Any], where: str, *, is_cluster: bool) -> None:
    """Make a client and a connection without connecting; refuse wrong options without secrets."""
    try:
        sample = make()
        if not is_cluster:
            sample.connection_pool.make_connection()
    except TypeError as exc:
        name = re.search(r"unexpected keyword argument '(\w+)'", str(exc))
        message = "an option is not valid"
        if name:
            message = f"no option {name[1]!r}{suggest_option(name[1], ())}"
        raise InvalidArgumentError(f"the URL of Redis {where}: {message}") from None
    except (driver.RedisError, RedisClusterException, ValueError, OSError) as exc:
        what = type(exc).__name__
        raise InvalidArgumentError(
            f"redis-py rejects the URL of Redis {where} ({what}); check its port and its "
            "query options"
        ) from None
    _require_usable(sample)


def _connect_client(settings: RedisOptions) -> Connections:
    """Return connections over a client that the caller created and closes."""
    client = settings["client"]
    if not isinstance(client, driver.Redis | driver.RedisCluster):
        raise InvalidArgumentError(
            "client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not "
            f"{type(client).__module__}.{type(client).__name__}"
        )
    _require_usable(client)
    return Connections(settings, "of the client", bind_to_loop(client), is_owner=False)


def _require_usable(client: Any) -> None:
    for name in ("read_from_replicas", "load_balancing_strategy"):
        if getattr(client, name, None):
            raise InvalidArgumentError(
                f"reads must come from masters, because replicas lag behind; leave out {name}"
            )
    if client.get_encoder().decode_responses:
        raise InvalidArgumentError(
            "client decodes responses, but states are bytes; create it without "
            "decode_responses=True"
        )


async def collect_facts(client: LoopClient) -> list[Fact]:
    """Return the facts that the server reports about itself."""
    info = await client.retry(client.client.info)
    one = next(iter(info.values())) if "redis_version" not in info else info
    pool: Any = getattr(client.client, "connection_pool", None)  # a cluster has several
    is_named = isinstance(pool, sentinels.SentinelPrimaryPool)
    release = one.get("valkey_version") or one.get("redis_version")
    return [
        Fact("server", f"{one.get('server_name', 'redis')} {release}"),
        Fact("mode", str(one.get("redis_mode") or one.get("server_mode"))),
        _describe_eviction(
            str(one.get("maxmemory_policy", "")), limit=int(one.get("maxmemory", 0))
        ),
        _describe_append_only(is_on=bool(one.get("aof_enabled"))),
        Fact("replicas", str(one.get("connected_slaves", ""))),
        *(await pool.sentinel_manager.collect_facts(pool.service_name) if is_named else ()),
    ]


def _describe_eviction(policy: str, *, limit: int) -> Fact:
    if not limit or policy == "noeviction":
        return Fact("maxmemory policy", policy)
    remedy = "set maxmemory-policy noeviction: a thread that lost one of its keys is damaged"
    return Fact("maxmemory policy", policy, "warn", remedy)


def _describe_append_only(*, is_on: bool) -> Fact:
    if is_on:
        return Fact("append-only file", "on")
    remedy = "set appendonly yes: else a crash loses what came after the last snapshot"
    return Fact("append-only file", "off", "warn", remedy)
