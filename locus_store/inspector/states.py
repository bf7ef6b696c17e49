"""States that were read, within a bound of bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
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
        most_bytes: Of all states as JSON; the newest one is kept whatever its size.
    """

    def __init__(self, most_bytes: int = BYTES) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[tuple[str | None, Mark], Seen] = OrderedDict()

    async def read(
        self, backend: StorageBackend, thread: str, version: str | None, namespace: str
    ) -> Seen | None:
        """Return a version with its state, or the head; ``None`` if it does not exist."""
        found = await backend.version(thread, version, namespace=namespace)
        if found is None:
            return None
        kept = self._kept.get((backend.tenant, found.mark))
        if kept is not None:
            self._kept.move_to_end((backend.tenant, found.mark))
            return kept
        read = await backend.read_kept(thread, version, namespace=namespace)
        if read is None:
            return None
        state = read.snapshot.state() if read.state is None else read.state
        seen = Seen(read.version, dict(state), read.snapshot.state_bytes)
        self._keep(backend.tenant, seen)
        return seen

    def _keep(self, tenant: str | None, seen: Seen) -> None:
        self._kept[tenant, seen.version.mark] = seen
        while len(self._kept) > 1 and sum(it.size for it in self._kept.values()) > self._most:
            self._kept.popitem(last=False)
