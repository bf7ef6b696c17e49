"""Turns of threads: one run at a time, in the order of its request."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import signature
from time import monotonic
from typing import Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import uuid4

from locus_store.backend import TakesTurns, needs
from locus_store.errors import InvalidArgumentError, LocusStoreError, TurnError
from locus_store.runtime import holding
from locus_store.runtime.loops import settle
from locus_store.runtime.observe import observe
from locus_store.runtime.portals import SyncWrappers, make_sync_wrapper
from locus_store.runtime.stepping import may_block, pause
from locus_store.types.arguments import check_text, did_you_mean
from locus_store.types.records import make_unsupported_error
from locus_store.types.turns import (
    MOST_WAITING,
    ThreadTurn,
    TurnOptions,
    TurnStep,
    Wait,
    check_turn,
)

LEASE_SECONDS: Final = 30.0
"""Default of ``lease_seconds``."""

BEATS: Final = 3
"""Renewals in the time of a lease."""

STEP_SECONDS: Final = 0.025
"""The first in a queue asks so often whether the turn is its own; the nth n times as rarely."""

WAITED_PART: Final = 1 / 8
"""The pause between two questions is at least this part of the time since the queue has moved."""

LONGEST_PAUSE_SECONDS: Final = 0.5

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)
_heartbeats: Final = holding.Heartbeats()


class HeldTurn:
    """A turn of a thread: held within ``async with``, or ``with`` of an object that blocks.

    All writes to the thread in the block's context, and in the tasks that it begins, carry the
    number of the turn. A thread of its own renews it, also while the event loop is blocked.
    """

    def __init__(
        self,
        backend: TakesTurns,
        thread_id: str,
        *,
        wait: Wait = "queue",
        lease_seconds: float = LEASE_SECONDS,
        timeout_seconds: float | None = None,
        most_waiting: int = MOST_WAITING,
        owner: str | None = None,
    ) -> None:
        owner = f"{socket.gethostname()}:{os.getpid()}" if owner is None else owner
        self._step = TurnStep(
            thread_id=thread_id,
            turn_key="",
            owner=owner,
            lease_seconds=lease_seconds,
            entry="queue" if wait == "wait" else wait,
            most_waiting=most_waiting,
        )
        check_turn(self._step, wait, timeout_seconds)
        self.thread_id = thread_id
        self._backend = backend
        self._place = holding.make_place(backend, thread_id)
        self._timeout_seconds = timeout_seconds
        self._turn: ThreadTurn | None = None
        self._outer: int | None = None
        self._steps = asyncio.Lock()
        """Held during each step of a wait, so that ``end`` is after the last one."""

        self._loop: asyncio.AbstractEventLoop | None = None
        self.run: Callable[[Callable[[], Awaitable[Any]]], Any] | None = None
        """Runs the calls of ``with``; ``None``: the object does not block."""

        self.is_lost = False
        """True once a renewal has found that the turn is over: writes are refused."""

    def __repr__(self) -> str:
        return f"HeldTurn({self._turn or self.thread_id!r})"

    @property
    def number(self) -> int:
        """The fencing token, greater than that of every earlier turn of the thread."""
        if self._turn is None:
            raise InvalidArgumentError("a turn has a number once it is held: use it with a block")
        return self._turn.number

    async def begin(self) -> None:
        """Wait for the turn.

        Raises:
            InvalidArgumentError: This object is in use.
            TurnError: It was rejected, or the wait took too long; names the turn that is held.
        """
        if self._step.turn_key:
            raise InvalidArgumentError(
                f"this turn of thread {self.thread_id!r} is held or waited for already: call turn()"
                " for each block"
            )
        self._step, self._steps = replace(self._step, turn_key=uuid4().hex), asyncio.Lock()
        self._outer = holding.get_number(self._backend, self.thread_id)
        self._loop = None if may_block() else asyncio.get_running_loop()
        self.is_lost = False
        try:
            _heartbeats.add(self._renew)
            self._turn = await self._wait()
        except BaseException:
            await self.end()
            raise

    async def _wait(self) -> ThreadTurn:
        began = moved = monotonic()
        position, is_asked = 0, False
        outer = self._outer
        while True:
            step = replace(self._step, entry="none") if is_asked else self._step
            async with self._steps:
                found = await settle(self._backend.step_turn(step))
            own = next((it for it in found if it.turn_key == step.turn_key), None)
            if own is not None and own.position == 0:
                return own
            if own is not None and outer is not None and found[0].number == outer:
                raise TurnError(
                    f"turn {outer} of thread {self.thread_id!r} is held by this very context, which"
                    " would wait for itself: end it first, or ask in a context of its own"
                )
            now = monotonic()
            waited = now - began
            limit = self._timeout_seconds
            if own is None and is_asked:
                raise TurnError(
                    f"the place in the queue of thread {self.thread_id!r} is lost: it was not"
                    " renewed within lease_seconds, or was ended or replaced; ask again"
                )
            if own is None or (limit is not None and waited >= limit):
                raise _make_rejection(self.thread_id, found, waited if is_asked else None)
            is_asked = True
            if own.position != position:
                position, moved = own.position, now
            seconds = max(STEP_SECONDS * position, (now - moved) * WAITED_PART)
            left = LONGEST_PAUSE_SECONDS if limit is None else limit - waited
            await pause(min(seconds, LONGEST_PAUSE_SECONDS, left))

    async def end(self) -> None:
        """End the turn, or the wait for it; a failure is logged, because it ends by itself."""
        _heartbeats.discard(self._renew)
        try:
            await settle(self._end())
        except LocusStoreError as exc:
            logger.warning(
                "the turn of thread %r was not ended (%s); it expires in %s s at most",
                *(self.thread_id, exc, self._step.lease_seconds),
            )
        finally:
            self._step = replace(self._step, turn_key="")

    async def _end(self) -> None:
        async with self._steps:
            if self._step.turn_key:
                await self._backend.end_turn(self.thread_id, self._step.turn_key)

    async def _renew(self) -> None:
        """Renew the turn until it is lost; in the loop of ``Heartbeats``."""
        seconds = self._step.lease_seconds / BEATS
        step = replace(self._step, entry="none")
        while not self.is_lost:
            await asyncio.sleep(seconds)
            try:
                found = await self._renew_once(step)
            except Exception as exc:  # noqa: BLE001  (the next renewal may succeed)
                logger.warning("the turn of thread %r was not renewed: %s", self.thread_id, exc)
                seconds = self._step.lease_seconds / BEATS / BEATS
            else:
                seconds = self._step.lease_seconds / BEATS
                self.is_lost = all(it.turn_key != step.turn_key for it in found)
        _heartbeats.discard(self._renew)

    async def _renew_once(self, step: TurnStep) -> list[ThreadTurn]:
        try:
            return await self._backend.step_turn(step)
        except InvalidArgumentError:  # an engine that was handed in belongs to its own loop
            if self._loop is None:
                raise
            renewal = self._backend.step_turn(step)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(renewal, self._loop))

    def enter(self) -> None:
        """Have the writes of this context belong to the turn."""
        self._outer = holding.hold(self._place, self.number)

    def leave(self) -> None:
        """Have the writes of this context belong to the outer turn, or to none."""
        holding.release(self._place, self._outer)

    async def __aenter__(self) -> Self:
        await self.begin()
        self.enter()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.leave()
        await self.end()

    def __enter__(self) -> Self:
        try:
            self._block(self.begin)
            self.enter()
        except LocusStoreError:
            raise
        except BaseException:  # of a handler of signals, perhaps after the turn had begun
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.leave()
            self._block(self.end)
        except BaseException:  # of a handler of signals, perhaps before the end had begun
            self._block(self.end)
            raise

    def _block(self, call: Callable[[], Awaitable[None]]) -> None:
        if self.run is None:
            raise TypeError("calls of this object do not block: use `async with`")
        self.run(call)


class HasTurns:
    """The turns of the threads of ``backend``; needs ``capabilities.turns``."""

    def turn(self, thread_id: str, **options: Unpack[TurnOptions]) -> HeldTurn:
        """Return the turn of a thread, to be held within ``async with``.

        Objects that also have sync methods take ``with``, too.

        Args:
            thread_id: The thread; it need not exist.
            options: See ``types.turns.TurnOptions``.

        Raises:
            InvalidArgumentError: An option is not valid.
            UnsupportedError: The storage has no turns.
        """
        for name in options.keys() - TurnOptions.__annotations__.keys():
            similar = did_you_mean(name, TurnOptions.__annotations__)
            raise InvalidArgumentError(f"turn() has no option {name}={similar}")
        return HeldTurn(self._find_backend(), thread_id, **options)

    @observe("busy")
    async def busy(self, thread_id: str) -> ThreadTurn | None:
        """Return the turn of a thread that is held, if there is one."""
        check_text("thread_id", thread_id)
        found = await self._find_backend().list_turns(thread_id)
        return found[0] if found else None

    @observe("turns")
    async def turns(self, limit: int = 100) -> list[ThreadTurn]:
        """Return the turns of all threads by thread id, with those that wait."""
        return await self._find_backend().list_turns(limit=limit)

    @observe("release_turn")
    async def release_turn(self, thread_id: str) -> bool:
        """End the turn of a thread, of any client; return whether there was one.

        The holder's next save raises ``TurnError``.
        """
        return await self._find_backend().end_turn(thread_id)

    def _find_backend(self) -> TakesTurns:
        backend = getattr(self, "backend", None)
        if backend is None:
            declared = getattr(self, "capabilities", None)
            raise make_unsupported_error(type(self).__name__, declared, "turns")
        return needs(backend, TakesTurns)


class HasSyncTurns(SyncWrappers):
    """The methods of ``HasTurns`` as blocking ones; ``a`` begins the names of the async ones."""

    turns_part: str
    """The name of the attribute that has the turns."""

    @property
    def _turns(self) -> HasTurns:
        found: HasTurns = getattr(self, self.turns_part)
        return found

    def turn(self, thread_id: str, **options: Unpack[TurnOptions]) -> HeldTurn:
        """Return the turn of a thread, for ``with`` or ``async with``; see ``HasTurns.turn``."""
        held = self._turns.turn(thread_id, **options)
        held.run = partial(self._portals.run, type(self).__name__)
        return held

    async def abusy(self, thread_id: str) -> ThreadTurn | None:
        return await self._turns.busy(thread_id)

    async def aturns(self, limit: int = 100) -> list[ThreadTurn]:
        return await self._turns.turns(limit)

    async def arelease_turn(self, thread_id: str) -> bool:
        return await self._turns.release_turn(thread_id)

    busy = make_sync_wrapper(abusy)
    turns = make_sync_wrapper(aturns)
    release_turn = make_sync_wrapper(arelease_turn)


@dataclass(frozen=True)
class ThreadHandle:
    """One thread of ``owner``."""

    owner: Any
    thread_id: str

    def __post_init__(self) -> None:
        check_text("thread_id", self.thread_id)


@overload
def bind_thread(
    method: Callable[Concatenate[Any, str, P], T],
) -> Callable[Concatenate[Any, P], T]: ...
@overload
def bind_thread(
    method: Callable[Concatenate[Any, Any, str, P], T], place: Literal[1]
) -> Callable[Concatenate[Any, Any, P], T]: ...
def bind_thread(method: Callable[..., T], place: int = 0) -> Callable[..., T]:
    """Return a method of ``ThreadHandle``: its owner's of the same name, without ``thread_id``.

    Args:
        method: The owner's.
        place: Of ``thread_id`` among its arguments.
    """

    @wraps(method)
    def run_method(self: ThreadHandle, *args: Any, **kwargs: Any) -> T:
        call: Callable[..., T] = getattr(self.owner, method.__name__)
        if len(args) < place:
            return call(*args, thread_id=self.thread_id, **kwargs)
        return call(*args[:place], self.thread_id, *args[place:], **kwargs)

    parameters = [it for it in signature(method).parameters.values() if it.name != "thread_id"]
    run_method.__signature__ = signature(method).replace(parameters=parameters)  # type: ignore[attr-defined]
    return run_method


def _make_rejection(thread_id: str, turns: list[ThreadTurn], seconds: float | None) -> TurnError:
    """Return the error of a request that did not get the turn."""
    waiting = f", and {len(turns) - 1} wait for it" if turns[1:] else ""
    waited = "" if seconds is None else f" after {seconds:.1f} s"
    return TurnError(f"thread {thread_id!r} is still taken{waited} by {turns[0]}{waiting}")
