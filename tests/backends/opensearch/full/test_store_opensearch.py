"""The store in OpenSearch held to the contract, and what only such a server can break."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tiers import LONG
from watched import Watched

from locus_store import (
    IntegrityError,
    InvalidArgumentError,
    OpenSearchStore,
    SchemaError,
    open_store,
)
from locus_store.backends.opensearch import items
from locus_store.backends.opensearch.items import ItemBatches, Replacement
from locus_store.open import Storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from indexes import TestIndex

pytestmark = pytest.mark.anyio

NS = ("memory", "u42")
KEYS = ("a", "b", "c")
LOST = 1000 if LONG else 40


@pytest.fixture
async def store(index: TestIndex) -> AsyncIterator[OpenSearchStore]:
    async with index.store() as made:
        yield made


# --- batches


class Killed(BaseException):
    pass


async def die_in_a_batch(
    store: OpenSearchStore, monkeypatch: pytest.MonkeyPatch, step: str, value: str
) -> None:
    """Put a batch whose writer ends at a step and cleans nothing up."""

    def die(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ItemBatches, step, die)
        with pytest.raises(Killed):
            await store.put_batch([(NS, it, value) for it in KEYS])


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "LEASE_SECONDS", 0.05)


@pytest.mark.usefixtures("short_lease")
async def test_a_batch_that_was_not_committed_is_as_if_it_never_was(
    store: OpenSearchStore, index: TestIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put(NS, "a", "old")
    await die_in_a_batch(store, monkeypatch, "_commit", "new")
    names = [(NS, it) for it in KEYS]
    assert await store.get_batch(names) == {(NS, "a"): "old"}
    assert [(it.key, it.value) for it in await store.search(())] == [("a", "old")]
    assert await store.put(NS, "b", "later") == 1
    assert await store.expire() == 0
    assert await store.get_batch(names) == {(NS, "a"): "old", (NS, "b"): "later"}
    assert fields_of(index, "batch") == []


@pytest.mark.parametrize("reader", ["get", "search", "list", "put", "clear"])
async def test_a_committed_batch_is_finished_by_others(
    store: OpenSearchStore, index: TestIndex, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    await store.put(NS, "a", "old")
    with monkeypatch.context() as patched:
        patched.setattr(store.index, "write", dying_after_the_decision(store.index.write))
        with pytest.raises(Killed):
            await store.put_batch([(NS, it, "new") for it in KEYS])
    index.refresh_all()
    if reader == "get":
        assert await store.get_batch([(NS, it) for it in KEYS]) == {(NS, it): "new" for it in KEYS}
    elif reader in {"search", "list"}:
        found = await (store.search(()) if reader == "search" else store.list(NS))
        assert {it.key: it.value for it in found} == dict.fromkeys(KEYS, "new")
    elif reader == "put":
        assert await store.put(NS, "a", "newer") == 3
    else:
        assert await store.clear_namespace(NS) == 3
        assert await store.get_batch([(NS, it) for it in KEYS]) == {}


def dying_after_the_decision(write: Any) -> Any:
    def run(writes: Any, **options: Any) -> Any:
        answers = write(writes, **options)
        if any(b'"state"' in it.content for it in writes):
            raise Killed
        return answers

    return run


async def test_a_writer_that_was_taken_for_dead_writes_again(
    store: OpenSearchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer decides against the batch before its own decision."""
    commits, aborted = ItemBatches._commit, []

    def late(self: ItemBatches, batch: str, ids: Any) -> bool:
        if not aborted:
            aborted.append(batch)
            self._index.write([items._make_decision(batch, items.ABORTED, ())])
        return commits(self, batch, ids)

    monkeypatch.setattr(ItemBatches, "_commit", late)
    assert await store.put_batch([(NS, it, 1) for it in KEYS]) == [1, 1, 1]
    assert len(aborted) == 1
    assert [it.value for it in await store.list(NS)] == [1, 1, 1]


