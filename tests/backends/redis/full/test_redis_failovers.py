"""Servers behind sentinels that die, freeze and are cut off, under load."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import redis_sentinels
from redis_sentinels import Group
from redis_servers import PASSWORD
from redis_writers import Writers
from servers import started

from locus_store import ConnectionFailedError, RedisBackend, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

NAMES = [f"t{n}" for n in range(16)]
PAUSE_SECONDS = 0.05
WAITING: dict[str, Any] = {"wait_replicas": 1, "wait_timeout_seconds": 0.5}
RIGHTS = "-@all +@read +@write +@scripting +select +time +info +role"
SENTINEL_RIGHTS = "-@all +sentinel|masters +sentinel|get-master-addr-by-name"
"""As docs/redis.md shows them."""
MIN_REPLICAS = {"min-replicas-to-write": 1, "min-replicas-max-lag": 2}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def suffer(fault: Callable[[Group], None], group: Group, **options: Any) -> Writers:
    """Return writers that have gone through a fault, and saved after it."""
    async with Writers(NAMES, group.url(), pause_seconds=PAUSE_SECONDS, **options) as writers:
        before = {name: set(it) for name, it in writers.acknowledged.items()}
        await asyncio.to_thread(group.await_replication)
        writers.replicated = before
        await asyncio.to_thread(fault, group)
        await writers.until_each_has(3)
    waits = sorted(writers.waits_since(group.struck_at))
    middle, most = waits[len(waits) // 2], waits[-1]
    print(f"{fault.__name__}: next save after {middle:.1f} s in the median, {most:.1f} s at most")
    return writers


@pytest.mark.parametrize("fault", ["kill", "freeze", "isolate", "strand"])
async def test_a_fail_over_loses_nothing_that_a_replica_had_to_have(fault: str) -> None:
    is_proxied = fault in {"isolate", "strand"}
    with started(Group, is_proxied=is_proxied) as group:
        writers = await suffer(getattr(redis_sentinels, fault), group, **WAITING)
        assert await writers.lost() == {}


async def test_a_fail_over_on_request_loses_nothing_that_all_replicas_had_to_have() -> None:
    """The former primary and its other replica serve on: one replica would not be enough."""
    with started(Group) as group:
        options = {**WAITING, "wait_replicas": 2}
        writers = await suffer(redis_sentinels.switch, group, **options)
        assert await writers.lost() == {}


async def test_a_coordinated_fail_over_loses_nothing_by_itself() -> None:
    with started(Group, "valkey") as group:
        writers = await suffer(redis_sentinels.hand_over, group)
        assert await writers.lost() == {}


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_fail_over_leaves_whole_threads_and_loses_what_was_on_its_way(fault: str) -> None:
    with started(Group) as group:
        writers = await suffer(getattr(redis_sentinels, fault), group)
        lost = await writers.lost()  # the versions that are there are whole
        saves = sum(map(len, writers.acknowledged.values()))
        print(f"{fault} without wait_replicas: {len([*chain(*lost.values())])} of {saves} lost")
        assert all(it.isdisjoint(writers.replicated[name]) for name, it in lost.items()), lost


async def test_a_primary_alone_refuses_what_min_replicas_to_write_forbids() -> None:
    """It may lose the writes of ``min-replicas-max-lag`` and not those of the rest of the cut."""
    with started(Group, is_proxied=True, settings=MIN_REPLICAS) as group:
        writers = await suffer(redis_sentinels.strand, group, retry_seconds=0.5)
        lost = await writers.lost()
        refused = [it for it in writers.errors if "NOREPLICAS" in str(it)]
        print(f"strand with min-replicas-to-write: {len([*chain(*lost.values())])} lost")
        assert refused
        most = (MIN_REPLICAS["min-replicas-max-lag"] + 2) / PAUSE_SECONDS
        assert all(len(it) <= most for it in lost.values()), lost


async def test_a_save_begun_while_there_is_no_primary_waits_for_the_next_one() -> None:
    with started(Group) as group:
        old = group.primary()
        old.kill()
        async with RedisBackend(group.url(), retry_seconds=30) as backend:
            await backend.save("t", {"n": 1})  # the first call of the process
            await asyncio.to_thread(group.await_failover, old)
        for it in group.servers:
            if it is not old:
                it.kill()
        async with RedisBackend(group.url(), retry_seconds=0.2) as backend:
            with pytest.raises(ConnectionFailedError, match=r"primary|cannot be reached"):
                await backend.save("t", {"n": 2})


async def test_a_client_goes_on_with_silent_and_dead_sentinels() -> None:
    with started(Group) as group:
        first, second, third = group.sentinels
        async with RedisBackend(group.url()) as backend:
            await backend.save("t", {"n": 1})
            first.pause()
            second.kill()
            async with RedisBackend(group.url()) as other:  # one of three answers
                assert await other.load("t") == {"n": 1}
            third.kill()
            await asyncio.sleep(1.5)
            await backend.save("t", {"n": 2})  # the primary is well
            async with RedisBackend(group.url(), retry_seconds=0.2) as other:
                with pytest.raises(ConnectionFailedError, match="no sentinel can be reached"):
                    await other.load("t")
            first.resume()


async def test_a_woken_primary_is_left_within_a_second_of_the_fail_over() -> None:
    """A client that was idle meets no frozen server; the sentinels tell it of the new one."""
    with started(Group) as group:
        async with RedisBackend(group.url()) as idle, RedisBackend(group.url()) as active:
            await idle.save("t", {"n": 1})
            old = group.primary()
            await asyncio.to_thread(old.pause)
            await asyncio.to_thread(group.await_failover, old)
            assert (await active.load("t")) == {"n": 1}
            await active.save("t", {"n": 2})
            old.resume()
            assert old.ask("ROLE")[0] == "master"
            assert await idle.load("t") == {"n": 2}
            await idle.save("t", {"n": 3})
            assert await active.load("t") == {"n": 3}


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_passwords_and_tls_of_servers_and_sentinels(kind: Any) -> None:
    tls = kind == "redis"
    with started(Group, kind, has_password=True, tls=tls, replicas=1, sentinels=1) as group:
        options: dict[str, Any] = {"ssl_ca_certs": group.nodes[0].tls.ca} if tls else {}
        url = group.url(1, **options)
        async with RedisBackend(url) as backend, open_store(url) as store:
            await backend.save("t", {"n": 1})
            await store.put(("a",), "k", {"n": 1})
        async with RedisBackend(group.url(1, **options | {"sentinel_password": "no"})) as backend:
            with pytest.raises(ConnectionFailedError, match="sentinel_username= and sentinel_pass"):
                await backend.load("t")
        async with RedisBackend(url.replace("://:", "://:x")) as backend:
            with pytest.raises(ConnectionFailedError, match="refuses the user or password"):
                await backend.load("t")
        for server in group.servers:
            server.ask("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~locus:*", *RIGHTS.split())
        for sentinel in group.sentinels:
            rights = SENTINEL_RIGHTS.split()
            sentinel.ask("ACL", "SETUSER", "app", "on", f">{PASSWORD}", *rights)
        url = f"{url}&sentinel_username=app".replace("://:", "://app:")
        async with RedisBackend(url) as backend:
            await backend.save("t", {"n": 2})
