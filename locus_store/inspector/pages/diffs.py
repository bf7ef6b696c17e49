"""Differences of two versions, and the version that changed an answer."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from locus_store.inspector.bounds import ROWS, Room, row
from locus_store.inspector.pages.versions import heavy, read
from locus_store.timeline.bisect import AT_PATH, TEXT, TYPES, asked, bisect
from locus_store.timeline.graph import writers
from locus_store.timeline.paths import located, shown
from locus_store.timeline.readable import changed_part, differences, readable

if TYPE_CHECKING:
    from locus_store.inspector.visits import Page, Visit
    from locus_store.inspector.work import Seen, Step
    from locus_store.timeline.bisect import Bisected, Turn
    from locus_store.timeline.graph import Writer
    from locus_store.timeline.readable import Difference

LONG: Final = 200
"""Characters of a text of which the page shows the changed part only."""


async def page(visit: Visit) -> Page:
    """Return the differences from ``from``, or the parent, to ``version``, or the head.

    Raises:
        NotFoundError: There is no such version.
    """
    new = await read(visit, visit.query.optional("version"))
    old, is_pruned = await _older(visit, new)
    start, is_raw = visit.query.number("start"), visit.query.text("view") == "json"
    states = old.state if old else {}, new.state
    size = new.size + (old.size if old else 0)
    found = await heavy(visit, size, lambda step: _changes(*states, start, step, is_raw=is_raw))
    values = {
        "from": row(old.version) if old else None,
        "to": row(new.version),
        "parent_id": new.version.parent_id,
        "is_pruned": is_pruned,
        "is_json": is_raw,
        "start": start,
        "changes": found[:ROWS],
        "next": start + ROWS if len(found) > ROWS else None,
    }
    return visit.make_page(
        "diff", f"Changes of {new.version.checkpoint_id} in {visit.thread}", values
    )


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


def _changes(
    old: dict[str, Any], new: dict[str, Any], start: int, step: Step, *, is_raw: bool
) -> list[dict[str, Any]]:
    """Return the differences of a page, and one more if there are more."""
    states = (old, new) if is_raw else (readable(old), readable(new))
    found = islice(differences(*states, step=step), start, start + ROWS + 1)
    room = Room()
    return [_change(it, _place(it, old, new), room) for it in found]


def _change(difference: Difference, place: str | None, room: Room) -> dict[str, Any]:
    before, after = difference.before, difference.after
    if isinstance(before, str) and isinstance(after, str) and len(before) + len(after) > LONG:
        before, after = changed_part(before, after)
    return {
        "what": difference.what,
        "path": shown(difference.path) if difference.path else "",
        "place": place,
        "before": None if difference.what == "added" else room.cut(before),
        "after": None if difference.what == "removed" else room.cut(after),
    }


def _place(difference: Difference, old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Return ``from`` or ``to``, the version that has the value; ``None`` if neither has."""
    name, state = ("from", old) if difference.what == "removed" else ("to", new)
    return None if located(state, difference.path) is None else name


_TESTS: Final = {
    TEXT: "any string of the state contains",
    "equals": "the value equals (JSON or a string)",
    "contains": "the string, list or object contains the part, element or key",
    "exists": "the value exists",
    "longer-than": "the string, list or object is longer than",
    "type": f"the type is ({', '.join(TYPES)})",
    "filter": 'the value matches operators, for example {"$gt": 5}',
}
"""The conditions, as the form names them."""


async def answers(visit: Visit) -> Page:
    """Return the form, and the answers on the way to the version once a question is asked.

    Raises:
        InvalidArgumentError: The question makes no sense.
        NotFoundError: There is no such version.
    """
    query, version = visit.query, visit.query.optional("version")
    test = query.optional("test")
    values: dict[str, Any] = {
        "version_id": version,
        "path": query.text("path"),
        "test": test or TEXT,
        "value": query.text("value"),
        "tests": {name: _TESTS[name] for name in (TEXT, *AT_PATH)},
        "answer": None,
    }
    if test is not None:
        values["answer"] = await _answer(visit, version, test)
    return visit.make_page("bisect", f"Bisect {visit.thread}", values)


async def _answer(visit: Visit, version: str | None, test: str) -> dict[str, Any]:
    condition = asked(test, visit.query.text("path"), visit.query.text("value"))
    backend = visit.parts.threads
    async with visit.jobs.paced() as pace:
        bisected = await bisect(
            backend, visit.thread, condition, version, namespace=visit.namespace, step=pace.step
        )
    found = visit.require(bisected, version)
    first, turns = found.first, _shown(found)
    tasks = await writers(backend, [it.version for it in turns])
    return {
        "version": row(found.version),
        "asked": found.asked,
        "skipped": found.skipped,
        "first": _turn(first, tasks) if first else None,
        "turns": [_turn(it, tasks) for it in turns],
        "left_out": len(found.turns) - len(turns),
    }


def _shown(found: Bisected) -> list[Turn]:
    """Return the turns of a bisect: the first that holds, and the newest."""
    turns, first = found.turns, found.first
    last = turns[-ROWS:]
    return last if first is None or first in last else [first, *last[1:]]


def _turn(turn: Turn, tasks: dict[str, list[Writer]]) -> dict[str, Any]:
    made = tasks.get(turn.version.checkpoint_id, ())
    nodes = list(dict.fromkeys(it.node for it in made if it.node is not None))
    version = row(turn.version)
    return {"version": version, "holds": turn.holds, "is_exact": turn.is_exact, "nodes": nodes}
