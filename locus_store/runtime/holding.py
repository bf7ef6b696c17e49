"""The turns that the caller's context holds, and the thread that renews them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from time import sleep
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from locus_store.runtime.forks import start_in_each_process

T = TypeVar("T")

Place: TypeAlias = "tuple[str, str | None, str]"
"""A storage, a tenant and a thread."""

Beat: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"
"""Renews a turn again and again."""

held_here: Final[ContextVar[Mapping[Place, int]]] = ContextVar(
    "locus_store_held_here", default=MappingProxyType({})
)
"""The numbers of the turns that this context holds."""


def make_place(backend: Any, thread_id: str) -> Place:
    """Return the place of a thread in the storage of a backend."""
    return backend.storage_name, backend.tenant, thread_id


def get_number(backend: Any, thread_id: str) -> int | None:
    """Return the number of the turn of a thread that this context holds."""
    held = held_here.get()
    return held.get(make_place(backend, thread_id)) if held else None


def hold(place: Place, number: int) -> int | None:
    """Have the writes of this context belong to a turn; return the number of the outer one."""
    held = held_here.get()
    held_here.set({**held, place: number})
    return held.get(place)


def release(place: Place, outer: int | None = None) -> None:
    """Have the writes of this context belong to the turn no longer, but to an outer one."""
    held = {it: of for it, of in held_here.get().items() if it != place}
    held_here.set(held if outer is None else {**held, place: outer})


def carry_held(make: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
    """Return a call that has the turns of this context in every other one, too."""
    held = held_here.get()

    async def call() -> T:
        held_here.set(held)
        return await make()

    return call


class Heartbeats:
    """An event loop in a thread of its own, for renewals that no other loop can delay.

    The thread begins with the first turn, and ends after the last one with its connections.
    """

    def __init__(self) -> None:
        start_in_each_process(self._start)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._beats: set[Beat] = set()
        self._is_running = False
        self._wake: Callable[[], object] | None = None

    def add(self, beat: Beat) -> None:
        """Run a renewal until it ends, or is discarded."""
        with self._lock:
            if not self._is_running:
                threading.Thread(target=self._run, name="locus-store-turns", daemon=True).start()
                self._is_running = True
            elif self._wake is not None:
                self._wake()
            self._beats.add(beat)

    def discard(self, beat: Beat) -> None:
        """Stop a renewal."""
        with self._lock:
            self._beats.discard(beat)
            if self._wake is not None:
                self._wake()

    def _run(self) -> None:
        while True:
            with suppress(OSError), asyncio.Runner() as runner:  # without a free file descriptor
                return runner.run(self._run_beats())
            sleep(0.1)

    async def _run_beats(self) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        tasks: dict[Beat, asyncio.Task[None]] = {}
        while True:
            with self._lock:
                self._wake = partial(loop.call_soon_threadsafe, changed.set)
                wanted = set(self._beats)
                if not wanted:
                    self._is_running, self._wake = False, None
                    return
            for beat in tasks.keys() - wanted:
                tasks.pop(beat).cancel()
            tasks |= {it: loop.create_task(it()) for it in wanted - tasks.keys()}
            await changed.wait()
            changed.clear()
