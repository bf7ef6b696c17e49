"""Caches of states: the interface, one in this process, and a circuit breaker."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from locus_store.runtime import observe
from locus_store.runtime.forks import make_lock
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.recent import Recent
from locus_store.runtime.stepping import may_block
from locus_store.types import Mark
from locus_store.types.arguments import MAX_TTL_SECONDS, check_limit, check_number

CACHE_TTL_SECONDS: Final = 86_400
MAX_CACHED_THREADS: Final = 1000
"""Of a cache in this process, unless another limit is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedState:
    """A state in a cache."""

    mark: Mark | None
    """The committed version that it is, or that a working state was made from; ``None``: none."""

    is_working: bool = False
    """It is not committed; any commit newer than ``mark`` outranks it."""

    born: str = ""
    """Of a working state without ``mark``: differs for a later thread of the same id."""

    labels: Mapping[str, Any]
    """Of the version: its state's class and its owner."""

    state: bytes
    """A JSON object."""

    def replaces(self, old: CachedState | None, instead_of: CachedState | None) -> bool:
        """Return whether this entry may take the place of another: the reference for every cache.

        Args:
            old: The entry in the cache.
            instead_of: The entry that the database has disproved.
        """
        if old is None or old.mark is None or self.mark is None:
            return True
        if (instead_of is not None and old.mark == instead_of.mark) or old.mark.store != (
            self.mark.store
        ):
            return True
        mine = self.mark.line, self.mark.sequence, self.is_working
        return mine >= (old.mark.line, old.mark.sequence, old.is_working)


class StateCache(ABC):
    """Holds entries by thread; may lose any of them at any time.

    A failure is an exception, which a session survives: it reads the database instead.
    """

    moves_between_threads: bool = False
    """See ``ForTenants``."""

    needs_no_loop: bool = False
    """See ``ForTenants``."""

    leaves_process: bool = True
    """Entries are kept outside of this process. Refused for an encrypted storage."""

    @abstractmethod
    async def get(self, key: str) -> CachedState | None:
        """Return an entry and renew its time to live; ``None`` if there is none."""

    @abstractmethod
    async def put(
        self, key: str, entry: CachedState, *, instead_of: CachedState | None = None
    ) -> None:
        """Set an entry where ``CachedState.replaces`` allows it, atomically."""

    @abstractmethod
    async def drop(self, key: str) -> None:
        """Remove an entry, if there is one."""

    @abstractmethod
    async def close(self) -> None:
        """Release what was opened; idempotent, and the cache may be used again afterwards."""


class LocalCache(StateCache):
    """A cache in this process; the least recently used entry is dropped first.

    Args:
        max_threads: At most this many entries; ``None``: no limit.
        ttl_seconds: An entry that is not used for so long is dropped.

    Raises:
        InvalidArgumentError: An option is not valid.
    """

    moves_between_threads = True
    needs_no_loop = True
    leaves_process = False

    def __init__(
        self,
        max_threads: int | None = MAX_CACHED_THREADS,
        *,
        ttl_seconds: float = CACHE_TTL_SECONDS,
    ) -> None:
        check_cache(ttl_seconds, max_threads)
        self.max_threads, self.ttl_seconds = max_threads, ttl_seconds
        self._lock = make_lock()
        self._entries: OrderedDict[str, tuple[float, CachedState]] = OrderedDict()
        """The least recently used one first, with the time of its last use."""

    def __repr__(self) -> str:
        return f"LocalCache({self.max_threads}, ttl_seconds={self.ttl_seconds})"

    def __len__(self) -> int:
        with self._lock:
            self._drop_unused()
            return len(self._entries)

    async def get(self, key: str) -> CachedState | None:
        with self._lock:
            self._drop_unused()
            found = self._entries.get(key)
            if found is not None:
                self._keep(key, found[1])
            return found[1] if found else None

    async def put(
        self, key: str, entry: CachedState, *, instead_of: CachedState | None = None
    ) -> None:
        with self._lock:
            self._drop_unused()
            found = self._entries.get(key)
            if entry.replaces(found[1] if found else None, instead_of):
                self._keep(key, entry)

    async def drop(self, key: str) -> None:
        with self._lock:
            self._entries.pop(key, None)

    async def close(self) -> None:
        with self._lock:
            self._entries.clear()

    def _keep(self, key: str, entry: CachedState) -> None:
        """Keep an entry as the most recently used."""
        self._entries[key] = time.monotonic(), entry
        self._entries.move_to_end(key)
        while self.max_threads is not None and len(self._entries) > self.max_threads:
            self._entries.popitem(last=False)

    def _drop_unused(self) -> None:
        oldest = time.monotonic() - self.ttl_seconds
        while self._entries and next(iter(self._entries.values()))[0] < oldest:
            self._entries.popitem(last=False)


