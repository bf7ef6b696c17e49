"""The graph of a thread's versions: pages, the nodes that made them, marks, and new versions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from locus_store.backend import (
    ListsThreads,
    SearchesText,
    StorageBackend,
    StoresThreads,
    StoresWrites,
    TakesTurns,
    needs,
)
from locus_store.errors import IntegrityError, UnsupportedError
from locus_store.runtime.notebooks import Table
from locus_store.timeline.paths import CHANNELS, Path, is_bookkeeping
from locus_store.types import Hit, PendingWrite, Version
from locus_store.versions.sizes import (
    INTERRUPT,
    SOURCES,
    ListsStatuses,
    MeasuresVersions,
    StatusesWanted,
    ThreadStatus,
    make_status,
)
from locus_store.versions.threads import load_archive

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

    def _repr_html_(self) -> str:
        """Return the versions for a notebook."""
        return Table({"place": it.place, **it.version.as_row()} for it in self.nodes)._repr_html_()


async def read_graph(
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
    before, main = cursor or (None, head.checkpoint_id)
    which: dict[str, Any] = {"namespace": namespace, "before": before}
    try:
        found = await backend.history(thread_id, limit=limit, **which)
    except IntegrityError:
        found = await _read_above_damage(backend, thread_id, limit - 1, which)
        return Graph(head, _make_nodes(found, head, main)[0], None, is_damaged=True)
    nodes, main = _make_nodes(found, head, main)
    is_over = len(found) < limit
    return Graph(head, nodes, None if is_over else Cursor(found[-1].checkpoint_id, main))


async def _read_above_damage(
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


def _make_nodes(
    versions: list[Version], head: Version, main: str | None
) -> tuple[list[Node], str | None]:
    """Return the nodes of versions, and the newest ancestor of the head behind them."""
    nodes: list[Node] = []
    is_known = main is not None
    for version in versions:
        place: Place | None = "side" if is_known else None
        if version.mark == head.mark:
            place = "head"
        elif version.checkpoint_id == main:
            place = "main"
        if place in {"head", "main"}:
            main = version.parent_id or ""
        nodes.append(Node(version, place))
    return nodes, main


async def measure_stored(backend: StorageBackend, nodes: list[Node]) -> dict[int, int]:
    """Return the stored bytes of the nodes of a page, by their sequences.

    SQL databases read no payload for it.

    Raises:
        UnsupportedError: The backend does not list what its versions are made of.
    """
    if not nodes:
        return {}
    at = nodes[0].version
    sequences = [it.version.mark.sequence for it in nodes]
    first = min(sequences)
    which: Any = {"namespace": at.namespace, "first": first, "last": max(sequences)}
    if isinstance(backend, MeasuresVersions):
        return await backend.measure_versions(at.thread_id, **which)
    records = await needs(backend, StoresThreads).records(at.thread_id, **which)
    return {sequence: len(payload) for sequence, _, payload in records if sequence >= first}


_NODE: Final = "~__pregel_pull, "
"""The task path of a node that its channels started."""


class Writer(NamedTuple):
    """A task that wrote to a channel."""

    node: str | None
    """``None``: started by a ``Send`` or a function, whose name is not stored."""

    task_id: str
    channel: str


Writers: TypeAlias = dict[str, list[Writer]]
"""The tasks whose writes made each version, by its checkpoint id."""


def list_nodes(version: Version, writers: Writers, channel: str | None = None) -> list[str]:
    """Return the nodes that wrote a version, each once; ``channel``: that wrote to it."""
    tasks = writers.get(version.checkpoint_id, ())
    found = (it.node for it in tasks if channel in {None, it.channel})
    return list(dict.fromkeys(it for it in found if it is not None))


def name_nodes(version: Version, writers: Writers) -> list[str]:
    """Return what made a version: nodes of a graph, or what its metadata says.

    That is its ``node``, or how LangGraph came to save it.

    Args:
        version: The version.
        writers: See ``find_writers``.
    """
    name = version.metadata.get("source" if version.metadata.keys() >= SOURCES else "node")
    named = [name] if isinstance(name, str) else []
    return list_nodes(version, writers) or named


async def find_writers(backend: StorageBackend, versions: Sequence[Version]) -> Writers:
    """Return the tasks whose writes made each version of a line, by its checkpoint id.

    They are the pending writes of the version's parent. Versions of agents have none.
    """
    return _list_writers(versions, await _read_writes(backend, versions))


async def find_steps(
    backend: StorageBackend, versions: Sequence[Version]
) -> tuple[Writers, set[str]]:
    """Return what ``find_writers`` does, and the ids of the versions that were interrupted."""
    ids = [it.checkpoint_id for it in versions]
    found = await _read_writes(backend, versions, *ids)
    stopped = {name for name in ids if any(it.channel == INTERRUPT for it in found.get(name, ()))}
    return _list_writers(versions, found), stopped


async def _read_writes(
    backend: StorageBackend, versions: Sequence[Version], *more: str
) -> dict[str, list[PendingWrite]]:
    """Return the pending writes of the parents of versions of one line, and of more ids."""
    parents = (it.parent_id for it in versions if it.parent_id is not None)
    ids = list(dict.fromkeys([*parents, *more]))
    if not ids or not isinstance(backend, StoresWrites):
        return {}
    at = versions[0]
    return await backend.writes_of(at.thread_id, ids, namespace=at.namespace)


def _list_writers(
    versions: Sequence[Version], writes: Mapping[str, Sequence[PendingWrite]]
) -> Writers:
    """Return the writers of versions, without those that a rewind saved again below themselves."""
    steps = {it.checkpoint_id: it.metadata.get("step") for it in versions}
    return {
        version.checkpoint_id: [
            _make_writer(write)
            for write in writes.get(version.parent_id, ())
            if write.idx >= 0 and not is_bookkeeping(write.channel)
        ]
        for version in versions
        if version.parent_id is not None
        and (
            not version.metadata.keys() >= SOURCES
            or steps.get(version.parent_id, -2) != version.metadata["step"]  # -1 is the first
        )
    }


def _make_writer(write: PendingWrite) -> Writer:
    node = write.task_path.removeprefix(_NODE) if write.task_path.startswith(_NODE) else None
    return Writer(node, write.task_id, write.channel)


def find_channel(path: Path) -> str | None:
    """Return the channel of a graph that a stored path is in; ``None`` if it is in none."""
    return str(path[1]) if len(path) > 1 and path[0] == CHANNELS else None


AT_ONCE: Final = 8
"""Threads that are looked at together."""

LOOKED_AT: Final = 2_000
"""Threads that a list with conditions looks at."""


async def list_statuses(backend: StorageBackend, criteria: StatusesWanted) -> list[ThreadStatus]:
    """Return the threads that meet the conditions, the most recently active first.

    SQL databases find them by one statement, documents in one pass, and a service of them in one
    request. Of another backend each thread is read whole, and of its last ``LOOKED_AT`` threads
    only, or the best ``LOOKED_AT`` with the text.

    Args:
        backend: The storage.
        criteria: The conditions.

    Raises:
        InvalidArgumentError, NotFoundError: There is no place ``criteria.place``.
    """
    if isinstance(backend, ListsStatuses):
        with suppress(UnsupportedError):  # a service over another backend
            return await backend.find_statuses(criteria)
    gate, text, hits = asyncio.Semaphore(AT_ONCE), criteria.text, dict[str, Hit]()
    if text is not None:
        best = await needs(backend, SearchesText).find(text, LOOKED_AT)
        hits = {it.thread_id: it for it in best}

    async def read(thread_id: str, active_at: datetime | None = None) -> ThreadStatus | None:
        async with gate:
            thread = await needs(backend, StoresThreads).read_thread(thread_id)
            turns = await backend.list_turns(thread_id) if isinstance(backend, TakesTurns) else []
        if thread is None:
            return None
        status = make_status(load_archive(thread)).with_hit(hits.get(thread_id))
        badges = [*status.badges, "turn"] if turns else status.badges
        active_at = active_at or status.active_at
        return replace(status, active_at=active_at, place=thread_id, badges=badges)

    if criteria.thread_ids is not None:
        named = filter(None, await asyncio.gather(*map(read, criteria.thread_ids)))
        return [it for it in named if criteria.takes(it)][: criteria.limit]
    found: list[ThreadStatus] = []
    lists, after = needs(backend, ListsThreads), criteria.place
    left = LOOKED_AT if text is None else len(hits)
    while left > 0 and len(found) < criteria.limit:
        page = await lists.recent(PAGE, criteria.pattern, after=after)
        some = [it for it in page if text is None or it.thread_id in hits]
        read_all = filter(None, await asyncio.gather(*(read(*it) for it in some)))
        found += filter(criteria.takes, read_all)
        if len(page) < PAGE:
            break
        after, left = page[-1].thread_id, left - len(some)
    return found[: criteria.limit]


async def find_newer(
    backend: StorageBackend, thread_id: str, sequence: int, *, namespace: str = ""
) -> list[Version] | None:
    """Return the versions of a line above a sequence, the oldest first; ``None``: it has no head.

    One read of the head without its state, and one more if it is newer.
    """
    head = await backend.version(thread_id, namespace=namespace)
    if head is None:
        return None
    if head.mark.sequence <= sequence:
        return []
    most = min(PAGE, head.mark.sequence - sequence)  # an older one may be damaged
    page = await backend.history(thread_id, namespace=namespace, limit=most)
    return list(takewhile(lambda it: it.mark.sequence > sequence, page))[::-1]
