"""A cache of recently used values, bounded in bytes."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache of two generations: the older one is dropped when both together are full.

    May be used by several threads at once: of two that race, one makes a value again.

    Args:
        max_bytes: Of both generations. A value that is larger by itself is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._young_bytes = self._old_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The sum of the sizes of the values that are kept."""
        return self._young_bytes + self._old_bytes

    def get(self, key: K) -> V | None:
        """Return the value that was put last."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self.put(key, *found)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of this size in bytes; it replaces the key's last value."""
        self.drop(key)
        if size > self._max_bytes:
            return
        if self._young_bytes + size > self._max_bytes // 2 and self._young:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[key] = value, size
        self._young_bytes += size
        if self.held_bytes > self._max_bytes:
            self._old, self._old_bytes = {}, 0

    def drop(self, key: K) -> None:
        """Forget a key."""
        _, before = self._young.pop(key, (None, 0))
        self._young_bytes -= before
        _, before = self._old.pop(key, (None, 0))
        self._old_bytes -= before
