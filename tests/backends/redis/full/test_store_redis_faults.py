"""Failures of a store in Redis: rights, foreign keys, damage, and faults of servers."""

from __future__ import annotations

import asyncio

import pytest
import redis_servers
import servers
from redis.crc import key_slot
from test_store_redis import KEYS, name_there

from locus_store import BackendError, ConnectionFailedError, IntegrityError, SchemaError
from locus_store.backends import RedisBackend, RedisStore
from locus_store.types.items import PutItem, Remove

NS = ("memory", "u42")

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(redis_url):
    async with RedisStore(redis_url, dimension=3) as made:
        yield made


@pytest.fixture
def ask(redis_server, redis_url):
    return redis_server.ask


# --- what is not ours, or damaged


@pytest.mark.parametrize("kind", KEYS)
async def test_a_key_that_is_not_ours_is_told_and_nothing_is_written(redis_url, ask, kind) -> None:
    ask("SET", KEYS[kind], "theirs")
    async with RedisStore(redis_url, dimension=3, prefix="locus:store:other:"):
        pass  # another prefix, as the error says
    store = RedisStore(redis_url, dimension=3)
    with pytest.raises(SchemaError, match="prefix="):
        await store.put_with_embedding(NS, "k", 1, [1, 0, 0], ttl_seconds=60)
    await store.close()
    assert ask("KEYS", "*") == [KEYS[kind]]


async def test_another_dimension_is_refused_when_it_is_opened_and_when_it_is_written(
    redis_url,
) -> None:
    async with RedisStore(redis_url, dimension=4) as early:
        async with RedisStore(redis_url, dimension=3) as store:
            await store.put_with_embedding(NS, "k", 1, [1, 0, 0])
        with pytest.raises(SchemaError, match="embeddings of 3 numbers, not 4"):
            await early.put_batch([(NS, "n", 1), (NS, "m", 1, None, None, None, [1, 0, 0, 0])])
        assert await early.list_keys(NS) == ["k"]
    late = RedisStore(redis_url, dimension=4)
    with pytest.raises(SchemaError, match=r"dimension=3.*prefix="):
        await late.get(NS, "k")
    await late.close()


async def test_who_has_no_embeddings_still_removes_old_ones(redis_url, store) -> None:
    for key in "ab":
        await store.put_with_embedding(NS, key, 1, [1, 0, 0])
    async with RedisStore(redis_url) as plain:
        await plain.put(NS, "a", 2)
        await plain.delete(NS, "b")
    assert await store.search_by_embedding((), [1, 0, 0]) == []


async def test_a_later_layout_is_refused(redis_url, store, ask) -> None:
    await store.put(NS, "k", 1)
    ask("HSET", KEYS["settings"], "layout", "2")
    with pytest.raises(SchemaError, match=r"layout 2.*use the release"):
        await store.put(NS, "k", 2)
    other = RedisStore(redis_url)
    with pytest.raises(SchemaError, match=r"layout 2.*use the release"):
        await other.get(NS, "k")
    await other.close()


@pytest.mark.parametrize("damaged", [b"x", b"1 2 3 - ", b"1 2 3 - \2\0\1\1x0000", b"1 2 3 4"])
async def test_a_damaged_item_is_told(store, ask, damaged) -> None:
    await store.put(NS, "k", 1)
    ask("HSET", KEYS["items"], name_there(ask), damaged)
    with pytest.raises(IntegrityError, match="memory"):
        await store.get(NS, "k")
    assert await store.put(NS, "k", 2) in {1, 2}
    assert await store.get(NS, "k") == 2


# --- rights


RIGHTS = [
    "eval", "evalsha", "time", "hmget", "hget", "hset", "hdel", "hlen", "zadd", "zrem", "zcard",
    "zscore", "zrangebylex", "zrangebyscore", "zrevrange", "zrevrangebyscore", "zlexcount",
]  # fmt: skip
"""Commands that a store needs, and no others, on keys that begin with its prefix."""

