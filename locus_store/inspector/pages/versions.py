"""A version: its state and its pending writes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from locus_store.backend import StoresThreads, StoresWrites
from locus_store.errors import IntegrityError, LocusStoreError, NotFoundError
from locus_store.inspector.bounds import (
    CHARACTERS,
    INLINE,
    ROWS,
    CutText,
    Room,
    row,
    talk,
    tree,
)
from locus_store.saver import written_value
from locus_store.service.exchange import RefusalError
from locus_store.timeline.conversations import bare, is_conversation
from locus_store.timeline.paths import CHANNELS, inside, is_bookkeeping, located, parsed, shown
from locus_store.values.encoding import plain_bytes
from locus_store.versions import JSON_WRITE, current
from locus_store.versions.sizes import INTERRUPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.inspector.visits import Page, Visit
    from locus_store.inspector.work import Seen, Step
    from locus_store.timeline.paths import Located, Query
    from locus_store.types import PendingWrite

T = TypeVar("T")


async def page(visit: Visit) -> Page:
    """Return the state of a version, or the value at a path in it with its origin.

    Raises:
        NotFoundError: There is no such version or value.
    """
    seen = await read(visit, visit.query.optional("version"))
    path = parsed(visit.query.text("path"))
    found = place(seen, path)
    is_raw = visit.query.text("view") == "json"
    start = visit.query.optional("start") and visit.query.number("start")
    look = partial(_look, found.value, path, start or None, is_raw=is_raw)
    values = {
        "version": row(seen.version),
        "size": seen.size,
        "path": visit.query.text("path"),
        "is_json": is_raw,
        **await _neighbours(visit, seen),
        **await heavy(visit, seen.size, lambda _: look()),
        "blame": None,
        "blame_failed": None,
    }
    if path:
        values["blame"], values["blame_failed"] = await _blame(visit, seen, path)
    return visit.make_page("version", f"{seen.version.checkpoint_id} of {visit.thread}", values)


async def _neighbours(visit: Visit, seen: Seen) -> dict[str, str | None]:
    """Return the ids of the versions saved before and after, among the newest of the thread."""
    try:
        found = await visit.parts.threads.history(
            visit.thread, namespace=visit.namespace, limit=ROWS
        )
    except IntegrityError:  # another version is damaged
        found = []
    ids = [it.checkpoint_id for it in found]
    if seen.version.checkpoint_id not in ids:
        return {"newer": None, "older": seen.version.parent_id}
    at = ids.index(seen.version.checkpoint_id)
    older = ids[at + 1] if at + 1 < len(ids) else seen.version.parent_id
    return {"newer": ids[at - 1] if at else None, "older": older}


async def _blame(visit: Visit, seen: Seen, path: Query) -> tuple[dict[str, Any] | None, str | None]:
    """Return the origin of a value, or the reason why it is not known."""
    try:
        return await visit.blames.of(visit.parts.threads, seen, path), None
    except (RefusalError, LocusStoreError) as exc:
        return None, str(exc)


def _look(value: Any, path: Query, start: int | None, *, is_raw: bool) -> dict[str, Any]:
    """Return the parts of the page that show a value, within its bounds."""
    room, first = Room(), start or 0
    talks = [] if is_raw else list(_talks(value, path, start, room))
    places = [parsed(it["path"]) for it in talks]
    hidden: frozenset[Any] = frozenset(it[-1] for it in places if it != path)
    text = _piece(value, first) if isinstance(value, str) else None
    shows_tree = text is None and path not in places
    return {
        "start": first,
        "talks": talks,
        "text": text,
        "tree": tree(value, path, start=first, is_raw=is_raw, hidden=hidden, room=room)
        if shows_tree
        else None,
    }


def _talks(value: Any, path: Query, start: int | None, room: Room) -> Iterator[dict[str, Any]]:
    """Yield the lists of messages in a value."""
    if is_conversation(value):
        yield talk(value, path, start, room)
    prefix, content = inside(value)
    for key, part in content.items() if isinstance(content, dict) else ():
        is_hidden = prefix[:1] == (CHANNELS,) and is_bookkeeping(key)
        if not is_hidden and is_conversation(part):
            yield talk(part, (*path, key), None, room)


def _piece(text: str, start: int) -> CutText:
    return CutText(text[start : start + CHARACTERS], len(text) - start)


async def read(visit: Visit, version: str | None) -> Seen:
    """Return a version of the thread with its state.

    Raises:
        NotFoundError: It does not exist.
    """
    seen = await visit.states.read(visit.parts.threads, visit.thread, version, visit.namespace)
    return visit.require(seen, version)


def place(seen: Seen, path: Query) -> Located:
    """Return the value at a path of a state.

    Raises:
        NotFoundError: There is none.
    """
    found = located(seen.state, path)
    if found is None:
        name = seen.version.checkpoint_id
        raise NotFoundError(f"version {name!r} has no value at {shown(path)!r:.200}")
    return found


async def heavy(visit: Visit, size: int, work: Callable[[Step], T]) -> T:
    """Return the result of work on so many bytes, which leaves the event loop if they are many."""
    return work(_unlimited) if size <= INLINE else await visit.jobs.run(work)


def _unlimited() -> None:
    """Continue the job."""


MOST_BYTES: Final = 16_000_000
"""Bytes of JSON that the writes of one page are made from."""


async def writes(visit: Visit) -> Page:
    """Return the pending writes of a version, and the namespaces of its thread.

    Raises:
        NotFoundError: There is no such version.
    """
    seen = await read(visit, visit.query.optional("version"))
    backend, start = visit.parts.threads, visit.query.number("start")
    found = await pending(visit, seen)
    some, size = _fitting(found[start : start + ROWS], seen, backend.max_state_bytes)
    rows = partial(_rows, some, seen, backend.max_state_bytes)
    end = start + len(some)
    values = {
        "version": row(seen.version),
        "is_interrupted": any(it.channel == INTERRUPT for it in found),
        "start": start,
        "writes": await heavy(visit, size, rows),
        "next": end if len(found) > end else None,
        "namespaces": await namespaces(visit),
        "no_writes": None
        if isinstance(backend, StoresWrites)
        else "this storage keeps no pending writes",
    }
    return visit.make_page("writes", f"Pending writes of {seen.version.checkpoint_id}", values)


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


def _rows(
    writes: list[PendingWrite], seen: Seen, max_bytes: int, step: Step
) -> list[dict[str, Any]]:
    """Return pending writes as rows, within the bounds of a page."""
    rows, room = [], Room()
    for write in writes:
        step()
        row = {name: getattr(write, name) for name in ("task_id", "task_path", "idx", "channel")}
        value = written_value(write, seen.state, max_bytes)
        text = (
            room.cut(f"<{write.type}, {len(value):,} bytes>")
            if isinstance(value, bytes)
            else room.json(bare(value))  # without the tags of LangGraph's values
        )
        rows.append(row | {"value": text, "size": len(write.payload)})
    return rows
