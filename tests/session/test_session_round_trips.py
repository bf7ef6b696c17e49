"""Round trips of a session's calls, to PostgreSQL and to Redis, counted on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import servers
from test_session import ALICE, said

from locus_store.session import Message, PgCheckpointer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("unhurried")]


@pytest.fixture
def database_proxy(migrated_database: str) -> Iterator[servers.CountingProxy]:
    proxy = servers.CountingProxy(urlsplit(migrated_database).port)
    yield proxy
    proxy.close()


@pytest.fixture
def cache_proxy(redis_url: str) -> Iterator[servers.CountingProxy]:
    if not redis_url.startswith("redis://127.0.0.1"):
        pytest.skip("the server that was named is not on this host")
    proxy = servers.CountingProxy(urlsplit(redis_url).port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("seconds", [0, 1000])
async def test_calls_take_few_round_trips(
    postgresql, migrated_database, database_proxy, cache_proxy, seconds
) -> None:
    name = urlsplit(migrated_database).path[1:]
    session = PgCheckpointer(
        database_proxy.url(postgresql, name),
        redis_url=f"redis://127.0.0.1:{cache_proxy.port}",
        cache_verify_seconds=seconds,
    )
    state = said(*(f"message {n}" for n in range(20)))
    messages = [Message.text_message(str(n)) for n in range(200)]
    is_strict = seconds == 0
    calls = {
        "put state": (lambda: session.aput_state(ALICE, state), 1 + is_strict, 1),
        "get state": (lambda: session.aget_state(ALICE), 1, 0),
        "get cached state": (lambda: session.aget_state_cache(ALICE), int(is_strict), 1),
        "put cached state": (lambda: session.aput_state_cache(ALICE, state), int(is_strict), 1),
        "put 200 messages": (lambda: session.aput_messages(ALICE, messages), 1 + is_strict, 0),
        "put 200 again": (lambda: session.aput_messages(ALICE, messages), 1 + is_strict, 0),
        "list messages": (lambda: session.alist_messages(ALICE, limit=50), 1 + is_strict, 0),
        "put checkpoint": (
            *(lambda: session.aput_checkpoint(ALICE, state, messages), 2 + 2 * is_strict, 1),
        ),
        "is stop requested": (lambda: session.ais_stop_requested(ALICE), 1, 0),
        "clear stop": (lambda: session.aclear_stop_request(ALICE), 1 + is_strict, 0),
        "get tool result": (lambda: session.aget_tool_result(ALICE, "none"), 1, 0),
        "put tool result": (lambda: session.aput_tool_result(ALICE, "c", {}), 1 + is_strict, 0),
        "get thread": (lambda: session.aget_thread(ALICE), 1, 0),
        "list threads": (lambda: session.alist_threads({"user_id": "alice"}, limit=3), 1, 0),
    }
    for _ in range(3):  # the first one connects and prepares statements
        for call, _, _ in calls.values():
            await call()
    found = {}
    for what, (call, _, _) in calls.items():
        database_proxy.trips = cache_proxy.trips = 0
        await call()
        found[what] = database_proxy.trips, cache_proxy.trips
    expected = {what: (trips, cached) for what, (_, trips, cached) in calls.items()}
    await session.arelease()
    assert found == expected


async def test_a_first_save_claims_its_thread_in_one_transaction(
    postgresql, migrated_database, database_proxy
) -> None:
    name = urlsplit(migrated_database).path[1:]
    session = PgCheckpointer(database_proxy.url(postgresql, name))
    found = []
    for n in range(4):  # the first ones connect and prepare statements
        database_proxy.trips = 0
        await session.aput_state({"thread_id": f"t{n}", "user_id": "alice"}, said("a"))
        found.append(database_proxy.trips)
    await session.arelease()
    assert found[-1] == 2, found


async def test_a_step_of_a_graph_takes_few_round_trips(
    postgresql, migrated_database, database_proxy, cache_proxy
) -> None:
    session = PgCheckpointer(
        database_proxy.url(postgresql, urlsplit(migrated_database).path[1:]),
        redis_url=f"redis://127.0.0.1:{cache_proxy.port}",
        cache_verify_seconds=1000,
    )
    state = said("a", "b")
    calls = {
        "checkpoint": (lambda: session.aput_checkpoint(ALICE, state, state.context), 2, 1),
        "working state": (lambda: session.aput_state_cache(ALICE, state), 0, 1),
        "state": (lambda: session.aget_state_cache(ALICE), 0, 1),
        "stop requested": (lambda: session.ais_stop_requested(ALICE), 1, 0),
    }
    found = {}
    for _ in range(3):  # the first one connects and prepares statements
        for what, (call, _, _) in calls.items():
            database_proxy.trips = cache_proxy.trips = 0
            await call()
            found[what] = database_proxy.trips, cache_proxy.trips
    await session.arelease()
    assert found == {what: (trips, cached) for what, (_, trips, cached) in calls.items()}
