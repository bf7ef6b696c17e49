"""The checkpoints that a saver loaded or saved."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, TypeAlias

Place: TypeAlias = tuple[str, str, str]
"""A thread, a namespace and a checkpoint."""

MOST: Final = 16_384
"""Checkpoints that are remembered; the oldest are dropped."""


class KnownCheckpoints:
    """Ids of checkpoints that were loaded or stored; bounded."""

    def __init__(self) -> None:
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._lock = threading.Lock()  # several loops may use one saver

    def add(self, *place: str) -> None:
        """Remember a checkpoint as the newest of its namespace."""
        thread_id, namespace, checkpoint_id = place
        with self._lock:
            self._places[thread_id, namespace, checkpoint_id] = None
            self._places.move_to_end((thread_id, namespace, checkpoint_id))
            if len(self._places) > MOST:
                self._places.popitem(last=False)

    def has(self, *place: str) -> bool:
        """Return whether a checkpoint is remembered."""
        return place in self._places

    def newest(self, thread_id: str, namespace: str) -> str | None:
        """Return the checkpoint of a namespace that was added last; ``None`` if none is known."""
        with self._lock:
            places = reversed(self._places)
            return next((it[2] for it in places if it[:2] == (thread_id, namespace)), None)
