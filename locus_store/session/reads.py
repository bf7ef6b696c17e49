"""Reads of states, through a cache or not.

The cache is never believed for long. An entry is confirmed where this process has seen, at most
``verify_seconds`` ago, that the database's head is the version that the entry names; any other
entry is compared with the head first. So no read is staler than that, whatever the cache did.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any
from uuid import uuid4

from locus_store.backend import StorageBackend
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.loops import await_to_end
from locus_store.runtime.stepping import may_block
from locus_store.session.cache import CachedState, GuardedCache, StateCache
from locus_store.session.owners import SeenThreads
from locus_store.types import Mark, Snapshot
from locus_store.types.arguments import check_number
from locus_store.types.marks import LoadedVersion
from locus_store.types.thread_info import require_describing
from locus_store.values.encoding import encode
from locus_store.values.surrogates import escape_within


class _Flight:
    """One read of a thread, for all callers that ask while it may serve them."""

    task: asyncio.Task[CachedState | None]
    began = inf
    """Not yet."""


class StateReads:
    """Reads the heads of threads, and keeps a cache of them.

    Args:
        backend: Gives the backend.
        cache: The cache, if any.
        verify_seconds: How stale a cached read may be.

    Raises:
        InvalidArgumentError: ``verify_seconds`` is not valid.
    """

    def __init__(
        self,
        backend: Callable[[], StorageBackend],
        cache: Callable[[], StateCache | None],
        verify_seconds: float,
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._guarded: GuardedCache | None = None
        self.verify_seconds = check_number("cache_verify_seconds", verify_seconds, minimum=0)
        self._confirmed: SeenThreads[Mark] = SeenThreads()
        self._saved: SeenThreads[Mark] = SeenThreads()
        """By load: the newest version that was saved from it, also if a copy was."""

        self._flights: PerLoop[dict[str, _Flight]] = PerLoop(dict)
        self._here = uuid4().hex
        """Instead of a time of birth, for threads that do not exist yet."""

    @property
    def cache(self) -> GuardedCache | None:
        """The cache, if there is one."""
        found = self._cache()
        if found is not None and (self._guarded is None or self._guarded.cache is not found):
            self._guarded = GuardedCache(found)
        return self._guarded if found is not None else None

    async def read_head(self, thread_id: str) -> Snapshot | None:
        """Return the head as the database has it; ``None`` if there is none."""
        began = time.monotonic()
        found = await self._backend().read_state(thread_id)
        if found is None:
            self._confirmed.forget(thread_id)
        else:
            self._confirmed.put(thread_id, found.version.mark, began)
        return found

    async def has_state(self, thread_id: str) -> bool:
        """Return whether the thread has a head."""
        return await self._backend().version(thread_id) is not None

    def get_newest(self, thread_id: str) -> Mark | None:
        """Return the head that this object has read or saved last."""
        return self._confirmed.get(thread_id, inf)

    async def _find_birth(self, thread_id: str) -> str:
        """Return what distinguishes a thread from a later one of the same id."""
        found = await require_describing(self._backend()).facts_of(thread_id)
        return found.created_at.isoformat() if found else self._here

    def note(self, version: LoadedVersion) -> None:
        """Remember a version that was saved."""
        if version.load_id is not None and version.made_from is not None:
            self._saved.put(version.load_id, version.made_from, time.monotonic())

    def get_base(self, origin: LoadedVersion) -> Mark | None:
        """Return the newest version that was saved from a load, else the one that was loaded."""
        if origin.load_id is None:
            return None
        return self._saved.get(origin.load_id, inf) or origin.made_from

    async def _read_committed(self, thread_id: str) -> CachedState | None:
        found = await self.read_head(thread_id)
        if found is None:
            return None
        return make_entry(found.state, found.version.mark, found.version.labels)

    async def get_cached(self, thread_id: str) -> CachedState | None:
        """Return the working state or head, from the cache if it is confirmed.

        Callers of one event loop that ask at once share one read.
        """
        if self.cache is None:
            return await self._read_committed(thread_id)
        if may_block():
            return await self._find(thread_id, self.cache)
        flights = self._flights.get()
        flight = flights.get(thread_id)
        if flight is None or time.monotonic() - flight.began >= self.verify_seconds:
            flight = self._begin(thread_id, self.cache, flights)
        return await await_to_end(flight.task)

    def _begin(self, thread_id: str, cache: GuardedCache, flights: dict[str, _Flight]) -> _Flight:
        flight = flights[thread_id] = _Flight()  # first: a task may end as it is created

        async def fly() -> CachedState | None:
            flight.began = time.monotonic()
            try:
                return await self._find(thread_id, cache)
            finally:
                if flights.get(thread_id) is flight:
                    del flights[thread_id]

        flight.task = asyncio.create_task(fly(), name="locus-store")
        return flight

    async def _find(self, thread_id: str, cache: GuardedCache) -> CachedState | None:
        entry = await cache.get(self._make_key(thread_id))
        if entry is not None and await self._is_current(thread_id, entry):
            return entry
        found = await self._read_committed(thread_id)
        if found is not None:
            await cache.put(self._make_key(thread_id), found, instead_of=entry)
        elif entry is not None:
            await cache.drop(self._make_key(thread_id))
        return found

    async def _is_current(self, thread_id: str, entry: CachedState) -> bool:
        """Return whether the entry's version is the head, and remember it if it is."""
        if entry.mark is None:  # a working state of a thread without versions
            born = entry.born
            is_same = born == self._here or born == await self._find_birth(thread_id)
            return is_same and not await self.has_state(thread_id)
        if self._confirmed.get(thread_id, self.verify_seconds) == entry.mark:
            return True
        now = time.monotonic()
        head = await self._backend().fetch_head(thread_id, known=entry.mark)
        if head is None or head.version.mark != entry.mark:
            return False
        self._confirmed.put(thread_id, entry.mark, now)
        return True

    def remember_write(self, thread_id: str, mark: Mark, began: float) -> None:
        """Remember the head after a commit.

        Args:
            thread_id: The thread.
            mark: The version that was committed.
            began: When the save was sent; the version has been the head since then at least once.
        """
        self._forget_flight(thread_id)
        self._confirmed.put(thread_id, mark, began)

    async def cache_state(self, thread_id: str, entry: CachedState) -> None:
        if self.cache is not None:
            if entry.mark is None:
                entry = replace(entry, born=await self._find_birth(thread_id))
            self._forget_flight(thread_id)
            await self.cache.put(self._make_key(thread_id), entry)

    async def drop(self, thread_id: str) -> None:
        """Drop the cached entry after a deletion."""
        self._forget_flight(thread_id)
        self._confirmed.forget(thread_id)
        if self.cache is not None:
            await self.cache.drop(self._make_key(thread_id))

    def close(self) -> None:
        """Forget what was read."""
        self._confirmed.clear()

    def _forget_flight(self, thread_id: str) -> None:
        """Make later readers read again, since they must see what was written."""
        self._flights.get().pop(thread_id, None)

    def _make_key(self, thread_id: str) -> str:
        tenant = self._backend().tenant or ""
        return f"{len(tenant)}:{tenant}:{thread_id}"


def make_entry(
    state: Mapping[str, Any],
    mark: Mark | None,
    labels: Mapping[str, Any],
    *,
    is_working: bool = False,
) -> CachedState:
    """Return the entry of a state.

    Args:
        state: JSON that was checked; strings may have lone surrogates.
        mark: The version that the state was made from.
        labels: Of that version.
        is_working: The state is not committed.
    """
    try:
        encoded = encode(state)
    except TypeError:
        encoded = encode(escape_within(state))
    return CachedState(mark=mark, is_working=is_working, labels=labels, state=encoded)
