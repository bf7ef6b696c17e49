"""The event loop of sync methods, which the calling thread may drive itself.

The loop has a thread of its own, the *keeper*, and callers *follow* it: they hand over and wait on
a lock. Two threads are switched for each call.

Where the calls of a loop may continue in any thread (``moves``), none is switched for a lone call.
A caller that finds the loop free *leads*: its thread drives the loop until the call is done. Calls
that come meanwhile follow. Where a leader leaves followers behind, the keeper drives until they are
done. It also drives between calls, so that timers and unfinished work continue: it looks every
``IDLE_SECONDS`` whether the loop is free. What cannot change its thread, as SQLAlchemy's greenlets,
runs in a ``OneThread``: a leader leaves the loop to the keeper, which drives until it is done.

A thread does not lead if an exception may strike it anywhere: the main thread, if the program
handles signals in Python, as such a handler may raise, or call. Otherwise ``Ctrl-C`` is put off
until the leader has left the loop. A thread with a running loop cannot lead either: it may not run
a second one.

Who drives holds ``_driving``. A call is in ``_calls`` until it is done, and in ``_waiting`` if
others have to drive it. A follower adds itself and looks whether a thread drives. A thread that
leaves releases ``_driving`` and looks whether a call waits. One of them wakes the keeper.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
from _signal import signal as set_signal  # type: ignore[import-not-found]
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from locus_store.runtime import stepping
from locus_store.runtime.loops import is_at_work
from locus_store.runtime.stepping import (
    SIGNAL_SECONDS,
    are_handled,
    is_main_thread,
    may_be_interrupted,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

IDLE_SECONDS: Final = 0.05
"""The keeper checks this often whether it should drive."""

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

    def made(self) -> Awaitable[T]:
        """Return its coroutine, once."""
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
        _loops[self._loop] = self
        self._driving = threading.Lock()
        self._driver: tuple[int, _Call[Any] | None] | None = None
        self._bound = 0
        """Blocks in progress that may not change their thread."""
        self._homing: list[asyncio.Future[None]] = []
        """The futures of blocks that wait for the keeper."""
        self._calls: set[_Call[Any]] = set()
        self._waiting: set[_Call[Any]] = set()
        self._wanted = threading.Event()
        self._is_ending = False
        self._keeper = threading.Thread(target=self._keep, name="locus-store-blocking", daemon=True)
        self._keeper.start()

    # --- callers

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
                self._take(call, owner, outer)
        except BaseException:
            if call in self._calls and call not in self._waiting:  # Ctrl-C before it was taken
                self._abandon(call)
            raise
        if not is_taken:
            self._calls.discard(call)
            raise EndedError
        return call.answer()

    def _take(self, call: _Call[Any], owner: str, outer: asyncio.AbstractEventLoop | None) -> None:
        """Lead the call, or have it done by others."""
        is_main = is_main_thread()
        if not self._moves or outer is not None or (is_main and are_handled()):
            self._follow(call, partial(self._begin, call), owner, outer)
        elif is_main and may_be_interrupted():
            self._lead_undisturbed(call)
        else:
            self._lead(call)

    def _lead_undisturbed(self, call: _Call[Any]) -> None:
        """Lead, and raise ``KeyboardInterrupt`` only afterwards."""
        try:
            set_signal(signal.SIGINT, partial(self._interrupt, call))
            self._lead(call)
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

    def _lead(self, call: _Call[Any]) -> None:
        begin = partial(self._begin, call)
        if not self._driving.acquire(blocking=False):
            self._follow(call, begin)
            return
        if self._bound:  # the last leader has left them to the keeper, which is on its way
            self._driving.release()
            self._follow(call, begin)
            return
        self._begin(call)
        self._drive(call)
        if call.is_interrupted:
            self._abandon(call)
        elif not call.is_done:  # it may not continue in this thread
            self._follow(call, _nothing)

    def _drive(self, call: _Call[Any] | None) -> None:
        """Run the loop until the call needs something else; needs ``_driving``.

        Without a call: until one was done, and no other needs the keeper.
        """
        self._driver = threading.get_ident(), call
        if call is None:
            self._admit()
        is_over = call is not None and self._is_over(call)
        try:
            while not is_over:
                with suppress(KeyboardInterrupt, SystemExit):  # of a task, which keeps it
                    self._loop.run_forever()
                is_over = self._is_over(call)
        finally:
            self._driver = None
            self._driving.release()
            if self._waiting or self._bound or self._is_ending:
                self._wanted.set()

    def _is_over(self, call: _Call[Any] | None) -> bool:
        if call is None:
            return not self._waiting and not self._bound
        return call.is_done or call.is_interrupted or self._bound > 0

    def _begin(self, call: _Call[Any]) -> None:
        if call.task is None:
            call.task = self._loop.create_task(self._answered(call))

    async def _answered(self, call: _Call[Any]) -> None:
        call.has_begun = True
        try:
            call.result = await call.made()
        except BaseException as exc:  # noqa: BLE001  (raised in the caller)
            call.error = exc
        self._ended(call)

    def _ended(self, call: _Call[Any]) -> None:
        call.is_done = True
        self._calls.discard(call)
        self._waiting.discard(call)
        call.done.release()
        leading = self._leading()
        if leading is call:
            self._stop()
        elif leading is None:
            self._leave_if_free()

    def _leading(self) -> _Call[Any] | None:
        return self._driver[1] if self._driver else None

    def _leave_if_free(self) -> None:
        """Have the keeper leave if nothing needs it."""
        if self._is_over(None) and (self._moves or self._is_ending):
            self._stop()

    # --- what may not change its thread

    async def enter(self) -> None:
        """Wait for the keeper, and hold it."""
        self._bound += 1
        if self._leading() is None:
            return
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._homing.append(waiting)
        self._stop()
        try:
            await waiting
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Release the keeper."""
        self._bound -= 1
        if self._leading() is None:
            self._leave_if_free()

    def _admit(self) -> None:
        """Let the blocks continue that waited for the keeper."""
        waiting, self._homing = self._homing, []
        for future in waiting:
            if not future.done():  # its task was cancelled
                future.set_result(None)

    def _stop(self) -> None:
        if self._driver is not None:  # else the loop is being closed
            self._loop.stop()

    # --- calls that others drive

    def _follow(
        self,
        call: _Call[Any],
        step: Callable[[], None],
        owner: str = "",
        outer: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Have others drive the call from a step on."""
        try:
            self._leave_to_others(call, step)
            self._await(call, owner, outer)
        except BaseException:
            self._abandon(call)
            raise

    def _leave_to_others(self, call: _Call[Any], step: Callable[[], None]) -> None:
        self._waiting.add(call)
        if call.is_done:
            self._waiting.discard(call)
        self._loop.call_soon_threadsafe(step)
        if not self._driving.locked():
            self._wanted.set()

    def _abandon(self, call: _Call[Any]) -> None:
        """Cancel a call that the caller no longer waits for."""
        with suppress(RuntimeError):  # it is done, and the loop closed
            self._leave_to_others(call, partial(self._cancel, call))

    def _cancel(self, call: _Call[Any]) -> None:
        call.is_cancelled = True
        if call.has_begun and call.task is not None:
            call.task.cancel()
        else:
            self._begin(call)  # it ends as it begins

    def _await(
        self,
        call: _Call[Any],
        owner: str = "",
        outer: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Wait for a call; raise if it waits for the event loop that the caller blocks."""
        if outer is None or not call.done.acquire(timeout=stepping.PATIENCE_SECONDS):
            if outer is not None and is_at_work(outer):
                raise stepping.make_deadlock_error(owner)
            # A signal that comes as the wait begins is seen when it ends.
            while not call.done.acquire(timeout=SIGNAL_SECONDS):
                pass

    # --- the loop's own thread

    def _keep(self) -> None:
        while self._calls or not self._is_ending:
            self._wanted.wait(IDLE_SECONDS)
            self._wanted.clear()
            if not self._driving.acquire(blocking=False):
                # A signal that comes as the leader begins to wait is seen when it wakes up.
                self._loop.call_soon_threadsafe(_nothing)
            elif self._is_ending and self._is_over(None):
                self._driving.release()
            else:
                self._drive(None)
        self._driving.acquire()
        self._admit()
        with suppress(RuntimeError):  # as Python ends: no thread can wait for those of the loop
            self._runner.close()
        del _loops[self._loop]

    def end(self) -> None:
        """Finish the calls that were taken, then close the loop and end its thread."""
        if self.pid != os.getpid():  # a forked child has neither
            return
        self._is_ending = True
        self._wanted.set()
        with suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._stop)
        if self._keeper is not threading.current_thread():
            self._keeper.join()


def _nothing() -> None:
    pass
