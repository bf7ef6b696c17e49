"""The graph of a thread's versions, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from locus_store.backend import StoresThreads, needs
from locus_store.errors import IntegrityError
from locus_store.versions.sizes import MeasuresVersions

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.types import Version

PAGE = 200
"""Versions on a page, unless the caller says otherwise."""

Place: TypeAlias = Literal["head", "main", "side"]
"""``main``: an ancestor of the head; ``side``: neither the head nor an ancestor."""


class Cursor(NamedTuple):
    """The place at which a page of the graph begins."""

    before: str
    """The id of a version; the page has only older ones."""

    main: str | None
    """The head, or its newest ancestor, that is older than that; empty: there is none; ``None``: it
    is not known."""


@dataclass(frozen=True, slots=True)
class Node:
    """A version in the graph. Its edge leads to ``version.parent_id``."""

    version: Version
    place: Place | None
    """``None``: not known, as the page does not begin at a cursor that names the main line."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A page of versions, newest first."""

    head: Version
    nodes: list[Node]
    next: Cursor | None
    """The place of the next page; ``None``: there are no older versions."""

    is_damaged: bool = False
    """The version behind the last node is damaged. No page has the older ones but one that begins
    at the id of one of them."""


async def graph(
    backend: StorageBackend,
    thread_id: str,
    *,
    namespace: str = "",
    limit: int = PAGE,
    cursor: Cursor | None = None,
) -> Graph | None:
    """Return a page of versions of a line; ``None`` if it has none.

    Reads no state. The number of reads does not depend on the number of versions.

    Raises:
        NotFoundError: The version of the cursor does not exist.
    """
    head = await backend.version(thread_id, namespace=namespace)
    if head is None:
        return None
    before = None if cursor is None else cursor.before
    which: dict[str, Any] = {"namespace": namespace, "before": before}
    try:
        found = await backend.history(thread_id, limit=limit, **which)
    except IntegrityError:
        found = await _above_damage(backend, thread_id, limit - 1, which)
        nodes, _ = _placed(found, head, head.checkpoint_id if cursor is None else cursor.main)
        return Graph(head, nodes, None, is_damaged=True)
    main = head.checkpoint_id if cursor is None else cursor.main
    nodes, main = _placed(found, head, main)
    is_over = len(found) < limit
    return Graph(head, nodes, None if is_over else Cursor(found[-1].checkpoint_id, main))


async def _above_damage(
    backend: StorageBackend, thread_id: str, most: int, which: dict[str, Any]
) -> list[Version]:
    """Return the newest versions, up to a damaged one; there are ``most`` at most."""
    found: list[Version] = []
    while len(found) < most:
        middle = (len(found) + most + 1) // 2
        try:
            found = await backend.history(thread_id, limit=middle, **which)
        except IntegrityError:
            most = middle - 1
    return found


def _placed(found: list[Version], head: Version, main: str | None) -> tuple[list[Node], str | None]:
    """Return the nodes of versions, and the newest ancestor of the head behind them."""
    nodes: list[Node] = []
    is_known = main is not None
    for version in found:
        place: Place | None = "side" if is_known else None
        if version.mark == head.mark:
            place = "head"
        elif version.checkpoint_id == main:
            place = "main"
        if place in {"head", "main"}:
            main = version.parent_id or ""
        nodes.append(Node(version, place))
    return nodes, main


async def stored_sizes(backend: StorageBackend, nodes: list[Node]) -> dict[int, int]:
    """Return the stored bytes of the nodes of a page, by their sequences.

    SQL databases read no payload for it.

    Raises:
        UnsupportedError: The backend does not list what its versions are made of.
    """
    if not nodes:
        return {}
    at = nodes[0].version
    sequences = [it.version.mark.sequence for it in nodes]
    first, last = min(sequences), max(sequences)
    if isinstance(backend, MeasuresVersions):
        return await backend.sizes(at.thread_id, namespace=at.namespace, first=first, last=last)
    records = await needs(backend, StoresThreads).records(
        at.thread_id, namespace=at.namespace, first=first, last=last
    )
    return {sequence: len(payload) for sequence, _, payload in records if sequence >= first}
