"""A client that stands still within a call, or knows an older layout, doubles no thread."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiers import ALL

from locus_store import (
    BackendError,
    ConflictError,
    SchemaError,
    TurnError,
    open_message_log,
    open_sharded,
    open_storage,
)
from locus_store.backends.sharded import shard_set
from locus_store.backends.sharded.rebalance import rebalance
from locus_store.types import PendingWrite, VersionsWanted
from locus_store.versions.sharding import choose_shard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.anyio

WORKER = Path(__file__).parents[3] / "workers" / "on_shards_still.py"
ROUNDS = 8 if ALL else 1

THREADS = [f"t{it}" for it in range(24)]
SOURCE = next(it for it in THREADS if choose_shard(3, "default", it) < 2)
NEW = [it for it in THREADS if choose_shard(3, "default", it) == 2]
"""Threads that belong to the third shard as soon as there is one."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease and an announcement that a test can wait for."""
    monkeypatch.setattr(shard_set, "LEASE_SECONDS", 0.02)
    monkeypatch.setattr(shard_set, "ANNOUNCED_SECONDS", 0.1)


async def list_places(urls: list[str]) -> dict[str, list[int]]:
    """Return the numbers of the shards that have a thread, by its id."""
    found: dict[str, list[int]] = {}
    for number, url in enumerate(urls):
        async with open_storage(url) as storage:
            storage.backend.join_set()
            for thread_id in await storage.checkpointer().list_threads(limit=100_000):
                found.setdefault(thread_id, []).append(number)
    return found


async def grow(urls: list[str]) -> None:
    """Have another process' client rebalance the set with its last database."""
    async with open_sharded(urls) as storage:
        await rebalance(storage.backend)


@contextlib.asynccontextmanager
async def stand_still(storage: Any, urls: list[str]) -> AsyncIterator[None]:
    """Let a set grow while its client believes that it has just looked at the layout."""
    await storage.open()
    await grow(urls)
    of = storage.backend.shard_set
    of._read_at = [float("inf")] * len(urls)
    yield


async def save(storage: Any, thread_id: str) -> None:
    await storage.checkpointer(state_type=dict).save({"of": thread_id}, thread_id)


async def append(storage: Any, thread_id: str) -> None:
    await storage.messages().append(thread_id, [("hello",)])


async def describe(storage: Any, thread_id: str) -> None:
    await storage.backend.put_thread(thread_id, name="a name")


async def copy(storage: Any, thread_id: str) -> None:
    assert await storage.backend.copy_thread(SOURCE, thread_id)


async def restore(storage: Any, thread_id: str) -> None:
    thread = await storage.backend.read_thread(SOURCE)
    await storage.backend.restore(replace(thread, thread_id=thread_id))


@pytest.mark.parametrize("call", [save, append, describe, copy, restore])
async def test_a_thread_is_created_by_the_newest_layout_only(
    make_url: Callable[[], str], call: Callable[[Any, str], Awaitable[None]]
) -> None:
    urls = [make_url() for _ in range(3)]
    async with open_sharded(urls[:2]) as first:
        await save(first, SOURCE)
    async with open_sharded(urls) as storage, stand_still(storage, urls):
        for thread_id in NEW:
            await call(storage, thread_id)
        listed = await storage.checkpointer().list_threads(limit=100)
        assert set(listed) - {SOURCE} == set(NEW)
    places = await list_places(urls)
    assert {it: places[it] for it in NEW} == {it: [2] for it in NEW}


async def test_saves_at_once_are_divided_by_the_newest_layout(make_url: Callable[[], str]) -> None:
    """A group of saves has some of threads that stay, and some whose place has changed."""
    urls = [make_url() for _ in range(3)]
    async with open_sharded(urls[:2]) as first:
        await first.open()
    async with open_sharded(urls) as storage, stand_still(storage, urls):
        await asyncio.gather(*(save(storage, it) for it in THREADS))
    assert await list_places(urls) == {it: [choose_shard(3, "default", it)] for it in THREADS}


