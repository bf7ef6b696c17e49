"""The way from a sync method to the coroutine of an async one."""

from __future__ import annotations

import atexit
import os
from _thread import allocate_lock, start_new_thread
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial, wraps
from threading import Lock
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar
from weakref import finalize

from locus_store.runtime.driven import DrivenLoop, EndedError
from locus_store.runtime.forks import inherited, make_lock
from locus_store.runtime.holding import carry_held, held_here
from locus_store.runtime.stepping import ThreadCall, is_ours, needs_no_loop, require_threads, run

P = ParamSpec("P")
T = TypeVar("T")


def make_blocking(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking form of an async method: a method with the same signature and docstring.

    It hands the name of the async method, and the arguments, to its object's ``_block``.
    """
    name = method.__name__

    @wraps(method)
    def run_method(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._block(name, *args, **kwargs)
        return result

    return run_method  # type: ignore[return-value]  # of the same signature


def make_sync_wrapper(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking form of an ``a…`` method of ``SyncWrappers``; its name has no ``a``."""
    wrapper = make_blocking(method)
    wrapper.__name__ = method.__name__[1:]
    return wrapper


class Portals:
    """The event loop of blocking code, if it needs one; a forked child makes its own.

    Its thread is a daemon, so that a facade that was not closed does not keep the process alive.

    Args:
        moves: See ``DrivenLoop``.
        steps: No loop is needed; see ``stepping``.
    """

    def __init__(self, *, moves: bool = False, steps: bool = False) -> None:
        self._moves = moves
        self._steps = steps
        self._user = 0
        """The process that has made calls without a loop."""

        self._interrupted_calls: list[ThreadCall[Any]] = []
        self._lock = make_lock()
        self._loop: DrivenLoop | None = None
        self._end: Any = None

    @classmethod
    def make_for(cls, owner: object, *parts: Any) -> Self:
        """Return what runs the sync calls of an object, whose coroutines call ``parts``."""
        moves = all(it.moves_between_threads for it in parts)
        return cls(moves=moves, steps=is_ours(type(owner)) and needs_no_loop(*parts))

    @property
    def is_open(self) -> bool:
        """True if a call was made since ``close``."""
        user = self._loop.pid if self._loop is not None else self._user
        return user == os.getpid()

    def open(self) -> DrivenLoop:
        """Return the loop; make it if needed."""
        with self._lock:
            if self._loop is None or self._loop.pid != os.getpid():
                if self._loop is not None:
                    inherited.append(self._loop)
                    self._end.detach()
                self._loop = DrivenLoop(moves=self._moves)
                self._end = call_when_dropped(self, self._loop.end)
            return self._loop

    def run(self, owner: str, call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an async method, and wait for it; cancel it on ``Ctrl-C``.

        The caller may have a running loop of its own, as a notebook has. That loop stops meanwhile.

        Args:
            owner: The class whose sync method was called, for the error.
            call: The async method.
            args: Its positional arguments.
            kwargs: Its named arguments.

        Raises:
            RuntimeError: The caller runs on this loop, which cannot wait for itself; or the call
                waits for an async one that the caller's own loop has begun.
        """
        call = partial(call, *args, **kwargs)
        make = carry_held(call) if held_here.get() else call
        if self._steps:
            if self._user != os.getpid():
                require_threads()
                self._interrupted_calls.clear()  # of a parent process
                self._user = os.getpid()
            return run(make, self._interrupted_calls)
        while True:
            with suppress(EndedError):  # another thread has closed it meanwhile: open it again
                return self.open().run(owner, make)

    def close(self) -> None:
        """End the loop and its thread; idempotent."""
        with self._lock:
            loop, self._loop, self._user = self._loop, None, 0
        if loop is not None:
            self._end.detach()
            loop.end()


class SyncWrappers:
    """An object whose blocking methods call its own async ones."""

    _portals: Portals

    def _block(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Run the async method of this name, and wait for it."""
        return self._portals.run(type(self).__name__, getattr(self, name), *args, **kwargs)


class Finished:
    """An awaitable that is already complete."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class SyncLife(SyncWrappers):
    """An object that ``with`` and ``async with`` close, and whose set-up is optional."""

    _owns_portals: bool

    @abstractmethod
    async def asetup(self) -> None:
        """Open the storage now instead of in the first call, so that errors show here."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what was opened; idempotent, and usable again afterwards."""

    def setup(self) -> Awaitable[None]:
        """See ``asetup``; awaiting the result is optional."""
        self._block("asetup")
        return Finished()

    def close(self) -> None:
        """See ``aclose``; ends the thread of the sync methods too."""
        if self._owns_portals:
            self._block("aclose")
            self._portals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


_LAST_SECONDS: Final = 10.0
"""A process that ends waits for each of its threads no longer than this."""


class _Process:
    is_noted = False
    is_ending = False


_under_way: list[tuple[int, Lock]] = []
"""The process of each thread that ends an object, and a lock that it has until it is done."""


def call_when_dropped(
    owner: object, end: Callable[[], None]
) -> finalize[[Callable[[], None]], object]:
    """Call ``end`` after an object was dropped, in another thread, or when the process ends.

    The garbage collector may begin within any call, in a thread that holds any lock, even one of
    ``threading``'s own: nothing may wait there. The end of the process waits for such threads.
    """
    made = finalize(owner, _end_apart, end)
    if not _Process.is_noted:
        _Process.is_noted = True
        atexit.register(_finish)  # after that of `finalize`, so it is called before
    return made


def _end_apart(end: Callable[[], None]) -> None:
    if _Process.is_ending:
        end()
        return
    over = os.getpid(), allocate_lock()
    over[1].acquire()
    _under_way.append(over)
    start_new_thread(_end, (end, over))  # `threading.Thread` waits until it has started


def _end(end: Callable[[], None], over: tuple[int, Lock]) -> None:
    try:
        end()
    finally:
        _under_way.remove(over)
        over[1].release()


def _finish() -> None:
    _Process.is_ending = True
    for pid, lock in _under_way.copy():
        if pid == os.getpid():
            lock.acquire(timeout=_LAST_SECONDS)
