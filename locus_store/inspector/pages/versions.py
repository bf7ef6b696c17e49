"""The state of a version: its messages, the tree of the rest, and the origin of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from locus_store.errors import IntegrityError, LocusStoreError, NotFoundError
from locus_store.inspector.bounds import CHARACTERS, INLINE, ROWS, CutText, Room
from locus_store.inspector.rows import row
from locus_store.inspector.talks import Talk, talk
from locus_store.inspector.trees import TreeNode, tree
from locus_store.inspector.visits import Page, missing_version
from locus_store.service.exchange import RefusalError
from locus_store.timeline.conversations import is_conversation
from locus_store.timeline.paths import CHANNELS, inside, is_bookkeeping, located, parsed, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.inspector.blames import BlameRow
    from locus_store.inspector.states import Seen
    from locus_store.inspector.visits import Visit
    from locus_store.inspector.work import Step
    from locus_store.timeline.paths import Located, Query

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
        "thread_id": visit.thread,
        "namespace": visit.namespace,
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
    return Page("version", f"{seen.version.checkpoint_id} of {visit.thread}", values)


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


async def _blame(visit: Visit, seen: Seen, path: Query) -> tuple[BlameRow | None, str | None]:
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
        hidden = frozenset(parsed(it.path)[-1] for it in talks if parsed(it.path) != self._path)
        is_talk = any(parsed(it.path) == self._path for it in talks)
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

    def _talks(self, value: Any) -> Iterator[Talk]:
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
