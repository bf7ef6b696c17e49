"""The event loop of sync methods, which the calling thread may run itself.

The loop has a thread of its own. A caller hands its call over to that thread and waits on a lock:
two thread switches for each call.

If the calls of a loop may continue in any thread (``moves``), a lone call needs no switch. A caller
that finds the loop free runs it in its own thread until the call is done (*inline*). Calls that
come meanwhile are handed over. If some of them are not done by then, the loop's thread runs the
loop until they are. Between calls it runs the loop, too, so that timers and unfinished work
continue: every ``IDLE_SECONDS`` it looks whether the loop is free. A block that cannot change its
thread, such as SQLAlchemy's greenlets, is a ``OneThread``: a caller leaves the loop to the loop's
thread, which runs it until the block is done.

No call runs inline in a thread in which an exception may be raised anywhere: the main thread, if
the program handles signals in Python, because such a handler may raise, or make a call. In other
programs ``Ctrl-C`` is put off until the caller has left the loop. A thread with a running loop runs
no call inline either, because it cannot run a second loop.

The thread that runs the loop, its *driver*, holds ``_driving``. A call is in ``_calls`` until it is
done, and in ``_waiting`` if it was handed over. A caller first adds its call to ``_waiting``, then
looks whether there is a driver. A driver first releases ``_driving``, then looks whether a call
waits. So one of them wakes the loop's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
from _signal import signal as set_signal  # type: ignore[import-not-found]
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from locus_store.runtime import stepping
from locus_store.runtime.loops import is_at_work
from locus_store.runtime.stepping import (
    SIGNAL_SECONDS,
    are_handled,
    is_main_thread,
    may_be_interrupted,
)

IDLE_SECONDS: Final = 0.05
"""The loop's thread checks this often whether the loop is free."""

T = TypeVar("T")


class EndedError(Exception):
    """The loop was closed before it took the call; nothing was run."""


class _Call(Generic[T]):
    """A sync call in progress."""

    __slots__ = (
        "done",
        "error",
        "has_begun",
        "is_cancelled",
        "is_done",
        "is_interrupted",
        "make",
        "result",
        "task",
    )

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self.make: Callable[[], Awaitable[T]] | None = make
        self.done = threading.Lock()
        self.done.acquire()
        self.is_done = self.has_begun = False
        self.is_cancelled = self.is_interrupted = False
        self.task: asyncio.Task[None] | None = None
        self.result: T | None = None
        self.error: BaseException | None = None

    def make_coroutine(self) -> Awaitable[T]:
        """Return the coroutine of the call, once."""
        make, self.make = self.make, None
        if make is None or self.is_cancelled:
            raise asyncio.CancelledError
        return make()

    def answer(self) -> T:
        """Return its result, or raise its error."""
        result, self.result = self.result, None  # contexts of connections keep the call
        error, self.error = self.error, None
        try:
            if isinstance(error, asyncio.CancelledError):
                raise concurrent.futures.CancelledError from error
            if error is not None:
                raise error
            return result  # type: ignore[return-value]  # it is done
        finally:
            del error  # its traceback has this frame


_loops: dict[asyncio.AbstractEventLoop, DrivenLoop] = {}


class OneThread:
    """A block that cannot continue in another thread, in any event loop."""

    # Not an asynchronous generator: a loop that ends warns of those that begin.

    async def __aenter__(self) -> None:
        self._loop = _loops.get(asyncio.get_running_loop())
        if self._loop is not None:
            await self._loop.enter()

    async def __aexit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.leave()


