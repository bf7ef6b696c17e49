"""Where a Redis is: URLs and clients as users give them, and what a server says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from locus_store.errors import InvalidArgumentError, MissingExtraError
from locus_store.facts import Fact

try:
    import redis.asyncio as driver
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as exc:
    raise MissingExtraError(
        'Redis needs redis-py: pip install "locus-store[redis]"', name="redis"
    ) from exc

from locus_store.redis.connecting import Connections

if TYPE_CHECKING:
    from locus_store.redis.connecting import Home

_SCHEME: Final = re.compile(r"(redis|rediss|valkey|valkeys|unix)(\+cluster)?://")
_SAME: Final = {"valkey": "redis", "valkeys": "rediss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See ``RedisBackend``.

    Raises:
        InvalidArgumentError: One makes no sense.
    """

    wait_replicas: int
    wait_timeout_seconds: float
    pool_size: int
    retry_seconds: float
    timeout_seconds: float
    connect_timeout_seconds: float

    def __post_init__(self) -> None:
        for name, least in (("wait_replicas", 0), ("pool_size", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidArgumentError(f"{name} must be a whole number from {least}")
        for name in ("wait_timeout_seconds", "timeout_seconds", "connect_timeout_seconds"):
            _require_seconds(name, getattr(self, name), above=0)
        _require_seconds("retry_seconds", self.retry_seconds, above=-1)

    def connections(self, where: str, make: Any, *, is_owner: bool) -> Connections:
        """Connections with these options."""
        return Connections(
            where,
            make,
            is_owner=is_owner,
            retry_seconds=self.retry_seconds,
            replicas=self.wait_replicas,
            wait_seconds=self.wait_timeout_seconds,
        )


def _require_seconds(name: str, value: object, *, above: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not above < value < 1e6:  # type: ignore[operator]
        raise InvalidArgumentError(f"{name} must be a number of seconds, not {value!r}")


def named(url: str, db: int, options: Options, *, is_cluster: bool) -> Connections:
    """Connections to what a URL names.

    Raises:
        InvalidArgumentError: It names nothing, or another database than ``db``.
    """
    found = _SCHEME.match(url) if isinstance(url, str) else None
    if found is None:
        raise InvalidArgumentError(
            "url must be redis://, rediss://, redis+cluster://, rediss+cluster://, valkey://, "
            "valkeys:// or unix://"
        )
    if type(db) is not int or db < 0:
        raise InvalidArgumentError(f"db must be a whole number from 0, not {db!r}")
    plain = f"{_SAME.get(found[1], found[1])}://{url[found.end() :]}"
    is_cluster = is_cluster or found[2] is not None
    pool: dict[str, Any] = {
        "socket_timeout": options.timeout_seconds,
        "socket_connect_timeout": options.connect_timeout_seconds,
        "max_connections": options.pool_size,
        "retry": Retry(NoBackoff(), 0),  # ours knows what may be done twice
        "decode_responses": False,
    }
    if is_cluster:
        make: Any = partial(driver.RedisCluster.from_url, plain, **pool)
    else:
        made = partial(
            driver.BlockingConnectionPool.from_url,
            plain,
            timeout=options.connect_timeout_seconds,
            **pool,
        )
        make = lambda: driver.Redis.from_pool(made())  # noqa: E731
    where = _shown(plain)
    try:
        sample = make()
    except (ValueError, TypeError) as exc:
        raise InvalidArgumentError(f"the URL of Redis {where}: {exc}") from None
    except Exception as exc:
        raise InvalidArgumentError(f"the URL of Redis {where} makes no sense") from exc
    del sample
    _require_db(plain, db, is_cluster=is_cluster)
    if db and not is_cluster:
        made.keywords["db"] = db
    return options.connections(where, make, is_owner=True)


def _require_db(url: str, db: int, *, is_cluster: bool) -> None:
    in_path = urlsplit(url).path.strip("/")
    if db and in_path.isdecimal() and int(in_path) != db:
        raise InvalidArgumentError(f"the URL names database {in_path}, and db= names {db}")
    if is_cluster and (db or in_path not in {"", "0"}):
        raise InvalidArgumentError("a cluster has database 0 only")


def handed_in(client: Any, options: Options) -> Connections:
    """Connections of a client that somebody else made and closes.

    Raises:
        InvalidArgumentError: It is none that can be used.
    """
    if not isinstance(client, driver.Redis | driver.RedisCluster):
        raise InvalidArgumentError(
            "client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not "
            f"{type(client).__module__}.{type(client).__name__}"
        )
    if client.get_encoder().decode_responses:
        raise InvalidArgumentError(
            "client decodes what it receives, and states are bytes; make it without "
            "decode_responses=True"
        )
    return options.connections("of the client", lambda: client, is_owner=False)


def _shown(url: str) -> str:
    """The address without user and password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return host + parts.path


async def facts(home: Home) -> list[Fact]:
    """What the server says of itself."""
    info = await home.again(lambda: home.client.info())
    one = next(iter(info.values())) if "redis_version" not in info else info
    return [
        Fact("server", f"{one.get('server_name', 'redis')} {_release(one)}"),
        Fact("mode", str(one.get("redis_mode", ""))),
        Fact("maxmemory policy", str(one.get("maxmemory_policy", ""))),
        Fact("append-only file", "on" if one.get("aof_enabled") else "off"),
        Fact("replicas", str(one.get("connected_slaves", ""))),
    ]


def _release(info: dict[str, Any]) -> str:
    return str(info.get("valkey_version") or info.get("redis_version"))