@pytest.mark.parametrize("is_late", [False, True], ids=["soon", "late"])
async def test_a_call_that_began_before_is_refused_though_another_has_looked_since(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    if is_late:
        monkeypatch.setattr(shard_set, "PATIENCE_SECONDS", 0.05)
    urls = [make_url() for _ in range(3)]
    async with open_sharded(urls[:2]) as first:
        await first.open()
    async with open_sharded(urls) as storage:
        await storage.open()
        former = choose_shard(2, "default", NEW[0])
        shard, entered, goes_on = storage.backend.shards[former], asyncio.Event(), asyncio.Event()
        commit = type(shard).commit

        async def stopped(self: Any, *args: Any) -> Any:
            if self is shard and not entered.is_set():
                entered.set()
                await goes_on.wait()
            return await commit(self, *args)

        monkeypatch.setattr(type(shard), "commit", stopped)
        late = asyncio.create_task(save(storage, NEW[0]))
        await entered.wait()
        await grow(urls)
        # Another call looks at the layout; it uses it when the late one is over.
        other = asyncio.create_task(save(storage, NEW[1]))
        await asyncio.sleep(0.1)
        if is_late:
            with pytest.raises(BackendError, match="are not over"):
                await other
        goes_on.set()
        await late
        await (save(storage, NEW[1]) if is_late else other)
    assert await list_places(urls) == {it: [2] for it in NEW[:2]}


async def test_a_slow_load_finds_a_thread_that_has_moved_meanwhile(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [make_url() for _ in range(3)]
    async with open_sharded(urls[:2]) as first:
        await save(first, NEW[0])
    async with open_sharded(urls) as storage:
        await storage.open()
        shard = storage.backend.shards[choose_shard(2, "default", NEW[0])]
        version = type(shard).version
        stops = [shard]

        async def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self in stops:
                stops.clear()
                await grow(urls)
            return await version(self, *args, **kwargs)

        monkeypatch.setattr(type(shard), "version", slow)
        assert await storage.backend.version(NEW[0]) is not None
        assert not stops


async def test_a_database_that_becomes_a_shard_creates_no_thread_for_who_opened_it_before(
    make_url: Callable[[], str],
) -> None:
    urls = [make_url() for _ in range(3)]
    async with open_storage(urls[0]) as alone, open_message_log(urls[0]) as log:
        await save(alone, "first")
        await log.append("first", [("a",)])
        async with open_sharded(urls[:1]) as whole:  # all threads belong to one shard
            await save(whole, "second")
        await save(alone, "third")
        await log.append("fourth", [("a",)])
        await grow(urls)
        before = await list_places(urls)
        for call in (save(alone, NEW[0]), log.append(NEW[0], [("a",)])):
            with pytest.raises((SchemaError, ValueError), match="shard"):
                await call
    assert await list_places(urls) == before
    assert sorted(before) == ["first", "fourth", "second", "third"]


async def make_thread(urls: list[str]) -> None:
    """Make a thread with all that one can have; it will move to the last database."""
    async with open_sharded(urls) as storage:
        checkpointer = storage.checkpointer(state_type=dict)
        for n in range(3):
            await checkpointer.save({"n": n}, NEW[0], f"v{n}")
            await checkpointer.load(NEW[0])
        await storage.messages().append(NEW[0], [("hello",)])
        await storage.backend.put_thread(NEW[0], user_id="ada")
        for n in range(4):
            await checkpointer.save({"n": n}, f"{SOURCE}-{n}")


async def delete(storage: Any) -> object:
    done = await storage.checkpointer().delete(NEW[0])
    return done, await storage.backend.has_thread(NEW[0])


async def delete_version(storage: Any) -> object:
    done = await storage.checkpointer().delete(NEW[0], "v1")
    return done, [it.checkpoint_id for it in await storage.backend.history(NEW[0])]


async def prune(storage: Any) -> object:
    return await storage.backend.prune(NEW[0])


async def clear_versions(storage: Any) -> object:
    await storage.backend.clear_versions(NEW[0])
    return await storage.backend.history(NEW[0])


async def renew(storage: Any) -> object:
    return await storage.backend.renew(NEW[0], 60)


async def delete_log(storage: Any) -> object:
    done = await storage.messages().delete(NEW[0])
    return done, await storage.messages().load(NEW[0])


async def clear_log(storage: Any) -> object:
    await storage.messages().clear(NEW[0])
    return await storage.messages().load(NEW[0])


async def pop(storage: Any) -> object:
    done = await storage.messages().pop(NEW[0])
    return done is not None, await storage.messages().load(NEW[0])


async def take_turn(storage: Any) -> object:
    async with storage.checkpointer().turn(NEW[0]):
        return len(await storage.backend.list_turns(NEW[0]))


async def page(storage: Any) -> object:
    found = await storage.backend.recent(2, after=NEW[0])
    return len(found), NEW[0] in {it.thread_id for it in found}


async def read_contents(storage: Any) -> object:
    versions = await storage.backend.newest(VersionsWanted(thread_id=NEW[0]), 10)
    found = await storage.backend.contents(versions)
    return [(it.line == versions[0].mark.line, len(it.records)) for it in found]


async def rewind(storage: Any) -> object:
    checkpointer = storage.checkpointer(state_type=dict)
    await checkpointer.load(NEW[0], "v0")
    await checkpointer.save({"n": "again"}, NEW[0], "v4")
    return [it.checkpoint_id for it in await storage.backend.history(NEW[0])]


async def forget(storage: Any) -> object:
    return await storage.backend.forget_user("ada")


async def expire(storage: Any) -> object:
    return await storage.backend.expire()


async def put_writes(storage: Any) -> object:
    write = PendingWrite(task_id="a", idx=0, channel="c", type="json", payload=b"1")
    return await storage.backend.put_writes(NEW[0], "v2", [write])


LATE = [
    (delete, "remove_thread"), (delete_version, "remove"), (prune, "prune"),
    (clear_versions, "clear_versions"), (renew, "renew"), (put_writes, "store_writes"),
    (delete_log, "drop"), (clear_log, "change"), (pop, "change"), (page, "get_last_active_at"),
    (page, "recent"), (read_contents, "contents"), (read_contents, "newest"), (rewind, "commit"),
    (rewind, "fetch"), (forget, "forget_user"), (take_turn, "step_turn"),
]  # fmt: skip


@pytest.mark.parametrize("shrinks", [False, True], ids=["grown", "and-shrunk"])
@pytest.mark.parametrize(("call", "method"), LATE)
async def test_a_call_that_stood_still_gives_the_answer_of_the_place_where_its_thread_is(
    make_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    call: Any,
    method: str,
    shrinks: bool,
) -> None:
    sets = [[make_url() for _ in range(3)] for _ in range(2)]
    answers = []
    for urls, grows in zip(sets, (False, True), strict=True):
        await make_thread(urls[:2])
        async with open_sharded(urls) as storage:
            await storage.open()
            former = choose_shard(2, "default", NEW[0])
            shard, stops = storage.backend.shards[former], [1] * grows
            kind = type(shard if hasattr(shard, method) else storage.messages()._logs[former])
            inner = getattr(kind, method)

            async def stopped(self: Any, *args: Any, **kwargs: Any) -> Any:
                if stops and (self is shard or kind is not type(shard)):  # noqa: B023
                    stops.clear()  # noqa: B023
                    await (grow_and_shrink if shrinks else grow)(urls)  # noqa: B023
                return await inner(self, *args, **kwargs)  # noqa: B023

            monkeypatch.setattr(kind, method, stopped)
            answers.append(await call(storage))
            monkeypatch.undo()
            assert not stops
    assert answers[0] == answers[1]


async def clear(storage: Any, other: Any) -> object:
    await storage.backend.clear_versions(NEW[0])
    return await other.checkpointer(state_type=dict).load(NEW[0])


async def save_after(other: Any) -> None:
    checkpointer = other.checkpointer(state_type=dict)
    assert await checkpointer.load(NEW[0]) is None
    await checkpointer.save({"of": "other"}, NEW[0])


async def rename(storage: Any, other: Any) -> object:
    await storage.backend.put_thread(NEW[0], name="first")
    return (await other.backend.thread_facts(NEW[0])).name


async def rename_after(other: Any) -> None:
    assert (await other.backend.thread_facts(NEW[0])).name == "first"
    await other.backend.put_thread(NEW[0], name="other")


async def remove_log(storage: Any, other: Any) -> object:
    await storage.checkpointer().delete(NEW[1])
    return [it.content for it in await other.messages().load(NEW[1])]


async def append_after(other: Any) -> None:
    assert not await other.messages().load(NEW[1])
    await other.messages().append(NEW[1], [("of other",)])


DONE = [
    (clear, "clear_versions", save_after, {"of": "other"}),
    (rename, "put_facts", rename_after, "other"),
    (remove_log, "remove_thread", append_after, ["of other"]),
]


@pytest.mark.parametrize("case", DONE, ids=lambda it: it[1])
async def test_a_change_that_was_done_is_not_repeated(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, case: Any
) -> None:
    call, method, after, expected = case
    urls = [make_url() for _ in range(3)]
    await make_thread(urls[:2])
    async with open_sharded(urls) as storage, open_sharded(urls) as other:
        await storage.messages().append(NEW[1], [("hello",)])
        kind, stops = type(storage.backend.shards[0]), [1]
        inner = getattr(kind, method)

        async def stopped(self: Any, *args: Any, **kwargs: Any) -> Any:
            answer = await inner(self, *args, **kwargs)
            if stops:
                stops.clear()
                await grow(urls)
                await after(other)
            return answer

        monkeypatch.setattr(kind, method, stopped)
        assert await call(storage, other) == expected


async def test_an_older_turn_is_over_when_its_thread_comes_back(
    make_url: Callable[[], str],
) -> None:
    """Of a thread that did not exist yet, when its place changed."""
    urls = [make_url() for _ in range(3)]
    async with open_sharded(urls) as storage, open_sharded(urls[:2]) as first:
        await first.open()
        async with first.checkpointer(state_type=dict).turn(NEW[0]) as older:
            await grow(urls)
            async with storage.checkpointer(state_type=dict).turn(NEW[0]) as newer:
                assert newer.number > older.number
                await save(storage, NEW[0])
            async with open_sharded(urls) as other:
                await rebalance(other.backend, removes_last=True)
            with pytest.raises(TurnError):
                await save(first, NEW[0])
        await save(storage, NEW[0])


async def test_a_second_save_of_one_load_follows_its_thread(make_url: Callable[[], str]) -> None:
    urls = [make_url() for _ in range(3)]
    await make_thread(urls[:2])
    async with open_sharded(urls) as storage:
        checkpointer = storage.checkpointer(state_type=dict)
        state = await checkpointer.load(NEW[0])
        await checkpointer.save({**state, "n": 3}, NEW[0], "v3")
        await grow(urls)
        await checkpointer.save({**state, "n": 4}, NEW[0], "v4")
        found = [it.checkpoint_id for it in await storage.backend.history(NEW[0])]
        assert found == ["v4", "v3", "v2", "v1", "v0"]


@pytest.mark.parametrize("is_replaced", [False, True], ids=["same", "replaced"])
async def test_a_state_may_be_saved_whose_thread_has_left_its_shard_and_come_back(
    make_url: Callable[[], str], is_replaced: bool
) -> None:
    urls = [make_url() for _ in range(3)]
    await make_thread(urls[:2])
    async with open_sharded(urls) as storage, open_sharded(urls) as other:
        checkpointer = storage.checkpointer(state_type=dict)
        await checkpointer.load(NEW[0])
        await grow_and_shrink(urls)
        if is_replaced:
            await other.checkpointer().delete(NEW[0])
            for _ in range(3):
                await save(other, NEW[0])
            with pytest.raises(ConflictError):
                await checkpointer.save({"n": 3}, NEW[0])
        else:
            await checkpointer.save({"n": 3}, NEW[0], "v3")
            found = [it.checkpoint_id for it in await storage.backend.history(NEW[0])]
            assert found == ["v3", "v2", "v1", "v0"]


@pytest.mark.posix
async def test_clients_that_are_stopped_lose_and_double_nothing(
    make_url: Callable[[], str],
) -> None:
    """Two clients, one of which is stopped at a time, while a set grows by two and loses one."""
    dice, stops, met = random.Random(1), 0, Counter[str]()
    for _ in range(ROUNDS):
        urls = [make_url() for _ in range(4)]
        async with open_sharded(urls[:2]) as first:
            await first.open()
        clients = [Client(urls), Client(urls)]
        await asyncio.gather(*(it.begin() for it in clients))
        rebalances = asyncio.create_task(grow_and_shrink(urls))
        while not rebalances.done():
            client, stops = dice.choice(clients), stops + 1
            client.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(dice.random() * 0.6)
            client.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(dice.random() * 0.2)
        await rebalances
        lines = [line for it in clients for line in await it.end()]
        met.update(line.partition(" ")[0] for line in lines)
        assert [line for line in lines if line.startswith("wrong")] == []
        places = await list_places(urls)
        assert places == {it: [choose_shard(3, "default", it)] for it in places}
        saved = dict(it.split()[1:] for it in lines if it.startswith("ack"))
        async with open_sharded(urls[:3]) as storage:
            checkpointer = storage.checkpointer(state_type=dict)
            for thread_id, n in saved.items():
                assert await checkpointer.load(thread_id) == {"n": int(n)}
            logs = {line.split()[1] for line in lines if line.startswith("log")}
            assert logs <= places.keys()
    print(f"{stops} stops, {dict(met)}")


async def grow_and_shrink(urls: list[str]) -> None:
    async with open_sharded(urls) as storage:
        await rebalance(storage.backend)
        await rebalance(storage.backend, removes_last=True)


class Client:
    """A process of the worker."""

    def __init__(self, urls: list[str]) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, str(WORKER), *urls], text=True, **pipes)
        self._lines: list[str] = []

    async def begin(self) -> None:
        """Wait for its first line, and read the others."""
        self._lines.append(await asyncio.to_thread(self.process.stdout.readline))  # type: ignore[union-attr]
        self._reading = asyncio.create_task(asyncio.to_thread(list, self.process.stdout))

    async def end(self) -> list[str]:
        """End it; return its lines."""
        self.process.stdin.close()  # type: ignore[union-attr]
        lines = [*self._lines, *await self._reading]
        self.process.stdout.close()  # type: ignore[union-attr]
        assert self.process.wait() == 0
        return lines
