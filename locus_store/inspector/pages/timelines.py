"""The versions of a thread, and its message log."""

from __future__ import annotations

from typing import Any, Final

from locus_store.errors import IntegrityError, NotFoundError, UnsupportedError
from locus_store.inspector.bounds import MESSAGES, ROWS, Room, shorten
from locus_store.inspector.page_requests import Download, Page, PageRequest, Redirect
from locus_store.inspector.pages.versions import list_from, list_namespaces, list_rows, make_node
from locus_store.timeline.ancestry import read_line
from locus_store.timeline.bisect import parse_json_or_text
from locus_store.timeline.graph import Cursor, Graph, Node, measure_stored, read_graph
from locus_store.timeline.paths import Step
from locus_store.timeline.readable import format_content
from locus_store.types import Version
from locus_store.types.messages import LoggedMessage, LogInfo
from locus_store.values.encoding import encode
from locus_store.values.filters import check_key, is_found
from locus_store.versions.sizes import SOURCES

LOG_FILTERS: Final = ("q", "role", "metadata", "since", "until", "sort")
"""Parameters of a list of messages; ``sort``, if not empty, puts the newest first."""

LOOKED_AT: Final = 10_000
"""Versions that one page reads at most."""


async def show_timeline(request: PageRequest) -> Page | Redirect:
    """Return a page of versions, newest first; of a thread of messages alone, the way to them.

    Raises:
        NotFoundError: There is no such thread or version.
    """
    query = request.query
    key, at = query.get_optional("key"), await _find_first(request)
    part = await (_find_matching(request, key) if key else _read_page(request, at))
    if part is None and await request.has_log():
        return Redirect(request.links.to("messages", thread=request.thread))
    found = request.require(part)
    sizes, reason = await _measure_sizes(request, found.nodes)
    rows, no_changes = await list_rows(request, found.nodes)
    for row in rows:
        row["size"] = sizes.get(row["version"].sequence)
    cursor = found.next
    main = None if cursor is None or cursor.main is None else f".{cursor.main}"  # may be empty
    values = {
        "namespaces": await list_namespaces(request),
        "head_id": found.head.checkpoint_id,
        "head_sequence": found.head.mark.sequence,
        "key": key or "",
        "value": query.get_text("value"),
        "at_version": query.get_text("at_version"),
        "time": query.get_text("time"),
        "begins_at": at.checkpoint_id if at else None,
        "has_newer": bool((at and at.mark != found.head.mark) or query.get_optional("before")),
        "rows": rows,
        "no_sizes": reason,
        "no_changes": no_changes,
        "is_damaged": found.is_damaged,
        "next": cursor and {"before": cursor.before, "main": main},
    }
    return request.make_page("timeline", f"Timeline of {request.thread}", values)


async def _read_page(request: PageRequest, at: Version | None) -> Graph | None:
    if at is not None:
        return await list_from(request, at, ROWS)
    backend, namespace = request.parts.threads, request.namespace
    before, main = request.query.get_optional("before"), request.query.get_optional("main")
    cursor = None if before is None else Cursor(before, main and main.removeprefix("."))
    return await read_graph(backend, request.thread, namespace=namespace, limit=ROWS, cursor=cursor)


async def _find_first(request: PageRequest) -> Version | None:
    """Return the version that was asked for: by its id, or the newest that a time had.

    ``None``: none was. Where all versions are newer than the time, it is the oldest.
    """
    backend, namespace = request.parts.threads, request.namespace
    if (name := request.query.get_optional("at_version")) is not None:
        return await request.find_version(name)
    if (when := request.query.get_time("time")) is None:
        return None
    oldest = None
    async for version in read_line(backend, request.thread, namespace):
        oldest = version
        if version.created_at <= when:
            break
    return request.require(oldest)


async def _find_matching(request: PageRequest, key: str) -> Graph:
    """Return the versions whose metadata has a value, by the rules of ``query_by_metadata``."""
    backend, value = request.parts.threads, parse_json_or_text(request.query.get_text("value"))
    check_key(key)
    head = await request.find_version()
    nodes: list[Node] = []
    last, looked = None, 0
    before = request.query.get_optional("before")
    async for last in read_line(backend, request.thread, request.namespace, before):
        looked += 1
        if is_found(last.metadata, last.labels, key, value):
            nodes.append(make_node(last, head))
        if len(nodes) == ROWS or looked == LOOKED_AT:
            return Graph(head, nodes, Cursor(last.checkpoint_id, None))
    return Graph(head, nodes, None)


