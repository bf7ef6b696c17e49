"""The pending writes of a version, and the subgraphs of its thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from locus_store.backend import StoresThreads, StoresWrites
from locus_store.inspector.bounds import ROWS, CutText, Room, json_line
from locus_store.inspector.pages.versions import heavy, read
from locus_store.inspector.rows import row
from locus_store.inspector.visits import Page
from locus_store.saver import written_value
from locus_store.timeline.conversations import bare
from locus_store.versions import current

if TYPE_CHECKING:
    from locus_store.inspector.states import Seen
    from locus_store.inspector.visits import Visit
    from locus_store.types import PendingWrite

INTERRUPT: Final = "__interrupt__"


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
    some = found[start : start + ROWS]
    limit = backend.max_state_bytes
    values = {
        "thread_id": visit.thread,
        "namespace": visit.namespace,
        "version": row(seen.version),
        "is_interrupted": is_interrupted(found),
        "start": start,
        "writes": await heavy(visit, seen, lambda: _rows(some, seen, limit)),
        "next": start + ROWS if len(found) > start + ROWS else None,
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


def _rows(writes: list[PendingWrite], seen: Seen, max_bytes: int) -> list[ShownWrite]:
    room = Room()
    return [_row(it, room.cut(_value(it, seen, max_bytes))) for it in writes]


def _row(write: PendingWrite, value: CutText) -> ShownWrite:
    return ShownWrite(
        task_id=write.task_id,
        task_path=write.task_path,
        idx=write.idx,
        channel=write.channel,
        value=value,
        size=len(write.payload),
    )


def _value(write: PendingWrite, seen: Seen, max_bytes: int) -> str:
    value = written_value(write, seen.state, max_bytes)
    if isinstance(value, bytes):
        return f"<{write.type}, {len(value):,} bytes>"
    return json_line(bare(value))
