"""The newest versions of many lines, found without a look at those that are older."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from locus_store.types import VersionsWanted
from locus_store.values.filters import has_value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

T = TypeVar("T")

Place: TypeAlias = "tuple[datetime, int, int]"
"""The time, line and sequence of a version, which order the list."""


def is_plain(wanted: VersionsWanted) -> bool:
    """Return whether any version of the thread, or of all threads, is wanted, and none later."""
    return wanted == VersionsWanted(thread_id=wanted.thread_id)


class Newest(Generic[T]):
    """The newest of the versions that are added.

    Args:
        wanted: The versions that are listed.
        limit: At most this many are kept.
    """

    def __init__(self, wanted: VersionsWanted, limit: int) -> None:
        after = wanted.after
        self._wanted = wanted
        self._limit = limit
        self._end = (after.created_at, after.mark.line, after.mark.sequence) if after else None
        self._heap: list[tuple[Place, T]] = []

    def may_take(self, at: datetime) -> bool:
        """Return whether a version of this time, or an older one, may be among the newest."""
        if len(self._heap) < self._limit:
            return True
        return bool(self._heap) and self._heap[0][0][0] <= at

    def takes(self, checkpoint_id: str, metadata: Mapping[str, Any]) -> bool:
        """Return whether a version of this name and metadata is wanted."""
        wanted = self._wanted
        return wanted.checkpoint_id in {None, checkpoint_id} and all(
            has_value(metadata, key, value) for key, value in wanted.metadata
        )

    def add(self, place: Place, version: T) -> None:
        """Add a version; each once."""
        if self._end is not None and place >= self._end:
            return
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, (place, version))
        elif self._heap and place > self._heap[0][0]:
            heapq.heapreplace(self._heap, (place, version))

    def found(self) -> list[tuple[Place, T]]:
        """Return the newest versions in order."""
        return sorted(self._heap, key=lambda it: it[0], reverse=True)
