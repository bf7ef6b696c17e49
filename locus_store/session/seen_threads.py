"""Facts of threads that were seen a moment ago."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Final, Generic, TypeVar

T = TypeVar("T")

REMEMBERED_THREADS: Final = 4096
"""The threads seen least recently go first."""


class SeenThreads(Generic[T]):
    """Facts of threads with the time at which each was true; usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, tuple[T, float]] = OrderedDict()

    def within(self, thread_id: str, seconds: float) -> T | None:
        """Return what was true at most so many seconds ago."""
        with self._lock:
            found = self._seen.get(thread_id)
        return found[0] if found and time.monotonic() - found[1] < seconds else None

    def put(self, thread_id: str, fact: T, at: float) -> None:
        """Remember a fact, unless a later one is known."""
        with self._lock:
            known = self._seen.pop(thread_id, None)
            self._seen[thread_id] = known if known and known[1] > at else (fact, at)
            while len(self._seen) > REMEMBERED_THREADS:
                self._seen.popitem(last=False)

    def forget(self, thread_id: str) -> None:
        """Forget a thread."""
        with self._lock:
            self._seen.pop(thread_id, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._seen.clear()
