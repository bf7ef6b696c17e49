"""The store in Redis and Valkey held to the contract, and what only such a server can break."""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from lazily import TESTS_RUN
from tiers import first_of

from locus_store import ConflictError, InMemoryStore, InvalidArgumentError, open_store
from locus_store.values.times import to_microseconds

if TESTS_RUN:
    from redis.asyncio import Redis, RedisCluster
    from redis.crc import key_slot

    from locus_store import redis_checkpointer
    from locus_store.backends import RedisStore
    from locus_store.backends.redis import items, store as module

NS = ("memory", "u42")
KEYS = {
    it: f"locus:store:{{store}}:{it}"
    for it in ("items", "names", "recent", "expiry", "vectors", "settings")
}


pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(redis_url):
    async with RedisStore(redis_url, dimension=3) as made:
        yield made


@pytest.fixture
def ask(redis_server, redis_url):
    return redis_server.ask


def embedded(count: int, dimension: int = 8) -> list[tuple[Any, ...]]:
    numbers = random.Random(count)
    return [
        (("v", f"u{it % 5}"), f"{it:04}", {"n": it % 100, "even": it % 2 == 0}, None, None, None,
         [numbers.gauss(0, 1) for _ in range(dimension)])
        for it in range(count)
    ]  # fmt: skip


@contextmanager
def counted(home: Any):
    """The commands that are sent in the block."""
    sent: list[Any] = []
    execute = home.client.execute_command

    async def noted(*command: Any, **options: Any) -> Any:
        sent.append(command[0])
        return await execute(*command, **options)

    home.client.execute_command = noted
    yield sent
    home.client.execute_command = execute


def test_an_option_that_there_is_not_is_told_of_the_store() -> None:
    with pytest.raises(TypeError, match=r"RedisBackend.*'colour'"):
        RedisStore(colour=None)  # type: ignore[call-arg]


# --- keys


async def test_another_prefix_is_another_store(redis_url) -> None:
    ours, theirs = RedisStore(redis_url, dimension=3), RedisStore(redis_url, "o:", dimension=4)
    async with ours, theirs:
        await ours.put_with_embedding(NS, "k", "ours", [1, 0, 0])
        assert await theirs.get(NS, "k") is None
        assert await theirs.search(()) == await theirs.list(NS) == []
        assert await theirs.list_namespaces() == []
        assert await theirs.put_with_embedding(NS, "k", "theirs", [1, 0, 0, 0]) == 1
        assert await theirs.clear_namespace((), recursive=True) == 1
        assert await ours.get_embedding(NS, "k") == [1.0, 0.0, 0.0]


def test_all_keys_of_a_store_share_a_slot() -> None:
    made = [items.make_keys("any: ", tenant) for tenant in ("default", "{x}")]
    keys = [it for own, others in made for it in own + others]
    assert len({key_slot(it.encode()) for it in keys}) == 1


async def test_tenants_are_listed_with_their_items(redis_url) -> None:
    for prefix in ("locus:store:", "other:"):
        given = {} if prefix == "locus:store:" else {"prefix": prefix}
        async with redis_checkpointer(redis_url, **given) as checkpointer:
            store = RedisStore(backend=checkpointer.backend)
            acme, globex = map(store.for_tenant, ("acme", "{globex}:items"))
            for it in (store, acme, globex, globex):
                await it.put(NS, "k", 1)
            await globex.put(NS, "over", 1, ttl_seconds=0.001)
            await asyncio.sleep(0.002)
            await globex.delete(NS, "k")
            await acme.delete(NS, "k")
            await checkpointer.for_tenant("a").save({"n": 1}, "t")
            found = [(it.name, it.threads, it.items) for it in await checkpointer.tenants()]
            assert found == [("a", 1, 0), ("default", 0, 1), ("{globex}:items", 0, 0)]
            assert await globex.expire() == 1
            assert [it.name for it in await checkpointer.tenants()] == ["a", "default"]


async def test_what_is_no_prefix_is_refused() -> None:
    for bad in ("{a}", "x}", None, 7, "a\0", "x" * 201):
        with pytest.raises(InvalidArgumentError, match="prefix"):
            RedisStore(prefix=bad)  # type: ignore[arg-type]


