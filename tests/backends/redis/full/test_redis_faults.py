"""Servers that die, slots that move and networks that are split, under load."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis_clusters
import redis_servers
from redis.crc import key_slot
from redis_writers import Writers
from servers import started
from tiers import ALL

from locus_store import BackendError, ConnectionFailedError, RedisBackend
from locus_store.backends.redis.keys import compute_bucket
from locus_store.testing.steps import find_problems
from locus_store.types import ArchivedMessage, PendingWrite

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

WRITERS = 6
KILLS = 20 if ALL else 3
NAMES = [f"t{n}" for n in range(1000)]
BUCKET = compute_bucket(NAMES[0])
HERE = [it for it in NAMES if compute_bucket(it) == BUCKET][:WRITERS]
"""Threads of one slot, whose master is to suffer."""

SLOT = key_slot(str(BUCKET).encode())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def does(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """In a thread: the writers go on."""
    return await asyncio.to_thread(work, *arguments, **options)


async def test_a_killed_server_that_writes_each_command_loses_nothing() -> None:
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with started(redis_servers.Redis, "valkey", settings=settings) as server:
        async with Writers(HERE, str(server.url())) as writers:
            for _ in range(KILLS):
                await does(server.kill)
                await does(server.start)
                await writers.until_each_has(2)
        assert await writers.lost() == {}


async def test_slots_that_move_lose_nothing_and_no_save_fails(
    redis_cluster: redis_clusters.Cluster,
) -> None:
    redis_cluster.flush()
    async with Writers(HERE, redis_cluster.url()) as writers:
        for _ in range(2):
            source = redis_cluster.master_of(SLOT)
            to = next(it for it in redis_cluster.masters() if it is not source)
            await does(redis_cluster.begin_migration, SLOT, to)
            for _ in range(5):
                await does(redis_cluster.move_keys, SLOT, 3)
                await asyncio.sleep(0.05)  # saves meet a slot that is half here and half there
            await does(redis_cluster.end_migration, SLOT)
            await writers.until_each_has(5)
    assert writers.errors == []
    assert await writers.lost() == {}


def said(n: int) -> dict[str, Any]:
    return {"said": ["word"] * 500, "n": n}


async def with_every_key(backend: RedisBackend) -> None:
    """Thread ``t``, of which there are messages too, 31 versions, and an end."""
    message = ArchivedMessage(
        sequence=1,
        message_id="m",
        role="user",
        metadata={},
        created_at=datetime.now(UTC),
        text="hi",
        payload=None,
    )
    await backend.write_state("t", said(0), checkpoint_id="v0", ttl_seconds=600)
    thread = await backend.read_thread("t")
    assert thread is not None
    await backend.delete("t")
    await backend.write_thread(replace(thread, messages=[message]))
    for n in range(1, 31):
        await backend.write_state("t", said(n), checkpoint_id=f"v{n}", ttl_seconds=600)
    await backend.put_writes("t", "v7", [PendingWrite("a", 0, "c", "t", b"1")])


async def test_what_a_slot_that_moves_refuses_was_not_begun(
    redis_cluster: redis_clusters.Cluster,
) -> None:
    """A script that empties a key may not use it again there: it must not come so far."""
    redis_cluster.flush()
    url, slot = redis_cluster.url(), key_slot(str(compute_bucket("t")).encode())
    other = next(it for it in NAMES if compute_bucket(it) == compute_bucket("t"))
    async with RedisBackend(url) as patient, RedisBackend(url, retry_seconds=0.2) as backend:
        await with_every_key(backend)
        await backend.save(other, {"n": 1})
        before = await backend.read_thread("t")
        same = partial(backend.write_state, "t", {"n": "other"}, ttl_seconds=600)
        only = [f"v{n}" for n in range(30)]
        calls = [
            lambda: backend.write_state("t", said(31), ttl_seconds=600),
            lambda: same(checkpoint_id="v30"),
            lambda: backend.remove("t", only),
            lambda: backend.remove("t", [*only, "v30"]),
            lambda: backend.delete("t"),
        ]
        with redis_cluster.moving(slot):
            for call in calls:
                with pytest.raises(ConnectionFailedError, match="nothing was done"):
                    await call()
            assert await backend.read_thread("t") == before
            assert await backend.load(other) == {"n": 1}
        assert await patient.read_thread("t") == before
        assert await patient.remove("t", only) == 30
        with redis_cluster.moving(slot), pytest.raises(ConnectionFailedError):
            await same(checkpoint_id="v30")
        assert await patient.load("t") == said(30)
        assert await find_problems(patient) == []


async def test_a_killed_master_loses_nothing_that_a_replica_had_to_have() -> None:
    with started(redis_clusters.Cluster, node_timeout_ms=1500) as cluster:
        async with Writers(HERE, cluster.url(), wait_replicas=1) as writers:
            master = cluster.master_of(SLOT)
            await does(cluster.kill, master)
            await does(cluster.wait_until_ok)
            await does(cluster.restart, master)  # as a replica of its replica
            await does(cluster.wait_until_ok)
            await writers.until_each_has(5)
        assert await writers.lost() == {}


async def test_a_killed_master_leaves_whole_threads_and_tells_who_lost_a_save() -> None:
    with started(redis_clusters.Cluster, node_timeout_ms=1500) as cluster:
        async with Writers(HERE, cluster.url()) as writers:
            await does(cluster.kill, cluster.master_of(SLOT))
            await does(cluster.wait_until_ok)
            await writers.until_each_has(5)
        lost = await writers.lost()
        assert all(len(it) <= 3 for it in lost.values()), lost  # what was on its way


async def test_lists_and_histories_find_the_replica_of_a_killed_master_by_themselves() -> None:
    with started(redis_clusters.Cluster, node_timeout_ms=1500) as cluster:
        async with RedisBackend(cluster.url(), retry_seconds=30, wait_replicas=1) as backend:
            await backend.save(HERE[0], {"n": 1})
            assert await backend.list_threads() == HERE[:1]
            for only in (backend.list_threads, backend.scan, backend.heads):
                master = cluster.master_of(SLOT)
                await does(cluster.kill, master)
                assert len(await only()) == 1
                await does(cluster.restart, master)
                await does(cluster.wait_until_ok)


async def test_a_save_that_waits_for_replicas_finds_a_new_master_by_itself() -> None:
    with started(redis_clusters.Cluster, node_timeout_ms=1500) as cluster:
        options: dict[str, Any] = {"wait_replicas": 1, "wait_timeout_seconds": 0.2}
        async with RedisBackend(cluster.url(), retry_seconds=30, **options) as backend:
            await backend.save(HERE[0], {"n": 1})
            await does(cluster.kill, cluster.master_of(SLOT))
            with pytest.raises(BackendError, match="only 0 of 1 replicas"):
                await backend.save(HERE[0], {"n": 2})  # there is none left
            await does(cluster.wait_until_ok)
        async with RedisBackend(cluster.url()) as backend:
            assert await backend.load(HERE[0]) == {"n": 2}


async def test_a_master_that_was_cut_off_acknowledges_nothing_that_is_lost() -> None:
    with started(redis_clusters.Cluster, node_timeout_ms=1500, is_proxied=True) as cluster:
        options: dict[str, Any] = {"wait_replicas": 1, "wait_timeout_seconds": 0.5}
        async with Writers(HERE, cluster.url(), **options) as writers:
            master = cluster.master_of(SLOT)
            await does(cluster.cut, [master], are_clients_along=True)
            await does(cluster.wait_until_ok)
            await does(cluster.heal)
            await does(cluster.wait_until_ok)
            await writers.until_each_has(5)
        assert await writers.lost() == {}
