"""The checkpoints that a saver loaded or saved."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Final, TypeAlias

Place: TypeAlias = tuple[str, str, str]
"""A thread, a namespace and a checkpoint."""

MOST: Final = 16_384
"""Checkpoints that are remembered; the oldest are dropped."""


class KnownCheckpoints:
    """Ids of checkpoints that were loaded, stored or refused; bounded."""

    def __init__(self) -> None:
        self._places: OrderedDict[Place, bool] = OrderedDict()
        """Maps a checkpoint to True if it was stored, and to False if its save was refused."""

        self._threads: Counter[str] = Counter()
        """The number of remembered checkpoints of each thread."""

        self._lock = threading.Lock()  # several loops may use one saver

    def add(self, *place: str, stored: bool = True) -> None:
        """Remember a checkpoint as the newest of its namespace, or as one that was refused."""
        thread_id, namespace, checkpoint_id = place
        with self._lock:
            self._drop((thread_id, namespace, checkpoint_id))
            self._places[thread_id, namespace, checkpoint_id] = stored
            if stored:
                self._threads[thread_id] += 1
            if len(self._places) > MOST:
                self._drop(next(iter(self._places)))

    def _drop(self, place: Place) -> None:
        self._threads[place[0]] -= self._places.pop(place, False)
        if not self._threads[place[0]]:
            del self._threads[place[0]]

    def has(self, *place: str) -> bool:
        """Return whether a checkpoint is remembered."""
        return place in self._places

    def has_thread(self, thread_id: str) -> bool:
        """Return whether a loaded or stored checkpoint of the thread is remembered."""
        return thread_id in self._threads

    def forget_thread(self, thread_id: str) -> None:
        """Forget the checkpoints of a thread, which begins again."""
        with self._lock:
            if thread_id in self._threads:
                for place in [it for it in self._places if it[0] == thread_id]:
                    self._drop(place)

    def newest(self, thread_id: str, namespace: str) -> str | None:
        """Return the checkpoint of a namespace that was added last; ``None`` if none is known."""
        with self._lock:
            places = reversed(self._places.items())
            found = (it[2] for it, stored in places if stored and it[:2] == (thread_id, namespace))
            return next(found, None)
