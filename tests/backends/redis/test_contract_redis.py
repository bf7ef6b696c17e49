"""The contract on Redis and Valkey."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from hashlib import sha1
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import redis
import redis.asyncio
from anyio import to_thread
from test_contract import LocusStates, Unblocked

from locus_store import InvalidArgumentError
from locus_store.backends.redis import RedisBackend, redis_checkpointer, scripts
from locus_store.backends.redis.keys import BUCKETS, RedisKeys
from locus_store.backends.redis.records import read_log
from locus_store.blocking import BlockingCheckpointer
from locus_store.testing import CheckpointerContract, StorageBackendContract
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import redis_clusters
    import redis_servers

KINDS = ("thread", "line", "order", "log", "writes", "messages")
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


class OnRedis(CheckpointerContract):
    """An empty database of the server that the tests run on."""

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url

    @pytest.fixture
    def reopen(self, url: str) -> Any:
        return partial(redis_checkpointer, url, state_type=self.state_type)

    @pytest.fixture
    def checkpointer(self, reopen: Any) -> Any:
        return reopen()

    @pytest.fixture
    def storage(self, url: str) -> Iterator[RedisProbe]:
        probe = RedisProbe(url)
        yield probe
        probe.close()

    @pytest.fixture(autouse=True)
    def in_order(self, storage: RedisProbe) -> Any:
        yield
        storage.check()


class TestValkey(OnRedis):
    pass


class TestRedisBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, redis_url: str) -> RedisBackend:
        return RedisBackend(redis_url)


@pytest.mark.variant
class TestLocusStateOnRedis(LocusStates, OnRedis):
    pass


@pytest.mark.variant
class TestRedis7(OnRedis):
    """Debian's, the oldest that we run."""

    @pytest.fixture
    def url(self, debian_redis: redis_servers.Redis) -> str:
        debian_redis.flush()
        return debian_redis.url()


class BlocksOfTwo:
    """Any two small payloads are put together at once, not only many."""

    @pytest.fixture(autouse=True)
    def packed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, it in vars(scripts).items():
            if isinstance(it, scripts.Script) and "PACKED" in it.source:
                source = it.source.replace("PACKED, SMALL = 32,", "PACKED, SMALL = 2,")
                assert source != it.source
                sha = sha1(source.encode()).hexdigest()  # noqa: S324  (Redis' own name)
                monkeypatch.setattr(scripts, name, scripts.Script(name, source, sha))


@pytest.mark.variant
class TestInBlocks(BlocksOfTwo, OnRedis):
    pass


@pytest.mark.variant
class TestRedisBackendInBlocks(BlocksOfTwo, StorageBackendContract):
    @pytest.fixture
    def backend(self, redis_url: str) -> RedisBackend:
        return RedisBackend(redis_url)


class OnCluster(OnRedis):
    @pytest.fixture
    def url(self, redis_cluster: redis_clusters.Cluster) -> str:
        redis_cluster.flush()
        return redis_cluster.url()


@pytest.mark.variant
class TestCluster(OnCluster):
    pass


@pytest.mark.variant
class TestClusterBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, redis_cluster: redis_clusters.Cluster) -> RedisBackend:
        redis_cluster.flush()
        return RedisBackend(redis_cluster.url())


class OneClient:
    """Checkpointers over one client, which is the test's."""

    client_type: ClassVar[Any] = redis.asyncio.Redis

    @pytest.fixture
    async def reopen(self, url: str) -> AsyncIterator[Any]:
        async with self.client_type.from_url(url.replace("+cluster", "")) as client:
            yield partial(redis_checkpointer, client=client, state_type=self.state_type)

    async def refused(self, *_: object) -> None:
        pytest.skip("a client belongs to one event loop; see the test of its refusal")

    test_it_works_in_a_second_event_loop = refused
    test_it_works_in_several_loops_at_once = refused
    test_a_load_is_remembered_whatever_it_came_through = refused
    test_own_saves_go_on_whatever_they_come_through = refused

    async def test_a_second_loop_is_refused(self, checkpointer: Any) -> None:
        await checkpointer.save(self.new("a"), "t")  # type: ignore[attr-defined]
        with pytest.raises(InvalidArgumentError, match="the event loop that it was first used in"):
            await to_thread.run_sync(lambda: asyncio.run(checkpointer.load("t")))


@pytest.mark.variant
class TestClient(OneClient, OnRedis):
    pass


@pytest.mark.variant
class TestClusterClient(OneClient, OnCluster):
    client_type = redis.asyncio.RedisCluster


@pytest.mark.variant
class TestBlockingOnRedis(OnRedis):
    """Through the blocking facade."""

    @pytest.fixture
    def reopen(self, url: str) -> Any:
        make = partial(redis_checkpointer, url, state_type=self.state_type)
        return lambda **options: Unblocked(BlockingCheckpointer(make(**options)))
