"""Statements and requests of a call: their number does not grow with what is stored."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from lazily import TESTS_RUN
from servers import CountingProxy
from services import Service
from shelf import Shelf, shelf_backend
from tiers import first_of, full

from locus_store import MemoryBackend, postgresql_checkpointer, sqlite_checkpointer
from locus_store.sql.threads import searching
from locus_store.types import VersionsWanted
from locus_store.values.text import Match
from locus_store.versions.sizes import StatusesWanted, ThreadStatus

if TESTS_RUN:
    from locus_store import HTTPBackend
    from locus_store.backends.redis import RedisBackend
    from locus_store.backends.redis.connections import LoopClient

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from locus_store import StorageBackendAdapter

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("unhurried")]


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Opens a checkpointer over one database."""
    if request.param == "sqlite":
        return lambda **options: sqlite_checkpointer(
            str(tmp_path / "x.db"), state_type=dict, **options
        )
    url = request.getfixturevalue("migrated_database")
    return lambda **options: postgresql_checkpointer(url, state_type=dict, pool_size=2, **options)


@pytest.fixture
async def checkpointer(opened: Any) -> AsyncIterator[StorageBackendAdapter]:
    async with opened() as made:
        yield made


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that SQLAlchemy sends in the block, on any engine."""
    sent: list[str] = []

    def note(*given: Any) -> None:
        sent.append(given[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


@contextmanager
def sqlite_statements() -> Iterator[list[str]]:
    """The statements that connections opened in the block send to SQLite."""
    sent: list[str] = []

    def watch(connection: sqlite3.Connection, _: object) -> None:
        connection.set_trace_callback(sent.append)

    sa.event.listen(sa.Pool, "connect", watch)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Pool, "connect", watch)


async def grow(checkpointer: StorageBackendAdapter, *numbers: int) -> None:
    for number in numbers:
        for step in range(3):
            said = [f"tea {number}", *("milk" for _ in range(step))]
            await checkpointer.save({"said": said}, f"t{number}", f"v{step}")


@pytest.mark.parametrize("is_indexed", [False, True], ids=["unindexed", "indexed"])
async def test_search_reads_many_threads_in_one_statement(
    is_indexed: bool, checkpointer: Any
) -> None:
    if is_indexed:
        await checkpointer.backend.create_search_index()
    counts = []
    for first, last in ((0, 3), (3, 40)):
        await grow(checkpointer, *range(first, last))
        await checkpointer.search("tea")
        with statements() as sent:
            assert len(await checkpointer.search("milk tea")) == min(last, 10)
        counts.append(len(sent))
    assert counts[0] == counts[1] <= 5, sent


async def test_search_fetches_the_metadata_of_returned_hits_only(checkpointer: Any) -> None:
    await grow(checkpointer, *range(5))
    with statements() as sent:
        assert len(await checkpointer.search("tea", 2)) == 2
    reading = [it for it in sent if "payload" in it and "metadata" in it]
    assert reading == []


FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"text": "milk tea"},
    {"text": "3"},
    {"text": "tea", "user_id": "alex", "kind": "agent", "badge": "interrupted"},
    {"text": "tea", "metadata": ("k", 1), "pattern": "t*", "until": datetime.now(UTC)},
)


async def test_all_filters_of_a_list_are_one_statement_with_an_index(tmp_path: Path) -> None:
    with sqlite_statements() as sent:
        async with sqlite_checkpointer(str(tmp_path / "x.db"), state_type=dict) as checkpointer:
            await checkpointer.backend.create_search_index()
            await grow(checkpointer, *range(6))
        async with sqlite_checkpointer(str(tmp_path / "x.db"), state_type=dict) as checkpointer:
            await checkpointer.list_threads()
            for wanted in FILTERS:
                sent.clear()
                await checkpointer.backend.find_statuses(StatusesWanted(limit=4, **wanted))
                ours = [it for it in sent if "FROM locus_" in it]  # FTS5 asks tables of its own
                assert len(ours) == 1, wanted


async def test_all_filters_of_a_list_are_one_round_trip_with_an_index(
    postgresql: Any, migrated_database: str
) -> None:
    parts = urlsplit(migrated_database)
    proxy = CountingProxy(parts.port)
    url = proxy.url(postgresql, parts.path[1:])
    async with postgresql_checkpointer(url, state_type=dict, pool_size=1) as checkpointer:
        await checkpointer.backend.create_search_index()
        await grow(checkpointer, *range(6))
        for wanted in FILTERS:
            for _ in range(6):
                before = proxy.trips
                await checkpointer.backend.find_statuses(StatusesWanted(limit=4, **wanted))
            assert proxy.trips - before == 1, wanted
    proxy.close()


async def test_without_an_index_statements_follow_the_threads_that_lack_a_text(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as checkpointer:
        await grow(checkpointer, *range(40))

        async def count(text: str) -> int:
            with statements() as sent:
                found = await checkpointer.backend.find_statuses(StatusesWanted(limit=2, text=text))
            assert [it.thread_id for it in found[:1]] == [f"t{39 if text == 'tea' else 0}"]
            return len([it for it in sent if "locus_threads" in it or "locus_lines" in it])

        assert await count("tea") == 2  # the newest two, and what a list shows of them
        assert await count("0") == 4  # 2, 8 and 32 threads are looked at
        monkeypatch.setattr(searching, "BATCH_BYTES", 1)
        assert await count("tea") > 2


@pytest.mark.parametrize("is_indexed", [False, True], ids=["unindexed", "indexed"])
@pytest.mark.parametrize("size", first_of(300, 1, 700))
async def test_a_list_in_small_batches_finds_the_same(
    size: int, is_indexed: bool, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(keep_last=2) as checkpointer:
        if is_indexed:
            await checkpointer.backend.create_search_index()
        await grow(checkpointer, *range(9))
        await checkpointer.save({"said": ["tea", "milk"] * 40}, "large")
        await checkpointer.save({"said": ["tea", "milk"] * 41 + ["last"]}, "large")
        await grow(checkpointer, *range(9, 11))

        async def read_pages(limit: int) -> list[ThreadStatus]:
            found, wanted = list[ThreadStatus](), StatusesWanted(limit=limit, text="milk tea")
            while page := await checkpointer.backend.find_statuses(wanted):
                assert len(page) <= limit
                found, wanted = found + page, replace(wanted, place=page[-1].place)
            return found

        expected = await read_pages(99)
        assert [it.thread_id for it in expected][:3] == ["t10", "t9", "large"]
        assert len(expected) == 12
        for name, value in (("BATCH_BYTES", size), ("BATCH", 2)):
            monkeypatch.setattr(searching, name, value)
        for limit in (1, 3, 99):
            assert await read_pages(limit) == expected


@pytest.mark.parametrize("size", first_of(300, 1, 700))
async def test_search_in_small_batches_finds_the_same(
    size: int, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(keep_last=2) as checkpointer:
        await grow(checkpointer, *range(6))
        await checkpointer.save({"said": ["tea", "tea", "milk"] * 40}, "large", "v0")
        await checkpointer.save({"said": ["tea", "tea", "milk"] * 41 + ["last"]}, "large", "v1")
        expected = await checkpointer.search("milk tea", 20)
        assert len(expected) == 7
        monkeypatch.setattr(searching, "BATCH_BYTES", size)
        monkeypatch.setattr(searching, "BATCH", 2)
        assert await checkpointer.search("milk tea", 20) == expected


@pytest.mark.parametrize("checkpoint_id", [None, "v1"])
async def test_a_version_is_one_statement_that_reads_no_payload(
    tmp_path: Path, checkpoint_id: str | None
) -> None:
    with sqlite_statements() as sent:
        async with sqlite_checkpointer(str(tmp_path / "x.db"), state_type=dict) as checkpointer:
            await grow(checkpointer, 1)
            sent.clear()
            found = await checkpointer.backend.version("t1", checkpoint_id)
    asked = [it for it in sent if "SELECT" in it]
    assert found is not None
    assert found.checkpoint_id == (checkpoint_id or "v2")
    assert len(asked) == 1
    assert "payload" not in asked[0]


async def test_search_fills_the_place_of_a_hit_that_is_removed_meanwhile(
    checkpointer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grow(checkpointer, 1, 2)
    await checkpointer.save({"said": ["tea tea tea milk milk milk"]}, "best", "v0")
    assert [it["thread_id"] for it in await checkpointer.search("tea", 1)] == ["best"]
    backend = checkpointer.backend
    hits = backend._make_hits

    async def after_a_removal(best: Any) -> Any:
        await backend.remove("best")
        return await hits(best)

    monkeypatch.setattr(backend, "_make_hits", after_a_removal)
    assert [it["thread_id"] for it in await checkpointer.search("tea", 1)] == ["t2"]


@pytest.mark.parametrize("size", [1, searching.BATCH_BYTES], ids=["in parts", "whole"])
async def test_search_matches_on_another_thread_and_without_a_connection(
    size: int, migrated_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that is open while texts are looked at holds back the server's vacuum."""
    async with postgresql_checkpointer(
        migrated_database, state_type=dict, pool_size=1
    ) as checkpointer:
        await grow(checkpointer, 1, 2)
        homes: Any = checkpointer.backend._runner._pools._resources  # type: ignore[attr-defined]
        pool = homes[asyncio.get_running_loop()]._sync.pool
        add, here = Match.add, threading.get_ident()
        seen: set[tuple[int, bool]] = set()

        def noted(*given: Any) -> None:
            seen.add((pool.checkedout(), threading.get_ident() == here))
            add(*given)

        monkeypatch.setattr(searching, "BATCH_BYTES", size)
        monkeypatch.setattr(Match, "add", noted)
        assert len(await checkpointer.search("tea")) == 2
        assert seen == {(0, False)}


