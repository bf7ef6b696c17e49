"""``locus-store db`` on OpenSearch: an index of an older mapping, made by the test, is upgraded."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from locus_store import BackendError, SchemaError
from locus_store.backends.documents.protocol import ChangedError
from locus_store.backends.opensearch import index, items, upgrading
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


def aliases(place: TestIndex) -> list[str]:
    """Return the indexes behind the alias; no index has an alias for a copy."""
    found = place.ask("GET", f"/{place.name}-0*/_alias")
    assert not [it for one in found.values() for it in one["aliases"] if it.endswith("-copy")]
    assert list(found) == list(place.ask("GET", f"/{place.name}/_alias"))
    return list(found)


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


KILLED = """
import os, signal, sys
from locus_store.backends.opensearch.client import IndexClient
from locus_store.cli import app

url, end = sys.argv[1:]
called = IndexClient.call

def call(self, method, path, *args, **params):
    answer = called(self, method, path, *args, **params)
    if method != "GET" and path.endswith(end):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

IndexClient.call = call
app(["db", "upgrade", "--url", url])
"""
"""Upgrades an index, and ends after a request."""


@pytest.mark.parametrize("step", ["_block/write", "-000002", "_reindex", "_refresh", "_aliases"])
async def test_a_killed_upgrade_is_resumed(place: TestIndex, step: str) -> None:
    await saved(place, 20)
    run = [sys.executable, "-c", KILLED, place.url(), step]
    ended = await asyncio.to_thread(subprocess.run, run, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    old = older(place)
    assert (await old.fetch("t1")) is not None
    if step != "_aliases":
        old.index.access = replace(old.index.access, retry_seconds=0.1)
        with pytest.raises(BackendError, match="refuses writes while it is upgraded"):
            await old.write_state("t1", {"n": 9})
    backend = place.backend()
    assert upgrading.upgrade(backend.index) == CURRENT
    await old.write_state("t1", {"n": 9})
    assert [it.checkpoint_id for it in await backend.history("t1", limit=9)][1:] == ["v"]
    assert len(await backend.heads(100)) == 20
    assert aliases(place) == [f"{place.name}-000002"]
    await old.close()
    await backend.close()


async def test_two_processes_upgrade_an_index_once(place: TestIndex) -> None:
    await saved(place, 60)
    command = [sys.executable, "-m", "locus_store", "db", "upgrade", "--url", place.url()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [await asyncio.create_subprocess_exec(*command, **pipes) for _ in range(2)]
    told = await asyncio.gather(*(it.communicate() for it in both))
    assert [it.returncode for it in both] == [0, 0], told
    assert [out for out, _ in told] == [f"schema revision {CURRENT}\n".encode()] * 2
    assert aliases(place) == [f"{place.name}-000002"]
    backend = place.backend()
    assert len(await backend.heads(100)) == 60
    assert await backend.write_state("t1", {"n": 9})
    await backend.close()


@pytest.mark.parametrize(
    "step", ["_require_current", "_ask", "_create", "_copy", "_finish_tasks", "_move"]
)
async def test_an_upgrade_that_was_overtaken_changes_nothing(
    place: TestIndex, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another upgrade and a deletion take place before a step."""
    await saved(place, 5)
    backend, slow, others = place.backend(), place.backend(), place.backend()
    real, overtaken = getattr(upgrading, step), list[int]()

    def late(*args: Any, **params: Any) -> Any:
        monkeypatch.setattr(upgrading, step, real)
        overtaken.append(upgrading.upgrade(others.index))
        asyncio.run(backend.remove_thread("t1"))
        return real(*args, **params)

    monkeypatch.setattr(upgrading, step, late)
    assert await asyncio.to_thread(upgrading.upgrade, slow.index) == CURRENT
    assert overtaken == [CURRENT]
    assert aliases(place) == [f"{place.name}-000002"]
    assert await backend.fetch("t1") is None
    assert len(await backend.heads(100)) == 4
    for it in (backend, slow, others):
        await it.close()


async def test_a_late_copy_does_not_bring_a_deleted_document_back(place: TestIndex) -> None:
    """The alias for the copy ends with the upgrade; a write under way is older than a deletion."""
    await saved(place, 2)
    backend = place.backend()
    found = place.ask("GET", f"/{place.name}/_search?version=true&q=name:v1*")["hits"]["hits"]
    upgrading.upgrade(backend.index)
    await backend.remove_thread("t1")
    for it in found:
        path = f"/{place.name}/_doc/{it['_id']}?routing={it['_routing']}&version_type=external"
        late = place.ask("PUT", f"{path}&version={it['_version']}", it["_source"])
        assert late["status"] == 409
    assert await backend.fetch("t1") is None
    await backend.close()


