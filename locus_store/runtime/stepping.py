"""Sync calls without an event loop: the calling thread runs the coroutine of the async method.

A coroutine that awaits only work of this library yields that work (``run_now``, ``wait_for_end``).
Its thread does it, and sends the result. No event loop runs meanwhile, not even one that the
thread has; ``may_block`` tells a coroutine so.

A call can be ended between two pieces of its work: by ``Ctrl-C``, or because the caller no longer
waits. A piece of work is never interrupted, except for functions of the user's. In the main thread,
``Ctrl-C`` is put off; if the program handles signals in Python, a thread of its own runs the call,
as such a handler may raise anywhere.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import sys
import threading
import time
from _signal import getsignal, signal as set_signal  # type: ignore[import-not-found]  # 2 us; of signal, 19
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction
from itertools import takewhile
from types import coroutine
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from locus_store.errors import UnsupportedError

T = TypeVar("T")
P = ParamSpec("P")
Make = Callable[[], Awaitable[T]]

PATIENCE_SECONDS: Final = 5.0
"""A sync call in a running event loop waits so long for what may be that loop's own work."""


def may_block() -> bool:
    """Return whether a sync call runs this coroutine; else an event loop does."""
    return asyncio._get_running_loop() is None  # noqa: SLF001  (the documented way without an error)


@coroutine
def _ask_caller(work: _Asking) -> Generator[object, Any, Any]:
    return (yield work)