@pytest.mark.parametrize("is_indexed", [False, True], ids=["unindexed", "indexed"])
async def test_a_copy_takes_as_many_statements_for_any_number_of_versions_and_namespaces(
    is_indexed: bool, checkpointer: Any
) -> None:
    backend = checkpointer.backend
    if is_indexed:
        await backend.create_search_index()
    counts = []
    for number, size in enumerate((1, 30)):
        for step in range(size):
            await checkpointer.save({"said": [f"tea {step}"]}, f"t{number}", f"v{step}")
            await backend.write_state(
                f"t{number}", {"n": step}, namespace=f"n{step}", checkpoint_id="s"
            )
        with statements() as sent:
            assert await checkpointer.copy_thread(f"t{number}", f"copy{number}")
        counts.append(len(sent))
        assert not [it for it in sent if it.startswith("UPDATE locus_checkpoints")]
    assert counts[0] == counts[1] <= 12, sent
    assert await backend.namespaces("copy1") == await backend.namespaces("t1")
    assert await checkpointer.list_checkpoints("copy1", 99) == await checkpointer.list_checkpoints(
        "t1", 99
    )


async def test_a_copy_is_found_by_the_index_and_leaves_it_when_it_is_deleted(
    checkpointer: Any,
) -> None:
    async def found(words: str) -> list[str]:
        return sorted(it["thread_id"] for it in await checkpointer.search(words, 99))

    backend = checkpointer.backend
    await backend.create_search_index()
    for step in range(450):
        await backend.write_state("t", {"said": [f"word{step}"]}, checkpoint_id=f"v{step}")
    await checkpointer.save({}, "t", "empty")
    assert await checkpointer.copy_thread("t", "copy")
    assert await found("word0 word449") == ["copy", "t"]
    await checkpointer.delete("t")
    assert await found("word0 word449") == ["copy"]
    await checkpointer.delete("copy", "v7")
    await checkpointer.delete("copy", "empty")
    assert await found("word7") == []
    assert await found("word8") == ["copy"]
    await checkpointer.delete("copy")
    assert await found("word8") == []
    assert await backend.damage() == []


