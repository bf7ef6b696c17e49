"""The differences of two versions; without a choice, of one and its parent."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from locus_store.inspector.bounds import ROWS, CutText, Room
from locus_store.inspector.pages.versions import heavy, read
from locus_store.inspector.rows import row
from locus_store.inspector.visits import Page
from locus_store.timeline.paths import located, shown
from locus_store.timeline.readable import changed_part, differences, readable

if TYPE_CHECKING:
    from locus_store.inspector.states import Seen
    from locus_store.inspector.visits import Visit
    from locus_store.inspector.work import Step
    from locus_store.timeline.readable import Difference

LONG: Final = 200
"""Characters of a text of which the page shows the changed part only."""


@dataclass(frozen=True, slots=True)
class ShownChange:
    """A difference within the bounds of a page."""

    what: str
    path: str
    place: str | None
    """The version that has the value to link to: ``from`` or ``to``; ``None``: neither."""

    before: CutText | None
    after: CutText | None


async def page(visit: Visit) -> Page:
    """Return the differences from ``from``, or the parent, to ``version``, or the head.

    Raises:
        NotFoundError: There is no such version.
    """
    new = await read(visit, visit.query.optional("version"))
    old, is_pruned = await _older(visit, new)
    start, is_raw = visit.query.number("start"), visit.query.text("view") == "json"
    made = _Made(old.state if old else {}, new.state, is_raw=is_raw)
    size = new.size + (old.size if old else 0)
    found = await heavy(visit, size, lambda step: made.some(start, step))
    values = {
        "thread_id": visit.thread,
        "namespace": visit.namespace,
        "from": row(old.version) if old else None,
        "to": row(new.version),
        "parent_id": new.version.parent_id,
        "is_pruned": is_pruned,
        "is_json": is_raw,
        "start": start,
        "changes": found[:ROWS],
        "next": start + ROWS if len(found) > ROWS else None,
    }
    return Page("diff", f"Changes of {new.version.checkpoint_id} in {visit.thread}", values)


async def _older(visit: Visit, new: Seen) -> tuple[Seen | None, bool]:
    """Return the version to compare with, and whether it is a parent that was removed."""
    wanted = visit.query.optional("from")
    if wanted is not None:
        return await read(visit, wanted), False
    parent = new.version.parent_id
    if parent is None:
        return None, False
    found = await visit.states.read(visit.parts.threads, visit.thread, parent, visit.namespace)
    return found, found is None


class _Made:
    """The differences of two states."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any], *, is_raw: bool) -> None:
        self._states = old, new
        self._is_raw = is_raw

    def some(self, start: int, step: Step) -> list[ShownChange]:
        """Return the differences of a page, and one more if there are more."""
        old, new = self._states
        if not self._is_raw:
            old, new = readable(old), readable(new)
        found = islice(differences(old, new, step=step), start, start + ROWS + 1)
        room = Room()
        return [self._change(it, room) for it in found]

    def _change(self, it: Difference, room: Room) -> ShownChange:
        before, after = it.before, it.after
        if isinstance(before, str) and isinstance(after, str) and len(before) + len(after) > LONG:
            before, after = changed_part(before, after)
        has = (it.what != "added", it.what != "removed")
        texts = [
            room.cut(value) if is_there else None
            for value, is_there in zip((before, after), has, strict=True)
        ]
        return ShownChange(it.what, shown(it.path) if it.path else "", self._place(it), *texts)

    def _place(self, it: Difference) -> str | None:
        is_old = it.what == "removed"
        state = self._states[0 if is_old else 1]
        return None if located(state, it.path) is None else ("from" if is_old else "to")
