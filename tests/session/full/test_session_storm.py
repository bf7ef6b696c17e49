"""Two processes on one database and one cache that is killed, frozen and restored meanwhile."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis_servers
import servers
from tiers import ALL, first_of
from workers import on_session
from workers.on_session import THREADS, Board, opened, spawning

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
OPERATIONS = 5000 if ALL else 250
"""Of each of two processes."""


@pytest.fixture
def cache() -> Iterator[redis_servers.Redis]:
    try:
        server = redis_servers.Redis("valkey")
    except servers.UnavailableError as error:
        servers.missing(error)
    yield server
    server.stop()


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def database_place(request) -> tuple[str, str]:
    name = "database_file" if request.param == "sqlite" else "migrated_database"
    return request.param, str(request.getfixturevalue(name))


def disturb(cache: redis_servers.Redis, processes: list[Any]) -> None:
    """Freeze, restore, wipe and kill the cache while the processes work."""
    rounds = 0
    while any(it.is_alive() for it in processes):
        time.sleep(0.2)
        client = cache.client()
        snapshot = {key: client.dump(key) for key in client.scan_iter()}
        time.sleep(0.3)
        for key, value in snapshot.items():
            if value is not None:
                client.restore(key, 0, value, replace=True)
        client.close()
        if rounds % 4 == 1:
            cache.pause()
            time.sleep(0.3)
            cache.resume()
        elif rounds % 4 == 2:
            cache.ask("FLUSHALL")
        elif rounds % 4 == 3:
            cache.kill()
            cache.start()
        rounds += 1


async def stormed(
    place: tuple[str, str, str, float], disturb: Any, operations: int = OPERATIONS
) -> int:
    """Let two processes work while ``disturb`` runs; check what they found and left.

    Returns:
        How many operations failed.
    """
    board, told = Board(), spawning.Queue()
    processes = [
        spawning.Process(target=on_session.run, args=(place, board, me, operations, told))
        for me in range(2)
    ]
    for it in processes:
        it.start()
    disturb(processes)
    results = [told.get(timeout=120) for _ in processes]
    for it in processes:
        it.join()
    assert [it.exitcode for it in processes] == [0, 0]
    assert max(it[1] for it in results) <= place[-1], "a read was too stale"
    session = opened(*place)
    for thread in range(THREADS):
        config = {"thread_id": f"t{thread}", "user_id": "u"}
        ids = [it.message_id for it in await session.alist_messages(config)]
        for me, *_, puts in results:
            assert [it for it in ids if it.startswith(f"{me}.")] == puts[thread]
        assert len(ids) == len(set(ids))
        state = await session.aget_state_cache(config)
        assert state.n >= board.newest[thread][0]
        assert len(await session.backend.history(f"t{thread}", limit=100_000)) == state.n
    await session.arelease()
    return sum(it[5] for it in results)


@pytest.mark.parametrize("seconds", [0.0, 0.5])
async def test_no_read_is_stale_and_no_message_is_lost(database_place, seconds, cache) -> None:
    place = (*database_place, cache.url(), seconds)
    assert await stormed(place, partial(disturb, cache)) == 0


@pytest.fixture
def database_server() -> Iterator[servers.PostgreSQL]:
    try:
        server = servers.PostgreSQL("18")
    except servers.UnavailableError as error:
        servers.missing(error)
    yield server
    server.stop()


async def test_a_database_that_is_killed_loses_nothing(database_server, cache) -> None:
    def kill(processes: list[Any]) -> None:
        for _ in range(3):
            time.sleep(0.5)
            assert any(it.is_alive() for it in processes)
            database_server.kill()
            database_server.start()

    place = ("postgresql", database_server.url(), cache.url(), 0.0)
    await opened(*place).asetup()
    await stormed(place, kill, operations=5000 if ALL else 800)