async def test_lists_and_deletions_take_as_many_statements_for_any_number_of_namespaces(
    opened: Any,
) -> None:
    counts = []
    async with opened() as checkpointer:
        backend = checkpointer.backend
        for number, size in enumerate((2, 2, 60)):  # the first thread warms up
            thread_id = f"t{number}"
            for n in range(size):
                await backend.write_state(thread_id, {"n": n}, namespace=f"n{n}", checkpoint_id="v")
            wanted = VersionsWanted(thread_id=thread_id)
            with statements() as listing:
                for limit in (1, 99):
                    found = await backend.newest(wanted, limit)
                    assert len(await backend.contents(found)) == min(limit, size)
            with statements() as deleting:
                assert await backend.remove(thread_id) == size
            counts.append((len(listing), len(deleting)))
    # The versions, once more where SQLite's clock does not tell them apart; their contents.
    assert max(listing for listing, _ in counts) <= 2 * 3
    assert counts[1][1] == counts[2][1] <= 12


async def test_the_newest_checkpoint_of_many_namespaces_takes_two_statements(
    tmp_path: Path,
) -> None:
    with sqlite_statements() as sent:
        async with sqlite_checkpointer(str(tmp_path / "x.db"), state_type=dict) as checkpointer:
            backend: Any = checkpointer.backend
            for step in ("v0", "v1"):
                calls = (
                    backend.write_state("t", {"n": n}, namespace=f"n{n}", checkpoint_id=step)
                    for n in range(241)
                )
                await asyncio.gather(*calls)
            for limit in (1, 10):
                sent.clear()
                found = await backend.newest(VersionsWanted(thread_id="t"), limit)
                assert len(await backend.contents(found)) == limit
                assert len([it for it in sent if it.startswith(("SELECT", "WITH"))]) == 2


