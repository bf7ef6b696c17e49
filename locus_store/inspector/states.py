"""States that were read, within a bound of bytes; each is read once for all that wait for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locus_store.versions import state_alone

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from locus_store.backend import StorageBackend
    from locus_store.inspector.work import Jobs
    from locus_store.types import Mark, Version

BYTES: Final = 64_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """A version with its state, which no page changes."""

    version: Version
    state: dict[str, Any]
    size: int
    """Bytes of the state as JSON."""


class States:
    """The states that pages looked at last. A version is never stored in another form.

    Args:
        jobs: Reading a state is a heavy job.
        most_bytes: Of all states as JSON; the newest one is kept whatever its size.
    """

    def __init__(self, jobs: Jobs, most_bytes: int = BYTES) -> None:
        self._jobs = jobs
        self._most = most_bytes
        self._kept: OrderedDict[tuple[str | None, Mark], Seen] = OrderedDict()
        self._readings: dict[tuple[str | None, Mark], _Reading] = {}

    async def read(
        self, backend: StorageBackend, thread: str, version: str | None, namespace: str
    ) -> Seen | None:
        """Return a version with its state, or the head; ``None`` if it does not exist."""
        found = await backend.version(thread, version, namespace=namespace)
        if found is None:
            return None
        key = backend.tenant, found.mark
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._readings:
            self._readings[key] = _Reading(self._read(backend, found))
        reading = self._readings[key]
        try:
            return await reading.seen()
        finally:
            if not reading.waiting and self._readings.get(key) is reading:
                del self._readings[key]

    async def _read(self, backend: StorageBackend, version: Version) -> Seen | None:
        thread, name = version.thread_id, version.checkpoint_id
        async with self._jobs.paced():
            stored = await backend.fetch(thread, namespace=version.namespace, checkpoint_id=name)
            if stored is None:
                return None
            state, size = await asyncio.to_thread(state_alone, stored, backend.max_state_bytes)
            seen = Seen(stored.version, state, size)
        self._keep(backend.tenant, seen)
        return seen

    def _keep(self, tenant: str | None, seen: Seen) -> None:
        self._kept[tenant, seen.version.mark] = seen
        while len(self._kept) > 1 and sum(it.size for it in self._kept.values()) > self._most:
            self._kept.popitem(last=False)


class _Reading:
    """A state that is being read; it ends when the last that waits for it has left."""

    def __init__(self, reading: Coroutine[Any, Any, Seen | None]) -> None:
        self._task = asyncio.ensure_future(reading)
        self.waiting = 0

    async def seen(self) -> Seen | None:
        """Return the version with its state."""
        self.waiting += 1
        try:
            await asyncio.wait({self._task})
            return self._task.result()
        finally:
            self.waiting -= 1
            if not self.waiting:
                self._task.cancel()
