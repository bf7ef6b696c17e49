"""The pending writes of a version, and the subgraphs of its thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from locus_store.backend import StoresThreads, StoresWrites
from locus_store.inspector.bounds import ROWS, CutText, Room
from locus_store.inspector.pages.versions import heavy, read
from locus_store.inspector.rows import row
from locus_store.inspector.visits import Page
from locus_store.saver import written_value
from locus_store.timeline.conversations import bare
from locus_store.values.encoding import plain_bytes
from locus_store.versions import JSON_WRITE, current
from locus_store.versions.sizes import INTERRUPT

if TYPE_CHECKING:
    from locus_store.inspector.states import Seen
    from locus_store.inspector.visits import Visit
    from locus_store.inspector.work import Step
    from locus_store.types import PendingWrite

MOST_BYTES: Final = 16_000_000
"""Bytes of JSON that the writes of one page are made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWrite:
    """A pending write."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: CutText
    """JSON, without the tags of LangGraph's values."""

    size: int
    """Bytes of the stored payload."""


async def page(visit: Visit) -> Page:
    """Return the pending writes of a version, and the namespaces of its thread.

    Raises:
        NotFoundError: There is no such version.
    """
    seen = await read(visit, visit.query.optional("version"))
    backend, start = visit.parts.threads, visit.query.number("start")
    found = await pending(visit, seen)
    some, size = _fitting(found[start : start + ROWS], seen, backend.max_state_bytes)
    made = _Values(seen, backend.max_state_bytes)
    end = start + len(some)
    values = {
        "thread_id": visit.thread,
        "namespace": visit.namespace,
        "version": row(seen.version),
        "is_interrupted": is_interrupted(found),
        "start": start,
        "writes": await heavy(visit, size, lambda step: made.rows(some, step)),
        "next": end if len(found) > end else None,
        "namespaces": await namespaces(visit),
        "no_writes": None
        if isinstance(backend, StoresWrites)
        else "this storage keeps no pending writes",
    }
    return Page("writes", f"Pending writes of {seen.version.checkpoint_id}", values)


async def namespaces(visit: Visit) -> list[str]:
    """Return the namespaces of the thread; its own where the backend does not list them."""
    backend = visit.parts.threads
    if not isinstance(backend, StoresThreads):
        return [visit.namespace]
    return (await backend.namespaces(visit.thread))[:ROWS]


async def pending(visit: Visit, seen: Seen) -> list[PendingWrite]:
    """Return the pending writes of a version; none where the backend keeps none."""
    backend, version = visit.parts.threads, seen.version
    if not isinstance(backend, StoresWrites):
        return []
    found = await backend.get_writes(
        version.thread_id, version.checkpoint_id, namespace=version.namespace
    )
    return current(found, version.mark.sequence)


def is_interrupted(writes: list[PendingWrite]) -> bool:
    """Return whether a task of LangGraph waits for an answer."""
    return any(it.channel == INTERRUPT for it in writes)


def _fitting(
    writes: list[PendingWrite], seen: Seen, max_bytes: int
) -> tuple[list[PendingWrite], int]:
    """Return the first writes, and the bytes of JSON that they are made from.

    The first one is among them whatever its size.
    """
    total = 0
    for at, it in enumerate(writes):
        size = plain_bytes(it.payload, max_bytes) if it.type == JSON_WRITE else 0
        size += 0 if it.basis is None else seen.size
        if at and total + size > MOST_BYTES:
            return writes[:at], total
        total += size
    return writes, total


class _Values:
    """Pending writes as rows, within the bounds of a page."""

    def __init__(self, seen: Seen, max_bytes: int) -> None:
        self._seen = seen
        self._most = max_bytes
        self._room = Room()

    def rows(self, writes: list[PendingWrite], step: Step) -> list[ShownWrite]:
        return [self._row(it, step) for it in writes]

    def _row(self, write: PendingWrite, step: Step) -> ShownWrite:
        step()
        return ShownWrite(
            task_id=write.task_id,
            task_path=write.task_path,
            idx=write.idx,
            channel=write.channel,
            value=self._value(write),
            size=len(write.payload),
        )

    def _value(self, write: PendingWrite) -> CutText:
        value = written_value(write, self._seen.state, self._most)
        if isinstance(value, bytes):
            return self._room.cut(f"<{write.type}, {len(value):,} bytes>")
        return self._room.json(bare(value))
