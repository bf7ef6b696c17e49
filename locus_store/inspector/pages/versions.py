"""A version: its state and its pending writes."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from locus_store.backend import KeepsEffects, StoresThreads, StoresWrites
from locus_store.effects import NAMESPACE, EffectLog
from locus_store.errors import IntegrityError, LocusStoreError, NotFoundError
from locus_store.inspector.bounds import (
    CHARACTERS,
    ROWS,
    CutText,
    Room,
    make_conversation,
    make_row,
    make_tree,
)
from locus_store.inspector.page_requests import Page, PageRequest, Redirect
from locus_store.inspector.pages.diffs import compare_versions
from locus_store.inspector.work import Seen
from locus_store.saver import decode_written_value
from locus_store.service.exchange import RefusalError
from locus_store.timeline.conversations import is_conversation, strip_value_tags
from locus_store.timeline.graph import Cursor, Graph, Node, read_graph
from locus_store.timeline.paths import (
    CHANNELS,
    Located,
    Query,
    Step,
    find_value,
    format_path,
    is_bookkeeping,
    parse_path,
    unwrap,
)
from locus_store.types import PendingWrite, Version
from locus_store.values.encoding import measure_payload
from locus_store.versions import JSON_WRITE, select_current
from locus_store.versions.sizes import INTERRUPT

T = TypeVar("T")

LISTED: Final = 60
"""Versions beside a state."""

ASKED: Final = 5
"""Questions of interrupted tasks on the page of a version."""

COMPARED: Final = 50
"""Differences beside a state."""

COMPARED_BYTES: Final = 2_000_000
"""Of a state whose differences are beside it; those of a larger one have a page."""


async def list_rows(
    request: PageRequest, nodes: list[Node]
) -> tuple[list[dict[str, Any]], str | None]:
    """Return versions as rows, with their nodes and one-line changes.

    The second value is the reason why some changes are not known.
    """
    versions = [it.version for it in nodes]
    found, reason = await request.descriptions.find(request.parts.threads, versions)
    rows: list[dict[str, Any]] = []
    for node in nodes:
        described = found[node.version.checkpoint_id]
        row = {"version": make_row(node.version), "place": node.place, "nodes": described.nodes}
        about = {"changes": described.changes, "is_interrupted": described.is_interrupted}
        name = described.rewound_to
        target = name and {
            "checkpoint_id": name,
            "nodes": found[name].nodes if name in found else [],
        }
        rows.append(row | about | {"rewound_to": target})
    return rows, reason


async def show_version(request: PageRequest) -> Page | Redirect:
    """Return a version of a thread between the other versions and what it changed.

    Its state, or the value at a path in it with its origin. Of a thread of messages alone, or
    whose head is damaged, the way to them.

    Raises:
        NotFoundError: There is no such version or value.
    """
    try:
        seen = await request.read_version(name := request.query.get_optional("version"))
    except IntegrityError:
        if name is None:
            return Redirect(request.to("timeline"))
        raise
    except NotFoundError:
        if name is None and await request.has_log():
            return Redirect(request.links.to("messages", thread=request.thread))
        raise
    path = parse_path(request.query.get_text("path"))
    found = find_in_state(seen, path)
    is_raw = request.query.get_text("view") == "json"
    start = request.query.get_optional("start") and request.query.get_number("start")
    look = partial(_look, found.value, path, start or None, is_raw=is_raw)
    values = {
        "version": make_row(seen.version),
        "size": seen.size,
        "path": request.query.get_text("path"),
        "is_json": is_raw,
        **await _list_nearby(request, seen),
        **await request.run_heavy(seen.size, lambda _: look()),
        "difference": await _compare(request, seen),
        "asked": [],
        "blame": None,
        "blame_failed": None,
        "origins": None,
    }
    backend, blames = request.parts.threads, request.blames
    stopped = {it["version"].checkpoint_id for it in values["rows"] if it["is_interrupted"]}
    if seen.version.checkpoint_id in stopped:
        stops = [it for it in await read_pending(request, seen) if it.channel == INTERRUPT]
        some, size = _select_fitting(stops[:ASKED], seen, backend.max_state_bytes)
        rows = partial(_make_rows, some, seen, backend.max_state_bytes)
        values["asked"] = await request.run_heavy(size, rows)
    if path:
        origin = blames.find(backend, seen, path)
        values["blame"], values["blame_failed"] = await _find_or_tell(origin)
    if request.query.get_optional("origins"):
        origins = blames.find_all(backend, seen, [*_list_places(values)])
        values["origins"], values["blame_failed"] = await _find_or_tell(origins)
    return request.make_page("version", f"{seen.version.checkpoint_id} of {request.thread}", values)


async def _list_nearby(request: PageRequest, current: Seen) -> dict[str, Any]:
    """Return the versions around one as rows, and the ids of its neighbours.

    They are among the newest of the thread, or begin with the version.
    """
    backend, name = request.parts.threads, current.version.checkpoint_id
    found = await read_graph(backend, request.thread, namespace=request.namespace, limit=ROWS)
    nodes = found.nodes if found else []
    ids = [it.version.checkpoint_id for it in nodes]
    if name not in ids:
        nodes = (await list_from(request, current.version, LISTED)).nodes
        ids = [it.version.checkpoint_id for it in nodes]
    at = ids.index(name)
    start = max(0, min(at - LISTED // 2, len(ids) - LISTED))
    rows, reason = await list_rows(request, nodes[start : start + LISTED])
    older = ids[at + 1] if at + 1 < len(ids) else current.version.parent_id
    newer = ids[at - 1] if at else None
    return {"rows": rows, "no_changes": reason, "newer": newer, "older": older}


async def list_from(request: PageRequest, version: Version, limit: int) -> Graph:
    """Return versions, the first of which is this one."""
    backend, cursor = request.parts.threads, Cursor(version.checkpoint_id, None)
    below = await read_graph(
        backend, request.thread, namespace=request.namespace, limit=limit - 1, cursor=cursor
    )
    found = request.require(below)
    return replace(found, nodes=[make_node(version, found.head), *found.nodes])


def make_node(version: Version, head: Version) -> Node:
    """Return a version whose place is not known, unless it is the head."""
    return Node(version, "head" if version.mark == head.mark else None)


async def _compare(request: PageRequest, current: Seen) -> dict[str, Any] | None:
    """Return what a version changed; ``None``: its state is large, or the other one damaged."""
    if current.size > COMPARED_BYTES:
        return None
    try:
        return await compare_versions(request, current, 0, COMPARED)
    except (IntegrityError, RefusalError):
        return None


def _list_places(values: dict[str, Any]) -> Iterator[str]:
    """Yield the paths of the messages and keys on a page."""
    for conversation in values["conversations"]:
        yield from (it["path"] for it in conversation["messages"])
    tree = values["tree"]
    if tree is not None:
        yield from (it.path for it in tree.parts)


async def _find_or_tell(finding: Awaitable[T]) -> tuple[T | None, str | None]:
    """Return origins, or the reason why they are not known."""
    try:
        return await finding, None
    except (RefusalError, LocusStoreError) as exc:
        return None, str(exc)


def _look(value: Any, path: Query, start: int | None, *, is_raw: bool) -> dict[str, Any]:
    """Return the parts of the page that show a value, within its bounds."""
    room, first = Room(), start or 0
    conversations = [] if is_raw else list(_find_lists(value, path, start, room))
    places = [parse_path(it["path"]) for it in conversations]
    hidden: frozenset[Any] = frozenset(it[-1] for it in places if it != path)
    text = None
    if isinstance(value, str):
        text = CutText(value[first : first + CHARACTERS], len(value) - first)
    tree = None
    if text is None and path not in places:
        tree = make_tree(value, path, start=first, is_raw=is_raw, hidden=hidden, room=room)
    return {"start": first, "conversations": conversations, "text": text, "tree": tree}


def _find_lists(value: Any, path: Query, start: int | None, room: Room) -> Iterator[dict[str, Any]]:
    if is_conversation(value):
        yield make_conversation(value, path, start, room)
    prefix, content = unwrap(value)
    for key, part in content.items() if isinstance(content, dict) else ():
        is_hidden = prefix[:1] == (CHANNELS,) and is_bookkeeping(key)
        if not is_hidden and is_conversation(part):
            yield make_conversation(part, (*path, key), None, room)


def find_in_state(snapshot: Seen, path: Query) -> Located:
    """Return the value at a path of a state; ``NotFoundError`` where there is none."""
    found = find_value(snapshot.state, path)
    if found is None:
        name = snapshot.version.checkpoint_id
        raise NotFoundError(f"version {name!r} has no value at {format_path(path)!r:.200}")
    return found


MOST_BYTES: Final = 16_000_000
"""Bytes of JSON that the writes of one page are made from."""


async def show_writes(request: PageRequest) -> Page:
    """Return the pending writes of a version, and the namespaces of its thread.

    Raises:
        NotFoundError: There is no such version.
    """
    seen = await request.read_version(request.query.get_optional("version"))
    backend, start = request.parts.threads, request.query.get_number("start")
    found = await read_pending(request, seen)
    some, size = _select_fitting(found[start : start + ROWS], seen, backend.max_state_bytes)
    rows = partial(_make_rows, some, seen, backend.max_state_bytes)
    end = start + len(some)
    values = {
        "version": make_row(seen.version),
        "is_interrupted": any(it.channel == INTERRUPT for it in found),
        "start": start,
        "writes": await request.run_heavy(size, rows),
        "next": end if len(found) > end else None,
        "namespaces": await list_namespaces(request),
        "effects": await _list_effects(request),
        "no_writes": None
        if isinstance(backend, StoresWrites)
        else "this storage keeps no pending writes",
    }
    return request.make_page("writes", f"Pending writes of {seen.version.checkpoint_id}", values)


async def _list_effects(request: PageRequest) -> list[dict[str, Any]]:
    """Return the newest effects of the thread, without their results."""
    backend = request.parts.threads
    if not isinstance(backend, KeepsEffects):
        return []
    stored = await backend.list_writes(request.thread, NAMESPACE)
    log, size = EffectLog(backend), sum(len(it.write.payload) for it in stored)
    found = await request.run_heavy(size, lambda _: log.fold_all(request.thread, stored))
    shown = ("key", "status", "calls", "changed_at", "error")
    return [{name: getattr(it, name) for name in shown} for it in found[: -ROWS - 1 : -1]]


async def list_namespaces(request: PageRequest) -> list[str]:
    """Return the namespaces of the thread; its own where the backend does not list them."""
    backend = request.parts.threads
    if not isinstance(backend, StoresThreads):
        return [request.namespace]
    return (await backend.namespaces(request.thread))[:ROWS]


async def read_pending(request: PageRequest, snapshot: Seen) -> list[PendingWrite]:
    """Return the pending writes of a version; none where the backend keeps none."""
    backend, version = request.parts.threads, snapshot.version
    if not isinstance(backend, StoresWrites):
        return []
    found = await backend.get_writes(
        version.thread_id, version.checkpoint_id, namespace=version.namespace
    )
    return select_current(found, version.mark.sequence)


def _select_fitting(
    writes: list[PendingWrite], snapshot: Seen, max_bytes: int
) -> tuple[list[PendingWrite], int]:
    """Return the first writes, and the bytes of JSON that they are made from.

    The first one is among them whatever its size.
    """
    total = 0
    for at, write in enumerate(writes):
        size = measure_payload(write.payload, max_bytes) if write.type == JSON_WRITE else 0
        size += 0 if write.basis is None else snapshot.size
        if at and total + size > MOST_BYTES:
            return writes[:at], total
        total += size
    return writes, total


def _make_rows(
    writes: list[PendingWrite], snapshot: Seen, max_bytes: int, step: Step
) -> list[dict[str, Any]]:
    """Return pending writes as rows, within the bounds of a page."""
    rows, room = [], Room()
    for write in writes:
        step()
        row = {name: getattr(write, name) for name in ("task_id", "task_path", "idx", "channel")}
        value = decode_written_value(write, snapshot.state, max_bytes)
        text = (
            room.cut(f"<{write.type}, {len(value):,} bytes>")
            if isinstance(value, bytes)
            else room.render(strip_value_tags(value))  # without the tags of LangGraph's values
        )
        rows.append(row | {"value": text, "size": len(write.payload)})
    return rows
