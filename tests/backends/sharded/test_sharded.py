"""A set of shards: which lists of databases are refused, where a thread is, and a rebalance."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import uuid
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from tiers import first_of, full

from locus_store import (
    BackendError,
    ConflictError,
    InvalidArgumentError,
    NewMessage,
    Quota,
    QuotaError,
    TurnError,
    UnsupportedError,
    open_message_log,
    open_sharded,
    open_storage,
    open_store,
)
from locus_store.backends.sharded import ShardedBackend, shard_set
from locus_store.backends.sharded.rebalance import rebalance
from locus_store.sql.sharding import SqlShard
from locus_store.types import PendingWrite
from locus_store.versions.sharding import HIDDEN_TENANT, choose_shard
from locus_store.versions.sizes import StatusesWanted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio

run = test_cli.run
MOVES = "SELECT thread_id FROM locus_turns"
MOVED = "SELECT json_extract(tickets, '$.thread_id') FROM locus_turns"
THREADS = [f"t{it}" for it in range(12)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease and an announcement that a test can wait for."""
    monkeypatch.setattr(shard_set, "LEASE_SECONDS", 0.02)
    monkeypatch.setattr(shard_set, "ANNOUNCED_SECONDS", 0.1)
    monkeypatch.setattr(shard_set, "PATIENCE", 2)


@pytest.fixture
def urls(tmp_path: Path, migrated: Path) -> list[str]:
    """URLs of empty databases."""
    places = [shutil.copyfile(migrated, tmp_path / f"{name}.db") for name in "abcd"]
    for it in places:
        with closing(sqlite3.connect(it)) as connection, connection:
            own = "UPDATE locus_settings SET value = ? WHERE name = 'store_id'"
            connection.execute(own, (uuid.uuid4().hex,))
    return [f"sqlite:///{it}" for it in places]


async def put(storage: Any, threads: Sequence[str] = THREADS) -> None:
    checkpointer = storage.checkpointer(state_type=dict)
    for it in threads:
        await checkpointer.save({"of": it, "n": 0}, it, checkpoint_id="first")
        await checkpointer.save({"of": it, "n": 1}, it, metadata={"user_id": "alex"})


def rows(url: str, query: str = "SELECT thread_id FROM locus_threads ORDER BY 1") -> list[Any]:
    """Return the first column of a query of a database's own."""
    with closing(sqlite3.connect(url.partition(":///")[2])) as connection:
        return [row[0] for row in connection.execute(query)]


def dump(url: str) -> list[str]:
    with closing(sqlite3.connect(url.partition(":///")[2])) as connection:
        return list(connection.iterdump())


def check_places(urls: Sequence[str], threads: Sequence[str] = THREADS) -> None:
    """Each thread is in its shard, and nowhere else."""
    for number, url in enumerate(urls):
        own = sorted(it for it in threads if choose_shard(len(urls), "default", it) == number)
        assert rows(url) == own
        assert rows(url, MOVES) == []


# --- places


def test_a_place_never_changes() -> None:
    """It is stored nowhere: another hash would lose all threads."""
    places = [choose_shard(5, "default", it) for it in THREADS]
    assert places == [choose_shard(5, "default", it) for it in THREADS]
    assert [choose_shard(4, tenant, "t") for tenant in ("default", "a", "b")] == PLACES[1]
    assert places == PLACES[0]


PLACES = ([1, 4, 3, 1, 1, 3, 1, 4, 1, 1, 2, 0], [1, 0, 1])


def test_another_shard_takes_its_part_of_the_threads_and_moves_no_other() -> None:
    threads = [f"thread {it}" for it in range(4_000)]
    for shards in range(1, 8):
        was = [choose_shard(shards, "a", it) for it in threads]
        now = [choose_shard(shards + 1, "a", it) for it in threads]
        moved = [new for old, new in zip(was, now, strict=True) if old != new]
        assert set(moved) == {shards}
        assert len(moved) == pytest.approx(len(threads) / (shards + 1), rel=0.15)


# --- which lists are refused


async def made(urls: Sequence[str]) -> None:
    async with open_sharded(urls) as storage:
        await put(storage)


async def refuses(urls: Sequence[str], what: str, kind: type[Exception] = InvalidArgumentError):
    before = [dump(it) for it in urls]
    with pytest.raises(kind, match=what):
        await made(urls)
    assert [dump(it) for it in urls] == before


async def test_a_list_in_another_order_is_refused(urls: list[str]) -> None:
    await made(urls[:3])
    await refuses([urls[1], urls[0], urls[2]], "database 1 of the list is shard 2 of its set")


async def test_an_incomplete_list_is_refused(urls: list[str]) -> None:
    await made(urls[:3])
    await refuses(urls[:2], "the set has 3 shards, and the list names 2")
    await refuses(urls[1:3], "database 1 of the list is shard 2")


