"""A proxy between client and service that resets, hangs, cuts answers short and loses them."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from every_call import DIMENSION, Asked, recorded
from servers import CuttingProxy
from services import Service, parts
from test_http_transports import Canned, answer, serving
from tiers import LONG

from locus_store import ConnectionFailedError, HTTPBackend, http_checkpointer, open_saver
from locus_store.wire import bodies
from locus_store.wire.calls import may_repeat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.anyio

SAVES = 1_000 if LONG else 24
FAULTS = ["reset", "hang", "half", "lost"]
TIMEOUT = 0.3
RETRY_SECONDS = 30

PASSING = re.compile(r'"\d{4}-\d\d-\d\dT[^"]*"|"store":"[^"]*"|"(line|number)":\d+')
"""Times and identities, which differ between two services."""


def service_over_memory() -> Service:
    backend, store, messages = parts(dimension=DIMENSION)
    return Service(backend, store=store, messages=messages)


class Network:
    """A proxy in front of a service, whose next request has a fault."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.proxy = CuttingProxy(service.port)
        self.url = f"http://127.0.0.1:{self.proxy.port}"

    async def faulty(self, fault: str, request: asyncio.Task[Any]) -> None:
        """Do it to a request that was not sent yet."""
        asked = len(self._service.asked)
        if fault == "half":
            self.proxy.cut(0.5)
            return
        if fault == "lost":
            self.proxy.swallow_replies()
            while len(self._service.asked) == asked and not request.done():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        else:
            self.proxy.hold()
        await asyncio.sleep(TIMEOUT * 1.2 if fault == "hang" else 0.02)
        self.proxy.drop()
        self.proxy.release()


@pytest.fixture
def service() -> Iterator[Service]:
    made = service_over_memory()
    yield made
    made.stop()


@pytest.fixture
def network(service: Service) -> Iterator[Network]:
    made = Network(service)
    yield made
    made.proxy.close()


@asynccontextmanager
async def asking(url: str, seconds: float = 30) -> AsyncIterator[Any]:
    """Yield a function that sends a recorded call, and returns its answer as JSON."""
    async with HTTPBackend(url, timeout=seconds, retry_seconds=RETRY_SECONDS) as backend:

        async def ask(asked: Asked) -> str:
            result = await backend.service.ask(asked.call, asked.arguments)
            return PASSING.sub("", bodies.encode_json(result).decode())

        await backend.open()
        yield ask


async def wanted(calls: list[Asked]) -> list[str]:
    """Return the answers without any fault."""
    service = service_over_memory()
    async with asking(service.url) as ask:
        found = [await ask(it) for it in calls]
    service.stop()
    return found


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_call_gives_its_answer_or_raises(
    service: Service, network: Network, fault: str
) -> None:
    # A thread that is replaced has the times of the run that was recorded; memory has no audit.
    asked = [it for it in await recorded("said") if it.call.right != "audit"]
    calls = [it for it in asked if it.call.name != "replace_thread"]
    answers = await wanted(calls)
    faulty = 0
    async with asking(service.url) as plain, asking(network.url, TIMEOUT) as ask:
        for n, (it, answer) in enumerate(zip(calls, answers, strict=True)):
            if it.is_building or not (LONG or n % len(FAULTS) == FAULTS.index(fault)):
                assert await plain(it) == answer
                continue
            before = service.asked.count(it.call.path)
            request = asyncio.create_task(ask(it))
            await network.faulty(fault, request)
            faulty += 1
            repeats = may_repeat(it.call, it.arguments)
            try:
                found = await request
                if it.call.is_repeatable or not repeats:  # a second append is a second revision
                    assert found == answer, it.call.path
            except ConnectionFailedError:
                assert not repeats, it.call.path
                if service.asked.count(it.call.path) == before:
                    assert await plain(it) == answer, it.call.path
            if not repeats:
                assert service.asked.count(it.call.path) == before + 1, it.call.path
    assert faulty > 10


async def test_each_save_is_one_version_whatever_the_network_does(
    service: Service, network: Network
) -> None:
    said: list[str] = []
    async with HTTPBackend(network.url, timeout=TIMEOUT, retry_seconds=RETRY_SECONDS) as backend:
        for n in range(SAVES):
            said.append(f"{n} " + "x" * (n % 7 * 50))
            save = backend.save("t", {"said": said}, checkpoint_id=f"v{n}")
            request = asyncio.create_task(save)
            await network.faulty(FAULTS[n % len(FAULTS)], request)
            assert await request == f"v{n}"
    async with HTTPBackend(service.url) as backend:
        found = [it.checkpoint_id for it in await backend.history("t", limit=10_000)]
        assert found == [f"v{it}" for it in range(n, -1, -1)]
        for it in (0, n // 2, n):
            assert await backend.load("t", f"v{it}") == {"said": said[: it + 1]}


# --- an agent never begins an empty conversation because a service is down


async def failures(url: str) -> list[BaseException | Any]:
    """Return the outcomes of 100 loads, by each object that loads."""
    options = {"timeout": 0.2, "retry_seconds": 0.0}
    async with (
        HTTPBackend(url, **options) as backend,
        http_checkpointer(url, state_type=dict, **options) as checkpointer,
        open_saver(f"{url}?timeout=0.2&retry_seconds=0") as saver,
    ):
        by_position = (backend.load, checkpointer.load, checkpointer.exists)
        loads = [load(f"t{n}") for n in range(25) for load in by_position]
        loads += [saver.get(thread_id=f"t{n}") for n in range(25)]
        return await asyncio.gather(*loads, return_exceptions=True)


@pytest.mark.parametrize("status", ["503 Service Unavailable", "502 Bad Gateway", "404 Not Found"])
async def test_100_loads_of_a_service_that_fails_raise(status: str) -> None:
    async with serving(Canned(answer(b"{}", status))) as url:
        found = await failures(url)
    assert [type(it) for it in found] == [ConnectionFailedError] * 100


async def test_100_loads_of_a_service_that_does_not_answer_raise(network: Network) -> None:
    network.proxy.hold()
    found = await failures(network.url)
    assert [type(it) for it in found] == [ConnectionFailedError] * 100
