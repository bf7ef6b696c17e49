"""Connections that a lone save, a load and pending writes take without SQLAlchemy's checkout."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import servers
import sqlalchemy as sa

from locus_store import BackendError, postgresql_checkpointer
from locus_store.backends.postgresql import failures
from locus_store.sql.connections import lending
from locus_store.sql.connections.pool import LoopPool
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60.0
ADVISORY = 4711
"""A lock that saves with the metadata ``{"held": …}`` wait for."""


def opened(url: str, **options: Any) -> Any:
    return postgresql_checkpointer(url, **{"state_type": dict, "pool_size": 2, **options})


def name_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


async def in_time(work: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(work, DEADLINE_SECONDS)


async def test_calls_on_forgotten_connections_are_done_again(
    postgresql: servers.Server, migrated_database: str
) -> None:
    """A firewall forgets them; both ends believe that they live, and new ones are let through."""
    with closing(servers.Proxy(postgresql.port)) as proxy:
        url = proxy.url(postgresql, name_of(migrated_database))
        async with opened(url, pool_size=4) as checkpointer:
            await asyncio.gather(*(checkpointer.save({"n": 1}, f"t{it}") for it in range(4)))
            proxy.freeze()
            began = time.monotonic()
            loads = (checkpointer.load(f"t{it}") for it in range(2))
            saves = (checkpointer.save({"n": 2}, f"t{it}") for it in (2, 3))
            await asyncio.gather(*loads, *saves)
            assert time.monotonic() - began < DEADLINE_SECONDS / 3  # of a statement: 60
            assert [(await checkpointer.load(f"t{it}"))["n"] for it in range(4)] == [1, 1, 2, 2]


async def test_a_call_whose_connection_is_forgotten_after_a_question_is_done_again(
    postgresql: servers.Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was at work on it when it was asked."""
    monkeypatch.setattr(lending, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(lending, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(failures, "_BUSY", failures._BUSY.replace("2 seconds", "0.1 seconds"))
    answers: list[Any] = []
    find = LoopPool._find_forgotten

    async def note(self: LoopPool, drivers: list[Any]) -> list[Any]:
        answers.append(await find(self, drivers))
        return answers[-1]

    async def is_asked() -> bool:
        return bool(answers)

    monkeypatch.setattr(LoopPool, "_find_forgotten", note)
    with closing(servers.Proxy(postgresql.port)) as proxy:
        async with opened(proxy.url(postgresql, name_of(url))) as checkpointer:
            async with held_save(url, checkpointer) as save:
                await eventually(is_asked)
                proxy.freeze()
            assert await asyncio.wait_for(save, DEADLINE_SECONDS / 3) == "v1"


async def eventually(condition: Callable[[], Awaitable[Any]]) -> None:
    limit = time.monotonic() + DEADLINE_SECONDS
    while not await condition():
        assert time.monotonic() < limit, "it never came true"
        await asyncio.sleep(0.005)


async def asked(url: str, query: str, *values: Any) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query, *values)
    finally:
        await connection.close()


async def sessions(url: str) -> int:
    """The server's sessions of the database, without the one that asks."""
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return int(await asked(url, query))


async def end_sessions(url: str) -> None:
    await asked(
        url,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


async def count_waiting(url: str) -> int:
    """The statements that wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return int(await asked(url, query))


async def waiting(url: str, count: int) -> None:
    """Until so many statements wait for a lock."""

    async def enough() -> bool:
        return await count_waiting(url) >= count

    await eventually(enough)


async def is_none_waiting(url: str) -> bool:
    return await count_waiting(url) == 0


@asynccontextmanager
async def holding(url: str, statement: str) -> AsyncIterator[None]:
    """Another session, in a transaction that has run the statement."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(statement)
            yield
    finally:
        await connection.close()


def held(url: str) -> Any:
    """Hold the lock that saves with ``{"held": …}`` wait for."""
    return holding(url, f"SELECT pg_advisory_xact_lock({ADVISORY})")


@asynccontextmanager
async def held_save(url: str, checkpointer: Any) -> AsyncIterator[asyncio.Task[str]]:
    """Save "v1", which waits for a lock until the block ends."""
    async with held(url):
        save = asyncio.create_task(checkpointer.save({"n": 1}, "t", "v1", {"held": 1}))
        await waiting(url, 1)
        yield save


def pool_of(checkpointer: Any) -> Any:
    return checkpointer.backend._runner._pools._resources[asyncio.get_running_loop()]._sync.pool


def calls_of(checkpointer: Any) -> dict[str, Any]:
    """The calls that take a connection without a checkout."""
    steps = iter(range(10**6))
    state: dict[str, Any] = {"lines": [f"line {it}" for it in range(50)]}

    async def save() -> None:
        state["step"] = next(steps)
        await checkpointer.save(state, "t", on_conflict="overwrite")

    async def put_writes() -> None:
        write = PendingWrite(task_id=f"{next(steps)}", idx=0, channel="c", type="t", payload=b"x")
        assert await checkpointer.backend.put_writes("t", "v0", [write])

    async def take_turn() -> None:
        async with checkpointer.turn("t", wait="reject"):
            pass

    return {
        "save": save,
        "load": lambda: checkpointer.load("t"),
        "put_writes": put_writes,
        "turn": take_turn,
    }


@pytest.fixture
def url(migrated_database: str, postgresql: servers.Server) -> str:
    """A database whose saves with ``{"held": …}`` wait for a lock."""
    postgresql.execute(
        f"""
        CREATE FUNCTION wait_if_held() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF NEW.metadata ? 'held' THEN PERFORM pg_advisory_xact_lock({ADVISORY}); END IF;
          RETURN NEW;
        END $$;
        CREATE TRIGGER held BEFORE INSERT ON locus_checkpoints
          FOR EACH ROW EXECUTE FUNCTION wait_if_held();
        """,
        name_of(migrated_database),
    )
    return migrated_database


@pytest.fixture
async def checkpointer(url: str) -> AsyncIterator[Any]:
    async with opened(url) as made:
        await made.save({"step": -1}, "t", "v0")
        yield made


@pytest.fixture
def checkouts() -> Iterator[list[Any]]:
    """SQLAlchemy's checkouts of any pool."""
    found: list[Any] = []

    def note(*given: Any) -> None:
        found.append(given[1])

    sa.event.listen(sa.pool.Pool, "checkout", note)
    yield found
    sa.event.remove(sa.pool.Pool, "checkout", note)


# --- counts


@pytest.mark.parametrize("what", ["save", "load", "put_writes"])
async def test_a_lone_call_takes_no_checkout_and_begins_no_task(
    what: str, checkpointer: Any, checkouts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "PING_SECONDS", DEADLINE_SECONDS)
    call = calls_of(checkpointer)[what]
    await call()
    checkouts.clear()
    begun: list[Any] = []
    loop = asyncio.get_running_loop()
    create_task = loop.create_task
    monkeypatch.setattr(
        loop, "create_task", lambda *it, **more: begun.append(it) or create_task(*it, **more)
    )
    for _ in range(5):
        await call()
    assert checkouts == []
    assert begun == []
    assert pool_of(checkpointer).checkedout() == 0


@pytest.mark.parametrize("what", ["save", "load", "put_writes"])
async def test_a_connection_in_use_is_checked_out_again_after_a_second(
    what: str, checkpointer: Any, checkouts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "PING_SECONDS", 0.0)
    call = calls_of(checkpointer)[what]
    await call()
    checkouts.clear()
    for _ in range(3):
        await call()
    assert len(checkouts) == 3


async def test_a_connection_that_is_never_idle_is_recycled(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "PING_SECONDS", 0.01)
    async with opened(url, pool_size=1, pool_recycle_seconds=0.05) as checkpointer:
        pids = set()

        async def replaced() -> bool:
            await checkpointer.load("t")
            home = checkpointer.backend._runner._pools._resources[asyncio.get_running_loop()]
            async with home.lease_driver() as connection:
                pids.add(connection.get_server_pid())
            return len(pids) > 1

        await eventually(replaced)


# --- others that want a connection


@pytest.mark.parametrize("what", ["save", "load", "put_writes"])
async def test_a_busy_caller_lets_others_have_the_only_connection(what: str, url: str) -> None:
    async with opened(url, pool_size=1) as checkpointer:
        await checkpointer.save({"step": -1}, "t", "v0")
        call, is_over = calls_of(checkpointer)[what], False

        async def busy() -> None:
            while not is_over:
                await call()

        caller = asyncio.create_task(busy())
        try:
            for _ in range(5):
                assert await in_time(checkpointer.list_threads()) == ["t"]
        finally:
            is_over = True
            await caller


async def test_a_caller_waits_for_the_only_connection_while_a_save_uses_it(url: str) -> None:
    async with opened(url, pool_size=1) as checkpointer:
        await checkpointer.save({"n": 0}, "t")
        async with held_save(url, checkpointer) as save:
            threads = asyncio.create_task(checkpointer.list_threads())
            await asyncio.wait([threads], timeout=0.05)
            assert pool_of(checkpointer).checkedout() == 1
            assert not threads.done()
        assert await in_time(save) == "v1"
        assert await in_time(threads) == ["t"]


async def test_lone_saves_that_wait_one_by_one_delay_no_other(url: str) -> None:
    async with opened(url, pool_size=6) as checkpointer:
        for thread in ("a", "b", "c", "free"):
            await checkpointer.save({"n": 0}, thread)
        async with held(url):
            saves = []
            for number, thread in enumerate("abc", 1):
                save = checkpointer.save({"n": 1}, thread, "v1", {"held": 1})
                saves.append(asyncio.create_task(save))
                await waiting(url, number)
            assert await in_time(checkpointer.save({"n": 1}, "free", "v1")) == "v1"
            assert not any(it.done() for it in saves)
        assert await in_time(asyncio.gather(*saves)) == ["v1"] * 3


async def test_an_overflowing_connection_is_closed_after_its_use(url: str) -> None:
    async with opened(url, pool_size=1, max_overflow=3) as checkpointer:
        await checkpointer.save({"n": 0}, "t")
        for _ in range(3):
            await asyncio.gather(*(checkpointer.load("t") for _ in range(8)))
            await checkpointer.save({"n": 1}, "t", on_conflict="overwrite")

        async def is_one_left() -> bool:
            return await sessions(url) == 1

        await eventually(is_one_left)
        assert pool_of(checkpointer).checkedout() == 0


# --- lost connections


async def test_a_write_whose_task_is_cancelled_before_its_first_step_leaves_no_coroutine(
    checkpointer: Any,
) -> None:
    """As at the end of ``asyncio.run``; Python would warn of one."""
    ours, backend = asyncio.all_tasks(), checkpointer.backend
    works = (backend.vacuum_report, partial(backend.delete, "t", "v1"), backend.expire)
    for work, steps in product(works, range(6)):
        calls = {asyncio.ensure_future(work())}
        for _ in range(steps):
            await asyncio.sleep(0)
        calls |= asyncio.all_tasks() - ours
        for it in calls:
            it.cancel()
        await in_time(asyncio.gather(*calls, return_exceptions=True))


@pytest.mark.parametrize("what", ["save", "load", "put_writes"])
async def test_a_session_ended_while_its_connection_is_idle_is_replaced(
    what: str, url: str, checkpointer: Any
) -> None:
    call = calls_of(checkpointer)[what]
    for _ in range(3):
        await call()
        await end_sessions(url)
        await call()
    assert pool_of(checkpointer).checkedout() == 0


@pytest.mark.full
@pytest.mark.parametrize("what", ["save", "load", "put_writes", "turn"])
async def test_a_server_that_was_restarted_between_two_calls_is_used_again(what: str) -> None:
    with servers.started(servers.PostgreSQL) as server:
        async with opened(server.url(server.new_database())) as checkpointer:
            await checkpointer.save({"step": -1}, "t", "v0")
            call = calls_of(checkpointer)[what]
            await call()
            server.kill()
            server.start()
            await in_time(call())
            assert await checkpointer.load("t", "v0") == {"step": -1}


async def test_a_save_whose_session_ends_in_the_middle_is_done_again(
    url: str, checkpointer: Any
) -> None:
    async with held_save(url, checkpointer) as save:
        await asked(
            url,
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
    assert await in_time(save) == "v1"
    assert await checkpointer.list_checkpoints("t") == ["v1", "v0"]
    assert pool_of(checkpointer).checkedout() == 0


async def test_a_lone_save_that_takes_too_long_leaves_a_usable_connection(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url, pool_size=1) as checkpointer:
        await checkpointer.save({"n": 0}, "t", "v0")
        _, saves, _ = await checkpointer.backend._get_calls()
        async with held(url):
            with monkeypatch.context() as patch:  # a slow machine has time for the others
                patch.setattr(saves, "timeout_seconds", 0.2)
                with pytest.raises(BackendError, match="took longer than its timeout"):
                    await in_time(checkpointer.save({"n": 1}, "t", "v1", {"held": 1}))
            await eventually(lambda: is_none_waiting(url))
        assert await checkpointer.save({"n": 2}, "t", "v2") == "v2"
        assert await checkpointer.list_checkpoints("t") == ["v2", "v0"]
        assert pool_of(checkpointer).checkedout() == 0


# --- cancellation, close, loops, processes


async def test_a_lone_save_goes_on_when_its_caller_is_cancelled(
    url: str, checkpointer: Any
) -> None:
    async with held_save(url, checkpointer) as save:
        save.cancel()
        with pytest.raises(asyncio.CancelledError):
            await in_time(save)
    assert await in_time(checkpointer.save({"n": 2}, "t", "v2", on_conflict="overwrite")) == "v2"
    assert await checkpointer.list_checkpoints("t") == ["v2", "v1", "v0"]


async def test_close_waits_for_a_lone_save_and_leaves_no_session(url: str) -> None:
    checkpointer = opened(url)
    await checkpointer.save({"n": 0}, "t", "v0")
    async with held_save(url, checkpointer) as save:
        close = asyncio.create_task(checkpointer.close())
        await asyncio.wait([close], timeout=0.05)
        assert not close.done()
    await in_time(close)
    assert await in_time(save) == "v1"

    async def is_none_left() -> bool:
        return await sessions(url) == 0

    await eventually(is_none_left)


async def test_event_loops_have_connections_of_their_own(url: str, checkpointer: Any) -> None:
    failed: list[BaseException] = []

    async def work(name: str) -> None:
        for step in range(30):
            await checkpointer.save({"step": step}, name)
            assert await checkpointer.load(name) == {"step": step}

    def other_loop() -> None:
        try:
            asyncio.run(work("other"))
        except BaseException as exc:  # noqa: BLE001  (raised in the test)
            failed.append(exc)

    thread = threading.Thread(target=other_loop)
    thread.start()
    await work("mine")
    await asyncio.to_thread(thread.join, DEADLINE_SECONDS)
    assert failed == []
    assert sorted(await checkpointer.list_threads()) == ["mine", "other", "t"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_child_takes_no_connection_of_its_parent(
    url: str, checkpointer: Any
) -> None:
    async with held_save(url, checkpointer) as save:
        child = os.fork()
        if child == 0:
            os._exit(_saved_in_child(checkpointer))
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert await in_time(save) == "v1"
    assert await checkpointer.load("child") == {"n": 1}
    assert await checkpointer.save({"n": 2}, "t", "v2") == "v2"


def _saved_in_child(checkpointer: Any) -> int:
    async def work() -> None:
        await checkpointer.save({"n": 0}, "child")
        await checkpointer.save({"n": 1}, "child")

    asyncio.events._set_running_loop(None)
    try:
        asyncio.run(work())
    except BaseException:  # noqa: BLE001  (the parent sees the code)
        return 1
    return 0
