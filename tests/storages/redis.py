"""Redis and Valkey: alone, as a cluster, over a client."""

from __future__ import annotations

import re
from hashlib import sha1
from typing import TYPE_CHECKING, Any, ClassVar

import redis
import redis.asyncio

from locus_store.backends import RedisStore
from locus_store.backends.redis import RedisBackend, redis_checkpointer, scripts
from locus_store.backends.redis.keys import BUCKETS, RedisKeys
from locus_store.backends.redis.records import read_log
from locus_store.blocking import BlockingCheckpointer, BlockingStore
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames
from storages import Storage
from storages.blocking import Unblocked, UnblockedStore

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = re.compile(rb"locus:state:\{(\d+)\}:(\w+)(\|.*)?|locus:state:\{meta\}", re.DOTALL)


class RedisProbe:
    """Below a server, by its keys."""

    def __init__(self, url: str) -> None:
        is_cluster = "+cluster" in url
        kind: Any = redis.RedisCluster if is_cluster else redis.Redis
        self._client = kind.from_url(url.replace("+cluster", ""))

    def close(self) -> None:
        self._client.close()

    def _keys(self, kind: str) -> list[bytes]:
        found = self._client.scan_iter(b"*:" + kind.encode() + b"|*", count=1000)
        return sorted(found, key=lambda it: it.partition(b"|")[2])

    def age(self, seconds: float) -> None:
        for key in self._keys("line"):
            for field, header in self._client.hgetall(key).items():
                if field[:1] == b"r" and field[1:].isdigit():
                    digest, chain, parent, created, rest = header.split(b" ", 4)
                    older = str(int(created) - int(seconds * 1_000_000)).encode()
                    value = b" ".join([digest, chain, parent, older, rest])
                    self._client.hset(key, field, value)

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        for key in self._keys("log"):
            log = list(read_log(self._client.lrange(key, 0, -1)))
            for at, (chain, payload) in enumerate(log):
                self._client.lset(key, at, b"%d %b" % (chain, change(payload)))

    def holds(self, text: str) -> bool:
        wanted = text.encode()
        found = [
            payload
            for key in self._keys("log")
            for _, payload in read_log(self._client.lrange(key, 0, -1))
        ]
        if any(wanted in b"".join(unpack_frames(it, MAX_STATE_BYTES)) for it in found):
            return True
        others = [self._client.hgetall(it) for it in (*self._keys("line"), *self._keys("writes"))]
        return any(wanted in it for each in others for pair in each.items() for it in pair)

    def rows(self) -> int:
        lines = self._keys("line")
        versions = sum(self._client.zcard(it) for it in self._keys("order"))
        return len(self._keys("thread")) + len(lines) + versions

    def check(self) -> None:
        """Check the invariants of all keys, whatever a test did."""
        for key in self._client.scan_iter(count=1000):
            assert KEY.fullmatch(key), key
        for key in self._keys("line"):
            order, log = key.replace(b":line|", b":order|"), key.replace(b":line|", b":log|")
            there = self._client.lrange(log, 0, -1)
            assert self._client.zcard(order) == len(there), key
            assert [not it for it in there] == empty_places(there), key
        keys = RedisKeys("locus:state:")
        for bucket in range(BUCKETS):
            start = f"locus:state:{{{bucket}}}:"
            ids = set(self._client.zrange(start + "ids", 0, -1))
            names = {it: keys.reading(it.decode(), "")[0] for it in ids}
            listed = {it for it in ids if self._client.hget(names[it], "listed") == b"1"}
            over = {it for it in ids if not self._client.exists(names[it])}
            active = set(self._client.zrange(start + "active", 0, -1))
            assert active - over == listed
            assert active <= ids


def empty_places(log: list[bytes]) -> list[bool]:
    """Return the empty positions of a log, as its blocks have them."""
    sizes = [len(list(read_log([it]))) for it in log if it]
    return [at > 0 for size in sizes for at in range(size)]


class OnValkey(Storage):
    """An empty database of the server that the tests run on."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.url = self.reached()
        self._probe: RedisProbe | None = None

    def reached(self) -> str:
        """Return the URL of the empty database."""
        url: str = self.fixture("redis_url")
        return url

    def checkpointer(self, **options: Any) -> Any:
        return redis_checkpointer(self.url, **options)

    def backend(self) -> Any:
        return RedisBackend(self.url)

    def store(self, **options: Any) -> Any:
        return RedisStore(self.url, **{"dimension": 3, **options})

    def probe(self) -> RedisProbe:
        self._probe = self._probe or RedisProbe(self.url)
        return self._probe

    def check(self) -> None:
        self.probe().check()

    async def close(self) -> None:
        self.probe().close()


class OnRedis7(OnValkey):
    """Debian's, the oldest that we run."""

    def reached(self) -> str:
        server = self.fixture("debian_redis")
        server.flush()
        url: str = server.url()
        return url


class Blocks(OnValkey):
    """Any two small payloads are put together at once, not only many."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        for name, it in vars(scripts).items():
            if isinstance(it, scripts.Script) and "PACKED" in it.source:
                source = it.source.replace("PACKED, SMALL = 32,", "PACKED, SMALL = 2,")
                assert source != it.source
                sha = sha1(source.encode()).hexdigest()  # noqa: S324  (Redis' own name)
                script = scripts.Script(name, source, sha)
                self.fixture("monkeypatch").setattr(scripts, name, script)


class OnCluster(OnValkey):
    def reached(self) -> str:
        cluster = self.fixture("redis_cluster")
        cluster.flush()
        url: str = cluster.url()
        return url


class _WithClient(OnValkey):
    """Checkpointers over one client, which is the test's."""

    client_type: ClassVar[Any] = redis.asyncio.Redis

    async def open(self) -> None:
        self.client = self.client_type.from_url(self.url.replace("+cluster", ""))

    async def close(self) -> None:
        await self.client.aclose()
        await super().close()

    def checkpointer(self, **options: Any) -> Any:
        return redis_checkpointer(client=self.client, **options)


class OverClient(_WithClient):
    pass


class OverClusterClient(_WithClient, OnCluster):
    client_type: ClassVar = redis.asyncio.RedisCluster


class Blocking(OnValkey):
    def checkpointer(self, **options: Any) -> Any:
        return Unblocked(BlockingCheckpointer(super().checkpointer(**options)))

    def store(self, **options: Any) -> Any:
        return UnblockedStore(BlockingStore(super().store(**options)))
