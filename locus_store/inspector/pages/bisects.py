"""Bisect: the version that changed the answer to a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locus_store.inspector.bounds import ROWS
from locus_store.inspector.rows import VersionRow, row
from locus_store.inspector.visits import Page, missing_version
from locus_store.timeline.bisect import AT_PATH, TEXT, TYPES, asked, bisect
from locus_store.timeline.graph import writers

if TYPE_CHECKING:
    from locus_store.inspector.visits import Visit
    from locus_store.timeline.bisect import Bisected, Turn
    from locus_store.timeline.graph import Writer

TESTS: Final = {
    TEXT: "any string of the state contains",
    "equals": "the value equals (JSON or a string)",
    "contains": "the string, list or object contains the part, element or key",
    "exists": "the value exists",
    "longer-than": "the string, list or object is longer than",
    "type": f"the type is ({', '.join(TYPES)})",
    "filter": 'the value matches operators, for example {"$gt": 5}',
}
"""The conditions, as the form names them."""


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A version with another answer than the one before it."""

    version: VersionRow
    holds: bool
    is_exact: bool
    nodes: list[str]


async def page(visit: Visit) -> Page:
    """Return the form, and the answers on the way to the version once a question is asked.

    Raises:
        InvalidArgumentError: The question makes no sense.
        NotFoundError: There is no such version.
    """
    query, version = visit.query, visit.query.optional("version")
    test = query.optional("test")
    values: dict[str, Any] = {
        "thread_id": visit.thread,
        "namespace": visit.namespace,
        "version_id": version,
        "path": query.text("path"),
        "test": test or TEXT,
        "value": query.text("value"),
        "tests": {name: TESTS[name] for name in (TEXT, *AT_PATH)},
        "answer": None,
    }
    if test is not None:
        values["answer"] = await _answer(visit, version, test)
    return Page("bisect", f"Bisect {visit.thread}", values)


async def _answer(visit: Visit, version: str | None, test: str) -> dict[str, Any]:
    condition = asked(test, visit.query.text("path"), visit.query.text("value"))
    backend = visit.parts.threads
    async with visit.jobs.paced() as pace:
        found = await bisect(
            backend, visit.thread, condition, version, namespace=visit.namespace, step=pace.step
        )
    if found is None:
        raise missing_version(visit.thread, version)
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
    """Return the turns of a page: the first that holds, and the newest."""
    turns, first = found.turns, found.first
    last = turns[-ROWS:]
    return last if first is None or first in last else [first, *last[1:]]


def _turn(turn: Turn, tasks: dict[str, list[Writer]]) -> TurnRow:
    made = tasks.get(turn.version.checkpoint_id, ())
    nodes = list(dict.fromkeys(it.node for it in made if it.node is not None))
    return TurnRow(row(turn.version), turn.holds, turn.is_exact, nodes)
