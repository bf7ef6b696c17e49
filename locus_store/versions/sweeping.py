"""A vacuum by threads: an unreadable thread does not stop the others."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from locus_store.errors import IntegrityError
from locus_store.runtime import observe
from locus_store.types import Vacuumed

if TYPE_CHECKING:
    from collections.abc import Iterator


class Swept(NamedTuple):
    """The amount that was removed of a thread."""

    versions: int
    messages: int = 0
    is_whole: bool = False


class Sweep:
    """Counts the results of a vacuum."""

    def __init__(self) -> None:
        self.removed = 0
        self.threads = 0
        self._messages = 0
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

    def count(self, thread_id: str, swept: Swept | None) -> None:
        """Count what was removed; ``None``: another transaction holds the thread."""
        if swept is None:
            self._held.add(thread_id)
            return
        self.removed += swept.versions
        self._messages += swept.messages
        self.threads += swept.is_whole

    def report(self) -> Vacuumed:
        """Return the counts."""
        if self._held:
            observe.skipped("vacuum", len(self._held))
        if self._unreadable:
            observe.note(unreadable=len(self._unreadable))
        return Vacuumed(
            removed=self.removed,
            skipped=len(self._held),
            unreadable=len(self._unreadable),
            threads=self.threads,
            messages=self._messages,
        )
