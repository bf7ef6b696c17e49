"""The state of a version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.errors import NotFoundError
from locus_store.inspector.bounds import INLINE
from locus_store.inspector.pages.rows import row
from locus_store.inspector.trees import tree
from locus_store.inspector.visits import Page, missing_version
from locus_store.timeline.paths import located, parsed, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from locus_store.inspector.states import Seen
    from locus_store.inspector.visits import Visit
    from locus_store.timeline.paths import Located, Query


async def page(visit: Visit) -> Page:
    """Return the state of a version, or the value at a path in it.

    Raises:
        NotFoundError: There is no such version or value.
    """
    seen = await read(visit, visit.query.optional("version"))
    path = parsed(visit.query.text("path"))
    found = place(seen, path)
    is_raw = visit.query.text("view") == "raw"
    start = visit.query.number("start")
    shown_tree = await heavy(
        visit, seen, lambda: tree(found.value, found.path, start=start, is_raw=is_raw)
    )
    values = {
        "thread_id": visit.thread,
        "namespace": visit.namespace,
        "version": row(seen.version),
        "size": seen.size,
        "path": visit.query.text("path"),
        "start": start,
        "is_raw": is_raw,
        "tree": shown_tree,
    }
    return Page("version", f"{seen.version.checkpoint_id} of {visit.thread}", values)


async def read(visit: Visit, version: str | None) -> Seen:
    """Return a version of the thread with its state.

    Raises:
        NotFoundError: It does not exist.
    """
    seen = await visit.states.read(visit.parts.threads, visit.thread, version, visit.namespace)
    if seen is None:
        raise missing_version(visit.thread, version)
    return seen


def place(seen: Seen, path: Query) -> Located:
    """Return the value at a path of a state.

    Raises:
        NotFoundError: There is none.
    """
    found = located(seen.state, path)
    if found is None:
        raise NotFoundError(f"there is no {shown(path)} in this version")
    return found


async def heavy(visit: Visit, seen: Seen, work: Callable[[], Any]) -> Any:
    """Return the result of work on a state, which leaves the event loop if the state is large."""
    return work() if seen.size <= INLINE else await visit.jobs.run(work)
