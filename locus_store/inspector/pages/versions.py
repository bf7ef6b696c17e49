"""A version: its state and its pending writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from locus_store.backend import StoresThreads, StoresWrites
from locus_store.errors import IntegrityError, LocusStoreError, NotFoundError
from locus_store.inspector.bounds import (
    CHARACTERS,
    INLINE,
    ROWS,
    CutText,
    Room,
    TreeNode,
    row,
    talk,
    tree,
)
from locus_store.inspector.visits import Page, missing_version
from locus_store.saver import written_value
from locus_store.service.exchange import RefusalError
from locus_store.timeline.conversations import bare, is_conversation
from locus_store.timeline.paths import CHANNELS, inside, is_bookkeeping, located, parsed, shown
from locus_store.values.encoding import plain_bytes
from locus_store.versions import JSON_WRITE, current
from locus_store.versions.sizes import INTERRUPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.inspector.visits import Visit
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
    look = _Look(path, is_raw=is_raw, start=start or None)
    values = {
        "version": row(seen.version),
        "size": seen.size,
        "path": visit.query.text("path"),
        "is_json": is_raw,
        **await _neighbours(visit, seen),
        **await heavy(visit, seen.size, lambda _: look.at(found)),
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


class _Look:
    """A value within the bounds of a page."""

    def __init__(self, path: Query, *, is_raw: bool, start: int | None) -> None:
        self._path = path
        self._is_raw = is_raw
        self._start = start
        self._room = Room()

    def at(self, found: Located) -> dict[str, Any]:
        """Return the parts of the page that show a value."""
        value, start = found.value, self._start or 0
        talks = [] if self._is_raw else list(self._talks(value))
        places = [parsed(it["path"]) for it in talks]
        hidden = frozenset(it[-1] for it in places if it != self._path)
        is_talk = self._path in places
        text = _piece(value, start) if isinstance(value, str) else None
        no_tree = is_talk or text is not None
        return {
            "start": start,
            "talks": talks,
            "text": text,
            "tree": None if no_tree else self._tree(value, start, hidden),
        }

    def _tree(self, value: Any, start: int, hidden: frozenset[Any]) -> TreeNode:
        which: dict[str, Any] = {
            "start": start,
            "is_raw": self._is_raw,
            "hidden": hidden,
            "room": self._room,
        }
        return tree(value, self._path, **which)

    def _talks(self, value: Any) -> Iterator[dict[str, Any]]:
        if is_conversation(value):
            yield talk(value, self._path, self._start, self._room)
        prefix, content = inside(value)
        for key, it in content.items() if isinstance(content, dict) else ():
            is_hidden = prefix[:1] == (CHANNELS,) and is_bookkeeping(key)
            if not is_hidden and is_conversation(it):
                yield talk(it, (*self._path, key), None, self._room)


def _piece(text: str, start: int) -> CutText:
    return CutText(text[start : start + CHARACTERS], len(text) - start)


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
        name = seen.version.checkpoint_id
        raise NotFoundError(f"version {name!r} has no value at {shown(path)!r:.200}")
    return found


async def heavy(visit: Visit, size: int, work: Callable[[Step], T]) -> T:
    """Return the result of work on so many bytes, which leaves the event loop if they are many."""
    return work(_unlimited) if size <= INLINE else await visit.jobs.run(work)


def _unlimited() -> None:
    """Continue the job."""


MOST_BYTES: Final = 16_000_000
"""Bytes of JSON that the writes of one writes are made from."""


async def writes(visit: Visit) -> Page:
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
    """Pending writes as rows, within the bounds of a writes."""

    def __init__(self, seen: Seen, max_bytes: int) -> None:
        self._seen = seen
        self._most = max_bytes
        self._room = Room()

    def rows(self, writes: list[PendingWrite], step: Step) -> list[dict[str, Any]]:
        return [self._row(it, step) for it in writes]

    def _row(self, write: PendingWrite, step: Step) -> dict[str, Any]:
        step()
        names = ("task_id", "task_path", "idx", "channel")
        found = {name: getattr(write, name) for name in names}
        return found | {"value": self._value(write), "size": len(write.payload)}

    def _value(self, write: PendingWrite) -> CutText:
        """Return JSON, without the tags of LangGraph's values."""
        value = written_value(write, self._seen.state, self._most)
        if isinstance(value, bytes):
            return self._room.cut(f"<{write.type}, {len(value):,} bytes>")
        return self._room.json(bare(value))
