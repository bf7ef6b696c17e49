"""A client of Redis that the caller hands in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anyio import to_thread
from lazily import TESTS_RUN

from locus_store import InvalidArgumentError

if TESTS_RUN:
    import redis.asyncio

    from locus_store.backends.redis import redis_checkpointer


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["Redis", pytest.param("RedisCluster", marks=pytest.mark.full)])
async def test_a_second_loop_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "Redis":
        url = request.getfixturevalue("redis_url")
    else:
        url = request.getfixturevalue("redis_cluster").url().replace("+cluster", "")
    client: Any = getattr(redis.asyncio, kind)
    async with client.from_url(url) as given:
        checkpointer = redis_checkpointer(client=given, state_type=dict)
        await checkpointer.save({"n": 1}, "t")
        with pytest.raises(InvalidArgumentError, match="the event loop that it was first used in"):
            await to_thread.run_sync(lambda: asyncio.run(checkpointer.load("t")))
        await checkpointer.close()


@pytest.mark.full
@pytest.mark.anyio
async def test_first_calls_are_repeated_whose_connections_the_client_itself_closes(
    redis_cluster: Any,
) -> None:
    """redis-py closes all connections to a cluster after five answers ``MOVED``."""
    url = redis_cluster.url().replace("+cluster", "")
    for step in range(15):
        async with redis.asyncio.RedisCluster.from_url(url) as given:
            await given.initialize()
            checkpointer = redis_checkpointer(client=given, state_type=dict)
            names = [f"{step}-{n}" for n in range(8)]
            first = [asyncio.create_task(checkpointer.save({"n": step}, it)) for it in names]
            for _ in range(step):
                await asyncio.sleep(0)
            await given.aclose()
            await asyncio.gather(*first)
            assert [await checkpointer.load(it) for it in names] == [{"n": step}] * 8
