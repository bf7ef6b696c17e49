"""Turns of one process: the context of a write, renewals, and the blocking forms."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from time import sleep
from typing import TYPE_CHECKING, Any

import pytest
from servers import wait_until

from locus_store import (
    InvalidArgumentError,
    MemoryCheckpointer,
    TurnError,
    open_checkpointer,
    open_message_log,
    turns,
)
from locus_store.blocking import BlockingCheckpointer, open_checkpointer as open_blocking
from locus_store.effects import BEAT, NAMESPACE
from locus_store.runtime import holding
from locus_store.runtime.stepping import pause
from locus_store.sql.threads import listing
from locus_store.testing.turns import run_outside
from locus_store.types.turns import TurnStep
from locus_store.versions import turns as rules_of_turns
from locus_store.versions.turns import take_step

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

LEASE = 0.6


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agents.db'}"


async def test_a_blocked_event_loop_keeps_its_turn(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = 2.0
    monkeypatch.setattr(turns, "BEATS", 40)  # a renewal may be late by almost a lease
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        async with checkpointer.turn("t", lease_seconds=lease) as turn:
            sleep(1.1 * lease)  # noqa: ASYNC251  (blocks the loop)
            await checkpointer.save({"n": 1}, "t")
        assert turn.is_lost is False


async def test_turns_that_have_lapsed_hide_none_that_is_held(url: str) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        for at in range(9):
            await checkpointer.save({}, f"a{at}")
            step = TurnStep(
                thread_id=f"a{at}", turn_key=f"k{at}", owner="x", lease_seconds=0.01, entry="reject"
            )
            await checkpointer.backend.step_turn(step)
        await asyncio.sleep(0.02)
        async with checkpointer.turn("z"):
            assert [it.thread_id for it in await checkpointer.turns(2)] == ["z"]


async def test_a_turn_that_was_taken_away_is_known_to_be_lost(url: str) -> None:
    async with (
        open_checkpointer(url) as checkpointer,
        checkpointer.turn("t", lease_seconds=LEASE) as turn,
    ):
        await run_outside(checkpointer.release_turn("t"))
        while not turn.is_lost:
            await asyncio.to_thread(bool)


async def test_the_thread_of_renewals_ends_with_the_last_turn(url: str) -> None:
    before = set(threading.enumerate())
    async with open_checkpointer(url) as checkpointer:
        async with checkpointer.turn("t"), checkpointer.turn("u"):
            new = set(threading.enumerate()) - before
            [thread] = [it for it in new if it.name == "locus-store-turns"]
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


@pytest.mark.usefixtures("own_heartbeats")
async def test_renewals_begin_once_the_process_may_begin_a_thread(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with open_checkpointer(url) as checkpointer:
        await checkpointer.open()
        turn = checkpointer.turn("t")
        with monkeypatch.context() as patches:
            patches.setattr(threading.Thread, "start", fail)
            with pytest.raises(RuntimeError, match="new thread"):
                await turn.begin()
        async with turn:
            wait_until(lambda: turns._heartbeats._wake, "no renewals")


@pytest.mark.usefixtures("own_heartbeats")
async def test_renewals_begin_once_the_process_may_open_a_file(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, make = [OSError("Too many open files")], asyncio.new_event_loop

    def make_loop() -> asyncio.AbstractEventLoop:
        if failures:
            raise failures.pop()
        return make()

    monkeypatch.setattr(asyncio.events, "new_event_loop", make_loop)
    async with open_checkpointer(url) as checkpointer, checkpointer.turn("t"):
        wait_until(lambda: turns._heartbeats._wake, "no renewals")


async def test_objects_of_one_storage_share_a_turn(url: str) -> None:
    async with (
        open_checkpointer(url, state_type=dict) as one,
        open_checkpointer(url, state_type=dict) as other,
        open_message_log(url) as log,
        one.turn("t"),
    ):
        await other.save({"n": 1}, "t")
        await log.append("t", [])
        async with other.turn("u"):
            await one.save({"n": 1}, "u")
            await one.save({"n": 2}, "t")
        await one.save({"n": 2}, "u")


async def test_the_turn_of_one_storage_says_nothing_of_another(url: str, tmp_path: Path) -> None:
    memory, other = (MemoryCheckpointer(state_type=dict) for _ in range(2))
    async with (
        open_checkpointer(url, state_type=dict) as database,
        open_checkpointer(f"file://{tmp_path / 'threads'}", state_type=dict) as files,
        database.turn("t"),
        memory.turn("t"),
    ):
        for it in (database, files, memory, other):
            await it.save({"n": 1}, "t")


async def test_a_context_does_not_wait_for_its_own_turn(url: str) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        async with checkpointer.turn("t") as turn:
            with pytest.raises(TurnError, match=f"turn {turn.number} .*by this very context"):
                await checkpointer.turn("t").begin()
            await checkpointer.save({"n": 1}, "t")
        assert await checkpointer.turns() == []


async def test_a_turn_that_was_replaced_in_its_own_block_stays_over(url: str) -> None:
    async with open_checkpointer(url) as checkpointer, checkpointer.turn("t"):
        async with checkpointer.turn("t", wait="replace"):
            await checkpointer.save({"n": 1}, "t")
        with pytest.raises(TurnError, match="is over"):
            await checkpointer.save({"n": 2}, "t")


async def test_one_object_has_one_turn_at_a_time(url: str) -> None:
    async with open_checkpointer(url) as checkpointer:
        turn = checkpointer.turn("t")
        for n in range(2):
            async with turn:
                with pytest.raises(InvalidArgumentError, match="is held or waited for already"):
                    await asyncio.create_task(turn.begin())
                await checkpointer.save({"n": n}, "t")
        assert await checkpointer.turns() == []


async def test_a_cancelled_step_does_not_outlive_the_wait(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_checkpointer(url) as checkpointer:
        step_turn = checkpointer.backend.step_turn
        is_stepping, may_end = asyncio.Event(), asyncio.Event()
        steps: list[asyncio.Future[Any]] = []

        async def step_late(step: TurnStep) -> Any:
            is_stepping.set()
            await may_end.wait()
            return await step_turn(step)

        async def step_shielded(step: TurnStep) -> Any:
            steps.append(asyncio.ensure_future(step_late(step)))
            return await asyncio.shield(steps[-1])

        monkeypatch.setattr(checkpointer.backend, "step_turn", step_shielded)
        begun = asyncio.create_task(checkpointer.turn("t").begin())
        await is_stepping.wait()
        begun.cancel()
        asyncio.get_running_loop().call_later(LEASE / 10, may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await begun
        await asyncio.gather(*steps)
        assert await checkpointer.turns() == []


class Waiting(MemoryCheckpointer[Any]):
    """Has an event loop, because its method waits for more than its own work."""

    async def load(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().load(*args, **options)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError])
@pytest.mark.parametrize("method", ["begin", "end"])
def test_an_error_of_a_handler_of_signals_ends_the_turn(
    url: str, method: str, error: type[BaseException]
) -> None:
    with open_blocking(url) as checkpointer:
        turn = checkpointer.turn("t")
        run = turn.run

        def run_interrupted(call: Any) -> None:
            if call.__name__ == method:
                turn.run = run
            if call.__name__ == "begin":
                run(call)
            if call.__name__ == method:
                raise error

        turn.run = run_interrupted
        with pytest.raises(error), turn:
            pass
        assert checkpointer.turns() == []


@pytest.mark.parametrize("method", ["step_turn", "end_turn"])
@pytest.mark.parametrize("has_loop", [False, True])
def test_an_interrupt_leaves_no_turn(
    url: str, has_loop: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = BlockingCheckpointer(Waiting()) if has_loop else open_blocking(url)
    with opened as checkpointer:
        wrapped: Any = checkpointer._async
        call, is_over = getattr(wrapped.backend, method), threading.Event()

        async def call_interrupted(*args: Any) -> Any:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
            await pause(LEASE / 10)
            result = await call(*args)
            is_over.set()
            return result

        monkeypatch.setattr(wrapped.backend, method, call_interrupted)
        with pytest.raises(KeyboardInterrupt), checkpointer.turn("t"):
            pass
        is_over.wait(10)
        assert checkpointer.turns() == []


def test_a_dead_holder_ends_after_a_lease_of_a_clock_that_was_set_back() -> None:
    now, lease = datetime.now(UTC), timedelta(seconds=LEASE)
    dead, alive = (
        TurnStep(thread_id="t", turn_key=it, owner=it, lease_seconds=LEASE, entry="queue")
        for it in ("dead", "alive")
    )
    tickets = take_step([], dead, now + timedelta(hours=1))
    for at in (now, now + lease / 3, now + 2 * lease / 3):
        tickets = take_step(tickets, alive, at)
        assert [it.owner for it in tickets] == ["dead", "alive"]
    tickets = take_step(tickets, alive, now + lease)
    assert [it.owner for it in tickets] == ["alive"]


@pytest.mark.parametrize("kind", ["sqlite", "memory", "file", "postgresql", "redis"])
async def test_a_number_does_not_fall_when_the_clock_is_set_back(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path / 'turns.db'}", "memory": "memory://"}
    url = urls.get(kind, f"file:{tmp_path}/threads")
    if kind == "postgresql":
        server = request.getfixturevalue("postgresql")
        url = server.url(server.new_database())
    elif kind == "redis":
        url = request.getfixturevalue("redis_url")

    hours: list[int] = []

    def take_ahead(tickets: Any, step: TurnStep, now: datetime) -> Any:
        return take_step(tickets, step, now + timedelta(hours=hours[-1]))

    for module in (rules_of_turns, listing):
        monkeypatch.setattr(module, "take_step", take_ahead)
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        numbers = []
        for ahead in (1, 0, 0, 2, 0):
            hours.append(ahead)
            async with checkpointer.turn("t", wait="reject") as turn:
                numbers.append(turn.number)
                await checkpointer.save({"n": turn.number}, "t")
            await checkpointer.save({"n": 0}, "t")  # in no turn
            await checkpointer.expire()
            assert await checkpointer.turns() == []
        assert all(one < other for one, other in pairwise(numbers))


def test_a_thread_of_its_own_needs_the_context(url: str) -> None:
    with open_blocking(url, state_type=dict) as checkpointer, ThreadPoolExecutor(1) as pool:
        with checkpointer.turn("t"):
            with pytest.raises(TurnError, match="belongs to no turn"):
                pool.submit(checkpointer.save, {"n": 1}, "t").result()
            run = contextvars.copy_context().run
            pool.submit(run, checkpointer.save, {"n": 1}, "t").result()
            assert checkpointer.busy("t").owner == checkpointer.turns()[0].owner
        assert checkpointer.busy("t") is None


def test_blocking_turns_come_one_after_the_other(url: str) -> None:
    def run(name: int) -> None:
        for _ in range(3):
            with checkpointer.turn("t"):
                state = checkpointer.load("t") or {"names": []}
                state["names"].append(name)
                checkpointer.save(state, "t")

    with open_blocking(url, state_type=dict) as checkpointer, ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))
        assert sorted(checkpointer.load("t")["names"]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_blocking_object_with_a_loop_carries_the_turn_there() -> None:
    with BlockingCheckpointer(Waiting(state_type=dict)) as checkpointer:
        with checkpointer.turn("t"):
            checkpointer.save({"n": 1}, "t")
            assert holding.held_here.get()
        assert not holding.held_here.get()
        assert checkpointer.load("t") == {"n": 1}


async def test_an_asynchronous_object_is_not_used_with_a_plain_block(url: str) -> None:
    async with open_checkpointer(url) as checkpointer:
        with pytest.raises(TypeError, match="async with"), checkpointer.turn("t"):
            pass
        assert await checkpointer.turns() == []


async def test_a_turn_that_cannot_be_ended_is_logged(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> bool:
        raise TurnError("no way to the storage")

    async with open_checkpointer(url, state_type=dict) as checkpointer, checkpointer.turn("t"):
        monkeypatch.setattr(checkpointer.backend, "end_turn", fail)
    [record] = caplog.records
    assert record.name == turns.__name__
    assert "'t' was not ended (no way to the storage); it expires in 30.0 s" in record.getMessage()


def test_an_effect_renews_its_lease_within_a_turn(url: str) -> None:
    async def list_places() -> list[int]:
        async with open_checkpointer(url) as checkpointer:
            return [it.write.idx for it in await checkpointer.backend.list_writes("t", NAMESPACE)]

    def call(_: str) -> str:
        wait_until(lambda: BEAT in asyncio.run(list_places()), "a renewal")
        return "renewed"

    with open_blocking(url, state_type=dict) as checkpointer, checkpointer.turn("t"):
        assert checkpointer.effect("t", "k", call, lease_seconds=LEASE) == "renewed"


async def test_a_queue_that_never_ends_lets_no_document_grow() -> None:
    checkpointer = MemoryCheckpointer(state_type=dict)
    await checkpointer.save({"n": 1}, "t")
    backend, sizes = checkpointer.backend, []
    step = TurnStep(thread_id="t", turn_key="0", owner="me", lease_seconds=60, entry="queue")
    await backend.step_turn(step)
    for n in range(2000):
        await backend.step_turn(replace(step, turn_key=str(n + 1)))
        await backend.end_turn("t", str(n))
        sizes.append(len(backend._documents.get("t").content))
    assert any(after < before for before, after in pairwise(sizes))
    assert sizes[-1] < len(sizes) * min(sizes) / 4
