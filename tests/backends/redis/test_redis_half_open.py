"""Connections that a firewall has forgotten, to one server and to a cluster."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import redis_clusters
import servers
from lazily import TESTS_RUN
from tiers import first_of

from locus_store import ConnectionFailedError
from locus_store.types import PendingWrite

if TESTS_RUN:
    from redis.asyncio import Redis

    from locus_store import redis_checkpointer
    from locus_store.backends.redis import connections

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

LIMIT_SECONDS = 20.0
"""Less than the 30 s for which a call waits for an answer."""

NAMES = [f"t{n}" for n in range(12)]
"""Threads on each master of the cluster."""


@contextmanager
def one_server(request: Any) -> Iterator[tuple[str, list[servers.Proxy]]]:
    server, url = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_url")
    with closing(servers.Proxy(server.port)) as proxy:
        yield url.replace(f":{server.port}", f":{proxy.port}"), [proxy]


@contextmanager
def a_cluster(request: Any) -> Iterator[tuple[str, list[servers.Proxy]]]:
    del request
    with ExitStack() as stack:
        cluster = redis_clusters.Cluster(is_proxied=True)
        stack.callback(cluster.stop)
        yield cluster.url(), [node.doors[0] for node in cluster.nodes]


@pytest.fixture(params=first_of(one_server, a_cluster))
def place(request: Any) -> Iterator[tuple[str, list[servers.Proxy]]]:
    with request.param(request) as found:
        yield found


async def be_idle(checkpointer: Any) -> None:
    """Make the client's connections look as if they had been idle for long."""
    home = await checkpointer.backend.connections.get()
    pools = home.client.get_nodes() if home.is_cluster else [home.client.connection_pool]
    for pool in pools:
        for it in pool._free if home.is_cluster else pool._available_connections:
            it.next_health_check = 0.0


async def test_calls_on_forgotten_connections_are_done_again(
    place: tuple[str, list[servers.Proxy]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends believe that the connections live, and new ones are let through."""
    monkeypatch.setattr(connections, "SILENT_SECONDS", 1.0)
    url, proxies = place

    async with redis_checkpointer(url, state_type=dict, timeout_seconds=30) as checkpointer:

        async def put_writes(thread_id: str) -> None:
            written = [PendingWrite("task", 0, "channel", "text", b"1")]
            await checkpointer.backend.put_writes(thread_id, "v", written)

        async def save(thread_id: str) -> None:
            await checkpointer.save({"n": 2}, thread_id)

        await asyncio.gather(*(checkpointer.save({"n": 1}, it, "v") for it in NAMES))
        for call in (checkpointer.load, save, put_writes, checkpointer.delete):
            await be_idle(checkpointer)
            for it in proxies:
                it.freeze()
            async with asyncio.timeout(LIMIT_SECONDS):
                await asyncio.gather(*map(call, NAMES))
        assert await checkpointer.list_threads() == []


CLOSED = compile("def write(ready=None):\n    ready()", "selector_events.py", "exec")


@pytest.mark.parametrize("module", ["asyncio.selector_events", "another.module"])
async def test_a_write_to_a_closed_transport_is_a_lost_connection(
    module: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python 3.12 and later raise it."""
    names: dict[str, Any] = {"__name__": module}
    exec(CLOSED, names)  # noqa: S102
    failed: list[str] = []
    execute = Redis.execute_command

    async def once(self: Any, *args: Any, **options: Any) -> Any:
        if str(args[0]).startswith("EVAL") and not failed:
            failed.append("EVAL")
            names["write"]()
        return await execute(self, *args, **options)

    async with redis_checkpointer(url=redis_url, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        monkeypatch.setattr(Redis, "execute_command", once)
        if module != "asyncio.selector_events":
            with pytest.raises(TypeError):
                await checkpointer.save({"n": 2}, "t")
            return
        await checkpointer.save({"n": 2}, "t")
        assert (failed, await checkpointer.load("t")) == (["EVAL"], {"n": 2})


async def test_no_attempt_is_longer_than_a_timeout(
    redis_server: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SILENT_SECONDS", 2 * LIMIT_SECONDS)
    with closing(servers.Proxy(redis_server.port)) as proxy:
        url = redis_url.replace(f":{redis_server.port}", f":{proxy.port}")
        options: dict[str, Any] = {"timeout_seconds": 0.05, "retry_seconds": 0}
        async with redis_checkpointer(url, state_type=dict, **options) as checkpointer:
            await checkpointer.load("t")
            proxy.hold()
            async with asyncio.timeout(LIMIT_SECONDS):
                with pytest.raises(ConnectionFailedError):
                    await checkpointer.load("t")
