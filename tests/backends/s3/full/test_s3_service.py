"""A real S3 service: conditions, deletions, races, killed writers, and clients of one process."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from servers import CuttingProxy
from test_store_kills import kill_in_the_middle
from tiers import ALL

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    IntegrityError,
    UnsupportedError,
    open_checkpointer,
    open_store,
)
from locus_store.backends.documents.objects import HEADS
from locus_store.backends.documents.protocol import ChangedError
from locus_store.backends.s3 import client as s3_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3_servers import S3Place

pytestmark = pytest.mark.anyio

RACES = 200 if ALL else 20
PUTS = 10_000 if ALL else 200
NS = ("m",)


@pytest.fixture
def unknown_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No service was asked for its conditions."""
    monkeypatch.setattr(s3_client, "_conditional_deletions", {})
    return iter(())


def client_without(place: S3Place, header: str, operation: str) -> Any:
    """Return a client whose requests lose a header, as a service that ignores it."""
    client = place.objects().access.make_client()

    def lose(request: Any, **_: Any) -> None:
        del request.headers[header]

    client.meta.events.register(f"before-sign.s3.{operation}", lose)
    return client


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
async def test_a_service_that_ignores_conditions_of_puts_is_refused(
    s3_place: S3Place, unknown_service: None, header: str
) -> None:
    backend = s3_place.backend(client=client_without(s3_place, header, "PutObject"))
    with pytest.raises(UnsupportedError, match="conditional writes"):
        await backend.save("t", {"n": 1})
    assert list(backend.objects.list(s3_place.prefix)) == []
    await backend.close()


async def test_where_deletions_have_no_condition_an_empty_object_stays(
    s3_place: S3Place, unknown_service: None
) -> None:
    backend = s3_place.backend(client=client_without(s3_place, "If-Match", "DeleteObject"))
    for n in range(3):
        await backend.save("t", {"n": n})
        assert await backend.load("t") == {"n": n}
        assert await backend.delete("t") is True
        assert await backend.delete("t") is False
        assert await backend.load("t") is None
        assert await backend.list_threads() == await backend.scan() == []
        assert len(list(backend.objects.list(s3_place.prefix + HEADS))) == 1
    facts = {it.name: it.verdict for it in await backend.facts()}
    assert facts["conditions"] == "warn"
    await backend.close()


