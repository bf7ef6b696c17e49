"""New versions of a thread, for a page that is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.inspector.escapes import visible
from locus_store.inspector.visits import Page, missing_thread

if TYPE_CHECKING:
    from locus_store.inspector.visits import Visit


async def page(visit: Visit) -> Page:
    """Return the versions above a sequence, the oldest first, without states.

    Raises:
        NotFoundError: There is no such thread any more.
    """
    after = visit.query.number("after")
    namespace = visit.namespace
    threads = visit.parts.threads
    found = await visit.looks.newer(threads, visit.thread, after, namespace=namespace)
    if found is None:
        raise missing_thread(visit.thread)
    versions = [
        {
            "checkpoint_id": it.checkpoint_id,
            "name": visible(it.checkpoint_id),
            "created_at": it.created_at,
            "address": visit.to("version", version=it.checkpoint_id),
        }
        for it in found
    ]
    last = found[-1].mark.sequence if found else after
    values = {
        "thread_id": visit.thread,
        "namespace": visit.namespace,
        "versions": versions,
        "next": visit.to("live", after=last, format="json"),
    }
    return Page("live", "Newer versions", values)
