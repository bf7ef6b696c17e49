"""A cache of recently used values, bounded by the sum of their sizes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from locus_store.runtime.forks import start_in_each_process

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache that drops the least recently used values; usable by several threads at once.

    Args:
        most: Of the sum of the sizes. A value that is larger by itself is not kept.
        keeps_last: The value that was put last is kept, whatever its size.
    """

    def __init__(self, most: int, *, keeps_last: bool = False) -> None:
        self._most = most
        self._keeps_last = keeps_last
        start_in_each_process(self._start)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = 0
        """The sum of the sizes of the values that are kept."""

    def get(self, key: K) -> V | None:
        """Return the value that was put last, and mark it as used."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Keep a value; it replaces the key's last value."""
        with self._lock:
            self._drop(key)
            if size <= self._most or self._keeps_last:
                self._kept[key] = value, size
                self.size += size
                self._shrink()

    def drop(self, key: K) -> None:
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Forget all keys."""
        with self._lock:
            self._kept.clear()
            self.size = 0

    def limit(self, most: int) -> None:
        """Set the largest sum of sizes."""
        with self._lock:
            self._most = most
            self._shrink()

    def _drop(self, key: K) -> None:
        self.size -= self._kept.pop(key, (None, 0))[1]

    def _shrink(self) -> None:
        while self.size > self._most and len(self._kept) > self._keeps_last:
            self.size -= self._kept.popitem(last=False)[1][1]