async def test_writers_of_two_objects_wait_for_each_others_batches(index: TestIndex) -> None:
    async with index.store() as one, index.store() as two:

        async def write(store: OpenSearchStore) -> None:
            for n in range(6):
                await store.put_batch([(NS, it, n) for it in KEYS])
                await store.put(NS, "a", n)

        await asyncio.gather(write(one), write(two))
        assert [it.version for it in await one.list(NS)] == [24, 12, 12]


def test_a_batch_that_meets_a_changed_document_leaves_nothing(index: TestIndex) -> None:
    store = index.store()
    made = ItemBatches(store.index)
    sources = {it: {"namespace": "", "key": it, "updated": 1, "kept": {}} for it in KEYS}
    assert made.write([Replacement("1", None, sources["a"])])
    stale = [Replacement("0", None, sources["b"]), Replacement("1", None, sources["c"])]
    assert not made.write(stale)
    assert [it and it.source["key"] for it in store.index.read(["0", "1"])] == [None, "a"]
    store.index.close()


def fields_of(index: TestIndex, field: str) -> list[Any]:
    index.refresh_all()
    found = index.ask("POST", f"/{index.name}-store/_search", {"size": 100})["hits"]["hits"]
    return [it["_source"][field] for it in found if field in it["_source"]]


# --- lost replies


async def test_a_put_whose_reply_is_lost_counts_once(index: TestIndex) -> None:
    watched = Watched(index)
    async with OpenSearchStore(client=watched, index_name=index.name, refresh="wait") as store:
        await store.put(NS, "other", 0)
        for n in range(1, LOST + 1):
            watched.loses_after("/_bulk")
            assert await store.put(NS, "k", n, expected_version=n - 1) == n
            assert not watched.loses
        watched.loses_after("/_bulk")
        assert await store.delete(NS, "k") is True
        assert await store.delete(NS, "k") is False
        for n in range(10):
            watched.loses_after("/_bulk", skip=n % 4)
            assert await store.put_batch([(NS, it, n) for it in KEYS]) == [n + 1] * 3
    watched.real.close()


async def test_the_requests_of_calls(index: TestIndex) -> None:
    watched = Watched(index)
    async with OpenSearchStore(client=watched, index_name=index.name, refresh="wait") as store:
        await store.put(NS, "k", 0)
        watched.counted()
        await store.get(NS, "k")
        assert watched.counted() == ["POST _mget"]
        await store.put(NS, "k", 1)
        assert watched.counted() == ["POST _mget", "POST _bulk"]
        await store.put_batch([(NS, it, 1) for it in KEYS])
        assert watched.counted() == ["POST _mget", *["POST _bulk"] * 3, "POST _mget", "POST _bulk"]
        await store.get_batch([(NS, it) for it in KEYS])
        assert watched.counted() == ["POST _mget"] * 2
        await store.search(NS)
        assert watched.counted() == ["POST _search"]
        await store.clear_namespace(("none",))
        watched.counted()
        assert await store.delete(NS, "none") is False
        assert watched.counted() == ["POST _mget"]
    watched.real.close()


# --- the index


async def test_items_lie_beside_the_threads(index: TestIndex) -> None:
    async with index.checkpointer(state_type=dict) as threads, index.store() as store:
        await threads.save({"n": 1}, "t")
        await store.put(NS, "k", 1)
        assert await threads.list_threads() == ["t"]
        assert await store.get(NS, "k") == 1
    made = index.ask("GET", f"/{index.name}-store")[f"{index.name}-store-000001"]["mappings"]
    assert (made["_meta"], made["dynamic"]) == (
        {"locus_store_items": 1},
        "strict",
    )
    async with OpenSearchStore(
        **index.server.options(), index_name=f"{index.name}-store"[:-6]
    ) as again:
        assert await again.get(NS, "k") == 1


