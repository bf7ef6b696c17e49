"""The versions of a thread, and its message log."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from locus_store.inspector.bounds import MESSAGES, ROWS, Room, row, short
from locus_store.inspector.pages.versions import namespaces
from locus_store.inspector.visits import Download, Page, Redirect
from locus_store.open import Storage
from locus_store.timeline.bisect import json_or_text
from locus_store.timeline.graph import Cursor, Graph, Node, graph, stored_sizes
from locus_store.timeline.readable import text_of
from locus_store.values.encoding import encode
from locus_store.values.filters import check_key, is_found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from locus_store.inspector.visits import Visit
    from locus_store.inspector.work import Step
    from locus_store.messages import BaseMessageLog
    from locus_store.types import Version
    from locus_store.types.messages import LoggedMessage, LogInfo

PAGE: Final = 500
"""Versions that are read at once where a filter or a time is looked for."""

LOOKED_AT: Final = 10_000
"""Versions that one page looks at."""


async def page(visit: Visit) -> Page | Redirect:
    """Return a page of versions, newest first; of a thread of messages alone, the way to them.

    Raises:
        NotFoundError: There is no such thread or version.
    """
    if when := visit.query.optional("time"):
        return await _at_time(visit, when)
    key = visit.query.optional("key")
    part = await (_matching(visit, key) if key else _page(visit))
    if part is None and not visit.namespace and await _has_log(visit):
        return Redirect(visit.links.to("messages", thread=visit.thread))
    found = visit.require(part)
    sizes, reason = await _sizes(visit, found.nodes)
    rows = [
        {"version": row(it.version), "place": it.place, "size": sizes.get(it.version.mark.sequence)}
        for it in found.nodes
    ]
    values = {
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
    return visit.make_page("timeline", f"Timeline of {visit.thread}", values)


def _next(cursor: Cursor | None) -> dict[str, str | None] | None:
    """Return the parameters of the next page. A dot precedes the main line, which may be empty."""
    if cursor is None:
        return None
    return {"before": cursor.before, "main": None if cursor.main is None else f".{cursor.main}"}


async def _page(visit: Visit) -> Graph | None:
    at = visit.query.optional("at_version")
    if at is not None:
        return await _from(visit, at)
    backend, namespace, cursor = visit.parts.threads, visit.namespace, _cursor(visit)
    return await graph(backend, visit.thread, namespace=namespace, limit=ROWS, cursor=cursor)


def _cursor(visit: Visit) -> Cursor | None:
    before, main = visit.query.optional("before"), visit.query.optional("main")
    if before is None:
        return None
    return Cursor(before, None if main is None else main.removeprefix("."))


async def _from(visit: Visit, version: str) -> Graph:
    """Return a page that begins with a version."""
    backend = visit.parts.threads
    which: dict[str, Any] = {"namespace": visit.namespace}
    at = visit.require(await backend.version(visit.thread, version, **which), version)
    cursor = Cursor(version, None)
    below = await graph(backend, visit.thread, limit=ROWS - 1, cursor=cursor, **which)
    found = visit.require(below)
    return replace(found, nodes=[_node(at, found.head), *found.nodes])


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
    found = visit.require(oldest)
    return Redirect(visit.to("timeline", at_version=found.checkpoint_id))


async def _matching(visit: Visit, key: str) -> Graph:
    """Return the versions whose metadata has a value, by the rules of ``query_by_metadata``."""
    backend, value = visit.parts.threads, json_or_text(visit.query.text("value"))
    check_key(key)
    head = visit.require(await backend.version(visit.thread, namespace=visit.namespace))
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


async def messages(visit: Visit) -> Page:
    """Return messages of a log, oldest first; without a start, the newest ones.

    Raises:
        NotFoundError: There is no such thread, or it does not have this log.
        UnsupportedError: The backend has no message logs.
    """
    log = _log(visit)
    behind = visit.query.optional("logs")
    after = (visit.thread, behind) if behind else None
    listed = await log.logs(visit.thread, limit=ROWS + 1, after=after)
    logs = listed[:ROWS]
    name = visit.query.optional("log") or _first(logs)
    info = await _info(visit, log, name)
    count = info.count if info else 0
    newest = max(count - MESSAGES, 0)
    start = visit.query.number("start", newest)
    found = await log.page(visit.thread, namespace=name, offset=start, limit=MESSAGES)
    values = {
        "thread_id": visit.thread,
        "namespace": "",
        "log": name,
        "logs": [{"namespace": it.namespace, "count": it.count} for it in logs],
        "logs_behind": behind,
        "logs_next": logs[-1].namespace if len(listed) > ROWS else None,
        "count": count,
        "changed_at": info.changed_at if info else None,
        "start": start,
        "messages": await visit.jobs.run(lambda step: _rows(found, step)),
        "previous": max(min(start, count) - MESSAGES, 0) if start else None,
        "next": start + MESSAGES if start + MESSAGES < count else None,
    }
    return Page("messages", f"Messages of {visit.thread}", values)


async def message(visit: Visit) -> Download:
    """Return the content of a message as JSON.

    Raises:
        NotFoundError: There is no such message.
    """
    name, message_id = visit.query.text("log"), visit.query.required("id")
    found = await _log(visit).get(visit.thread, message_id, namespace=name)
    if found is None:
        raise NotFoundError(f"there is no message {message_id!r} in thread {visit.thread!r}")
    content = await visit.jobs.run(lambda _: encode(found.content))
    return Download(f"{message_id}.json", content)


def _first(logs: list[LogInfo]) -> str:
    """Return the namespace to begin with: the root, or else that with the most messages."""
    if not logs or not logs[0].namespace:
        return ""
    return max(logs, key=lambda it: it.count).namespace


async def _has_log(visit: Visit) -> bool:
    """Return whether the thread has a message log."""
    if not visit.parts.threads.capabilities.messages:
        return False
    return bool(await _log(visit).logs(visit.thread, limit=1))


def _log(visit: Visit) -> BaseMessageLog:
    return Storage(visit.parts.threads).messages()


async def _info(visit: Visit, log: BaseMessageLog, name: str) -> LogInfo | None:
    """Return the facts of a log; ``None``: the thread has none in the root namespace."""
    found = await log.info(visit.thread, namespace=name)
    if found is None and name:
        raise NotFoundError(f"thread {visit.thread!r} has no message log {name!r}")
    if found is None and not await visit.parts.threads.exists(visit.thread):
        raise NotFoundError(f"there is no thread {visit.thread!r}")
    return found


def _rows(found: list[LoggedMessage], step: Step) -> list[dict[str, Any]]:
    rows, room = [], Room()
    for it in found:
        step()
        row = {name: getattr(it, name) for name in ("message_id", "role", "created_at")}
        rows.append(row | {"metadata": short(it.metadata), "text": room.cut(text_of(it.content))})
    return rows
