"""The event loop of sync methods: who drives it, and what happens in between."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from locus_store.errors import UnsupportedError
from locus_store.runtime import driven
from locus_store.runtime.portals import Portals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

WAIT = 60


@pytest.fixture
def portals() -> Iterator[Portals]:
    made = Portals(moves=True)
    yield made
    made.close()


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Gate:
    """A coroutine that waits in a loop until a thread opens it."""

    def __init__(self) -> None:
        self.is_entered = threading.Event()
        self.was_cancelled = threading.Event()
        self._ready: Future[str] = Future()

    async def __call__(self) -> str:
        self.is_entered.set()
        try:
            return await asyncio.wrap_future(self._ready)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise

    def open(self) -> None:
        self._ready.set_result("through")


def run(portals: Portals, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return portals.run("Saver", call, *args)


def at_gate(portals: Portals, others: ThreadPoolExecutor) -> tuple[Gate, Future[Any]]:
    """Have another thread call a gate; return both when the call waits in it."""
    gate = Gate()
    call = others.submit(run, portals, gate)
    assert gate.is_entered.wait(WAIT)
    return gate, call


async def ident() -> int:
    return threading.get_ident()


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def interrupt(number: int = signal.SIGINT) -> None:
    signal.pthread_kill(threading.main_thread().ident, number)


def test_a_lone_call_runs_in_its_own_thread(
    portals: Portals, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driven, "IDLE_SECONDS", WAIT)  # else the loop's thread may run in between
    assert others.submit(run, portals, ident).result() in {it.ident for it in others._threads}
    assert run(portals, ident) == threading.get_ident()


def test_calls_that_may_not_move_stay_in_one_thread(others: ThreadPoolExecutor) -> None:
    portals = Portals()
    seen = {run(portals, ident), *others.map(lambda _: run(portals, ident), range(20))}
    assert len(seen) == 1
    assert not seen & {threading.get_ident(), *(it.ident for it in others._threads)}
    portals.close()


def test_calls_that_come_meanwhile_do_not_wait_for_the_first(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    gate, first = at_gate(portals, others)
    assert list(others.map(lambda it: run(portals, doubled, it), range(20))) == [
        2 * it for it in range(20)
    ]
    assert not first.done()
    gate.open()
    assert first.result(WAIT) == "through"


def test_calls_go_on_when_the_first_one_is_done(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    for gate, call in [at_gate(portals, others) for _ in range(4)]:
        gate.open()
        assert call.result(WAIT) == "through"


def test_ctrl_c_ends_the_call_of_the_main_thread_only(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    mine, theirs = Gate(), Gate()

    def call_while_driven() -> Any:
        mine.is_entered.wait(WAIT)
        return run(portals, theirs)

    def interrupted() -> None:
        theirs.is_entered.wait(WAIT)
        interrupt()

    call = others.submit(call_while_driven)
    others.submit(interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(portals, mine)
    assert mine.was_cancelled.wait(WAIT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    theirs.open()
    assert call.result(WAIT) == "through"


def test_ctrl_c_ends_a_call_that_was_handed_over(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    mine = Gate()
    first, leading = at_gate(portals, others)
    others.submit(lambda: (mine.is_entered.wait(WAIT), interrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(portals, mine)
    assert mine.was_cancelled.wait(WAIT)
    first.open()
    assert leading.result(WAIT) == "through"


def test_a_handler_that_raises_does_so_in_the_callers_own_code(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    """Not within the loop, where the error would meet the work of others."""
    gate = Gate()

    def late(*_: object) -> None:
        raise TimeoutError("too late")

    async def wait() -> None:
        assert threading.get_ident() != threading.main_thread().ident
        await gate()

    before = signal.signal(signal.SIGALRM, late)
    try:
        others.submit(lambda: (gate.is_entered.wait(WAIT), interrupt(signal.SIGALRM)))
        with pytest.raises(TimeoutError, match="too late"):
            run(portals, wait)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert gate.was_cancelled.wait(WAIT)


@pytest.fixture
def on_ctrl_c() -> Iterator[Callable[..., Any]]:
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_a_programs_handler_of_ctrl_c_may_call(
    portals: Portals, others: ThreadPoolExecutor, on_ctrl_c: Callable[..., Any]
) -> None:
    gate, found = Gate(), list[int]()

    def save(*_: object) -> None:
        found.append(run(portals, doubled, 2))
        gate.open()

    on_ctrl_c(save)
    others.submit(lambda: (gate.is_entered.wait(WAIT), interrupt()))
    assert run(portals, gate) == "through"
    assert found == [4]


def test_a_programs_handler_of_ctrl_c_may_exit(
    portals: Portals, others: ThreadPoolExecutor, on_ctrl_c: Callable[..., Any]
) -> None:
    gate = Gate()
    on_ctrl_c(lambda *_: sys.exit(3))
    others.submit(lambda: (gate.is_entered.wait(WAIT), interrupt()))
    with pytest.raises(SystemExit):
        run(portals, gate)
    assert gate.was_cancelled.wait(WAIT)


@pytest.mark.parametrize("moment", ["_start", "_run_undisturbed", "_run_inline"])
def test_ctrl_c_while_a_call_is_taken_leaves_nothing_to_wait_for(
    others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    portals = Portals(moves=True)
    assert run(portals, doubled, 2) == 4
    with monkeypatch.context() as patched:
        patched.setattr(driven.DrivenLoop, moment, lambda *_: signal.default_int_handler(2, None))
        with pytest.raises(KeyboardInterrupt):
            run(portals, doubled, 2)
    others.submit(portals.close).result(WAIT)


def test_a_handler_that_raises_as_the_thread_begins_leaves_none(
    portals: Portals, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def start_interrupted(thread: threading.Thread) -> None:
        start(thread)
        begun.append(thread)
        raise SystemExit

    monkeypatch.setattr(threading.Thread, "start", start_interrupted)
    with pytest.raises(SystemExit):
        portals.open()
    monkeypatch.undo()
    begun[0].join(10)
    assert not begun[0].is_alive()
    portals.open()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the loop
def test_a_loop_whose_thread_cannot_begin_is_not_kept(
    portals: Portals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    before = set(driven._loops)
    with pytest.raises(RuntimeError, match="new thread"):
        portals.open()
    monkeypatch.undo()
    gc.collect()
    assert set(driven._loops) == before
    assert run(portals, doubled, 2) == 4


def test_greenlets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = SimpleNamespace(is_module_patched=lambda name: name == "threading")
    monkeypatch.setitem(sys.modules, "gevent.monkey", patched)
    with pytest.raises(UnsupportedError, match=r"gunicorn -k gthread.*thread=False"):
        run(Portals(moves=True), doubled, 2)


def test_background_work_goes_on_while_nobody_calls(portals: Portals) -> None:
    done = threading.Event()
    tasks = []

    async def later() -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)
        done.set()

    async def begin() -> None:
        tasks.append(asyncio.get_running_loop().create_task(later()))

    run(portals, begin)
    assert done.wait(WAIT)
    assert run(portals, ident)


def test_each_call_has_the_context_of_its_caller(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    variable: ContextVar[int] = ContextVar("variable")

    async def seen() -> int:
        await asyncio.sleep(0)
        value = variable.get()
        variable.set(-1)
        return value

    def call(number: int) -> int:
        variable.set(number)
        assert run(portals, seen) == number
        return variable.get()

    assert list(others.map(call, range(50))) == list(range(50))


def test_close_waits_for_the_calls_that_it_finds(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    calls = [at_gate(portals, others) for _ in range(3)]
    closing = others.submit(portals.close)
    while portals.is_open:
        pass
    assert others.submit(run, portals, doubled, 4).result(WAIT) == 8
    assert not closing.done()
    for gate, call in calls:
        gate.open()
        assert call.result(WAIT) == "through"
    closing.result(WAIT)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_in_mid_call_has_a_loop_of_its_own(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    gate, call = at_gate(portals, others)
    child = os.fork()
    if not child:
        is_right = False
        try:
            signal.alarm(WAIT)
            is_right = run(portals, doubled, 3) == 6
            portals.close()
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    gate.open()
    assert call.result(WAIT) == "through"
    assert run(portals, doubled, 3) == 6


def test_what_a_call_took_and_gave_is_not_kept(portals: Portals) -> None:
    class Big:
        pass

    timers = []

    async def call(given: Big) -> Big:
        timers.append(asyncio.get_running_loop().call_later(3600, lambda: None))
        return given

    given = Big()
    kept = weakref.ref(given)
    assert run(portals, call, given) is given
    del given
    gc.collect()
    assert kept() is None
    timers[0].cancel()


def test_what_may_not_change_its_thread_runs_in_the_loops_own(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    async def call(number: int) -> tuple[set[int], int]:
        seen = set()
        async with driven.OneThread():
            for _ in range(number % 4):
                seen.add(threading.get_ident())
                await asyncio.sleep(0)
            seen.add(threading.get_ident())
        return seen, number

    def called(number: int) -> set[int]:
        assert run(portals, doubled, number) == 2 * number
        seen, returned = run(portals, call, number)
        assert returned == number
        return seen

    found = [*others.map(called, range(200)), called(0)]
    assert len({it for seen in found for it in seen}) == 1


def test_a_leader_is_not_held_up_by_what_may_not_change_its_thread(
    portals: Portals, others: ThreadPoolExecutor
) -> None:
    gate = Gate()

    async def held() -> str:
        async with driven.OneThread():
            return await gate()

    call = others.submit(run, portals, held)
    gate.is_entered.wait(WAIT)
    assert run(portals, doubled, 2) == 4
    assert not call.done()
    gate.open()
    assert call.result(WAIT) == "through"


def test_a_call_that_is_cancelled_on_its_way_to_the_loops_thread_lets_go(portals: Portals) -> None:
    async def call() -> str:
        async def held() -> None:
            async with driven.OneThread():
                raise AssertionError

        task = asyncio.get_running_loop().create_task(held())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return "gone on"

    assert run(portals, call) == "gone on"
    portals.close()


def test_a_closed_loop_is_not_kept(portals: Portals) -> None:
    async def mine() -> weakref.ref[asyncio.AbstractEventLoop]:
        return weakref.ref(asyncio.get_running_loop())

    kept = run(portals, mine)
    portals.close()
    gc.collect()
    assert kept() is None


def test_a_loop_ends_quietly_when_python_begins_no_more_threads(
    portals: Portals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from Python 3.12 on while the process ends."""

    async def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(asyncio.BaseEventLoop, "shutdown_default_executor", refused)
    assert run(portals, doubled, 2) == 4
    loops = set(driven._loops)
    loop = portals.open()._loop
    portals.close()
    assert loop.is_closed()
    assert loop in loops
    assert loop not in driven._loops
