"""The list of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backend import ListsThreads, needs
from locus_store.inspector.bounds import ROWS
from locus_store.inspector.visits import Page

if TYPE_CHECKING:
    from locus_store.inspector.visits import Visit


async def page(visit: Visit) -> Page:
    """Return a page of threads, the most recently active first."""
    backend = needs(visit.parts.threads, ListsThreads)
    pattern, after = visit.query.text("pattern"), visit.query.optional("after")
    found = await backend.recent(ROWS + 1, pattern or "*", after=after)
    rows: list[dict[str, Any]] = [
        {"thread_id": it.thread_id, "active_at": it.active_at} for it in found[:ROWS]
    ]
    more = rows[-1]["thread_id"] if len(found) > ROWS else None
    values = {"pattern": pattern, "threads": rows, "next": more}
    return Page("threads", "Threads", values)