class DrivenLoop:
    """An event loop for sync calls from any thread of one process; see the module.

    Args:
        moves: Its calls may continue in any thread.
    """

    def __init__(self, *, moves: bool) -> None:
        stepping.require_threads()
        self.pid = os.getpid()
        self._moves = moves
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._driving = threading.Lock()
        self._driver: tuple[int, _Call[Any] | None] | None = None
        self._open_blocks = 0
        """Blocks in progress that may not change their thread."""
        self._waiting_blocks: list[asyncio.Future[None]] = []
        """The futures of blocks that wait for the loop's thread."""
        self._calls: set[_Call[Any]] = set()
        self._waiting: set[_Call[Any]] = set()
        self._wake_thread = threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._work, name="locus-store-blocking", daemon=True)
        try:
            self._thread.start()
            _loops[self._loop] = self
        except BaseException:  # of a handler of signals, perhaps after the thread has begun
            self._is_ending = True
            raise

    def run(self, owner: str, make: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine, and wait for it; cancel it on ``Ctrl-C``.

        Args:
            owner: The class whose sync method was called, for the error.
            make: Makes the coroutine.

        Raises:
            EndedError: The loop was closed.
            RuntimeError: The caller runs on this loop, which cannot wait for itself; or the call
                waits for an async one that the caller's own loop has begun.
        """
        outer = asyncio._get_running_loop()  # noqa: SLF001  (the documented way without an error)
        driver = self._driver
        if outer is self._loop or (driver is not None and driver[0] == threading.get_ident()):
            raise RuntimeError(
                f"a sync method of {owner} was called by a coroutine that another sync method of "
                "it runs; call its async method there"
            )
        call = _Call(make)
        try:
            self._calls.add(call)
            if is_taken := not self._is_ending:
                self._start(call, owner, outer)
        except BaseException:
            if call in self._calls and call not in self._waiting:  # Ctrl-C before it was taken
                self._abandon(call)
            raise
        if not is_taken:
            self._calls.discard(call)
            raise EndedError
        return call.answer()

    def _start(self, call: _Call[Any], owner: str, outer: asyncio.AbstractEventLoop | None) -> None:
        """Run the call inline, or hand it over."""
        is_main = is_main_thread()
        if not self._moves or outer is not None or (is_main and are_handled()):
            self._hand_over(call, partial(self._begin, call), owner, outer)
        elif is_main and may_be_interrupted():
            self._run_undisturbed(call)
        else:
            self._run_inline(call)

    def _run_undisturbed(self, call: _Call[Any]) -> None:
        """Run the call inline, and raise ``KeyboardInterrupt`` only afterwards."""
        try:
            set_signal(signal.SIGINT, partial(self._interrupt, call))
            self._run_inline(call)
        finally:
            set_signal(signal.SIGINT, signal.default_int_handler)
        if call.is_interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, call: _Call[Any], *_: object) -> None:
        if call in self._waiting or self.pid != os.getpid():
            raise KeyboardInterrupt
        call.is_interrupted = True
        with suppress(RuntimeError):  # it is done, and the loop closed
            self._loop.call_soon_threadsafe(self._stop)

    def _run_inline(self, call: _Call[Any]) -> None:
        begin = partial(self._begin, call)
        if not self._driving.acquire(blocking=False):
            self._hand_over(call, begin)
            return
        if self._open_blocks:  # the last driver has left them to the loop's thread
            self._driving.release()
            self._hand_over(call, begin)
            return
        self._begin(call)
        self._drive(call)
        if call.is_interrupted:
            self._abandon(call)
        elif not call.is_done:  # it may not continue in this thread
            self._hand_over(call, _do_nothing)

    def _drive(self, call: _Call[Any] | None) -> None:
        """Run the loop until the call is done or has to be handed over; needs ``_driving``.

        Without a call: until no call or block needs the loop's thread.
        """
        self._driver = threading.get_ident(), call
        if call is None:
            self._resume_blocks()
        is_over = call is not None and self._is_over(call)
        try:
            while not is_over:
                with suppress(KeyboardInterrupt, SystemExit):  # of a task, which keeps it
                    self._loop.run_forever()
                is_over = self._is_over(call)
        finally:
            self._driver = None
            self._driving.release()
            if self._waiting or self._open_blocks or self._is_ending:
                self._wake_thread.set()

    def _is_over(self, call: _Call[Any] | None) -> bool:
        if call is None:
            return not self._waiting and not self._open_blocks
        return call.is_done or call.is_interrupted or self._open_blocks > 0

    def _begin(self, call: _Call[Any]) -> None:
        if call.task is None:
            call.task = self._loop.create_task(self._run_call(call))

    async def _run_call(self, call: _Call[Any]) -> None:
        call.has_begun = True
        try:
            call.result = await call.make_coroutine()
        except BaseException as exc:  # noqa: BLE001  (raised in the caller)
            call.error = exc
        self._finish(call)

    def _finish(self, call: _Call[Any]) -> None:
        call.is_done = True
        self._calls.discard(call)
        self._waiting.discard(call)
        call.done.release()
        inline = self._get_inline_call()
        if inline is call:
            self._stop()
        elif inline is None:
            self._stop_if_idle()

    def _get_inline_call(self) -> _Call[Any] | None:
        return self._driver[1] if self._driver else None

    def _stop_if_idle(self) -> None:
        """Stop the loop if no call or block needs the loop's thread."""
        if self._is_over(None) and (self._moves or self._is_ending):
            self._stop()

    async def enter(self) -> None:
        """Begin a block: wait for the loop's thread, and keep it."""
        self._open_blocks += 1
        if self._get_inline_call() is None:
            return
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting_blocks.append(waiting)
        self._stop()
        try:
            await waiting
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """End a block."""
        self._open_blocks -= 1
        if self._get_inline_call() is None:
            self._stop_if_idle()

    def _resume_blocks(self) -> None:
        """Let the blocks continue that waited for the loop's thread."""
        waiting, self._waiting_blocks = self._waiting_blocks, []
        for future in waiting:
            if not future.done():  # its task was cancelled
                future.set_result(None)

    def _stop(self) -> None:
        if self._driver is not None:  # else the loop is being closed
            self._loop.stop()

    def _hand_over(
        self,
        call: _Call[Any],
        step: Callable[[], None],
        owner: str = "",
        outer: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Hand the call over and wait for it; ``step`` is the first thing that the loop runs."""
        try:
            self._queue(call, step)
            self._await(call, owner, outer)
        except BaseException:
            self._abandon(call)
            raise

    def _queue(self, call: _Call[Any], step: Callable[[], None]) -> None:
        self._waiting.add(call)
        if call.is_done:
            self._waiting.discard(call)
        self._loop.call_soon_threadsafe(step)
        if not self._driving.locked():
            self._wake_thread.set()

    def _abandon(self, call: _Call[Any]) -> None:
        """Cancel a call that the caller no longer waits for."""
        with suppress(RuntimeError):  # it is done, and the loop closed
            self._queue(call, partial(self._cancel, call))

    def _cancel(self, call: _Call[Any]) -> None:
        call.is_cancelled = True
        if call.has_begun and call.task is not None:
            call.task.cancel()
        else:
            self._begin(call)  # it ends as it begins

    def _await(self, call: _Call[Any], owner: str, outer: asyncio.AbstractEventLoop | None) -> None:
        """Wait for a call; raise if it waits for the event loop that the caller blocks."""
        if outer is None or not call.done.acquire(timeout=stepping.PATIENCE_SECONDS):
            if outer is not None and is_at_work(outer):
                raise stepping.make_deadlock_error(owner)
            # A signal that comes as the wait begins is seen when it ends.
            while not call.done.acquire(timeout=SIGNAL_SECONDS):
                pass

    def _work(self) -> None:
        while self._calls or not self._is_ending:
            self._wake_thread.wait(IDLE_SECONDS)
            self._wake_thread.clear()
            if not self._driving.acquire(blocking=False):
                # A signal that comes as the driver begins to wait is seen when it wakes up.
                self._loop.call_soon_threadsafe(_do_nothing)
            elif self._is_ending and self._is_over(None):
                self._driving.release()
            else:
                self._drive(None)
        self._driving.acquire()
        self._resume_blocks()
        with suppress(RuntimeError):  # as Python ends: no thread can wait for those of the loop
            self._runner.close()
        _loops.pop(self._loop, None)

    def end(self) -> None:
        """Finish the calls that were taken, then close the loop and end its thread."""
        if self.pid != os.getpid():  # a forked child has neither
            return
        self._is_ending = True
        self._wake_thread.set()
        with suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._stop)
        if self._thread is not threading.current_thread():
            self._thread.join()


def _do_nothing() -> None:
    pass
