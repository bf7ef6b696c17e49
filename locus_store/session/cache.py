"""Caches of states: the interface, and one in this process."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import MAX_COUNT, MAX_TTL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.types import Mark

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
    """Of a working state without ``mark``: tells its thread from a later one of the same id."""

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

    def __init__(
        self,
        max_threads: int | None = MAX_CACHED_THREADS,
        *,
        ttl_seconds: float = CACHE_TTL_SECONDS,
    ) -> None:
        self.max_threads = checked_max_threads(max_threads)
        self.ttl_seconds = checked_cache_ttl(ttl_seconds)
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[float, CachedState]] = OrderedDict()
        """The least recently used one first, with the time of its last use."""

    def __repr__(self) -> str:
        return f"LocalCache({self.max_threads}, ttl_seconds={self.ttl_seconds})"

    def __len__(self) -> int:
        with self._lock:
            self._drop_unused()
            return len(self._entries)

    async def get(self, key: str) -> CachedState | None:
        """See ``StateCache``, also for the following methods."""
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


def checked_max_threads(max_threads: int | None) -> int | None:
    """Return the option if it is valid.

    Raises:
        InvalidArgumentError: It is not a count of at least 1.
    """
    if max_threads is None or (type(max_threads) is int and 1 <= max_threads <= MAX_COUNT):
        return max_threads
    raise InvalidArgumentError(
        f"max_cached_threads={max_threads!r} must be a whole number from 1, or None"
    )


def checked_cache_ttl(ttl_seconds: float) -> float:
    """Return the option if it is valid.

    Raises:
        InvalidArgumentError: It is not a number of seconds above 0.
    """
    is_number = isinstance(ttl_seconds, int | float) and not isinstance(ttl_seconds, bool)
    if is_number and 0 < ttl_seconds <= MAX_TTL_SECONDS:
        return ttl_seconds
    raise InvalidArgumentError(
        f"cache_ttl={ttl_seconds!r} must be a number of seconds above 0, at most {MAX_TTL_SECONDS}"
    )