async def test_a_store_and_threads_share_a_prefix(redis_url) -> None:
    async with redis_checkpointer(redis_url, "p:") as threads, RedisStore(redis_url, "p:") as store:
        await store.put(NS, "k", 1)
        await threads.save({"n": 1}, "{store}")
        assert await threads.list_threads() == ["{store}"]
        assert await store.list_namespaces() == [NS]


async def test_nothing_is_left_of_what_is_gone(store, ask) -> None:
    for remove in (
        lambda: store.delete(NS, "k"),
        lambda: store.clear_namespace(NS),
        lambda: store.clear_namespace((), recursive=True),
        store.expire,
    ):
        await store.put_with_embedding(NS, "k", 1, [1, 0, 0], ttl_seconds=3600)
        assert set(ask("KEYS", "*")) == set(KEYS.values())
        ask("ZADD", KEYS["expiry"], 1 if remove == store.expire else 2**52, name_there(ask))
        await remove()
        assert ask("KEYS", "*") == [KEYS["settings"]]


def name_there(ask: Any) -> str:
    """The name of the one item there is."""
    [name] = ask("ZRANGE", KEYS["names"], 0, -1)
    return name


# --- a URL, a client


async def test_a_url_names_a_store(redis_url) -> None:
    async with open_store(f"{redis_url}?prefix=p:&keep_last=3&pool_size=2", dimension=3) as store:
        assert isinstance(store, RedisStore)
        await store.put(NS, "k", 1)
    async with RedisStore(redis_url, "p:") as store:
        assert await store.get(NS, "k") == 1
    assert "p%25" not in repr(store)
    assert repr(store).startswith("RedisStore(")


async def test_a_client_that_is_handed_in_stays_open(redis_url, redis_cluster) -> None:
    clients = (Redis.from_url(redis_url), RedisCluster.from_url(_plain(redis_cluster.url())))
    for client in clients:
        async with client, RedisStore(client=client, dimension=3) as store:
            await store.put_with_embedding(NS, "k", 1, [1, 0, 0])
            await store.close()
            assert await client.exists(KEYS["items"])
            assert len(await store.search_by_embedding((), [1, 0, 0])) == 1


def _plain(url: str) -> str:
    return url.replace("+cluster", "")


# --- round trips


async def test_every_call_is_one_round_trip(redis_url) -> None:
    async with RedisStore(redis_url, dimension=8) as store:
        await store.put_batch(embedded(50))
        target = embedded(1)[0][-1]
        home = await store._get_client()
        calls = (
            lambda: store.put(NS, "k", 1, expected_version=0),
            lambda: store.put_with_embedding(NS, "k", 1, target, expected_version=1),
            lambda: store.put_batch(embedded(50)),
            lambda: store.get(NS, "k"),
            lambda: store.get_batch([(NS, "k"), (NS, "j"), (("v", "u1"), "0001")]),
            lambda: store.list(("v", "u1"), limit=3, after="0001"),
            lambda: store.search(("v",)),
            lambda: store.search(("v",), filter={"n": {"$lt": 50}, "even": True}),
            lambda: store.get_embedding(NS, "k"),
            store.list_namespaces,
            lambda: store.touch(NS, "k"),
            lambda: store.delete(NS, "k"),
            lambda: store.clear_namespace(("v", "u1")),
        )
        for call in calls:
            await call()  # the script is known
            with counted(home) as sent, suppress(ConflictError):
                await call()
            assert len(sent) == 1, sent


async def test_a_repeated_removal_writes_and_so_waits_for_replicas(redis_server, redis_url) -> None:
    """WAIT waits for the writes of its own connection only."""

    def count_changes() -> int:
        with redis_server.client() as client:
            return client.info("persistence")["rdb_changes_since_last_save"]

    async with RedisStore(redis_url) as store:
        await store.put(("n",), "k", 1)
        for call in (lambda: store.delete(("n",), "k"), lambda: store.clear_namespace(("n",))):
            await call()
            before = count_changes()
            await call()
            assert count_changes() > before
        assert await store.list_namespaces() == []


