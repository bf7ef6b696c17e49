"""Indexes with another mapping, and ``locus-store db`` on OpenSearch."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from locus_store import SchemaError
from locus_store.backends.opensearch import index, items
from locus_store.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indexes import TestIndex

pytestmark = pytest.mark.anyio

NS = ("memory",)


@pytest.fixture
def place(worker_index: TestIndex) -> Iterator[TestIndex]:
    """Indexes of the test's own, which are removed."""
    made = type(worker_index)(worker_index.server, f"{worker_index.name}-mapped")
    yield made
    for it in made.ask("GET", f"/{made.name}*?expand_wildcards=all"):
        made.ask("DELETE", f"/{it}")


def db(place: TestIndex, command: str, *options: str) -> Any:
    """Run the command in a thread without an event loop."""
    words = ["db", *command.split(), "--url", place.url(), *options]
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(CliRunner().invoke, app, words).result()


def status(place: TestIndex) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(db(place, "check", "--json").stdout)
    return found


def indexes(place: TestIndex) -> Any:
    """Return the indexes that there are, with their mappings and aliases."""
    return place.ask("GET", f"/{place.name}*")


def create(place: TestIndex, suffix: str, meta: dict[str, Any]) -> None:
    """Create an index with this ``_meta``."""
    body = {"aliases": {f"{place.name}{suffix}": {}}, "mappings": {"_meta": meta}}
    place.ask("PUT", f"/{place.name}{suffix}-000001", body)


@pytest.mark.parametrize(("apart", "state"), [(-1, "behind"), (1, "too new")])
async def test_threads_of_another_mapping_are_refused(
    place: TestIndex, apart: int, state: str
) -> None:
    version = index.VERSION + apart
    create(place, "", {"locus_store": version})
    there = indexes(place)
    async with place.checkpointer(state_type=dict) as checkpointer:
        for call in (
            checkpointer.load("t"),
            checkpointer.save({"n": 1}, "t"),
            checkpointer.delete("t"),
            checkpointer.list_threads(),
            checkpointer.vacuum(0),
        ):
            with pytest.raises(
                SchemaError, match=rf"version {version} .*use the release that created it"
            ):
                await call
    told = status(place)
    assert (told["state"], told["revision"], told["usable"]) == (state, str(version), False)
    assert db(place, "current").stdout == f"{version}\n"
    assert isinstance(db(place, "upgrade").exception, SchemaError)
    assert indexes(place) == there


async def test_items_of_another_mapping_are_refused(place: TestIndex) -> None:
    create(place, items.SUFFIX, {"locus_store_items": items.ITEMS.version + 1})
    there = indexes(place)
    store = place.store()
    for call in (store.setup(), store.get(NS, "k"), store.put(NS, "k", 1), store.expire()):
        with pytest.raises(SchemaError, match="use the release that created it"):
            await call
    await store.close()
    assert status(place)["state"] == "too new"
    assert isinstance(db(place, "upgrade").exception, SchemaError)
    assert indexes(place) == there


async def test_a_foreign_index_is_left_alone(place: TestIndex) -> None:
    create(place, "", {})
    there = indexes(place)
    assert status(place)["state"] == "foreign"
    assert isinstance(db(place, "upgrade").exception, SchemaError)
    assert indexes(place) == there


async def test_db_upgrade_creates_a_missing_index(place: TestIndex) -> None:
    assert status(place)["state"] == "missing"
    assert db(place, "current").stdout == "none\n"
    for _ in range(2):
        found = db(place, "upgrade").stdout
        assert found.startswith(f"index {place.name!r} of ")
        assert found.endswith(f": schema revision {index.VERSION}\n")
        assert list(indexes(place)) == [f"{place.name}-000001"]
    assert status(place)["state"] == "ok"


async def test_an_index_that_was_restored_by_another_name_is_used(place: TestIndex) -> None:
    async with place.checkpointer(state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
    old, restored = f"{place.name}-000001", f"{place.name}-restored"
    place.ask("PUT", f"/{old}/_block/write")
    place.ask("POST", f"/{old}/_clone/{restored}", {"settings": {"index.blocks.write": None}})
    moved = [{"add": {"index": restored, "alias": place.name}}, {"remove_index": {"index": old}}]
    assert place.ask("POST", "/_aliases", {"actions": moved}) == {"acknowledged": True}
    async with place.checkpointer(state_type=dict) as checkpointer:
        assert await checkpointer.load("t") == {"n": 1}
        await checkpointer.save({"n": 2}, "t")
        assert await checkpointer.load("t") == {"n": 2}


def test_options_that_an_index_does_not_have_are_refused(place: TestIndex) -> None:
    assert "leave out --prefix" in str(db(place, "upgrade", "--prefix", "x_").exception)
    assert "'head' only" in str(db(place, "upgrade 0001").exception)
    assert "restore a snapshot" in str(db(place, "downgrade base --yes").exception)
