"""What was used lately, within a bound of bytes."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache of two generations: the older one goes when the younger one is full.

    May be used by several threads at once: whoever loses a race makes a value again.

    Args:
        max_bytes: Of a generation. What is larger by itself is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}

    def get(self, key: K) -> V | None:
        """What was put last."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self.put(key, *found)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of so many bytes, instead of the key's last one."""
        _, before = self._young.pop(key, (None, 0))
        self._bytes -= before
        if size > self._max_bytes:
            self._old.pop(key, None)
            return
        if self._bytes + size > self._max_bytes:
            self._young, self._old, self._bytes = {}, self._young, 0
        self._young[key] = value, size
        self._bytes += size

    def drop(self, key: K) -> None:
        """Keep nothing of a key."""
        _, before = self._young.pop(key, (None, 0))
        self._bytes -= before
        self._old.pop(key, None)
