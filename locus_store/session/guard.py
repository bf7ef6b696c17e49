"""A circuit breaker before a cache: its failures cost time once, and never a call."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

from locus_store.runtime import observe
from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.stepping import may_block

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from locus_store.session.cache import CachedState, StateCache

T = TypeVar("T")

ANSWER_SECONDS: Final = 1.0
"""A cache that has not answered by then has failed."""

FIRST_PAUSE_SECONDS: Final = 1.0
"""The cache is left alone so long after a failure; doubled with each further one."""

LONGEST_PAUSE_SECONDS: Final = 30.0

MOST_OUTDATED: Final = 65_536
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

        self._outdated: OrderedDict[str, None] = OrderedDict()
        """Keys whose last write failed, the oldest first."""

        self._turns = PerLoop(lambda: asyncio.Semaphore(CALLS))

    async def get(self, key: str) -> CachedState | None:
        """See ``StateCache``, also for the following methods."""
        if key in self._outdated:
            await self.drop(key)
            return None
        found: list[CachedState | None] = []

        async def get() -> None:
            found.append(await self.cache.get(key))

        await self._tried(get)
        return found[0] if found else None

    async def put(
        self, key: str, entry: CachedState, *, instead_of: CachedState | None = None
    ) -> None:
        await self._write(key, lambda: self.cache.put(key, entry, instead_of=instead_of))

    async def drop(self, key: str) -> None:
        await self._write(key, lambda: self.cache.drop(key))

    async def _write(self, key: str, call: Callable[[], Awaitable[None]]) -> None:
        if await self._tried(call):
            self._outdated.pop(key, None)
            return
        self._outdated[key] = None
        while len(self._outdated) > MOST_OUTDATED:
            self._outdated.popitem(last=False)

    async def _tried(self, call: Callable[[], Awaitable[None]]) -> bool:
        """Make a call; return ``False`` if it failed, or if the cache is left alone."""
        async with self._turn():
            now = time.monotonic()
            if now < self._closed_until:
                return False
            if self._failures:  # one call tries it out, and the others do without the cache
                self._closed_until = now + ANSWER_SECONDS
            before = self._failures
            try:
                async with nullcontext() if may_block() else asyncio.timeout(ANSWER_SECONDS):
                    await call()
            except Exception as exc:  # noqa: BLE001  (a cache may be the user's own)
                self._failed(exc, before)
                return False
            self._closed_until, self._failures = 0.0, 0
            return True

    def _turn(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if may_block() else self._turns.here()

    def _failed(self, exc: Exception, before: int) -> None:
        observe.cache_failed(self.cache, exc, is_first=not self._failures)
        if self._failures != before:  # a call beside this one has failed of the same
            return
        self._failures += 1
        pause = FIRST_PAUSE_SECONDS * 2 ** min(before, 10)
        self._closed_until = time.monotonic() + min(pause, LONGEST_PAUSE_SECONDS)
