"""Calls of one event loop in groups: calls of one tick, and waiting calls, run together."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from locus_store.runtime.loops import fail
from locus_store.runtime.stepping import may_block

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")
Names: TypeAlias = Collection[Hashable]

LONE: Final = 2
"""Calls that run alone at once; each may wait for a lock."""


class Undecided(Enum):
    """The answer to a call that was not executed."""

    AGAIN = 0
    """The call goes into the next group."""

    ALONE = 1
    """The call has to run alone."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to a call that raises."""

    error: BaseException


Run = Callable[[Sequence[Q], bool], Awaitable[Sequence[A | Failed | Undecided]]]
"""Runs a group and answers each of its calls; the flag says that it is one that runs alone."""

Send = Callable[[Q, Callable[[A | Failed | Undecided], None]], bool]
"""Sends a call within the caller's step, and passes on its answer; ``False``: it was not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The bounds of a group; a single call may exceed them."""

    count: int
    """The number of things that the group's calls ask for."""

    workers: int = 2
    """Groups under way at once."""

    size: int = 0
    """Bytes; 0: any."""


class PerLoop(Generic[T]):
    """One object for each event loop, and one for all sync calls of a process that have none.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._all: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
        self._last: tuple[ref[asyncio.AbstractEventLoop], T] | None = None
        """The entry of the loop that asked last: a weak dictionary takes ten times as long."""

        self._without: dict[int, T] = {}
        """Those without a loop, by process."""

    def get(self) -> T:
        """Return the object of the running loop."""
        if may_block():
            pid = os.getpid()
            if pid not in self._without:
                self._without.setdefault(pid, self._make())
            return self._without[pid]
        loop, last = asyncio.get_running_loop(), self._last
        if last is not None and last[0]() is loop:
            return last[1]
        found = self._all.get(loop)
        if found is None:
            found = self._all[loop] = self._make()
        self._last = ref(loop), found
        return found


class NamedLocks:
    """Locks by name in each event loop, kept as long as they are used."""

    def __init__(self) -> None:
        self._locks: PerLoop[WeakValueDictionary[str, asyncio.Lock]] = PerLoop(WeakValueDictionary)

    def get_lock(self, name: str) -> asyncio.Lock:
        locks = self._locks.get()
        lock = locks[name] = locks.get(name) or asyncio.Lock()
        return lock


@dataclass(slots=True, eq=False)
class _Call(Generic[Q, A]):
    what: Q
    count: int
    size: int
    done: asyncio.Future[A]

    def answer(self, answer: A | Failed) -> None:
        """Pass the answer to the caller, unless it was cancelled."""
        if self.done.done():  # cancelled
            return
        if not isinstance(answer, Failed):
            self.done.set_result(answer)
        elif isinstance(answer.error, asyncio.CancelledError):
            self.done.cancel()
        else:
            fail(self.done, answer.error)


class Gathering(Generic[Q, A]):
    """The calls of one kind in one event loop.

    Calls that share a name are neither in one group nor under way at once: they run in the order in
    which they were submitted. A call that is cancelled before its group runs is left out of it; a
    later one is carried out. No task is left while nothing waits.

    Args:
        run: Runs a group. What it raises, each call of the group raises.
        limits: Of groups.
        names_of: Returns what no other call may touch while a call is under way.
        send: Sends a call for which no other waits, and so spares it a task.
        spawn: Begins a task.
    """

    def __init__(
        self,
        run: Run[Q, A],
        limits: GroupLimits,
        names_of: Callable[[Q], Names] = lambda _: (),
        *,
        send: Send[Q, A] | None = None,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] = asyncio.ensure_future,
    ) -> None:
        self._run = run
        self._limits = limits
        self._names_of = names_of
        self._send_now, self._begin = send, spawn
        self._last_count = 1
        """Calls of the last group."""
        self._ready: deque[_Call[Q, A]] = deque()
        self._alone: deque[_Call[Q, A]] = deque()
        self._idle, self._idle_alone = limits.workers, LONE
        self._under_way: set[Hashable] = set()
        self._aside: Counter[Hashable] = Counter()
        """Names of the calls that run alone, or are to."""
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, what: Q, *, count: int = 1, size: int = 0) -> Awaitable[A]:
        """Run a call together with those that wait; one without an event loop runs by itself.

        No coroutine, and no names: what is alive while thousands of calls wait, Python's garbage
        collector traverses again and again.

        Args:
            what: The call, as ``run`` takes it.
            count: How much it adds to a group.
            size: Bytes that it adds to a group.
        """
        if may_block():
            return self._run_lone(what)
        done: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        call = _Call(what, count, size, done)
        if self._send_now is None or not self._is_sent(call, self._send_now):
            self._ready.append(call)
            if self._idle:
                self._wake()
        return done

    def _is_sent(self, call: _Call[Q, A], send: Send[Q, A]) -> bool:
        """Send a call if no other is there to share a group; return whether it was sent."""
        if self._last_count > 1 or self._ready or not self._idle:
            return False
        names = self._names_of(call.what)
        if not self._under_way.isdisjoint(names) or not self._aside.keys().isdisjoint(names):
            return False

        def ended() -> None:
            self._idle += 1
            self._under_way.difference_update(names)

        def answered(answer: A | Failed | Undecided) -> None:
            ended()
            self._answer([call], [answer])

        self._idle -= 1
        self._under_way.update(names)
        is_sent = send(call.what, answered)
        if not is_sent:
            ended()
        return is_sent

    async def _run_lone(self, what: Q) -> A:
        answer: A | Failed | Undecided = Undecided.AGAIN
        while isinstance(answer, Undecided):
            [answer] = await self._run([what], answer is Undecided.ALONE)
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    async def drain(self) -> None:
        """Wait for all submitted calls."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _wake(self) -> None:
        while self._ready and self._ready[0].done.done():  # the caller was cancelled
            self._ready.popleft()
        if self._ready and self._idle:
            self._idle -= 1
            self._spawn(self._send())
        if self._alone and self._idle_alone:
            self._idle_alone -= 1
            self._spawn(self._send_alone())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._begin(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # others may still wait
            self._wake()

    async def _send(self) -> None:
        """Run groups until none waits."""
        try:
            while group := self._take():
                self._last_count = len(group)
                await self._carry_out(group, is_alone=False)
        finally:
            self._idle += 1

    async def _send_alone(self) -> None:
        """Run lone calls until none waits."""
        try:
            while call := self._take_alone():
                await self._carry_out([call], is_alone=True)
        finally:
            self._idle_alone += 1

    def _take_alone(self) -> _Call[Q, A] | None:
        """Return the first lone call that depends on no call in progress."""
        taken = set(self._under_way)
        for call in list(self._alone):
            names = self._names_of(call.what)
            if call.done.done():  # the caller was cancelled
                self._alone.remove(call)
                self._aside -= Counter(names)
            elif taken.isdisjoint(names):
                self._alone.remove(call)
                self._under_way.update(names)
                return call
            else:
                taken.update(names)
        return None

    def _take(self) -> list[_Call[Q, A]]:
        """Return the next group; calls that share a name with a lone call run alone after it."""
        limits, group = self._limits, list[_Call[Q, A]]()
        ready, under_way, names_of = self._ready, self._under_way, self._names_of
        most, most_bytes = limits.count, limits.size or sys.maxsize
        count = size = 0
        while ready:
            call = ready[0]
            if call.done.done():  # the caller was cancelled
                ready.popleft()
                continue
            names = names_of(call.what)
            if self._aside and not self._aside.keys().isdisjoint(names):
                self._put_aside(ready.popleft())
                continue
            count += call.count
            size += call.size
            is_full = count > most or size > most_bytes
            if (group and is_full) or not under_way.isdisjoint(names):
                break
            under_way.update(names)
            group.append(ready.popleft())
        return group

    def _put_aside(self, call: _Call[Q, A]) -> None:
        self._alone.append(call)
        self._aside.update(self._names_of(call.what))

    async def _carry_out(self, group: list[_Call[Q, A]], *, is_alone: bool) -> None:
        try:
            answers = await self._get_answers(group, is_alone=is_alone)
        except BaseException:  # the loop ends
            for call in group:
                call.done.cancel()
            raise
        finally:
            names = [name for call in group for name in self._names_of(call.what)]
            self._under_way.difference_update(names)
            if is_alone:
                self._aside -= Counter(names)
        self._answer(group, answers)

    def _answer(self, group: list[_Call[Q, A]], answers: Sequence[A | Failed | Undecided]) -> None:
        again: list[_Call[Q, A]] = []
        for call, answer in zip(group, answers, strict=True):
            if answer is Undecided.ALONE:
                self._put_aside(call)
            elif answer is Undecided.AGAIN:
                again.append(call)
            else:
                call.answer(answer)
        self._ready.extendleft(reversed(again))
        self._wake()

    async def _get_answers(
        self, group: list[_Call[Q, A]], *, is_alone: bool
    ) -> Sequence[A | Failed | Undecided]:
        try:
            return await self._run([it.what for it in group], is_alone)
        except Exception as exc:  # noqa: BLE001  (raised to every caller of the group)
            return [Failed(exc)] * len(group)