async def test_scripts_that_are_forgotten_are_sent_again(store, ask) -> None:
    await store.put(NS, "k", 1)
    ask("SCRIPT", "FLUSH")
    assert await store.put(NS, "k", 2) == 2
    ask("SCRIPT", "FLUSH")
    assert await store.get(NS, "k") == 2


# --- order and pages


async def model(store: RedisStore, memory: InMemoryStore, seed: int) -> None:
    """Do the same to both."""
    chance = random.Random(seed)
    names = [(("a",) * chance.randint(0, 3) + ("b",) * chance.randint(0, 1), f"{n}")
             for n in range(60)]  # fmt: skip
    for _ in range(40):
        some = chance.sample(names, 4)
        vector = [chance.random() + 0.1 for _ in range(3)]
        batch = [(*it, {"n": chance.randint(0, 5)}, None, None, None, vector) for it in some[:3]]
        for it in (store, memory):
            await it.put_batch(batch)
            await it.delete(*some[3])


def told(found: Any) -> list[Any]:
    return [
        it if isinstance(it, tuple) else (it.namespace, it.key, it.value, it.version, it.score)
        for it in (getattr(hit, "item", hit) for hit in found)
    ]


@pytest.mark.parametrize("seed", first_of(*range(3)))
async def test_small_pages_give_what_large_ones_give(store, monkeypatch, seed) -> None:
    memory = InMemoryStore(dimension=3)
    await model(store, memory, seed)
    for name in ("FIRST", "PAGE", "EMBEDDINGS", "CLEARED"):
        monkeypatch.setattr(module, name, 1 + seed)
    for prefix in ((), ("a",), ("a", "a"), ("b",), ("none",)):
        for recursive in (True, False):
            for offset, limit in ((0, 5), (3, 7), (0, 100)):
                options = {"limit": limit, "offset": offset, "recursive": recursive}
                for wanted in (None, {"n": {"$gt": 3}}):
                    found, expected = [
                        await it.search(prefix, filter=wanted, **options) for it in (store, memory)
                    ]
                    assert told(found) == told(expected)
            for wanted in (None, {"n": {"$gt": 3}}):
                found, expected = [
                    await it.search_by_embedding(
                        prefix, [1, 2, 3], 7, 0.8, filter=wanted, recursive=recursive
                    )
                    for it in (store, memory)
                ]
                assert told(found) == told(expected)
        assert told(await store.list(prefix)) == told(await memory.list(prefix))
        listed = [await it.list_namespaces(prefix, limit=3, offset=1) for it in (store, memory)]
        assert listed[0] == listed[1]
    cleared = [await it.clear_namespace(("a",), recursive=True) for it in (store, memory)]
    assert cleared[0] == cleared[1]
    assert told(await store.search((), limit=100)) == told(await memory.search((), limit=100))


async def test_answers_of_many_megabytes_come_in_parts(store) -> None:
    text = "".join(random.Random(1).choices("abcdefghij ", k=1_000_000))
    for n in range(12):
        await store.put(NS, f"{n:02}", [n, text], {"n": n})
    assert [it.value[0] for it in await store.list(NS)] == [*range(12)]
    assert [it.value[0] for it in await store.search(NS, limit=12)] == [*range(11, -1, -1)]
    found = await store.search(NS, limit=12, metadata_filter={"n": {"$lt": 2}})
    assert [it.value[0] for it in found] == [1, 0]


async def test_the_most_recent_are_found_however_many_are_elsewhere(store) -> None:
    """A few old ones among many new ones, half of all, and one namespace of many."""
    await store.put_batch([(("old",), f"{n:03}", n) for n in range(400)])
    await store.put_batch([(("new", f"{n % 40}"), f"{n:05}", n) for n in range(11_000)])
    old = [it.value for it in await store.search(("old",), limit=5, offset=2)]
    assert old == [397, 396, 395, 394, 393]
    found = await store.search(("old",), filter={"$lt": 3}, limit=5)
    assert [it.value for it in found] == [2, 1, 0]
    assert [it.value for it in await store.search(("new",), limit=2)] == [10_999, 10_998]
    assert [it.value for it in await store.search(("new", "7"), limit=2)] == [10_967, 10_927]
    assert [it.value for it in await store.search((), limit=2, offset=10_999)] == [0, 399]


