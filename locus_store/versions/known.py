"""The newest versions that a backend object read or wrote, bounded in bytes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

if TYPE_CHECKING:
    from locus_store.types import Mark
    from locus_store.values import frames

LineKey: TypeAlias = tuple[str | None, str, str]
"""A tenant, a thread and a namespace."""

COLD_STATE_BYTES = 16 * 1024
"""A state above this is worth reading the head for, where its shape is not known."""

KNOWN_BYTES = 64 * 1024 * 1024
"""The bytes of versions that one backend object keeps, so that saves send frames and not whole
states, and a known head is not read again."""


@dataclass(slots=True)
class _Known:
    """The newest version known of a line."""

    mark: Mark
    checkpoint_id: str
    shape: frames.Shape
    snapshot: frames.PackedState | None


class KnownVersions:
    """A cache of the newest known version of each line; the least recently used goes first.

    Before one goes, all lose their snapshots, and their shapes what those are made of, the least
    recently used first. The one used last stays as it is. Keyed by thread, but trusted only by
    mark: ids and sequences may come to name other versions.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()  # several loops may use one backend
        self._known: OrderedDict[LineKey, _Known] = OrderedDict()
        self._heavy: OrderedDict[LineKey, _Known] = OrderedDict()
        _all_known.add(self)

    def limit(self, max_bytes: int) -> None:
        """Keep at most this many bytes; the version used last is always kept."""
        with self._lock:
            self._max_bytes = max_bytes
            self._shrink()

    def get(self, key: LineKey) -> _Known | None:
        """Return the newest version known of a line."""
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._use(key, found)
            return found

    def put(
        self,
        key: LineKey,
        mark: Mark,
        checkpoint_id: str,
        shape: frames.Shape,
        snapshot: frames.PackedState,
    ) -> None:
        """Record a version that was the head when it was read or written."""
        with self._lock:
            old = self._known.get(key)
            self._bytes += shape.weight - (old.shape.weight if old else 0)
            self._use(key, _Known(mark, checkpoint_id, shape, snapshot))
            self._shrink()

    def drop(self, key: LineKey) -> None:
        """Forget a line."""
        with self._lock:
            found = self._known.pop(key, None)
            self._heavy.pop(key, None)
            self._bytes -= found.shape.weight if found else 0

    def _shrink(self) -> None:
        while self._bytes > self._max_bytes and len(self._heavy) > 1:
            self._lighten(self._heavy.popitem(last=False)[1])
        while self._bytes > self._max_bytes and len(self._known) > 1:
            self._bytes -= self._known.popitem(last=False)[1].shape.weight

    def _use(self, key: LineKey, known: _Known) -> None:
        for order in (self._known, self._heavy) if known.snapshot else (self._known,):
            order[key] = known
            order.move_to_end(key)

    def _lighten(self, known: _Known) -> None:
        self._bytes -= known.shape.weight
        known.shape, known.snapshot = known.shape.light(), None
        self._bytes += known.shape.weight


_all_known: WeakSet[KnownVersions] = WeakSet()


def _after_fork() -> None:
    """Replace the locks in a forked child: a thread of the parent may have held one."""
    for known in _all_known:
        known._lock = threading.Lock()  # noqa: SLF001  (of this module)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