async def _measure_sizes(
    request: PageRequest, nodes: list[Node]
) -> tuple[dict[int, int], str | None]:
    """Return the stored bytes of versions, or the reason why they are not known."""
    if request.query.get_optional("key"):
        return {}, "a filter is set"
    try:
        return await measure_stored(request.parts.threads, nodes), None
    except UnsupportedError as exc:
        return {}, str(exc)


async def show_messages(request: PageRequest) -> Page:
    """Return messages of a log that meet all filters; without one and a start, the newest ones.

    Raises:
        NotFoundError: There is no such thread, or it does not have this log.
        UnsupportedError: The backend has no message logs.
    """
    log = request.log
    behind = request.query.get_optional("logs")
    after = (request.thread, behind) if behind else None
    listed = await log.logs(request.thread, limit=ROWS + 1, after=after)
    logs = listed[:ROWS]
    name = request.query.get_optional("log") or ""
    if not name and logs and logs[0].namespace:  # none of the root: the one with most messages
        name = max(logs, key=lambda it: it.count).namespace
    info = await _read_info(request, name)
    count = info.count if info else 0
    query, given = request.query, {it: request.query.get_text(it).strip() for it in LOG_FILTERS}
    newest = 0 if any(given.values()) else max(count - MESSAGES, 0)
    start, pair = query.get_number("start", newest), query.get_pair("metadata")
    listed_messages = await log.page(
        request.thread,
        namespace=name,
        offset=start,
        limit=MESSAGES + 1,
        search=given["q"] or None,
        role=given["role"] or None,
        metadata_filter=dict([pair]) if pair else None,
        since=query.get_time("since"),
        until=query.get_time("until"),
        newest_first=bool(given["sort"]),
    )
    found, room = listed_messages[:MESSAGES], Room()
    rows = await request.jobs.run(lambda step: [_make_row(it, room, step) for it in found])
    values = {
        "thread_id": request.thread,
        "namespace": "",
        "log": name,
        "logs": [{"namespace": it.namespace, "count": it.count} for it in logs],
        "logs_behind": behind,
        "logs_next": logs[-1].namespace if len(listed) > ROWS else None,
        "given": given,
        "count": count,
        "changed_at": info.changed_at if info else None,
        "start": start,
        "messages": rows,
        "holder": None if logs or behind else await _name_holder(request),
        "previous": max(min(start, count) - MESSAGES, 0) if start else None,
        "next": start + MESSAGES if len(listed_messages) > MESSAGES else None,
    }
    return Page("messages", f"Messages of {request.thread}", values)


async def download_message(request: PageRequest) -> Download:
    """Return the content of a message as JSON.

    Raises:
        NotFoundError: There is no such message.
    """
    name, message_id = request.query.get_text("log"), request.query.require("id")
    found = await request.log.get(request.thread, message_id, namespace=name)
    if found is None:
        raise NotFoundError(f"there is no message {message_id!r} in thread {request.thread!r}")
    content = await request.jobs.run(lambda _: encode(found.content))
    return Download(f"{message_id}.json", content)


async def _read_info(request: PageRequest, name: str) -> LogInfo | None:
    """Return the facts of a log; ``None``: the thread has none in the root namespace."""
    found = await request.log.info(request.thread, namespace=name)
    if found is None and name:
        raise NotFoundError(f"thread {request.thread!r} has no message log {name!r}")
    if found is None and not await request.parts.threads.exists(request.thread):
        raise NotFoundError(f"there is no thread {request.thread!r}")
    return found


async def _name_holder(request: PageRequest) -> str | None:
    """Return what keeps its messages in the state of this thread; ``None``: it has no state."""
    try:
        head = await request.parts.threads.version(request.thread)
    except IntegrityError:
        return None
    if head is None:
        return None
    return "this graph" if head.metadata.keys() >= SOURCES else "an agent"


def _make_row(message: LoggedMessage, room: Room, step: Step) -> dict[str, Any]:
    step()
    row = {name: getattr(message, name) for name in ("message_id", "role", "created_at")}
    text = room.cut(format_content(message.content))
    return row | {"metadata": shorten(message.metadata), "text": text}