def check_cache(ttl_seconds: float, max_threads: int | None) -> None:
    """Refuse the options of a cache that are not valid."""
    check_number("cache_ttl", ttl_seconds, maximum=MAX_TTL_SECONDS)
    check_limit(max_threads, "max_cached_threads", minimum=1, optional=True)


T = TypeVar("T")

ANSWER_SECONDS: Final = 1.0
"""A cache that has not answered by then has failed."""

FIRST_PAUSE_SECONDS: Final = 1.0
"""The cache is left alone so long after a failure; doubled with each further one."""

LONGEST_PAUSE_SECONDS: Final = 30.0

_MOST_OUTDATED: Final = 65_536
"""Keys that are remembered; of further ones, an older working state may be read again."""

CALLS: Final = 64
"""At once per event loop: the others wait here, where no time-out runs."""


class GuardedCache:
    """A cache that never fails: one that cannot be reached is empty.

    A write that failed is remembered: what the entry said before is not read again.

    Args:
        cache: The cache.
    """

    def __init__(self, cache: StateCache) -> None:
        self.cache = cache
        self._closed_until = 0.0
        self._failures = 0
        """In a row."""

        self._outdated: Recent[str, bool] = Recent(_MOST_OUTDATED)
        """Keys whose last write failed."""

        self._turns = PerLoop(lambda: asyncio.Semaphore(CALLS))

    async def get(self, key: str) -> CachedState | None:
        if self._outdated.get(key):
            await self.drop(key)
            return None
        _, found = await self._try(lambda: self.cache.get(key))
        return found

    async def put(
        self, key: str, entry: CachedState, *, instead_of: CachedState | None = None
    ) -> None:
        await self._write(key, lambda: self.cache.put(key, entry, instead_of=instead_of))

    async def drop(self, key: str) -> None:
        await self._write(key, lambda: self.cache.drop(key))

    async def _write(self, key: str, call: Callable[[], Awaitable[None]]) -> None:
        is_done, _ = await self._try(call)
        if is_done:
            self._outdated.drop(key)
        else:
            self._outdated.put(key, True)

    async def _try(self, call: Callable[[], Awaitable[T]]) -> tuple[bool, T | None]:
        """Return whether a call succeeded, and its result; the cache may be left alone."""
        async with nullcontext() if may_block() else self._turns.get():
            now = time.monotonic()
            if now < self._closed_until:
                return False, None
            if self._failures:  # one call tries it out, and the others do without the cache
                self._closed_until = now + ANSWER_SECONDS
            before = self._failures
            try:
                async with nullcontext() if may_block() else asyncio.timeout(ANSWER_SECONDS):
                    found = await call()
            except Exception as exc:  # noqa: BLE001  (a cache may be the user's own)
                self._note_failure(exc, before)
                return False, None
            self._closed_until, self._failures = 0.0, 0
            return True, found

    def _note_failure(self, exc: Exception, before: int) -> None:
        observe.report_cache_failure(self.cache, exc, is_first=not self._failures)
        if self._failures != before:  # a call beside this one has failed of the same
            return
        self._failures += 1
        pause = FIRST_PAUSE_SECONDS * 2 ** min(before, 10)
        self._closed_until = time.monotonic() + min(pause, LONGEST_PAUSE_SECONDS)