RIGHTS_WITH_TENANTS = [*RIGHTS, "sadd", "srem", "smembers", "scard", "zcount", "exists"]


async def test_few_rights_are_enough() -> None:
    rules, more = (
        " ".join(["~locus:store:*", *(f"+{it}" for it in rights)])
        for rights in (RIGHTS, RIGHTS_WITH_TENANTS)
    )
    users = {"ours": rules, "shared": more, "weak": "~other:* +@all"}
    server = redis_servers.Redis("valkey", users=users)
    try:
        async with RedisStore(server.url("ours"), dimension=3) as store:
            await store.put_with_embedding(NS, "k", 1, [1, 0, 0], ttl_seconds=60)
            await store.touch(NS, "k")
            await store.put(NS, "j", 1)
            assert [it.key for it in await store.search(NS, limit=1)] == ["j"]
            assert await store.list_keys(NS) == ["j", "k"]
            assert await store.list_namespaces() == [NS]
            assert len(await store.search_by_embedding((), [1, 0, 0])) == 1
            assert await store.expire() == 0
            assert await store.clear_namespace(NS) == 2
        backend = RedisBackend(server.url("shared"), "locus:store:")
        async with RedisStore(backend=backend).for_tenant("acme") as store:
            await store.put(NS, "k", 1)
            assert [(it.name, it.items) for it in await backend.tenants()] == [("acme", 1)]
            assert await store.clear_namespace(NS) == 1
        await backend.close()
        weak = RedisStore(server.url("weak"))
        with pytest.raises(BackendError, match="rights"):
            await weak.put(NS, "k", 1)
        await weak.close()
        with server.client() as client:
            used = set(client.info("commandstats"))
        assert used >= {f"cmdstat_{it}" for it in RIGHTS_WITH_TENANTS}
    finally:
        server.stop()


# --- faults


async def test_where_there_is_no_memory_nothing_is_written(redis_server) -> None:
    server = redis_servers.Redis("valkey", settings={"maxmemory-policy": "noeviction"})
    try:
        async with RedisStore(server.url()) as store:
            await store.put_batch([(NS, "a", 1), (NS, "b", 1)])
            server.ask("CONFIG", "SET", "maxmemory", "1")
            put = store.checked(PutItem(NS, "c", 1))
            for changes in ([put], [Remove(namespace=NS, key="a"), put]):
                with pytest.raises(BackendError, match="memory"):
                    await store.apply(changes)
            assert await store.list_keys(NS) == ["a", "b"]
            assert await store.delete(NS, "a")
            server.ask("CONFIG", "SET", "maxmemory", "0")
            assert await store.put(NS, "a", 1) == 1
    finally:
        server.stop()


async def test_a_batch_that_a_slot_that_moves_refuses_was_not_begun(redis_cluster) -> None:
    """It would empty the list of ends, and then use it."""
    redis_cluster.flush()
    url, slot = redis_cluster.url(), key_slot(b"store")
    async with RedisStore(url, dimension=3) as patient:
        await patient.put_with_embedding(NS, "a", 1, [1, 0, 0], ttl_seconds=600)
        changes = [PutItem(NS, "a", 2), PutItem(NS, "b", 2, ttl_seconds=600)]
        async with RedisStore(url, dimension=3, retry_seconds=0.2) as store:
            with redis_cluster.moving(slot), pytest.raises(ConnectionFailedError):
                await store.apply([store.checked(it) for it in changes])
        assert await patient.get(NS, "a") == 1
        assert await patient.list_keys(NS) == ["a"]
        await patient.apply([patient.checked(it) for it in changes])
        assert await patient.list_keys(NS) == ["a", "b"]


async def test_a_put_whose_answer_is_lost_is_not_repeated(redis_server, redis_url) -> None:
    proxy = servers.Proxy(redis_server.port)
    try:
        url = redis_url.replace(f":{redis_server.port}", f":{proxy.port}")
        async with RedisStore(url) as store, RedisStore(redis_url) as other:
            await store.put(NS, "k", 1)
            proxy.swallow_replies()
            putting = asyncio.ensure_future(store.put(NS, "k", 2))
            async with asyncio.timeout(20):
                while await other.get(NS, "k") != 2:  # noqa: ASYNC110  (of another process)
                    await asyncio.sleep(0.005)
            proxy.drop()
            proxy.release()
            with pytest.raises(ConnectionFailedError):
                await putting
            assert (await store.get_item(NS, "k")).version == 2
    finally:
        proxy.close()


