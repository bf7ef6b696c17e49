"""A circuit breaker before a cache: its failures cost time once, and never a call."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

from locus_store.errors import LocusStoreError
from locus_store.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from locus_store.session.cache import CachedState, StateCache

T = TypeVar("T")

ANSWER_SECONDS: Final = 1.0
"""A cache that has not answered by then has failed."""

FIRST_PAUSE_SECONDS: Final = 1.0
"""The cache is left alone so long after a failure; doubled with each further one."""

LONGEST_PAUSE_SECONDS: Final = 30.0


class GuardedCache:
    """A cache that never fails: one that cannot be reached is empty.

    Args:
        cache: The cache.
    """

    def __init__(self, cache: StateCache) -> None:
        self.cache = cache
        self._closed_until = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self._has_failed = False

    async def get(self, key: str) -> CachedState | None:
        """See ``StateCache``, also for the following methods."""
        return await self._tried(lambda: self.cache.get(key))

    async def put(
        self, key: str, entry: CachedState, *, instead_of: CachedState | None = None
    ) -> None:
        await self._tried(lambda: self.cache.put(key, entry, instead_of=instead_of))

    async def drop(self, key: str) -> None:
        await self._tried(lambda: self.cache.drop(key))

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T | None:
        now = time.monotonic()
        if now < self._closed_until:
            return None
        if self._has_failed:  # one call tries it out, and the others go on without the cache
            self._closed_until = now + ANSWER_SECONDS
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await call()
        except (LocusStoreError, OSError) as exc:
            self._failed(exc)
            return None
        self._closed_until, self._pause, self._has_failed = 0.0, FIRST_PAUSE_SECONDS, False
        return answer

    def _failed(self, exc: Exception) -> None:
        observe.cache_failed(self.cache, exc, is_first=not self._has_failed)
        self._has_failed = True
        self._closed_until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
