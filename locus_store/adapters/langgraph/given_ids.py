"""Checkpoint ids that a saver returned, and how each of them was loaded."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

from locus_store.adapters.langgraph.lineage import Given

if TYPE_CHECKING:
    from locus_store.adapters.langgraph.lineage import Load

FIRST_SWEEP: Final = 1024
"""Entries from which on those that nobody needs any more are looked for."""

MAX_ENTRIES: Final = 16_384
"""Entries at most; the oldest are dropped."""

_OWN_REFERENCES: Final = 2
"""References to an id that only its entry holds: the entry's, and that of ``sys.getrefcount``."""


class GivenIds:
    """The ids that a saver returned, known by the string object itself.

    LangGraph carries the object from ``get_tuple`` to the first ``put`` of a run. The object
    distinguishes two runs that loaded the same checkpoint; the id is a plain ``str``. An id that is
    not known (it went through JSON, or its entry was dropped) is treated as one that the caller
    typed: its checkpoint must be the newest one, unless the metadata declares a fork.

    An entry is dropped when the string has no other reference.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Given] = {}
        self._sweep_at = FIRST_SWEEP
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def give(self, checkpoint_id: str, load: Load | None) -> str:
        """Return a new string that equals the id, and remember its load under this object.

        Python has one object for each string of one character, so such an id is not remembered.
        """
        made = checkpoint_id.encode().decode()
        if len(made) > 1:
            with self._lock:
                self._entries[id(made)] = Given(made, load)
                if len(self._entries) > self._sweep_at:
                    self._sweep()
        return made

    def find(self, checkpoint_id: str | None) -> Given | None:
        """Return what is known of this very string object."""
        found = self._entries.get(id(checkpoint_id))
        return found if found is not None and found.checkpoint_id is checkpoint_id else None

    def _sweep(self) -> None:
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if sys.getrefcount(entry.checkpoint_id) > _OWN_REFERENCES
        }
        for key in list(self._entries)[:-MAX_ENTRIES]:
            del self._entries[key]
        self._sweep_at = len(self._entries) + FIRST_SWEEP