@coroutine
def run_now(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Generator[object, Any, T]:
    """Have the thread of a sync call do work that is not interrupted."""
    return (yield partial(work, *args, **kwargs))  # type: ignore[no-any-return]  # work's result


async def run_in_thread(work: Callable[[], T], *, pool: Executor | None = None) -> T:
    """Do work that would stop an event loop: in another thread if there is one.

    Args:
        work: The work.
        pool: The other thread is of this one; ``None``: of the loop's.
    """
    if may_block():
        return await run_now(work)
    loop, context = asyncio.get_running_loop(), copy_context()
    return await loop.run_in_executor(pool, context.run, work)


async def run_to_end(work: Awaitable[T]) -> T:
    """Have the thread of a sync call run a coroutine as one piece of work."""
    return cast("T", await _ask_caller(_Asking(_run_to_end, work)))


async def run_users(work: Callable[[], T]) -> T:
    """Run a function of the user's: as ``run_in_thread``, but ``Ctrl-C`` interrupts a sync call."""
    if may_block():
        return cast("T", await _ask_caller(_Asking(_run_interruptible, work)))
    return await run_in_thread(work)


async def wait_for_end(what: Future[Any] | ThreadCall[Any], seconds: float | None = None) -> None:
    """Wait until something is done, at most so long; a cancelled caller leaves it alone."""
    if isinstance(what, ThreadCall):
        await _ask_caller(_Asking(_wait_for_lock, what.over, seconds))
    elif may_block():
        over = threading.Lock()
        over.acquire()
        what.add_done_callback(lambda _: over.release())
        await _ask_caller(_Asking(_wait_for_lock, over, seconds))
    else:
        await asyncio.wait([asyncio.wrap_future(what)], timeout=seconds)


async def run_together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of calls: at once in an event loop, else one after the other."""
    if may_block():
        return [await it for it in calls]
    return await asyncio.gather(*calls)


async def pause(seconds: float) -> None:
    """Wait."""
    if may_block():
        await run_now(time.sleep, seconds)
    else:
        await asyncio.sleep(seconds)


def needs_no_loop(*objects: Any) -> bool:
    """Return whether sync calls of these objects may run without an event loop.

    All have to say so, and their async methods may not be overridden outside of this library.
    """
    return all(it.needs_no_loop and is_ours(type(it)) for it in objects)


def is_ours(kind: type) -> bool:
    """Return whether no class outside of this library overrides an async method of ``kind``."""
    others = takewhile(lambda it: it.__module__.partition(".")[0] != "locus_store", kind.__mro__)
    methods = (it for other in others for it in vars(other).values())
    return not any(iscoroutinefunction(it) or isasyncgenfunction(it) for it in methods)


def run(make: Make[T], interrupted_calls: list[ThreadCall[Any]]) -> T:
    """Run a coroutine in this thread, without an event loop; return its result.

    Args:
        make: Makes the coroutine.
        interrupted_calls: The calls of the same object that a handler of signals has interrupted.
            They may still commit, so the next call of the main thread waits for them.
    """
    if not is_main_thread():
        return _run_here(make, _EndRequest())
    if are_handled():
        return _run_in_new_thread(make, interrupted_calls)
    if may_be_interrupted():
        return _run_undisturbed(make)
    return _run_here(make, _EndRequest())


class ThreadCall(Generic[T]):
    """A call that a thread of its own runs.

    A handler of signals may raise anywhere in the thread that waits, and would leave the lock of a
    ``Future`` locked.
    """

    def __init__(self) -> None:
        self.over = threading.Lock()
        """Locked until the thread is done."""

        self.over.acquire()
        self._taken: dict[str, bool] = {}
        """``begun``: True if the thread began the call, False if it was cancelled first."""

        self._is_done = False
        self._end_request = _EndRequest()
        self._end_request.error = asyncio.CancelledError
        self._end_request.stops_loop = not may_block()
        self._result: T | None = None
        self._error: BaseException | None = None

    def start(self, make: Make[T]) -> None:
        """Run a coroutine in a new thread, without an event loop.

        Raises:
            RuntimeError: Python is ending, and begins no more threads.
        """
        work = partial(copy_context().run, self._carry_out, make)
        _thread.start_new_thread(work, ())  # a Thread's start() waits for an Event, which has locks

    def cancel(self) -> None:
        """End the call before its next piece of work."""
        self._end_request.is_made = True
        self._taken.setdefault("begun", False)

    def wait(self) -> None:
        """Wait until the call is over."""
        while not self.is_over:
            self.over.acquire(timeout=SIGNAL_SECONDS)  # see _wait_for_lock

    @property
    def is_over(self) -> bool:
        """True if the thread is done, or will not begin the call."""
        return self._is_done or not self._taken.get("begun", True)

    def _carry_out(self, make: Make[T]) -> None:
        if not self._taken.setdefault("begun", True):
            return
        try:
            self._result = _step(make, self._end_request)
        except BaseException as exc:  # noqa: BLE001  (raised in the caller that waits)
            self._error = exc
        finally:
            self._is_done = True
            self.over.release()

    def answer(self) -> T:
        """Return the result of the call, or raise its error."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return cast("T", self._result)
        finally:
            del error  # its traceback has this frame


class _EndRequest:
    """A request to end a call, which takes effect between two pieces of its work.

    It is the handler of ``SIGINT`` while the main thread runs a call.
    """

    error: type[BaseException] = KeyboardInterrupt
    is_made = is_waiting = False
    stops_loop = False
    """True if the caller's thread has a running event loop."""

    pid = 0

    def __call__(self, *_: object) -> None:
        if self.is_waiting or self.pid != os.getpid():  # in a forked child, the call is not here
            raise self.error
        self.is_made = True

    def raise_if_made(self) -> None:
        """Raise the error if the request was made."""
        was_made, self.is_made = self.is_made, False
        if was_made:
            raise self.error


class _Asking(partial[Any]):
    """A piece of work that takes the request to end its call, too."""


def _run_to_end(work: Awaitable[T], request: _EndRequest) -> T:
    own = _EndRequest()
    own.error, own.stops_loop = request.error, request.stops_loop
    return _step(lambda: work, own)


def _run_interruptible(work: Callable[[], T], request: _EndRequest) -> T:
    try:
        request.is_waiting = True
        request.raise_if_made()
        return work()
    finally:
        request.is_waiting = False


def _wait_for_lock(over: threading.Lock, seconds: float | None, request: _EndRequest) -> None:
    """Wait for a lock that another thread unlocks; raise at once if the request is made.

    Raises:
        RuntimeError: The call waits for an async one of the event loop that it has stopped.
    """
    most = PATIENCE_SECONDS if seconds is None and request.stops_loop else seconds
    until = None if most is None else time.monotonic() + most
    left, is_over = SIGNAL_SECONDS, False
    try:
        request.is_waiting = True
        while not is_over and left > 0:
            request.raise_if_made()
            # A signal that comes as the wait begins is seen when it ends.
            is_over = over.acquire(timeout=min(left, SIGNAL_SECONDS))
            left = SIGNAL_SECONDS if until is None else until - time.monotonic()
    finally:
        request.is_waiting = False
    if is_over:
        over.release()
    elif seconds is None:
        raise make_deadlock_error("this object")


def make_deadlock_error(owner: str) -> RuntimeError:
    """Return the error of a sync call that waits for the event loop that it has stopped."""
    return RuntimeError(
        f"a sync method of {owner} waited for {PATIENCE_SECONDS:g} s in a running event loop whose "
        "own async calls cannot finish meanwhile; it was cancelled and may have been done. Await "
        "those calls first, or call the async method"
    )


def _step(make: Make[T], request: _EndRequest) -> T:
    work = make().__await__()
    resume, given = work.send, None
    try:
        while True:
            asked = resume(given)
            try:
                if type(asked) is _Asking:
                    given = asked(request)
                else:
                    if request.is_made:
                        request.raise_if_made()
                    given = asked and asked()
                resume = work.send
            except BaseException as exc:  # noqa: BLE001  (raised in the coroutine)
                resume, given = work.throw, exc
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the coroutine's result
    finally:
        del given  # an error's traceback has this frame


def _run_here(make: Make[T], request: _EndRequest) -> T:
    outer = asyncio._get_running_loop()  # noqa: SLF001  (see may_block)
    if outer is None:
        return copy_context().run(_step, make, request)
    asyncio._set_running_loop(None)  # noqa: SLF001
    request.stops_loop = True
    try:
        return copy_context().run(_step, make, request)
    finally:
        asyncio._set_running_loop(outer)  # noqa: SLF001


def _run_undisturbed(make: Make[T]) -> T:
    """Run a call in the main thread; raise ``KeyboardInterrupt`` between two pieces of work."""
    request = _EndRequest()
    request.pid = os.getpid()
    try:
        set_signal(signal.SIGINT, request)
        return _run_here(make, request)
    finally:
        set_signal(signal.SIGINT, signal.default_int_handler)
        request.raise_if_made()


def _run_in_new_thread(make: Make[T], interrupted_calls: list[ThreadCall[Any]]) -> T:
    """Run a call in a new thread, so that handlers of signals raise here."""
    for call in list(interrupted_calls):
        call.wait()
    interrupted_calls[:] = [it for it in interrupted_calls if not it.is_over]
    begun = ThreadCall[T]()
    try:
        begun.start(make)
        begun.wait()
    except BaseException as exc:
        if isinstance(exc, RuntimeError) and not threading.main_thread().is_alive():
            return _run_here(make, _EndRequest())  # Python is ending
        interrupted_calls.append(begun)
        begun.cancel()
        raise
    return begun.answer()


def require_threads() -> None:
    """Refuse the greenlets of gevent in place of threads, of which sync methods are made."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent and any(map(gevent.is_module_patched, ("threading", "queue", "select", "socket"))):
        raise UnsupportedError(
            "sync methods need threads, and gevent has replaced them by greenlets: run the worker "
            "with threads (gunicorn -k gthread, celery -P threads, dramatiq without "
            "dramatiq-gevent), or call monkey.patch_all(thread=False, queue=False, select=False, "
            "socket=False)"
        )


SIGNAL_SECONDS: Final = 1.0
"""A signal is handled by then, even if it comes in the worst moment."""

_OTHERS: Final = tuple(it for it in signal.valid_signals() if it < 32 and it != signal.SIGINT)  # noqa: PLR2004  (realtime signals)


def is_main_thread() -> bool:
    """Return whether this is the thread that handles signals."""
    return threading.get_ident() == threading.main_thread().ident


def may_be_interrupted() -> bool:
    """Return whether ``Ctrl-C`` raises ``KeyboardInterrupt`` in the main thread."""
    return getsignal(signal.SIGINT) is signal.default_int_handler


def are_handled() -> bool:
    """Return whether a signal runs a function of the program."""
    on_ctrl_c = getsignal(signal.SIGINT)
    is_own = callable(on_ctrl_c) and on_ctrl_c is not signal.default_int_handler
    return is_own or any(map(callable, map(getsignal, _OTHERS)))
