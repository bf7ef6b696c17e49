"""A cache of states in Redis or Valkey, which processes share."""

from __future__ import annotations

from typing import Annotated, Any, Final
from zlib import crc32

import orjson
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from locus_store.backends.redis import addresses, scripts
from locus_store.backends.redis.connections import Connections
from locus_store.errors import IntegrityError, InvalidArgumentError
from locus_store.runtime import observe
from locus_store.session.cache import CACHE_TTL_SECONDS, CachedState, StateCache, check_cache
from locus_store.types import Mark
from locus_store.types.arguments import check_text

DEFAULT_PREFIX: Final = "locus:session:"

POOL_SIZE: Final = 64
"""Calls at once per event loop."""

_DIGITS: Final = 20
"""Of a line and of a sequence, so that places compare as text: Lua's numbers have 53 bits."""


class _Head(TypedDict):
    """The fields before a state."""

    mark: tuple[str, int, int, Annotated[str, Field(pattern="^([0-9a-f]{2})+$")]] | None
    is_working: bool
    born: str
    labels: dict[str, Any]


_HEAD: Final = TypeAdapter(_Head)


class RedisCache(StateCache):
    """A cache in Redis or Valkey: a server or a cluster.

    With ``max_threads`` all entries of a prefix lie on one node of a cluster. Without it, set the
    server's ``maxmemory`` and ``maxmemory-policy``: an entry may be evicted at any time.

    Args:
        url: See ``RedisBackend``.
        client: A ``redis.asyncio.Redis`` or ``RedisCluster``, instead of ``url``; never closed.
        prefix: Prefix of all keys.
        max_threads: Entries at most; the least recently used one is dropped first.
        ttl_seconds: An entry that is not used for so long is dropped.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: redis-py is not installed.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Any = None,
        prefix: str = DEFAULT_PREFIX,
        max_threads: int | None = None,
        ttl_seconds: float = CACHE_TTL_SECONDS,
    ) -> None:
        if (url is None) is (client is None):
            raise InvalidArgumentError("give the URL of a Redis, or a client")
        check_text("prefix", prefix, maximum=200)
        check_cache(ttl_seconds, max_threads)
        self._connections: Connections = addresses.connect(
            url or "", client=client, pool_size=POOL_SIZE, retry_seconds=0
        )
        self._prefix = prefix
        self.max_threads, self.ttl_seconds = max_threads, ttl_seconds
        self._ttl = max(1, round(self.ttl_seconds * 1000))

    def __repr__(self) -> str:
        return f"RedisCache({self._connections.where!r}, prefix={self._prefix!r})"

    async def get(self, key: str) -> CachedState | None:
        client = await self._connections.get()
        is_limited = int(self.max_threads is not None)
        found = await client.read(scripts.CACHE["get"], self._make_keys(key), self._ttl, is_limited)
        if found is None:
            return None
        try:
            return _unpack(found)
        except IntegrityError as exc:
            observe.connections.warning("%r: dropped an entry: %s", self, exc)
            await self.drop(key)
            return None

    async def put(
        self, key: str, entry: CachedState, *, instead_of: CachedState | None = None
    ) -> None:
        client = await self._connections.get()
        args = (
            *(self._ttl, self.max_threads or 0, *_pack_mark(entry.mark), int(entry.is_working)),
            *(_pack(entry), "".join(_pack_mark(instead_of.mark if instead_of else None))),
        )
        keys = self._make_keys(key)
        await client.run_once(lambda: client.write(scripts.CACHE["put"], keys, *args))

    async def drop(self, key: str) -> None:
        await (await self._connections.get()).run_command("DEL", self._make_keys(key)[0])

    async def close(self) -> None:
        await self._connections.close()

    def _make_keys(self, key: str) -> tuple[str, str]:
        """Return the keys of an entry and of the index; without a limit there is no index."""
        if self.max_threads is None:
            name = f"{self._prefix}{{{key}}}"
            return name, name
        return f"{self._prefix}{{limited}}{key}", f"{self._prefix}{{limited}}"


def _pack_mark(mark: Mark | None) -> tuple[str, str]:
    if mark is None:
        return "", ""
    return mark.store, f"{mark.line:0{_DIGITS}}{mark.sequence:0{_DIGITS}}"


def _pack(entry: CachedState) -> bytes:
    mark = entry.mark
    head = {
        "mark": mark and [mark.store, mark.line, mark.sequence, mark.digest.hex()],
        "is_working": entry.is_working,
        "born": entry.born,
        "labels": entry.labels,
    }
    body = orjson.dumps(head) + b"\n" + entry.state
    return b"%08x" % crc32(body) + body


def _unpack(raw: bytes) -> CachedState:
    """Return the entry; refuse one that is damaged, or another program's."""
    body = raw[8:]
    header, _, state = body.partition(b"\n")
    try:
        if int(raw[:8], 16) != crc32(body):
            raise IntegrityError("an entry of the cache is damaged")
        head = _HEAD.validate_json(header, strict=True)
    except ValueError as exc:
        raise IntegrityError("an entry of the cache is another program's") from exc
    mark = head["mark"]
    return CachedState(
        mark=None if mark is None else Mark(*mark[:3], bytes.fromhex(mark[3])),
        is_working=head["is_working"],
        born=head["born"],
        labels=head["labels"],
        state=state,
    )
