"""Redis and Valkey: alone, as a cluster, over a client."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import redis
import redis.asyncio
from document_probe import count_rows, damaged, has_text, iterate_rows, make_body

from locus_store.backends import RedisStore
from locus_store.backends.documents.packed import PackedForm
from locus_store.backends.memory.backend import MemoryDocuments
from locus_store.backends.redis import RedisBackend, RedisMessageLog, redis_checkpointer
from locus_store.backends.redis.keys import BUCKETS
from locus_store.blocking import BlockingCheckpointer, BlockingStore
from storages import Storage
from storages.blocking import Unblocked, UnblockedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.versions.threads import Thread

KEY = re.compile(rb"locus:state:\{\d+\}(@[^:]+)?:\w+(\|.*)?|locus:state:\{meta\}", re.DOTALL)


class RedisProbe:
    """Below a server, by its keys."""

    def __init__(self, url: str) -> None:
        is_cluster = "+cluster" in url
        kind: Any = redis.RedisCluster if is_cluster else redis.Redis
        self._client = kind.from_url(url.replace("+cluster", ""))
        self._form = PackedForm(MemoryDocuments())

    def close(self) -> None:
        self._client.close()

    def contents(self) -> Iterator[tuple[bytes, bytes]]:
        """Each thread's key and content."""
        for key in sorted(self._client.scan_iter(b"*}:thread|*", count=1000)):
            yield key, b"".join(self._client.lrange(key, 1, -1))

    def threads(self) -> Iterator[tuple[bytes, Thread]]:
        for key, content in self.contents():
            yield key, self._form.parse(content, key.partition(b"|")[2].decode())[0]

    def _replace(self, key: bytes, content: bytes) -> None:
        """As a put that continues nothing does."""
        self._client.delete(key)
        self._client.rpush(key, b"%b%b1 %d" % (os.urandom(8), os.urandom(8), len(content)), content)

    def age(self, seconds: float) -> None:
        for key, thread in list(self.threads()):
            for row in iterate_rows([thread]):
                row.created_at -= timedelta(seconds=seconds)
            self._replace(key, make_body(self._form, thread).rest)

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        for key, content in list(self.contents()):
            self._replace(key, damaged(content, change))

    def holds(self, text: str) -> bool:
        contents = (content for _, content in self.contents())
        return has_text(text.encode(), contents, (it for _, it in self.threads()))

    def rows(self) -> int:
        return count_rows([it for _, it in self.threads()])

    def check(self) -> None:
        """Check the invariants of all keys, whatever a test did."""
        for key in self._client.scan_iter(count=1000):
            assert KEY.fullmatch(key), key
        there = dict(self.contents())
        for bucket in range(BUCKETS):
            start = b"locus:state:{%d}" % bucket
            tenants = self._client.smembers(start + b":tenants")
            mine = {it.partition(b":thread|")[0] for it in there if it.startswith(start)}
            named = {start + b"@" + it for it in tenants}
            assert mine <= {start} | named
            for of_tenant in {start} | named:
                self._check_indexes(of_tenant + b":", there)

    def _check_indexes(self, start: bytes, there: dict[bytes, bytes]) -> None:
        ids = set(self._client.zrange(start + b"ids", 0, -1))
        active = set(self._client.zrange(start + b"active", 0, -1))
        assert {it for it in there if it.startswith(start)} <= {
            start + b"thread|" + it for it in ids
        }
        assert active <= ids
        assert ids or b"@" not in start


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

    def log(self, **options: Any) -> Any:
        return RedisMessageLog(self.url, **options)

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