async def test_the_threads_index_is_not_taken_for_a_store(index: TestIndex) -> None:
    name = f"{index.name}-wrong"
    async with index.checkpointer(index_name=f"{name}-store", state_type=dict) as threads:
        await threads.save({"n": 1}, "t")
    try:
        async with index.checkpointer(index_name=f"{name}-store", state_type=dict) as threads:
            store = index.store(index_name=name)
            for call in (store.get(NS, "k"), store.put(NS, "k", 1)):
                with pytest.raises(SchemaError, match="was not created by locus-store"):
                    await call
            await store.close()
    finally:
        index.ask("DELETE", f"/{name}-store-000001")


async def test_embeddings_of_another_dimension_are_refused(index: TestIndex) -> None:
    async with index.store() as store:
        await store.put_with_embedding(NS, "k", 1, [1.0, 0.0, 0.0])
        late = index.store(dimension=4)
        with pytest.raises(SchemaError, match="embeddings of 3 numbers, not 4"):
            await late.setup()
        with pytest.raises(SchemaError, match="dimension=3"):
            await late.put_with_embedding(NS, "l", 1, [1.0, 0.0, 0.0, 0.0])
        await late.close()
        assert await store.list_keys(NS) == ["k"]


async def test_an_item_that_was_changed_by_another_program_is_told(
    store: OpenSearchStore, index: TestIndex
) -> None:
    await store.put(NS, "k", 1)
    path = f"/{index.name}-store/_update/{items.make_document_id((NS, 'k'))}"
    index.ask("POST", path, {"doc": {"kept": {"content": "AgAK"}}})
    with pytest.raises(IntegrityError, match=r"'k' in index .* not as it was written"):
        await store.get(NS, "k")
    assert await store.put(NS, "k", 2) == 2
    assert await store.get(NS, "k") == 2


async def test_a_store_is_opened_by_the_url_of_a_checkpointer(index: TestIndex) -> None:
    url = f"{index.url()}&ttl_seconds=60"
    async with open_store(url, dimension=3) as store:
        assert isinstance(store, OpenSearchStore)
        await store.put_with_embedding(NS, "k", 1, [1.0, 0.0, 0.0])
        assert (await store.search(()))[0].expires_at is None
        assert repr(store).startswith("OpenSearchStore(")
        assert store.index.access["refresh"] == "wait"


async def test_a_store_beside_a_backend_uses_its_index(index: TestIndex) -> None:
    """So do ``serve`` and ``inspect``."""
    backend = index.backend(max_state_bytes=5000, pool_size=3)
    async with Storage(backend).store(dimension=3) as store:
        await store.put(NS, "k", 1)
        assert store.index.access == backend.index.access
        assert store.max_state_bytes == 5000
    async with index.store() as other:
        assert await other.get(NS, "k") == 1
    for options in ({"hosts": "h"}, {"index_name": "other"}, {"pool_size": 2}):
        with pytest.raises(InvalidArgumentError, match="give backend= alone"):
            OpenSearchStore(backend=backend, **options)
    with pytest.raises(InvalidArgumentError, match="must be of class OpenSearchBackend"):
        OpenSearchStore(backend=store)
    await backend.close()


async def test_a_store_takes_the_url_of_a_checkpointer_with_a_language(index: TestIndex) -> None:
    async with open_store(f"{index.url()}&language=german", dimension=3) as store:
        await store.put(NS, "k", 1)
        assert await store.get(NS, "k") == 1


async def test_own_puts_are_read_at_once_without_a_wait(index: TestIndex) -> None:
    async with index.store(refresh="interval") as one, index.store() as two:
        for n in range(10):
            await one.put(NS, "k", n)
            assert await two.get(NS, "k") == n


async def test_pages_are_of_one_view(store: OpenSearchStore) -> None:
    """A listing of several pages neither repeats nor loses an item that moves meanwhile."""
    await store.put_batch([(NS, f"{n:03}", n, {"n": n % 3}) for n in range(450)])
    found = await store.search((), limit=1000)
    assert [it.value for it in found] == [*range(449, -1, -1)]
    few = await store.search((), metadata_filter={"n": 0}, limit=200, offset=100)
    assert [it.value for it in few] == [*range(147, -1, -3)]