async def test_a_put_that_is_cancelled_is_done_or_not(store) -> None:
    for n in range(20):
        putting = asyncio.ensure_future(store.put_batch([(NS, "a", n), (NS, "b", n)]))
        for _ in range(n % 5):
            await asyncio.sleep(0)
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)
    found = await store.get_batch([(NS, "a"), (NS, "b")])
    assert len(set(found.values())) <= 1
    assert await store.put(NS, "c", 1) == 1


@pytest.mark.parametrize("later", ["put", "delete", "batch", "clear"])
async def test_a_cancelled_put_that_is_tried_again_undoes_nothing_later(later) -> None:
    server = redis_servers.Redis("valkey")
    try:
        async with RedisStore(server.url()) as store:
            await store.put(NS, "k", "old")
            server.ask("REPLICAOF", servers.LOOPBACK, servers.free_port())  # takes no writes
            putting = asyncio.ensure_future(store.put_batch([(NS, "j", 1), (NS, "k", "late")]))
            await asyncio.to_thread(servers.wait_until, lambda: _refused(server), "a refusal")
            putting.cancel()
            await asyncio.gather(putting, return_exceptions=True)
            calls = {
                "put": lambda: store.put(NS, "k", "new"),
                "delete": lambda: store.delete(NS, "k"),
                "batch": lambda: store.put_batch([(NS, "i", 1), (NS, "k", "new")]),
                "clear": lambda: store.clear_namespace((), recursive=True),
            }
            acknowledged = asyncio.ensure_future(calls[later]())
            server.ask("REPLICAOF", "NO", "ONE")
            await acknowledged
        async with RedisStore(server.url()) as store:  # behind all that was under way
            expected = "new" if later in {"put", "batch"} else None
            assert await store.get(NS, "k") == expected
    finally:
        server.stop()


def _refused(server) -> bool:
    with server.client() as client:
        return "errorstat_READONLY" in client.info("errorstats")


async def test_a_restarted_server_is_found_again() -> None:
    server = redis_servers.Redis("valkey", settings={"appendonly": "yes"})
    try:
        async with RedisStore(server.url(), dimension=3) as store:
            await store.put_with_embedding(NS, "k", 1, [1, 0, 0])
            server.kill()
            server.start()
            assert await store.get(NS, "k") == 1
            assert await store.put(NS, "k", 2, expected_version=1) == 2
    finally:
        server.stop()


async def test_a_slot_moves_while_others_write(redis_cluster) -> None:
    """Keys are here and there in between: nobody is told, and no put is lost or done twice."""
    redis_cluster.flush()
    slot = key_slot(KEYS["items"].encode())
    home = redis_cluster.master_of(slot)
    target = next(it for it in redis_cluster.masters() if it is not home)
    async with RedisStore(redis_cluster.url(), dimension=3) as store:
        await store.put_with_embedding(NS, "k", 0, [1, 0, 0], ttl_seconds=3600)
        for place in (target, home):
            await asyncio.to_thread(redis_cluster.begin_migration, slot, place)
            writing = asyncio.ensure_future(writes(store))
            for _ in range(3):
                await asyncio.to_thread(redis_cluster.move_keys, slot, 1)
                await asyncio.sleep(0.02)
            await asyncio.to_thread(redis_cluster.end_migration, slot)
            await writing
        assert (await store.get_item(NS, "k")).version == 21
        assert len(await store.search_by_embedding((), [1, 0, 0])) == 1


async def writes(store: RedisStore) -> None:
    for _ in range(10):
        await store.put_with_embedding(NS, "k", 1, [1, 0, 0], ttl_seconds=3600)
