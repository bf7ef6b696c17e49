"""Sync calls without an event loop: the thread that runs them, and signals in between."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import MemoryBackend, MemoryCheckpointer
from locus_store.blocking import BlockingCheckpointer
from locus_store.errors import UnsupportedError
from locus_store.runtime import stepping
from locus_store.runtime.background import Background
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.portals import Portals
from locus_store.runtime.stepping import (
    is_ours,
    may_block,
    needs_no_loop,
    pause,
    run_in_thread,
    run_now,
    run_together,
    wait_for_end,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

WAIT = 60


@pytest.fixture
def portals() -> Portals:
    return Portals(steps=True)


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def run(portals: Portals, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return portals.run("Saver", call, *args)


def interrupt(number: int = signal.SIGINT) -> None:
    signal.pthread_kill(threading.main_thread().ident, number)


class LateError(Exception):
    """Raised by a program's handler."""


@pytest.fixture
def on_signal() -> Iterator[Callable[..., None]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


async def place() -> tuple[int, bool]:
    return await run_now(threading.get_ident), may_block()


def test_a_call_runs_in_its_own_thread(portals: Portals, others: ThreadPoolExecutor) -> None:
    assert run(portals, place) == (threading.get_ident(), True)
    found = others.submit(lambda: (run(portals, place), threading.get_ident())).result(WAIT)
    assert found[0] == (found[1], True)


def test_a_call_in_a_running_loop_stops_it_and_has_none(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert run(portals, place)[1]
        assert asyncio.get_running_loop() is loop

    asyncio.run(main())
    others.submit(asyncio.run, main()).result(WAIT)


def test_everything_that_a_call_waits_for_is_done_by_its_thread(portals: Portals) -> None:
    async def one(number: int) -> int:
        await pause(0)
        return await run_in_thread(lambda: number)

    async def call() -> tuple[list[int], int]:
        await asyncio.sleep(0)
        return await run_together(one(it) for it in range(3)), await run_in_thread(
            threading.get_ident
        )

    assert run(portals, call) == ([0, 1, 2], threading.get_ident())
    assert asyncio.run(together_in_a_loop()) == [0, 1, 2]


async def together_in_a_loop() -> list[int]:
    async def one(number: int) -> int:
        await pause(0.001 * (3 - number))
        assert await run_in_thread(threading.get_ident) != threading.get_ident()
        return number

    return await run_together(one(it) for it in range(3))


def test_a_call_waits_for_what_another_thread_does(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    future: Future[str] = Future()

    async def call() -> str:
        await wait_for_end(future, 0.001)
        assert not future.done()
        entered.set()
        await wait_for_end(future)
        return future.result()

    entered = threading.Event()
    found = others.submit(run, portals, call)
    assert entered.wait(WAIT)
    future.set_result("done")
    assert found.result(WAIT) == "done"
    assert asyncio.run(_ended(future)) == "done"


async def _ended(future: Future[str]) -> str:
    await wait_for_end(future)
    return future.result()


def test_a_call_that_waits_for_the_loop_it_stopped_is_ended(
    portals: Portals, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "PATIENCE_SECONDS", 0.01)

    async def main() -> None:
        of_the_loop: Future[None] = Future()
        with pytest.raises(RuntimeError, match="in a running event loop"):
            run(portals, wait_for_end, of_the_loop)

    asyncio.run(main())
    others.submit(asyncio.run, main()).result(WAIT)


def test_a_wait_for_an_event_loop_is_an_error(portals: Portals) -> None:
    async def call() -> None:
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="no running event loop"):
        run(portals, call)


def test_ctrl_c_is_put_off_until_a_piece_of_work_is_done(portals: Portals) -> None:
    done: list[str] = []

    async def call() -> None:
        try:
            await run_now(lambda: (interrupt(), done.append("work")))
            done.append("answer")
            await run_now(lambda: done.append("never"))
        finally:
            done.append("end")

    with pytest.raises(KeyboardInterrupt):
        run(portals, call)
    assert done == ["work", "answer", "end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_after_the_last_piece_of_work_is_raised_when_the_call_is_done(
    portals: Portals,
) -> None:
    done: list[str] = []

    async def call() -> None:
        await run_now(interrupt)
        done.append("answer")

    with pytest.raises(KeyboardInterrupt):
        run(portals, call)
    assert done == ["answer"]


def test_ctrl_c_ends_a_wait_at_once(portals: Portals, others: ThreadPoolExecutor) -> None:
    future: Future[None] = Future()
    entered = threading.Event()

    async def call() -> None:
        await run_now(entered.set)
        await wait_for_end(future)

    others.submit(lambda: (entered.wait(WAIT), interrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(portals, call)
    future.set_result(None)
    assert run(portals, place)[1]


def test_a_handler_that_raises_does_so_in_the_callers_own_code(
    portals: Portals, others: ThreadPoolExecutor, on_signal: Callable[..., None]
) -> None:
    """Not within the call: that goes on to the end of its piece of work."""
    go, entered = threading.Event(), threading.Event()
    done: list[str] = []

    def late(*_: object) -> None:
        raise LateError

    def work() -> None:
        entered.set()
        assert go.wait(WAIT)
        done.append("work")

    async def call() -> None:
        await run_now(work)
        await run_now(lambda: done.append("never"))

    on_signal(late)
    others.submit(lambda: (entered.wait(WAIT), interrupt(signal.SIGUSR1)))
    with pytest.raises(LateError):
        run(portals, call)
    assert done == []
    others.submit(lambda: (time.sleep(0.01), go.set()))
    assert run(portals, place) != (threading.get_ident(), True)
    assert done == ["work"]  # the next call has waited for it


def test_a_programs_handler_may_call(
    portals: Portals, others: ThreadPoolExecutor, on_signal: Callable[..., None]
) -> None:
    go, entered = threading.Event(), threading.Event()
    found: list[bool] = []

    async def call() -> str:
        await run_now(lambda: (entered.set(), go.wait(WAIT)))
        return "through"

    on_signal(lambda *_: (found.append(run(portals, place)[1]), go.set()))
    others.submit(lambda: (entered.wait(WAIT), interrupt(signal.SIGUSR1)))
    assert run(portals, call) == "through"
    assert found == [True]


def test_each_call_has_the_context_of_its_caller(
    portals: Portals, others: ThreadPoolExecutor, on_signal: Callable[..., None]
) -> None:
    variable: ContextVar[int] = ContextVar("variable")

    async def seen() -> int:
        value = await run_now(variable.get)
        variable.set(-1)
        return value

    def call(number: int) -> int:
        variable.set(number)
        assert run(portals, seen) == number
        return variable.get()

    assert list(others.map(call, range(20))) == list(range(20))
    on_signal(lambda *_: None)
    assert call(5) == 5


def test_an_error_is_the_calls_and_can_be_handled_in_it(portals: Portals) -> None:
    async def call() -> None:
        with pytest.raises(KeyError):
            await run_now({}.popitem)
        await run_now([].pop)

    with pytest.raises(IndexError):
        run(portals, call)


def test_what_a_call_took_and_gave_is_not_kept(portals: Portals) -> None:
    class Big:
        pass

    async def call(given: Big) -> Big:
        return await run_now(lambda: given)

    given = Big()
    kept = weakref.ref(given)
    assert run(portals, call, given) is given
    del given
    assert kept() is None
    gc.collect()


def test_greenlets_are_refused(portals: Portals, monkeypatch: pytest.MonkeyPatch) -> None:
    patched = SimpleNamespace(is_module_patched=lambda name: name == "threading")
    monkeypatch.setitem(sys.modules, "gevent.monkey", patched)
    with pytest.raises(UnsupportedError, match=r"gunicorn -k gthread.*thread=False"):
        run(portals, place)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_after_an_interrupted_call_does_not_wait_for_it(
    portals: Portals, others: ThreadPoolExecutor, on_signal: Callable[..., None]
) -> None:
    go, entered = threading.Event(), threading.Event()

    def late(*_: object) -> None:
        raise LateError

    async def call() -> None:
        await run_now(lambda: (entered.set(), go.wait(WAIT)))

    on_signal(late)
    others.submit(lambda: (entered.wait(WAIT), interrupt(signal.SIGUSR1)))
    with pytest.raises(LateError):
        run(portals, call)
    child = os.fork()
    if not child:
        is_right = False
        try:
            signal.alarm(WAIT)
            is_right = run(portals, place)[1]
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    go.set()


# --- whose calls they are


class Overridden(MemoryBackend):
    async def open(self) -> None:
        await asyncio.sleep(0.001)


class Extended(MemoryBackend):
    def shout(self) -> str:
        return repr(self).upper()


def test_classes_that_override_async_methods_have_an_event_loop() -> None:
    assert is_ours(MemoryBackend)
    assert is_ours(Extended)
    assert not is_ours(Overridden)
    assert needs_no_loop(Extended(), MemoryCheckpointer())
    assert not needs_no_loop(MemoryBackend(), Overridden())


class Slow(MemoryCheckpointer):
    async def load(self, *args: Any, **kwargs: Any) -> Any:
        async with asyncio.timeout(WAIT):
            await asyncio.sleep(0.001)
        return await super().load(*args, **kwargs)


def test_an_overridden_method_may_wait_for_anything() -> None:
    with BlockingCheckpointer(Slow(state_type=dict)) as checkpointer:
        checkpointer.save({"n": 1}, "t")
        assert checkpointer.load("t") == {"n": 1}


# --- work beside the calls


def test_work_that_no_call_waits_for_runs_beside_them(portals: Portals) -> None:
    each = PerLoop(Background)
    go, done = threading.Event(), list[int]()

    async def work(number: int) -> None:
        await run_now(go.wait, WAIT)
        await run_now(done.append, number)

    async def call() -> None:
        for number in (1, 2, 3):
            each.get().submit(number, lambda number=number: work(number))  # type: ignore[misc]

    async def finish() -> None:
        await each.get().finish(WAIT)

    run(portals, call)
    assert done == []
    go.set()
    run(portals, finish)
    assert done[0] == 1
    run(portals, finish)


def test_work_that_takes_too_long_is_ended_after_its_piece(portals: Portals) -> None:
    each = PerLoop(Background)
    go, entered, done = threading.Event(), threading.Event(), list[str]()

    async def work() -> None:
        await run_now(lambda: (entered.set(), go.wait(WAIT)))
        try:
            await run_now(done.append, "never")
        finally:
            done.append("ended")

    async def call() -> None:
        each.get().submit("work", work)
        await run_now(entered.wait, WAIT)
        await each.get().finish(0.001)
        each.get().submit("work", work)

    run(portals, call)
    go.set()
    while not done:
        time.sleep(0.001)
    assert done == ["ended"]