async def test_one_database_under_two_urls_is_refused(urls: list[str]) -> None:
    await made(urls[:2])
    same = urls[0].replace("sqlite:", "sqlite+aiosqlite:")
    await refuses([urls[0], same], "shards 1 and 2 of the list are the same database")
    with pytest.raises(InvalidArgumentError, match="shards 1 and 3 have the same URL"):
        open_sharded([urls[0], urls[1], urls[0]])


async def test_a_copy_of_a_shard_is_refused(urls: list[str]) -> None:
    await made(urls[:2])
    places = [it.removeprefix("sqlite:///") for it in urls]
    shutil.copyfile(places[0], places[2])
    await refuses([urls[0], urls[2]], "same database, or one is a copy")


async def test_a_database_of_another_set_is_refused(urls: list[str]) -> None:
    await made(urls[:2])
    await made(urls[2:])
    await refuses([urls[0], urls[3]], "another set")


async def test_a_shard_by_its_own_url_is_refused_but_by_commands(urls: list[str], run: Any) -> None:
    await made(urls[:1])
    async with open_storage(urls[0]) as whole:  # a set of one shard has no other place
        await put(whole, ["t0"])
    await rebalanced(urls[:3])
    async with open_storage(urls[3]) as other:
        await put(other, ["t0"])
    before = [dump(it) for it in urls[:3]]
    for number, url in enumerate(urls[:3]):
        alone, store, log = open_storage(url), open_store(url), open_message_log(url)
        for call in (
            alone.open(),
            alone.checkpointer(state_type=dict).save({"n": 2}, "t0"),
            store.put(("a",), "k", {"n": 1}),
            log.append("t0", [NewMessage(role="user", content="hello")]),
        ):
            with pytest.raises(InvalidArgumentError, match=f"is shard {number + 1} of 3"):
                await call
        for it in (alone, store, log):
            await it.close()
        code, text, error = await asyncio.to_thread(run, "threads", "list", "--url", url, "--json")
        assert (code, error) == (0, "")
        assert len(json.loads(text)) == len(rows(url))
        code, _, error = await asyncio.to_thread(run, "copy", "--from", urls[3], "--to", url)
        assert (code, "is shard" in error) == (1, True)
    assert [dump(it) for it in urls[:3]] == before
    await removed(urls[:3])
    async with open_storage(urls[2]) as former:
        await put(former, ["t0"])


async def test_an_empty_database_in_the_place_of_a_shard_is_refused(urls: list[str]) -> None:
    await made(urls[:2])
    async with open_storage(urls[2]) as other:
        await other.open()
    await refuses([urls[0], urls[2]], "database 2 of the list is not shard 2 of the set")
    await refuses([urls[2], urls[1]], "database 1 of the list is not shard 1 of the set")


async def test_a_shard_that_was_restored_from_before_it_joined_joins_again(
    urls: list[str], tmp_path: Path
) -> None:
    place = urls[2].partition(":///")[2]
    backup = shutil.copyfile(place, tmp_path / "backup.db")
    await made(urls[:2])
    await rebalanced(urls[:3])
    shutil.copyfile(backup, place)
    with pytest.raises(InvalidArgumentError, match=r"database 3 of the list.*its later") as told:
        await made(urls[:3])
    [row] = re.findall(r"the row (\(.*\))", str(told.value))
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute(f"INSERT INTO locus_settings VALUES {row}")
    await rebalanced(urls[:3])
    rest = [it for it in THREADS if choose_shard(3, "default", it) != 2]
    async with open_sharded(urls[:3]) as storage:
        await check_states(storage, rest)
        await put(storage, [it for it in THREADS if it not in rest])
        await check_states(storage)
    check_places(urls[:3])


async def test_threads_of_no_set_are_refused_but_in_the_first_database(urls: list[str]) -> None:
    for it in urls[:2]:
        async with open_storage(it) as storage:
            await put(storage, ["t0"])
    await refuses(urls[:2], "database 2 of the list has threads")
    async with open_sharded([urls[0], urls[2]]) as storage:
        assert await storage.checkpointer().list_threads() == ["t0"]
        await put(storage)
    assert rows(urls[0]) == sorted(THREADS)
    assert rows(urls[2]) == []