@pytest.mark.parametrize("is_in_turn", [False, True])
async def test_a_save_is_one_round_trip_in_a_turn_and_without_one(
    is_in_turn: bool, postgresql: Any, migrated_database: str
) -> None:
    parts = urlsplit(migrated_database)
    proxy = CountingProxy(parts.port)
    url = proxy.url(postgresql, parts.path[1:])
    async with postgresql_checkpointer(url, state_type=dict, pool_size=1) as checkpointer:
        turn = checkpointer.turn("t", lease_seconds=600) if is_in_turn else nullcontext()
        counts = []
        async with turn:
            for number in range(6):
                before = proxy.trips
                await checkpointer.save({"n": number}, "t")
                counts.append(proxy.trips - before)
    proxy.close()
    assert counts[3:] == [1, 1, 1]


class Requests:
    """A storage that is asked over a network, and the requests that it was sent."""

    def __init__(self, make: Callable[[], Any], count: Callable[[], int]) -> None:
        self.make = make
        self.count = count


def _on_shelf(_: pytest.FixtureRequest) -> Requests:
    shelf = Shelf()
    return Requests(lambda: shelf_backend(shelf), lambda: sum(shelf.calls.values()))


def _on_redis(request: pytest.FixtureRequest) -> Requests:
    sent: list[object] = []
    in_place = LoopClient._run_in_slot

    async def counted(self: LoopClient, call: Any, *args: Any) -> Any:
        sent.append(call)
        return await in_place(self, call, *args)

    request.getfixturevalue("monkeypatch").setattr(LoopClient, "_run_in_slot", counted)
    url = request.getfixturevalue("redis_url")
    return Requests(lambda: RedisBackend(url), lambda: len(sent))


def _over_http(request: pytest.FixtureRequest) -> Requests:
    service = Service(MemoryBackend())
    request.addfinalizer(service.stop)
    return Requests(lambda: HTTPBackend(service.url), lambda: len(service.asked))


REMOTE = {"objects": _on_shelf, "http": _over_http, "redis": _on_redis}


@pytest.fixture(params=["objects", *full("http", "redis")])
def requests(request: pytest.FixtureRequest) -> Requests:
    return REMOTE[request.param](request)


async def test_lists_and_deletions_take_as_many_requests_for_any_number_of_namespaces(
    requests: Requests,
) -> None:
    backend = requests.make()
    for n in range(241):
        for step in range(2):
            state = {"n": n, "text": str(n) * 400}
            await backend.write_state("t", state, namespace=f"n{n}", checkpoint_id=f"v{step}")
    await backend.close()
    backend = requests.make()  # it knows nothing of the thread
    for wanted, limit in (
        (VersionsWanted(thread_id="t"), 1),
        (VersionsWanted(thread_id="t"), 999),
        (VersionsWanted(), 1),
        (VersionsWanted(thread_id="t", before="v1", may_continue=True), 999),
    ):
        before = requests.count()
        found = await backend.newest(wanted, limit)
        assert len(await backend.contents(found)) == min(limit, 241)
        assert requests.count() - before <= 10
    before = requests.count()
    assert await backend.remove("t") == 482
    assert requests.count() - before <= 5
    await backend.close()


async def test_a_list_with_a_limit_reads_no_segment_of_older_versions() -> None:
    shelf = Shelf()
    backend = shelf_backend(shelf)
    for n in range(200):
        await backend.write_state("t", {"text": os.urandom(2000).hex()}, namespace=f"n{n}")
    segments = [it for it in shelf.stored if "/segments/" in it]
    assert len(segments) > 3
    reader = shelf_backend(shelf)
    shelf.calls.clear()
    (newest,) = await reader.newest(VersionsWanted(thread_id="t"), 1)
    assert newest.namespace == "n199"
    assert shelf.calls == {"get": 1}
    assert len(await reader.newest(VersionsWanted(thread_id="t"), 999)) == 200
    assert shelf.calls == {"get": 2 + len(segments)}
