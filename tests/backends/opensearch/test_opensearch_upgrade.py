"""``locus-store db`` on OpenSearch: an index of an older mapping, made by the test, is upgraded."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from locus_store import BackendError, SchemaError
from locus_store.backends.documents.protocol import ChangedError
from locus_store.backends.opensearch import items, upgrading
from locus_store.backends.opensearch.index import NEWEST
from locus_store.backends.opensearch.item_index import Write
from locus_store.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indexes import TestIndex

    from locus_store.backends.opensearch import OpenSearchStore

pytestmark = pytest.mark.anyio

NS = ("memory",)
ITEMS = items.ITEMS
CURRENT = 3
OLDER = {
    "name": {"type": "keyword"},
    "modified_at": {"type": "date", "format": "epoch_millis"},
    "content": {"type": "binary"},
}


@pytest.fixture
def place(worker_index: TestIndex) -> Iterator[TestIndex]:
    """Indexes of the test's own, which are removed."""
    made = type(worker_index)(worker_index.server, f"{worker_index.name}-upgraded")
    yield made
    for it in made.ask("GET", f"/{made.name}*?expand_wildcards=all"):
        made.ask("DELETE", f"/{it}")


@pytest.fixture(autouse=True)
def newer_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with another mapping of items."""
    monkeypatch.setattr(items, "ITEMS", replace(ITEMS, version=2))


def older(place: TestIndex) -> Any:
    """Return a backend of the release whose mapping has version 1."""
    return of_release(place, version=1, properties=OLDER, settings={})


def of_release(place: TestIndex, **layout: Any) -> Any:
    """Return a backend of a release with another layout."""
    backend = place.backend(retry_seconds=60)
    backend.index.layout = replace(backend.index.layout, **layout)
    return backend


def older_store(place: TestIndex) -> OpenSearchStore:
    store = place.store()
    store.index.layout = ITEMS
    return store


def db(place: TestIndex, command: str, *options: str) -> Any:
    """Run the command in a thread without an event loop."""
    words = ["db", *command.split(), "--url", place.url(), *options]
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(CliRunner().invoke, app, words).result()


async def saved(place: TestIndex, count: int) -> None:
    backend, store = older(place), older_store(place)
    for n in range(count):
        await backend.write_state(f"t{n}", {"n": n}, checkpoint_id="v")
    await store.put_batch([(NS, f"k{n}", n) for n in range(count)])
    await backend.close()
    await store.close()


def behind(place: TestIndex) -> list[str]:
    """Return the indexes that there are."""
    return sorted(place.ask("GET", f"/{place.name}*"))


async def test_an_older_index_is_refused_until_it_is_upgraded(place: TestIndex) -> None:
    await saved(place, 5)
    async with place.checkpointer(state_type=dict) as early:
        with pytest.raises(SchemaError, match=r"version 1 .* run: locus-store db upgrade"):
            await early.load("t1")
    told = json.loads(db(place, "check", "--json").stdout)
    assert (told["state"], told["revision"], told["usable"]) == ("behind", "1", False)
    assert db(place, "current").stdout == "1\n"
    assert db(place, "upgrade").stdout == f"schema revision {CURRENT}\n"
    assert behind(place) == [f"{place.name}-000002", f"{place.name}-store-000002"]
    async with place.checkpointer(state_type=dict) as checkpointer, place.store() as store:
        assert [await checkpointer.load(f"t{n}") for n in range(5)] == [{"n": n} for n in range(5)]
        await checkpointer.save({"n": 6}, "t6")
        assert len(await checkpointer.list_threads()) == 6
        assert [it.value for it in await store.list(NS)] == [*range(5)]
        assert await store.put(NS, "k1", "new") == 2
    assert db(place, "check").exit_code == 0
    assert db(place, "upgrade").stdout == f"schema revision {CURRENT}\n"
    assert behind(place) == [f"{place.name}-000002", f"{place.name}-store-000002"]


async def test_an_index_of_version_2_is_sorted_by_an_upgrade(place: TestIndex) -> None:
    async with of_release(place, version=2, settings={}) as backend:
        for n in range(20):
            await backend.write_state(f"t{n}", {"n": n}, checkpoint_id="v", metadata={"k": 1})
    found = place.ask("GET", f"/{place.name}")
    assert "sort" not in found[f"{place.name}-000001"]["settings"]["index"]
    assert db(place, "upgrade").stdout == f"schema revision {CURRENT}\n"
    newest = {"field": [*NEWEST], "order": ["desc"] * len(NEWEST)}
    found = place.ask("GET", f"/{place.name}")
    assert found[f"{place.name}-000002"]["settings"]["index"]["sort"] == newest
    async with place.checkpointer(state_type=dict) as checkpointer:
        await checkpointer.save({"n": 20}, "t20", metadata={"k": 1})
        page = await checkpointer.query_by_metadata("k", 1, limit=3)
        assert [it["thread_id"] for it in page] == ["t20", "t19", "t18"]


async def test_an_upgrade_creates_what_is_missing(place: TestIndex) -> None:
    assert json.loads(db(place, "check", "--json").stdout)["state"] == "missing"
    assert db(place, "current").stdout == "none\n"
    assert db(place, "upgrade").exit_code == 0
    assert behind(place) == [f"{place.name}-000001"]


async def test_writers_and_readers_of_the_old_release_work_through_an_upgrade(
    place: TestIndex,
) -> None:
    await saved(place, 60)
    backend, store = older(place), older_store(place)
    done, acknowledged = asyncio.Event(), dict[str, int]()

    async def write(number: int) -> None:
        n = 0
        while not done.is_set() or n < 3:
            await backend.write_state(f"w{number}", {"n": n}, checkpoint_id=f"v{n}")
            acknowledged[f"w{number}"] = n
            await store.put(NS, f"w{number}", n)
            n += 1

    async def read() -> None:
        while not done.is_set():
            assert (await backend.fetch("t7")) is not None
            assert await store.get(NS, "k7") == 7

    async def upgrade() -> None:
        try:
            made = await asyncio.to_thread(db, place, "upgrade")
            assert made.exit_code == 0, made.output
            await asyncio.sleep(0.3)
        finally:
            done.set()

    await asyncio.gather(write(0), write(1), read(), upgrade())
    async with place.checkpointer(state_type=dict) as checkpointer, place.store() as kept:
        for thread, n in acknowledged.items():
            assert await checkpointer.load(thread) == {"n": n}
            assert len(await checkpointer.list_checkpoints(thread, limit=n + 2)) == n + 1
            assert (await kept.get_item(NS, thread)).version == n + 1
    await backend.close()
    await store.close()


@pytest.mark.parametrize("step", ["_create", "_copy", "_move"])
async def test_an_interrupted_upgrade_is_resumed(
    place: TestIndex, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await saved(place, 20)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    backend = place.backend()
    with monkeypatch.context() as patched:
        patched.setattr(upgrading, step, fail)
        with pytest.raises(KeyboardInterrupt):
            upgrading.upgrade(backend.index)
    old = older(place)
    old.index.access = replace(old.index.access, retry_seconds=0.1)
    assert (await old.fetch("t1")) is not None
    with pytest.raises(BackendError, match="refuses writes while it is upgraded"):
        await old.write_state("t1", {"n": 9})
    assert upgrading.upgrade(backend.index) == CURRENT
    await old.write_state("t1", {"n": 9})
    found = await backend.fetch("t1")
    assert found is not None
    await old.close()
    await backend.close()


async def test_an_upgrade_waits_for_the_task_of_another_one(place: TestIndex) -> None:
    """A copy whose program has ended may still run on the server."""
    await saved(place, 60)
    backend = place.backend()
    old, new = f"{place.name}-000001", f"{place.name}-000002"
    body = {"source": {"index": old, "size": 10}, "dest": {"index": new, "op_type": "create"}}
    backend.index.call("PUT", f"/{old}/_block/write")
    upgrading._create(backend.index, new, backend.index.call("GET", f"/{old}")[old])
    place.ask("POST", "/_reindex?wait_for_completion=false&requests_per_second=40", body)
    assert upgrading._tasks(backend.index)
    assert upgrading.upgrade(backend.index) == CURRENT
    assert upgrading._tasks(backend.index) == []
    await backend.close()


async def test_a_write_on_the_condition_of_the_old_index_changes_nothing(place: TestIndex) -> None:
    """In the new index another version of the document may have the same sequence number."""
    await saved(place, 1)
    store, key = older_store(place), items.document_id((NS, "k0"))
    [stale] = store.index.read([key])
    assert stale
    await store.put(NS, "k0", "newer")
    upgrading.upgrade(place.store().index)
    [there] = store.index.read([key])
    assert there
    for tag in (stale.tag, replace(there.tag, index=stale.tag.index)):
        assert store.index.write([Write(key, tag, stale.source)]) == [None]
    assert await store.get(NS, "k0") == "newer"
    backend = older(place)
    await backend.write_state("t0", {"n": 1}, checkpoint_id="w")
    documents, found = backend.index, backend.index.get("v1/heads/t0")
    upgrading.upgrade(place.backend().index)
    with pytest.raises(ChangedError):
        documents.put("v1/heads/t0", b"", tag=found.tag)
    await store.close()
    await backend.close()


async def test_a_foreign_or_newer_index_is_left_alone(place: TestIndex) -> None:
    for meta, state in (({}, "foreign"), ({"locus_store": 99}, "too new")):
        name = f"{place.name}-000001"
        body = {"aliases": {place.name: {}}, "mappings": {"_meta": meta}}
        place.ask("PUT", f"/{name}", body)
        assert json.loads(db(place, "check", "--json").stdout)["state"] == state
        assert isinstance(db(place, "upgrade").exception, SchemaError)
        assert behind(place) == [name]
        place.ask("DELETE", f"/{name}")


async def test_a_release_works_on_a_newer_index_that_allows_it(place: TestIndex) -> None:
    await saved(place, 1)
    for oldest, state in ((1, "newer"), (2, "too new")):
        client = place.backend().index
        client.layout = replace(
            client.layout, version=client.layout.version + oldest, oldest=oldest
        )
        upgrading.upgrade(client)
        backend = older(place)
        assert upgrading.check(backend.index).state == state
        await backend.close()


def test_options_that_an_index_does_not_have_are_refused(place: TestIndex) -> None:
    assert "leave out --prefix" in str(db(place, "upgrade", "--prefix", "x_").exception)
    assert "'head' only" in str(db(place, "upgrade 0001").exception)
    assert "restore a snapshot" in str(db(place, "downgrade base --yes").exception)