async def test_a_thread_whose_move_was_killed_in_a_stable_set_is_forgotten(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was out of its place, and is in no list between the two ends of its move."""
    thread_id = next(it for it in THREADS if choose_shard(2, "default", it) == 1)
    async with open_sharded(urls[:2]) as storage:
        await storage.backend.save(thread_id, {"n": 1}, metadata={"user_id": "zoe"})
        was, place = storage.backend.shards
        stored = await place.read_stored(thread_id)
        await place.remove_thread(thread_id)
        await was.restore(stored)
        with monkeypatch.context() as patch:
            patch.setattr(shard_set.ShardSet, "_admit", None)
            with pytest.raises(TypeError):
                await rebalance(storage.backend)
    async with open_sharded(urls[:2]) as storage:
        assert (await storage.backend.forget_user("zoe"))["threads"] == 1
        await rebalance(storage.backend)
        assert await storage.backend.load(thread_id) is None


@pytest.mark.parametrize("after", [2, 4, *full(1, 3, 5, 6)])
async def test_a_set_that_was_half_created_is_completed(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with monkeypatch.context() as patch:
        crash(patch, "write_layout", after)
        with pytest.raises(BackendError, match="ended here"):
            await made(urls[:3])
    await made(urls[:3])
    check_places(urls[:3])


@pytest.mark.parametrize(
    ("given", "options", "what"),
    [
        ("memory:// memory://", {}, "same URL"),
        ("memory:// sqlite:///x.db", {}, "MemoryBackend cannot be a shard"),
        ("", {}, "followed by the URLs"),
        ("sqlite:///a.db sqlite:///b.db?keep_last=3", {}, "shard 2 has keep_last="),
        ("sqlite:///a.db sqlite:///b.db?tenant=x", {}, "different tenants"),
        ("sqlite:///a.db sqlite:///b.db", {"engine": object()}, "engine= leads to one database"),
        ("sqlite:///a.db b.db", {}, "not a URL"),
        ("postgresql://a/x?replicas=b postgresql://a/y", {}, "a shard has replicas="),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(
    given: str, options: dict[str, Any], what: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=what):
        open_storage(f"sharded:{given}", **options)
    assert list(tmp_path.iterdir()) == []


async def test_the_store_of_a_set_is_in_its_first_database(urls: list[str]) -> None:
    names = [(f"of {it}",) for it in range(8)]
    items = "SELECT key FROM locus_store"
    async with open_store(f"sharded:{' '.join(urls[:2])}") as store:
        await store.put_batch([(name, "key", {}) for name in names])
        await store.put(("of", "alex"), "key", {}, metadata={"user_id": "alex"})
    async with open_sharded(urls[:3]) as storage:
        await rebalance(storage.backend)
        assert len(await storage.store().search((), limit=20)) == 9
    async with open_sharded(urls[:3]) as storage:
        await rebalance(storage.backend, removes_last=True)
    assert [len(rows(url, items)) for url in urls[:3]] == [9, 0, 0]
    before = [dump(url) for url in urls]
    wrong = open_store(f"sharded:{urls[1]} {urls[0]}")
    with pytest.raises(InvalidArgumentError, match="in the order of the set"):
        await wrong.put(("a",), "key", {})
    await wrong.close()
    assert [dump(url) for url in urls] == before
    async with open_sharded(urls[:2]) as storage:
        assert (await storage.backend.forget_user("alex"))["store"] == 1
        assert await storage.store().for_tenant("other").get(("a",), "key") is None


async def test_names_of_hidden_tenants_are_refused(urls: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="change their shard"):
        open_sharded(urls[:2]).backend.for_tenant(f"{HIDDEN_TENANT}x")


async def test_logs_of_threads_in_two_shards_do_not_change_at_once(urls: list[str]) -> None:
    one, other = "t0", next(it for it in THREADS if choose_shard(2, "default", it) != place("t0"))
    same = next(it for it in THREADS[1:] if choose_shard(2, "default", it) == place("t0"))
    async with open_message_log(f"sharded:{urls[0]} {urls[1]}") as log:
        with pytest.raises(UnsupportedError, match="different shards"):
            await log.append(one, [("a",)], also={(other, ""): [("b",)]})
        assert await log.logs() == []
        await log.append(one, [("a",)], also={(same, ""): [("b",)]})
        assert [it.thread_id for it in await log.logs()] == sorted([one, same])


def place(thread_id: str) -> int:
    return choose_shard(2, "default", thread_id)


# --- a rebalance


def crash(
    patch: pytest.MonkeyPatch, name: str, after: int, *, done: bool = False, of: Any = SqlShard
) -> None:
    """Let a call of a shard's method fail, and all that follow, before it is done or after."""
    method, calls = getattr(of, name), []

    async def crashing(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) < after:
            return await method(*args, **kwargs)
        if len(calls) == after and done:
            await method(*args, **kwargs)
        raise BackendError("the process ended here")

    patch.setattr(of, name, crashing)


async def rebalanced(urls: Sequence[str]) -> None:
    async with open_sharded(urls) as storage:
        await rebalance(storage.backend)


async def end_in(
    monkeypatch: pytest.MonkeyPatch,
    urls: Sequence[str],
    name: str,
    after: int = 1,
    *,
    done: bool = False,
) -> None:
    """Let a rebalance end in a call of a shard's method."""
    with monkeypatch.context() as patch:
        crash(patch, name, after, done=done)
        with pytest.raises(BackendError, match="ended here"):
            await rebalanced(urls)


async def check_states(storage: Any, threads: Sequence[str] = THREADS) -> None:
    checkpointer = storage.checkpointer(state_type=dict)
    for it in threads:
        assert (await checkpointer.load(it))["of"] == it
        assert len(await checkpointer.list_checkpoints(it, limit=100)) >= 2
        assert (await checkpointer.load(it, "first")) == {"of": it, "n": 0}
    assert sorted(await checkpointer.list_threads()) == sorted(threads)


async def test_a_rebalance_moves_what_belongs_to_the_new_shards_only(urls: list[str]) -> None:
    await made(urls[:2])
    before = [rows(it) for it in urls[:2]]
    async with open_sharded(urls) as storage:
        await check_states(storage)
        done = await rebalance(storage.backend)
        assert done == (4, sum(choose_shard(4, "default", it) > 1 for it in THREADS))
        await check_states(storage)
        assert (await rebalance(storage.backend)).moved == 0
    check_places(urls)
    assert all(set(rows(urls[it])) <= set(before[it]) for it in range(2))
    async with open_sharded(urls) as storage:
        await check_states(storage)
        assert await storage.backend.forget_user("alex") == {
            "threads": 12, "checkpoints": 24, "writes": 0, "messages": 0, "store": 0,
        }  # fmt: skip
    assert [rows(it) for it in urls] == [[], [], [], []]


async def test_records_are_joined_and_a_move_keeps_their_segments(urls: list[str]) -> None:
    moving = next(it for it in THREADS if choose_shard(3, "default", it) == 2)
    async with open_sharded(urls[:2]) as storage:
        checkpointer = storage.checkpointer(state_type=dict)
        for number in range(70):
            state: Any = await checkpointer.load(moving) or {"said": []}
            state["said"].append(f"word {number}")
            await checkpointer.save(state, moving)
    joined = "SELECT payload FROM locus_segments"
    before = [it for url in urls[:2] for it in rows(url, joined)]
    assert len(before) == 1
    await rebalanced(urls[:3])
    assert rows(urls[2], joined) == before
    async with open_sharded(urls[:3]) as storage:
        checkpointer = storage.checkpointer(state_type=dict)
        assert await checkpointer.load(moving) == state
        await checkpointer.save({"said": ["more"]}, moving)
        assert len(await checkpointer.list_checkpoints(moving, limit=100)) == 71


STEPS = [
    *[("write_layout", 4, False), ("take_thread", 1, True), ("drop_move", 1, True)],
    *full(*(("write_layout", it, done) for it in range(1, 10) for done in (False, True))),
    *full(
        *(
            (name, it, done)
            for name in ("reserve_move", "take_thread", "admit_thread", "drop_move")
            for it in (1, 2)
            for done in (False, True)
        )
    ),
]


@pytest.mark.parametrize(("name", "after", "done"), STEPS)
async def test_a_rebalance_that_ended_anywhere_is_continued(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, name: str, after: int, done: bool
) -> None:
    await made(urls[:2])
    await end_in(monkeypatch, urls[:3], name, after, done=done)
    async with open_sharded(urls[:3]) as storage:
        await check_states(storage)
        await rebalance(storage.backend)
        await check_states(storage)
    check_places(urls[:3])


@pytest.mark.parametrize("after", [3, *full(1, 2, 4, 5, 6, 7)])
async def test_a_longer_list_that_came_second_to_a_new_set_adds_its_shards(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """It had written its last database, which was another set's from then on."""
    with monkeypatch.context() as patch:
        crash(patch, "write_layout", 2)
        with pytest.raises(BackendError, match="ended here"):
            await made(urls[:3])
    await made(urls[:2])
    async with open_sharded(urls[:3]) as former, open_sharded(urls[:3]) as storage:
        await check_states(former)
        await end_in(monkeypatch, urls[:3], "write_layout", after)
        await check_states(former)
        await check_states(storage)
        await rebalance(storage.backend)
        await check_states(storage)
    check_places(urls[:3])


async def test_a_thread_on_its_way_is_found_changed_and_forgotten(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a client does after a crash between any two steps, before the next rebalance."""
    await made(urls[:2])
    moving = next(it for it in THREADS if choose_shard(3, "default", it) == 2)
    await end_in(monkeypatch, urls[:3], "admit_thread", 1)
    assert sum(len(rows(it, MOVES)) for it in urls[:2]) == 1
    async with open_sharded(urls[:3]) as storage:
        assert await storage.backend.search(moving) == [moving]
        assert len(await storage.backend.threads_of("alex")) == len(THREADS)
        assert await storage.checkpointer().delete(moving)
        assert not await storage.checkpointer().exists(moving)
        rest = [it for it in THREADS if it != moving]
        await rebalance(storage.backend)
        await check_states(storage, rest)
    check_places(urls[:3], rest)


@pytest.mark.parametrize("left", first_of("no thread", "no move"))
async def test_a_copy_that_a_killed_client_has_left_is_forgotten(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    await made(urls[:2])
    await end_in(monkeypatch, urls[:3], "take_thread")
    assert len([it for url in urls[:3] for it in rows(url)]) == len(THREADS) + 1
    [(url, name)] = [(url, it) for url in urls[:2] for it in rows(url, MOVED)]
    with closing(sqlite3.connect(url.partition(":///")[2])) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        table = "turns" if left == "no move" else f"threads WHERE thread_id = '{name}'"
        connection.execute(f"DELETE FROM locus_{table}")
    async with open_sharded(urls[:3]) as storage:
        await storage.backend.forget_user("alex")
    assert [it for url in urls[:3] for it in rows(url) + rows(url, MOVES)] == []


async def test_a_thread_that_a_restored_database_has_too_is_listed_once_and_forgotten(
    urls: list[str], tmp_path: Path
) -> None:
    await made(urls[:2])
    backup = shutil.copyfile(urls[0].partition(":///")[2], tmp_path / "backup.db")
    moved = next(it for it in rows(urls[0]) if choose_shard(3, "default", it) == 2)
    await rebalanced(urls[:3])
    async with open_sharded(urls[:3]) as storage:
        await storage.checkpointer().save({"n": 2}, moved, "newest", metadata={"user_id": "alex"})
    shutil.copyfile(backup, urls[0].partition(":///")[2])
    async with open_sharded(urls[:3]) as storage:
        heads = await storage.checkpointer().list_with_metadata()
        assert [it["checkpoint_id"] for it in heads if it["thread_id"] == moved] == ["newest"]
        await storage.backend.forget_user("alex")
    assert [it for url in urls[:3] for it in rows(url)] == []


async def test_no_turn_replaces_the_move_of_a_thread(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(urls[:2])
    await end_in(monkeypatch, urls[:3], "admit_thread", 1)
    [key] = [it for url in urls[:2] for it in rows(url, MOVES)]
    async with open_sharded(urls[:3]) as storage:
        with pytest.raises(InvalidArgumentError, match="1 to 255 characters"):
            async with storage.checkpointer().turn(key):
                pass
        await rebalance(storage.backend)
        await check_states(storage)


async def test_a_mark_of_the_former_shard_still_tells_of_a_later_save(urls: list[str]) -> None:
    await made(urls[:2])
    moving = [it for it in THREADS if choose_shard(3, "default", it) == 2][:2]
    async with open_sharded(urls[:3]) as storage, open_sharded(urls[:3]) as another:
        mine = storage.checkpointer(state_type=dict)
        loaded = [await mine.load(it) for it in moving]
        await rebalance(another.backend)
        theirs = another.checkpointer(state_type=dict)
        other = await theirs.load(moving[0])
        other["n"] = "another"
        await theirs.save(other, moving[0])
        for it in loaded:
            it["n"] = "mine"
        with pytest.raises(ConflictError):
            await mine.save(loaded[0], moving[0])
        assert (await mine.load(moving[0]))["n"] == "another"
        await mine.save(loaded[1], moving[1])
        assert (await theirs.load(moving[1]))["n"] == "mine"


async def test_writes_go_on_while_threads_move(urls: list[str]) -> None:
    await made(urls[:2])
    async with open_sharded(urls) as storage, open_sharded(urls) as another:
        work = asyncio.create_task(rebalance(another.backend))
        counts = dict.fromkeys(THREADS, 2)
        checkpointer = storage.checkpointer(state_type=dict)

        async def write(thread_id: str) -> None:
            at = 0
            while not work.done() or at < 3:
                at += 1
                state = await checkpointer.load(thread_id)
                state["n"] += 1
                await checkpointer.save(state, thread_id)
                counts[thread_id] += 1
                await checkpointer.save({"of": f"{thread_id} {at}"}, f"{thread_id} new {at}")
                counts[f"{thread_id} new {at}"] = 1
                await storage.backend.put_writes(
                    thread_id, f"c{at}", [PendingWrite("task", 0, "c", "json", b"1")]
                )

        await asyncio.gather(*map(write, THREADS), work)
        for it, count in counts.items():
            assert len(await checkpointer.list_checkpoints(it, limit=10_000)) == count, it
        assert sorted(await checkpointer.list_threads(limit=len(counts) + 1)) == sorted(counts)
    check_places(urls, list(counts))


async def test_clients_that_move_a_thread_at_once_agree(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(urls[:2])
    await end_in(monkeypatch, urls[:3], "reserve_move")
    async with open_sharded(urls[:3]) as one, open_sharded(urls[:3]) as other:
        both = [it.backend for it in (one, other, one, other)]
        await asyncio.gather(*(it.save(name, {"of": name}) for it in both for name in THREADS))
        for it in THREADS:
            assert len(await one.backend.history(it)) == 6
        assert (await rebalance(one.backend)).moved == 0
    check_places(urls[:3])


async def test_two_rebalances_at_once_move_each_thread_once(urls: list[str]) -> None:
    await made(urls[:2])
    async with open_sharded(urls) as one, open_sharded(urls) as other:
        both = await asyncio.gather(rebalance(one.backend), rebalance(other.backend))
        assert {it.shards for it in both} == {4}
        await check_states(one)
        await check_states(other)
    check_places(urls)


async def test_a_client_with_the_shorter_list_is_refused_before_threads_move(
    urls: list[str],
) -> None:
    await made(urls[:2])
    async with open_sharded(urls[:2]) as former, open_sharded(urls[:3]) as storage:
        await former.open()
        await rebalance(storage.backend)
        with pytest.raises(InvalidArgumentError, match="the set has 3 shards"):
            await former.checkpointer(state_type=dict).save({}, "t0")
        with pytest.raises(InvalidArgumentError, match="the set has 3 shards"):
            await former.checkpointer().list_threads()


async def test_writes_wait_for_a_rebalance_that_stopped_and_then_say_so(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(urls[:2])
    monkeypatch.setattr(shard_set, "ANNOUNCED_SECONDS", 0.05)
    moving = next(it for it in THREADS if choose_shard(3, "default", it) == 2)
    stays = next(it for it in THREADS if choose_shard(3, "default", it) != 2)
    await end_in(monkeypatch, urls[:3], "write_layout", 4)
    async with open_sharded(urls[:3]) as storage:
        checkpointer = storage.checkpointer(state_type=dict)
        with pytest.raises(BackendError, match="'locus-store shards rebalance' again"):
            await checkpointer.save({"of": moving}, moving)
        await checkpointer.save({"of": stays, "n": 2}, stays)
        monkeypatch.setattr(shard_set, "WAITS", 10_000)  # a slow machine takes its time to move
        waiting = asyncio.create_task(checkpointer.save({"of": moving, "n": 2}, moving))
        await rebalance(storage.backend)
        await waiting
        await check_states(storage)
    check_places(urls[:3])


async def test_a_thread_in_two_shards_is_reported_and_stays(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still for longer than the announcement may have created one."""
    await made(urls[:2])
    moving = [it for it in THREADS if choose_shard(3, "default", it) == 2]
    await end_in(monkeypatch, urls[:3], "take_thread", 1)
    async with open_storage(urls[2]) as stray:
        stray.backend.join_set()
        await put(stray, moving[:1])
    async with open_sharded(urls[:3]) as storage:
        with pytest.raises(ConflictError, match="another one of this id is in shard 3"):
            await rebalance(storage.backend)
        assert set(moving) <= set(rows(urls[2]))
        await check_states(storage)
        async with open_storage(urls[2]) as stray:
            stray.backend.join_set()
            await stray.checkpointer().delete(moving[0])
        await rebalance(storage.backend)
        await check_states(storage)
    check_places(urls[:3])


async def test_a_copy_to_another_shard_is_as_one_within_it(urls: list[str]) -> None:
    async with open_sharded(urls[:3]) as storage:
        await put(storage, ["t0"])
        checkpointer = storage.checkpointer(state_type=dict)
        for it in THREADS[1:]:
            assert await checkpointer.copy_thread("t0", it)
            with pytest.raises(ConflictError):
                await checkpointer.copy_thread("t0", it)
        assert not await checkpointer.copy_thread("missing", "x")
        listed = await checkpointer.list_threads()
        assert listed[-1] == "t0"
        assert sorted(listed) == sorted(THREADS)
        assert [it.name for it in await checkpointer.tenants()] == ["default"]
    check_places(urls[:3])
    tenants = [it for url in urls[:3] for it in rows(url, "SELECT tenant FROM locus_threads")]
    assert set(tenants) == {"default"}


async def test_copies_to_other_shards_are_recorded_as_one_within_it_and_moves_are_not(
    urls: list[str],
) -> None:
    async with open_sharded(urls[:3], audit="w") as storage:
        await put(storage, ["t0"])
        for it in THREADS[1:]:
            assert await storage.backend.copy_thread("t0", it)
            with pytest.raises(ConflictError):
                await storage.backend.copy_thread("t0", it)
    async with open_sharded(urls, audit="w") as storage:
        await rebalance(storage.backend)
    columns = "tenant || ' ' || thread_id || ' ' || detail || ' ' || result"
    recorded = f"SELECT {columns} FROM locus_audit WHERE method <> 'commit'"
    detail = '{"source_thread_id":"t0"}'
    assert sorted(row for url in urls for row in rows(url, recorded)) == sorted(
        f"default {it} {detail} {result}"
        for it in THREADS[1:]
        for result in ("ConflictError", "done")
    )
    sealed = "SELECT tenant FROM locus_seals UNION SELECT tenant FROM locus_audit"
    assert {row for url in urls for row in rows(url, sealed)} == {"default"}


async def test_a_turn_ends_when_its_thread_changes_the_shard(urls: list[str]) -> None:
    await made(urls[:2])
    moving = next(it for it in THREADS if choose_shard(3, "default", it) == 2)
    async with open_sharded(urls[:3]) as storage:
        checkpointer = storage.checkpointer(state_type=dict)
        async with checkpointer.turn(moving, lease_seconds=3600):
            await rebalance(storage.backend)
            assert await checkpointer.turns() == []
            with pytest.raises(TurnError):
                await checkpointer.save({}, moving)
    check_places(urls[:3])


async def test_a_copy_finds_a_thread_that_moves_meanwhile(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(urls[:2])
    moving = next(it for it in THREADS if choose_shard(3, "default", it) == 2)
    async with open_sharded(urls[:3]) as storage:
        identify = storage.backend.identify

        async def rebalance_and_identify(shard: Any) -> Any:
            found = await identify(shard)
            if sum(len(rows(it)) for it in urls[2:3]) == 0:
                await rebalanced(urls[:3])
            return found

        monkeypatch.setattr(storage.backend, "identify", rebalance_and_identify)
        assert await storage.checkpointer().copy_thread(moving, "copy")
        assert (await storage.checkpointer(state_type=dict).load("copy"))["of"] == moving
    check_places(urls[:3], [*THREADS, "copy"])


async def test_pages_are_those_of_one_database(urls: list[str]) -> None:
    async with open_sharded(urls[:3]) as storage:
        await put(storage, THREADS[::-1])
        backend = storage.backend
        assert isinstance(backend, ShardedBackend)
        pages, after = [], None
        while page := await backend.list_threads(5, after=after):
            pages += page
            after = page[-1]
        assert pages == THREADS
        facts = await backend.threads_by_activity(offset=3, limit=4)
        assert [it.thread_id for it in facts] == THREADS[3:7]
        assert await list_in_pages(backend, 5) == THREADS


async def list_in_pages(backend: Any, limit: int) -> list[str]:
    """Return the ids of the list with its conditions, page after page."""
    found, place = list[str](), None
    wanted = StatusesWanted(limit=limit, user_id="alex")
    while page := await backend.find_statuses(replace(wanted, place=place)):
        assert len(page) <= limit
        found += [it.thread_id for it in page]
        place = page[-1].place
    return found


@pytest.mark.parametrize("limit", first_of(4, 1))
async def test_threads_of_one_time_are_on_one_page_each(urls: list[str], limit: int) -> None:
    async with open_sharded(urls[:3]) as storage:
        await put(storage)
        for url in urls[:3]:
            with closing(sqlite3.connect(url.partition(":///")[2])) as connection, connection:
                connection.execute("UPDATE locus_threads SET active_at = 0")
                connection.execute("UPDATE locus_lines SET updated_at = 0")
        found = await list_in_pages(storage.backend, limit)
        assert (len(found), sorted(found)) == (len(THREADS), sorted(THREADS))
        with pytest.raises(InvalidArgumentError, match="does not name a place"):
            await storage.backend.find_statuses(
                StatusesWanted(limit=1, place="2026-01-31T12:00Z/5")
            )


def test_a_rebalance_by_the_command(urls: list[str], run: Any) -> None:
    asyncio.run(made(urls[:2]))
    code, text, _ = run("shards", "rebalance", "--url", f"sharded:{' '.join(urls[:3])}", "--json")
    moved = sum(choose_shard(3, "default", it) == 2 for it in THREADS)
    assert (code, json.loads(text)) == (0, {"shards": 3, "moved": moved})
    check_places(urls[:3])
    code, _, error = run("shards", "rebalance", "--url", urls[0])
    assert (code, "sharded:URL URL" in error) == (1, True)


# --- a removal


async def removed(urls: Sequence[str]) -> None:
    async with open_sharded(urls) as storage:
        await rebalance(storage.backend, removes_last=True)


def test_a_command_for_a_schema_asks_for_the_urls_of_the_shards(urls: list[str], run: Any) -> None:
    code, _, error = run("db", "upgrade", f"--url=sharded:{' '.join(urls)}")
    assert (code, "give the URL of each shard" in error) == (1, True)


async def test_a_removal_moves_the_threads_of_the_last_shard_only(urls: list[str]) -> None:
    await made(urls[:3])
    before = [rows(it) for it in urls[:3]]
    async with open_sharded(urls[:3]) as storage, open_sharded(urls[:3]) as another:
        await check_states(another)
        done = await rebalance(storage.backend, removes_last=True)
        assert done == (2, len(before[2]))
        assert (await rebalance(storage.backend, removes_last=True)).moved == 0
        await check_states(another)
    assert rows(urls[2]) == []
    async with open_sharded(urls[:2]) as storage:
        await check_states(storage)
        assert (await rebalance(storage.backend)) == (2, 0)
    check_places(urls[:2])
    assert all(set(rows(urls[it])) >= set(before[it]) for it in range(2))
    async with open_sharded([*urls[:2], urls[3]]) as storage:
        assert (await rebalance(storage.backend)).shards == 3
        await check_states(storage)


@pytest.mark.parametrize(("name", "after", "done"), STEPS)
async def test_a_removal_that_ended_anywhere_is_continued(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, name: str, after: int, done: bool
) -> None:
    await made(urls[:3])
    with monkeypatch.context() as patch:
        crash(patch, name, after, done=done)
        with pytest.raises(BackendError, match="ended here"):
            await removed(urls[:3])
    async with open_sharded(urls[:3]) as storage:
        await check_states(storage)
        await rebalance(storage.backend, removes_last=True)
        await check_states(storage)
    check_places(urls[:2])
    assert rows(urls[2]) == []


async def test_a_removal_that_cannot_be_is_refused(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(urls[:1])
    with pytest.raises(InvalidArgumentError, match="one shard at least"):
        await removed(urls[:1])
    with pytest.raises(InvalidArgumentError, match="database 2 of the list is not a shard yet"):
        await removed(urls[:2])
    await end_in(monkeypatch, urls[:2], "take_thread")
    with pytest.raises(InvalidArgumentError, match="complete its rebalance first"):
        await removed(urls[:2])
    await rebalanced(urls[:2])
    with monkeypatch.context() as patch:
        crash(patch, "take_thread", 1)
        with pytest.raises(BackendError, match="ended here"):
            await removed(urls[:2])
    with pytest.raises(InvalidArgumentError, match="the set has 2 shards, and the list names 1"):
        await made(urls[:1])
    await rebalanced(urls[:2])  # continues the removal
    check_places(urls[:1])


async def test_a_database_of_no_set_cannot_be_removed_and_keeps_its_threads(
    urls: list[str],
) -> None:
    await made(urls[:3])
    await removed(urls[:3])
    async with open_storage(urls[3]) as other:
        await put(other, ["own"])
    before = dump(urls[3])
    with pytest.raises(InvalidArgumentError, match="database 3 of the list is not a shard yet"):
        await removed([*urls[:2], urls[3]])
    assert dump(urls[3]) == before


@pytest.mark.full  # a removal writes the layout and moves threads as a rebalance does
async def test_writes_go_on_while_a_shard_is_removed(urls: list[str]) -> None:
    await made(urls[:3])
    async with open_sharded(urls[:3]) as storage, open_sharded(urls[:3]) as another:
        work = asyncio.create_task(rebalance(another.backend, removes_last=True))
        checkpointer = storage.checkpointer(state_type=dict)
        counts = dict.fromkeys(THREADS, 2)

        async def write(thread_id: str) -> None:
            while not work.done():
                state = await checkpointer.load(thread_id)
                state["n"] += 1
                await checkpointer.save(state, thread_id)
                counts[thread_id] += 1
                assert len(await checkpointer.list_threads()) == len(THREADS)

        await asyncio.gather(*map(write, THREADS), work)
        for it, count in counts.items():
            assert len(await checkpointer.list_checkpoints(it, limit=10_000)) == count, it
    check_places(urls[:2])


async def test_a_copy_to_another_shard_that_fails_at_its_end_leaves_nothing(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(urls[:2])
    async with open_sharded(urls[:2]) as storage:
        source = next(it for it in THREADS if place(it) == 0)
        dest = next(f"c{it}" for it in range(99) if place(f"c{it}") == 1)
        with monkeypatch.context() as patch:
            patch.setattr("locus_store.sql.archives._restore_line", fail)
            with pytest.raises(BackendError, match="ended here"):
                await storage.checkpointer().copy_thread(source, dest)
        assert rows(urls[1], "SELECT thread_id FROM locus_threads WHERE tenant <> 'default'") == []
        assert await storage.checkpointer().exists(dest) is False
    check_places(urls[:2])


async def test_a_copy_to_another_shard_counts_against_the_quota_of_its_database(
    urls: list[str],
) -> None:
    await made(urls[:2])
    source = next(it for it in THREADS if place(it) == 0)
    dest = next(f"c{it}" for it in range(99) if place(f"c{it}") == 1)
    async with open_sharded(urls[:2]) as storage:
        used = (await storage.backend.shards[1].get_quota()).bytes
        await storage.backend.shards[1].set_quota(Quota(bytes=used + 10))
        with pytest.raises(QuotaError, match="bytes"):
            await storage.checkpointer().copy_thread(source, dest)
        assert await storage.checkpointer().exists(dest) is False


def fail(*_: object) -> None:
    raise BackendError("the process ended here")


@pytest.mark.full
def test_a_removal_by_the_command(urls: list[str], run: Any) -> None:
    asyncio.run(made(urls[:2]))
    command = ("shards", "rebalance", "--url", f"sharded:{' '.join(urls[:2])}", "--remove")
    for it in (urls[0], urls[1][-4:], ""):
        code, _, error = run(*command, it)
        assert (code, "only the last shard can be removed" in error) == (1, True)
    code, text, _ = run(*command, urls[1], "--json")
    assert (code, json.loads(text)["shards"]) == (0, 1)
    check_places(urls[:1])