async def test_changes_after_an_interrupted_upgrade_are_not_lost(
    place: TestIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator has removed the block, and the old index was used again."""
    await saved(place, 5)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    backend, old = place.backend(), older(place)
    with monkeypatch.context() as patched:
        patched.setattr(upgrading, "_move", fail)
        with pytest.raises(KeyboardInterrupt):
            upgrading.upgrade(backend.index)
    place.ask("PUT", f"/{place.name}-000001/_settings", {"index.blocks.write": None})
    await old.remove_thread("t1")
    await old.write_state("t2", {"n": 7}, checkpoint_id="w")
    await old.write_state("new", {"n": 8}, checkpoint_id="v")
    new = f"{place.name}-000002"
    with pytest.raises(SchemaError, match=f"remove '{new}', and run the upgrade again"):
        upgrading.upgrade(backend.index)
    place.ask("DELETE", f"/{new}")
    assert upgrading.upgrade(backend.index) == CURRENT
    assert await backend.fetch("t1") is None
    assert [it.checkpoint_id for it in await backend.history("t2", limit=9)] == ["w", "v"]
    assert (await backend.fetch("new")) is not None
    await old.close()
    await backend.close()


async def test_an_index_that_no_upgrade_has_created_is_left_alone(place: TestIndex) -> None:
    await saved(place, 1)
    backend, name = place.backend(), f"{place.name}-000002"
    place.ask("PUT", f"/{place.name}-000001/_block/write")
    place.ask("PUT", f"/{name}", {"mappings": index.mappings(backend.index.layout)})
    with pytest.raises(SchemaError, match="no upgrade has created it"):
        upgrading.upgrade(backend.index)
    assert name in behind(place)
    await backend.close()


async def test_a_template_that_would_lose_documents_ends_an_upgrade(place: TestIndex) -> None:
    await saved(place, 1)
    backend, name = place.backend(), f"{place.name}-000002"
    template = {"mappings": {"_source": {"enabled": False}}}
    body = {"index_patterns": [name], "priority": 500, "template": template}
    place.ask("PUT", f"/_index_template/{name}", body)
    try:
        for _ in range(2):
            with pytest.raises(SchemaError, match="does not keep all fields"):
                upgrading.upgrade(backend.index)
    finally:
        place.ask("DELETE", f"/_index_template/{name}")
    assert await older(place).fetch("t0") is not None
    place.ask("DELETE", f"/{name}")
    assert upgrading.upgrade(backend.index) == CURRENT
    assert await backend.fetch("t0") is not None
    await backend.close()


async def test_an_index_that_was_restored_by_another_name_is_upgraded(place: TestIndex) -> None:
    await saved(place, 1)
    old, restored = f"{place.name}-000001", f"{place.name}-restored"
    place.ask("PUT", f"/{old}/_block/write")
    place.ask("POST", f"/{old}/_clone/{restored}", {"settings": {"index.blocks.write": None}})
    moved = [{"add": {"index": restored, "alias": place.name}}, {"remove_index": {"index": old}}]
    assert place.ask("POST", "/_aliases", {"actions": moved}) == {"acknowledged": True}
    backend = place.backend()
    assert upgrading.upgrade(backend.index) == CURRENT
    assert list(place.ask("GET", f"/{place.name}/_alias")) == [f"{restored}-000002"]
    assert await backend.fetch("t0") is not None
    await backend.close()


async def test_a_first_save_during_the_move_creates_no_other_index(place: TestIndex) -> None:
    """The server answers that the old index does not exist, which is then behind no alias."""
    await saved(place, 1)
    old = older(place)
    missing = {"status": 404, "error": {"type": "index_not_found_exception", "reason": ""}}
    lost = {"items": [{"create": missing}] * 2}
    called, answers = old.index.call, [lost]

    def call(method: str, path: str, *args: Any, **params: Any) -> Any:
        if path.endswith("_bulk") and answers:
            upgrading.upgrade(place.backend().index)
            return answers.pop()
        return called(method, path, *args, **params)

    old.index.call = call
    await old.write_state("new", {"n": 1})
    assert aliases(place) == [f"{place.name}-000002"]
    assert (await old.fetch("new")) is not None
    await old.close()


async def test_an_upgrade_waits_for_the_task_of_another_one(place: TestIndex) -> None:
    """A copy whose program has ended may still run on the server."""
    await saved(place, 60)
    backend = place.backend()
    old, new = f"{place.name}-000001", f"{place.name}-000002"
    body: Any = {"source": {"index": old, "size": 10}, "dest": {"version_type": "external"}}
    backend.index.call("PUT", f"/{old}/_block/write")
    copy = upgrading._create(backend.index, new, backend.index.call("GET", f"/{old}")[old])
    body["dest"]["index"] = copy
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