async def test_a_search_misses_nothing_that_others_move(redis_url, monkeypatch) -> None:
    monkeypatch.setattr(module, "FIRST", 5)
    monkeypatch.setattr(module, "PAGE", 5)
    async with RedisStore(redis_url) as store, RedisStore(redis_url) as other:
        await store.put_batch([(NS, f"{n:02}", {"rare": n % 10 == 0}) for n in range(60)])
        done = asyncio.Event()

        async def write() -> None:
            n = 0
            while not done.is_set():
                await other.put(NS, f"{n % 6}0", {"rare": True})
                n += 1

        writer = asyncio.create_task(write())
        try:
            for _ in range(40):
                found = await store.search(NS, filter={"rare": True}, limit=6)
                assert sorted(it.key for it in found) == [f"{n}0" for n in range(6)]
                times = [it.updated_at for it in found]
                assert times == sorted(times, reverse=True)
        finally:
            done.set()
            await writer


async def test_an_embedding_that_others_replace_has_the_score_of_its_item(redis_url) -> None:
    async with RedisStore(redis_url, dimension=3, metric="ip") as store:
        await store.put_with_embedding(NS, "k", 1, [1, 0, 0])
        read, puts = store._read_with_embeddings, iter([[5, 0, 0]])

        async def late(*args: Any) -> Any:
            for vector in puts:
                await store.put_with_embedding(NS, "k", 2, vector)
            return await read(*args)

        store._read_with_embeddings = late
        [hit] = await store.search_by_embedding(NS, [1, 0, 0])
        assert (hit.item.value, hit.score) == (2, 5.0)


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
async def test_scores_are_those_of_the_store_in_memory(redis_url, metric) -> None:
    memory = InMemoryStore(dimension=8, metric=metric)
    async with RedisStore(redis_url, dimension=8, metric=metric) as store:
        for it in (memory, store):
            await it.put_batch(embedded(300))
        for wanted in (None, {"n": {"$lt": 5}}, {"n": 1000}):
            target = embedded(1)[0][-1]
            found, expected = [
                await it.search_by_embedding(("v",), target, 20, filter=wanted)
                for it in (store, memory)
            ]
            assert told(found) == told(expected)


async def test_a_clock_that_goes_back_changes_no_order(store, ask) -> None:
    await store.put(NS, "a", 1)
    later = ask("TIME")[0] * 10**6 + 10**9  # an item of a server whose clock was ahead
    ask("ZADD", KEYS["recent"], later, name_there(ask))
    await store.put_batch([(NS, "b", 1), (NS, "c", 1)])
    assert [it.key for it in await store.search(())] == ["c", "b", "a"]


# --- time


async def test_a_put_with_a_time_to_live_takes_away_what_is_long_over(store, ask) -> None:
    await store.put_batch([(NS, f"{n:02}", n, None, 3600.0) for n in range(30)])
    for name in ask("ZRANGE", KEYS["names"], 0, -1):
        ask("ZADD", KEYS["expiry"], 1, name)
    await store.put(NS, "for good", 1)
    assert ask("HLEN", KEYS["items"]) == 31
    for left in (12, 3, 4):
        await store.put(NS, f"with {left}", 1, ttl_seconds=3600.0)
        assert ask("HLEN", KEYS["items"]) == left
    assert await store.expire() == 0


async def test_any_time_to_live_is_kept(store) -> None:
    for ttl in (1e11, 1e-9, 0.1 + 0.2, 7, 86_400 * 365.25):
        await store.put(NS, "k", 1, ttl_seconds=ttl)
        item = await store.get_item(NS, "k")
        if item is None:
            assert ttl < 1e-3
            continue
        assert item.ttl_seconds == ttl
        off = item.expires_at - item.updated_at - timedelta(seconds=ttl)
        assert abs(off) < timedelta(seconds=1e-4)


async def test_all_times_are_the_servers(store, ask) -> None:
    before = ask("TIME")
    await store.put(NS, "k", 1)
    put_at = (await store.get_item(NS, "k")).updated_at
    time = divmod(to_microseconds(put_at), 1_000_000)
    assert tuple(before) <= time <= tuple(ask("TIME"))
