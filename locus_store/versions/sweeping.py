"""A vacuum by threads: an unreadable thread does not stop the others."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from locus_store.errors import IntegrityError
from locus_store.runtime import observe
from locus_store.types import Vacuumed

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sweep:
    """Counts the results of a vacuum."""

    def __init__(self) -> None:
        self.removed = 0
        self._held: set[str] = set()
        self._unreadable: set[str] = set()

    @contextmanager
    def of(self, thread_id: str) -> Iterator[None]:
        """Sweep a thread or a part of it; record an unreadable one and continue."""
        try:
            yield
        except IntegrityError as exc:
            self._unreadable.add(thread_id)
            observe.unswept("vacuum", thread_id, exc)

    def count(self, thread_id: str, removed: int | None) -> None:
        """Count removed versions; ``None``: another transaction holds the thread."""
        self.removed += removed or 0
        if removed is None:
            self._held.add(thread_id)

    def report(self) -> Vacuumed:
        """Return the counts."""
        if self._held:
            observe.skipped("vacuum", len(self._held))
        if self._unreadable:
            observe.note(unreadable=len(self._unreadable))
        return Vacuumed(self.removed, len(self._held), len(self._unreadable))