async def test_a_deleted_thread_leaves_no_object(s3_place: S3Place) -> None:
    async with s3_place.checkpointer(state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        assert await checkpointer.delete("t") is True
        objects = checkpointer.backend.objects
        assert list(objects.list(s3_place.prefix + HEADS)) == []
        facts = {it.name: it.verdict for it in await checkpointer.backend.facts()}
        assert (facts["conditions"], facts["clock"]) == ("ok", "ok")


async def test_a_missing_bucket_is_told(s3_place: S3Place) -> None:
    backend = s3_place.backend(bucket_name="no-such-bucket")
    with pytest.raises(ConnectionError, match="create the bucket"):
        await backend.load("t")
    await backend.close()


def test_of_racing_writers_one_wins(s3_place: S3Place) -> None:
    """Creations and replacements, by clients of their own."""
    racers = [s3_place.objects() for _ in range(4)]
    won: list[tuple[int, Any]] = []

    def put(objects: Any, n: int, tag: Any) -> None:
        with suppress(ChangedError):
            won.append((n, objects.put(f"{s3_place.prefix}race{n // 2}", b"%d" % n, tag=tag)))

    for n in range(RACES):
        tag = won[-1][1] if n % 2 else None
        threads = [threading.Thread(target=put, args=(it, n, tag)) for it in racers]
        for it in threads:
            it.start()
        for it in threads:
            it.join()
        assert [number for number, _ in won] == [*range(n + 1)]
    for it in racers:
        it.close()


def test_no_acknowledged_conditional_put_is_lost(s3_place: S3Place) -> None:
    """Several clients increment one number; each acknowledged step is there."""
    name = s3_place.prefix + "number"
    racers = [s3_place.objects() for _ in range(4)]
    racers[0].put(name, b"0", tag=None)
    acknowledged, sent, lock = list[int](), iter(range(PUTS)), threading.Lock()

    def count(objects: Any) -> None:
        while True:
            with lock:
                if next(sent, None) is None:
                    return
            found = objects.get(name)
            number = int(found.content) + 1
            try:
                objects.put(name, b"%d" % number, tag=found.tag)
            except ChangedError:
                continue
            acknowledged.append(number)

    threads = [threading.Thread(target=count, args=(it,)) for it in racers]
    for it in threads:
        it.start()
    for it in threads:
        it.join()
    assert sorted(acknowledged) == [*range(1, len(acknowledged) + 1)]
    assert int(racers[0].get(name).content) == len(acknowledged)
    print(f"{PUTS} conditional puts, {len(acknowledged)} acknowledged, 0 lost")
    for it in racers:
        it.close()


async def test_racing_puts_of_a_store_lose_no_step(s3_place: S3Place) -> None:
    stores = [s3_place.store() for _ in range(3)]

    async def count(store: Any) -> None:
        done = 0
        while done < 10:
            item = await store.get_item(NS, "n")
            value, version = (item.value, item.version) if item else (0, 0)
            try:
                await store.put(NS, "n", value + 1, expected_version=version)
                done += 1
            except ConflictError:
                pass

    await asyncio.gather(*map(count, stores))
    item = await stores[0].get_item(NS, "n")
    assert (item.value, item.version) == (30, 30)
    for it in stores:
        await it.close()


@pytest.mark.posix
def test_killed_writers_of_a_bucket(s3_place: S3Place) -> None:
    assert kill_in_the_middle(s3_place.url()) > 0


@pytest.mark.posix
def test_a_forked_child_has_clients_of_its_own(s3_place: S3Place) -> None:
    backend = s3_place.backend()
    asyncio.run(backend.save("t", {"n": 0}))
    pid = os.fork()
    if pid == 0:
        asyncio.run(backend.save("child", {"n": 1}))
        os._exit(0)
    asyncio.run(backend.save("t", {"n": 2}))
    assert os.waitpid(pid, 0)[1] == 0
    assert asyncio.run(backend.load("child")) == {"n": 1}
    asyncio.run(backend.close())


async def test_a_url_opens_threads_and_items_of_one_prefix(s3_place: S3Place) -> None:
    async with open_checkpointer(s3_place.url(), state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "a/b")
        async with open_store(s3_place.url()) as store:
            await store.put(NS, "k", 1)
        assert await checkpointer.list_threads() == ["a/b"]
        assert await checkpointer.backend.damage() == []


async def test_a_put_that_is_cut_off_behind_its_headers_leaves_the_thread(
    s3_place: S3Place,
) -> None:
    proxy = CuttingProxy(int(s3_place.service.url.rpartition(":")[2]))
    options = {"endpoint_url": f"http://127.0.0.1:{proxy.port}", "max_attempts": 1}
    try:
        async with s3_place.checkpointer(state_type=dict, **options) as cut:
            await cut.save({"n": 1}, "t", "first")
            proxy.cuts_body = True
            with suppress(ConnectionFailedError):
                await cut.save({"n": 2}, "t", "second")
            assert proxy.cuts_body is False
        async with s3_place.checkpointer(state_type=dict) as saver:
            assert await saver.load("t") in ({"n": 1}, {"n": 2})
            assert await saver.load("t", "first") == {"n": 1}
    finally:
        proxy.close()


async def test_an_object_that_a_service_emptied_is_an_error_and_no_missing_thread(
    s3_place: S3Place,
) -> None:
    async with s3_place.checkpointer(state_type=dict) as saver:
        await saver.save({"n": 1}, "t")
        client = s3_place.objects().access.make_client()
        client.put_object(Bucket=s3_place.service.bucket, Key=f"{s3_place.prefix}{HEADS}t")
        for call in (saver.load("t"), saver.save({"n": 2}, "t")):
            with pytest.raises(IntegrityError, match="has 0 bytes, fewer than any"):
                await call
