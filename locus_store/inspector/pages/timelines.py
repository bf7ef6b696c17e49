"""The versions of a thread: their graph, sizes and metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.inspector.bounds import ROWS
from locus_store.inspector.pages.messages import has_log
from locus_store.inspector.pages.writes import namespaces
from locus_store.inspector.rows import VersionRow, row
from locus_store.inspector.visits import Page, Redirect, missing_thread, missing_version
from locus_store.timeline.bisect import json_or_text
from locus_store.timeline.graph import Cursor, Graph, Node, graph, stored_sizes
from locus_store.values.filters import check_key, is_found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from locus_store.inspector.visits import Visit
    from locus_store.types import Version

PAGE: Final = 500
"""Versions that are read at once where a filter or a time is looked for."""

LOOKED_AT: Final = 10_000
"""Versions that one page looks at."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A version in the timeline."""

    version: VersionRow
    place: str | None
    size: int | None
    """Stored bytes; ``None``: not known."""


async def page(visit: Visit) -> Page | Redirect:
    """Return a page of versions, newest first; of a thread of messages alone, the way to them.

    Raises:
        NotFoundError: There is no such thread or version.
    """
    if when := visit.query.optional("time"):
        return await _at_time(visit, when)
    key = visit.query.optional("key")
    found = await (_matching(visit, key) if key else _page(visit))
    if found is None:
        if not visit.namespace and await has_log(visit):
            return Redirect(visit.links.to("messages", thread=visit.thread))
        raise missing_thread(visit.thread)
    sizes, reason = await _sizes(visit, found.nodes)
    rows = [
        TimelineRow(row(it.version), it.place, sizes.get(it.version.mark.sequence))
        for it in found.nodes
    ]
    values = {
        "thread_id": visit.thread,
        "namespace": visit.namespace,
        "namespaces": await namespaces(visit),
        "head_id": found.head.checkpoint_id,
        "head_sequence": found.head.mark.sequence,
        "key": key or "",
        "value": visit.query.text("value"),
        "rows": rows,
        "no_sizes": reason,
        "is_damaged": found.is_damaged,
        "next": _next(found.next),
    }
    return Page("timeline", f"Timeline of {visit.thread}", values)


def _next(cursor: Cursor | None) -> dict[str, str | None] | None:
    """Return the parameters of the next page. A dot precedes the main line, which may be empty."""
    if cursor is None:
        return None
    return {"before": cursor.before, "main": None if cursor.main is None else f".{cursor.main}"}


async def _page(visit: Visit) -> Graph | None:
    at = visit.query.optional("at_version")
    if at is not None:
        return await _from(visit, at)
    return await graph(
        visit.parts.threads,
        visit.thread,
        namespace=visit.namespace,
        limit=ROWS,
        cursor=_cursor(visit),
    )


def _cursor(visit: Visit) -> Cursor | None:
    before, main = visit.query.optional("before"), visit.query.optional("main")
    if before is None:
        return None
    return Cursor(before, None if main is None else main.removeprefix("."))


async def _from(visit: Visit, version: str) -> Graph:
    """Return a page that begins with a version."""
    backend = visit.parts.threads
    at = await backend.version(visit.thread, version, namespace=visit.namespace)
    if at is None:
        raise missing_version(visit.thread, version)
    found = await graph(
        backend,
        visit.thread,
        namespace=visit.namespace,
        limit=ROWS - 1,
        cursor=Cursor(version, None),
    )
    if found is None:
        raise missing_thread(visit.thread)
    nodes = [_node(at, found.head), *found.nodes]
    return replace(found, nodes=nodes)


def _node(version: Version, head: Version) -> Node:
    return Node(version, "head" if version.mark == head.mark else None)


async def _at_time(visit: Visit, text: str) -> Redirect:
    """Go to the newest version that was saved at a time or before it."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidArgumentError(
            f"{text[:40]!r} is not a time; write it as 2026-01-31T12:00"
        ) from exc
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    oldest = None
    async for version in _walked(visit):
        oldest = version
        if version.created_at <= when:
            break
    if oldest is None:
        raise missing_thread(visit.thread)
    return Redirect(visit.to("timeline", at_version=oldest.checkpoint_id))


async def _matching(visit: Visit, key: str) -> Graph:
    """Return the versions whose metadata has a value, by the rules of ``query_by_metadata``."""
    backend, value = visit.parts.threads, json_or_text(visit.query.text("value"))
    check_key(key)
    head = await backend.version(visit.thread, namespace=visit.namespace)
    if head is None:
        raise missing_thread(visit.thread)
    nodes: list[Node] = []
    last, looked = None, 0
    async for last in _walked(visit, visit.query.optional("before")):
        looked += 1
        if is_found(last.metadata, last.labels, key, value):
            nodes.append(_node(last, head))
        if len(nodes) == ROWS or looked == LOOKED_AT:
            return Graph(head, nodes, Cursor(last.checkpoint_id, None))
    return Graph(head, nodes, None)


async def _walked(visit: Visit, before: str | None = None) -> AsyncIterator[Version]:
    """Yield the versions of a line, newest first, without their states."""
    which: dict[str, Any] = {"namespace": visit.namespace, "limit": PAGE}
    while found := await visit.parts.threads.history(visit.thread, before=before, **which):
        for version in found:
            yield version
        before = found[-1].checkpoint_id


async def _sizes(visit: Visit, nodes: list[Node]) -> tuple[dict[int, int], str | None]:
    """Return the stored bytes of versions, or the reason why they are not known."""
    if visit.query.optional("key"):
        return {}, "a filter is set"
    try:
        return await stored_sizes(visit.parts.threads, nodes), None
    except UnsupportedError as exc:
        return {}, str(exc)
