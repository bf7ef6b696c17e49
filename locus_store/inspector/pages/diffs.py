"""Differences of two versions, and the version that changed an answer."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from locus_store.inspector.bounds import CELL, ROWS, Room, make_row, render_line
from locus_store.inspector.page_requests import Page, PageRequest
from locus_store.inspector.work import Seen
from locus_store.timeline.ancestry import find_ancestry
from locus_store.timeline.bisect import (
    AT_PATH,
    TEXT,
    TYPES,
    Turn,
    bisect,
    list_values,
    make_condition,
)
from locus_store.timeline.conversations import strip_value_tags
from locus_store.timeline.graph import Writers, find_writers, list_nodes
from locus_store.timeline.paths import (
    Step,
    find_value,
    format_path,
    is_bookkeeping,
    parse_path,
    unwrap,
)
from locus_store.timeline.readable import (
    Difference,
    compare_words,
    cut_common_ends,
    find_differences,
    make_readable,
)

LONG: Final = 2_000
"""Characters of two strings of which the page shows the changed part only, and no words."""


async def show_diff(request: PageRequest) -> Page:
    """Return the differences from ``from``, or the parent, to ``version``, or the head.

    Raises:
        NotFoundError: There is no such version.
    """
    new = await request.read_version(request.query.get_optional("version"))
    values = await compare_versions(request, new, request.query.get_number("start"), ROWS)
    title = f"Changes of {new.version.checkpoint_id} in {request.thread}"
    return request.make_page("diff", title, values)


async def compare_versions(
    request: PageRequest, new: Seen, start: int, most: int
) -> dict[str, Any]:
    """Return the differences from ``from`` of a request, or the parent, to a version.

    Args:
        request: Of the page.
        new: The version.
        start: Leave out so many differences at the beginning.
        most: Return at most so many.
    """
    old, is_pruned = await _read_older(request, new)
    is_raw = request.query.get_text("view") == "json"
    states = old.state if old else {}, new.state
    size = new.size + (old.size if old else 0)
    found = await request.run_heavy(
        size, lambda step: _changes(*states, start, most, step, is_raw=is_raw)
    )
    return {
        "from": make_row(old.version) if old else None,
        "to": make_row(new.version),
        "parent_id": new.version.parent_id,
        "is_pruned": is_pruned,
        "is_json": is_raw,
        "start": start,
        "changes": found[:most],
        "next": start + most if len(found) > most else None,
    }


async def _read_older(request: PageRequest, new: Seen) -> tuple[Seen | None, bool]:
    """Return the version to compare with, and whether it is a parent that was removed."""
    wanted = request.query.get_optional("from")
    if wanted is not None:
        return await request.read_version(wanted), False
    backend, parent = request.parts.threads, new.version.parent_id
    if parent is None:
        return None, False
    found = await request.states.read(backend, request.thread, parent, request.namespace)
    return found, found is None


def _changes(
    old: dict[str, Any], new: dict[str, Any], start: int, most: int, step: Step, *, is_raw: bool
) -> list[dict[str, Any]]:
    """Return the differences of a page, and one more if there are more."""
    states = (old, new) if is_raw else (make_readable(old), make_readable(new))
    found = islice(find_differences(*states, step=step), start, start + most + 1)
    room = Room()
    return [_change(it, _choose_version(it, old, new), room) for it in found]


def _change(difference: Difference, place: str | None, room: Room) -> dict[str, Any]:
    before, after = difference.before, difference.after
    if isinstance(before, str) and isinstance(after, str) and len(before) + len(after) > LONG:
        before, after = cut_common_ends(before, after)
    is_text = difference.what == "changed" and isinstance(before, str) and isinstance(after, str)
    words = compare_words(before, after) if is_text and len(before) + len(after) < LONG else None
    return {
        "what": difference.what,
        "key": str(difference.path[0]) if difference.path else "",
        "path": format_path(difference.path) if difference.path else "",
        "place": place,
        "before": None if difference.what == "added" else room.cut(before),
        "after": None if difference.what == "removed" else room.cut(after),
        "words": words,
    }


def _choose_version(difference: Difference, old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Return ``from`` or ``to``, the version that has the value; ``None`` if neither has."""
    name, state = ("from", old) if difference.what == "removed" else ("to", new)
    return None if find_value(state, difference.path) is None else name


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


async def show_answers(request: PageRequest) -> Page:
    """Return the form, and the answers for the ancestry of the version once a question is asked.

    Raises:
        InvalidArgumentError: The question makes no sense.
        NotFoundError: There is no such version.
    """
    query, version = request.query, request.query.get_optional("version")
    test = None if query.get_optional("suggest") else query.get_optional("test")
    path = query.get_text("path")
    values: dict[str, Any] = {
        "version_id": version,
        "path": path,
        "test": test or ("equals" if path else TEXT),
        "value": query.get_text("value"),
        "tests": {name: _TESTS[name] for name in (TEXT, *AT_PATH)},
        "answer": None,
        "keys": [],
        "recent": [],
    }
    if test is None:
        values |= await _suggest(request, version, path)
    else:
        values["answer"] = await _answer(request, version, test)
    return request.make_page("bisect", f"Bisect {request.thread}", values)


SUGGESTED: Final = 60
"""Keys, and values, that are suggested."""

_BYTES: Final = 4 * CELL
"""Of a value that is suggested, as JSON with the tags of LangGraph's values."""


async def _suggest(request: PageRequest, version: str | None, path: str) -> dict[str, Any]:
    """Return the keys of the state, and the last values of a path on its line, to choose from."""
    seen = await request.read_version(version)
    content = unwrap(seen.state)[1]
    keys = [it for it in content if not is_bookkeeping(it)][:SUGGESTED]
    if not path:
        return {"keys": keys}
    backend, name = request.parts.threads, seen.version.checkpoint_id
    found = await find_ancestry(backend, request.thread, name, namespace=request.namespace)
    ancestry = request.require(found, name)
    async with request.jobs.wait_for_turn() as step:
        values = await list_values(backend, ancestry, parse_path(path), _BYTES, step)
    texts = [(it, render_line(strip_value_tags(value), CELL)) for it, value in values[:SUGGESTED]]
    rows = [{"version": make_row(it), "value": text} for it, text in texts if not text.is_cut]
    return {"keys": keys, "recent": rows}


async def _answer(request: PageRequest, version: str | None, test: str) -> dict[str, Any]:
    query, backend = request.query, request.parts.threads
    condition = make_condition(test, query.get_text("path"), query.get_text("value"))
    async with request.jobs.wait_for_turn() as step:
        bisected = await bisect(
            backend, request.thread, condition, version, namespace=request.namespace, step=step
        )
    found = request.require(bisected, version)
    first, turns = found.first, found.turns[-ROWS:]
    if first is not None and first not in turns:
        turns = [first, *turns[1:]]
    tasks = await find_writers(backend, [it.version for it in turns])
    return {
        "version": make_row(found.version),
        "asked": found.asked,
        "skipped": found.skipped,
        "first": _turn(first, tasks) if first else None,
        "turns": [_turn(it, tasks) for it in turns],
        "left_out": len(found.turns) - len(turns),
    }


def _turn(turn: Turn, tasks: Writers) -> dict[str, Any]:
    nodes = list_nodes(turn.version, tasks)
    version = make_row(turn.version)
    return {"version": version, "holds": turn.holds, "is_exact": turn.is_exact, "nodes": nodes}
