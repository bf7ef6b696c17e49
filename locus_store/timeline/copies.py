"""The copy of a version that a rewind saves, with those of the subgraphs that its tasks run."""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.saver import get_namespace, list_namespaces, make_line_labels, make_line_name
from locus_store.timeline.ancestry import read_line
from locus_store.timeline.task_ids import (
    NO_TASK,
    Renamed,
    Side,
    TaskIds,
    describe_path,
    find_answered,
    find_finished,
    find_stopped,
    move_write,
    select_before_stop,
    split_below,
)
from locus_store.types import PendingWrite, Snapshot, Version
from locus_store.values.msgpack import convert_to_json
from locus_store.versions import REBUILT, expand_write, select_current


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A version that is to be saved."""

    found: Snapshot
    """The stored version whose state is copied."""

    namespace: str
    """The namespace in which it is saved."""

    checkpoint_id: str
    writes: list[PendingWrite]
    metadata: dict[str, Any]
    labels: dict[str, Any]


class _Place(NamedTuple):
    """A version, and where its copy belongs."""

    found: Snapshot
    new: Side
    is_left: bool
    """The graph ran on from it."""


@dataclass
class StepCopies:
    """Copies of a step of a LangGraph graph, computed without writing anything.

    Args:
        backend: The storage.
        thread_id: The thread.
        names: Nodes and functions whose names are not stored.
    """

    backend: StorageBackend
    thread_id: str
    names: Collection[str]
    copies: list[Copy] = field(default_factory=list)
    """Those of subgraphs before that of their callers."""

    repeated: list[str] = field(default_factory=list)
    """Finished tasks that run again, in words."""

    places: dict[str, str] = field(default_factory=dict)
    """The new namespaces and checkpoint ids, by the old ones."""

    lines: list[str] = field(default_factory=list)
    """The namespaces of the thread."""

    async def add(self, snapshot: Snapshot, name: str) -> None:
        """Add the copy of a version under an id, and of the subgraphs that run on it.

        The writes of a version that no graph ran on from are all kept. A graph that ran on left the
        results of all tasks there. If an interrupt or an error stopped it there in between, those
        of the tasks that did not stop are kept, and the interrupts. If nothing did, none are kept,
        as a result that is kept would only repeat the next version.
        """
        self.lines = await list_namespaces(self.backend, self.thread_id)
        is_left = await _is_left(self.backend, snapshot.version)
        await self._add(_Place(snapshot, Side(name, get_namespace(snapshot.version)), is_left))

    async def _add(self, at: _Place) -> list[Renamed]:
        """Add the copies of a version and those below; return the tasks of all."""
        found, new, is_left = at
        version, step = found.version, found.version.metadata.get("step")
        self.places[version.checkpoint_id] = new.checkpoint_id
        tasks: list[Renamed] = []
        writes: list[PendingWrite] = []
        if isinstance(step, int):
            old = Side(version.checkpoint_id, get_namespace(version))
            ids = TaskIds(convert_to_json(found.state), step, old, new, self.names)
            stored = expand_writes(found, self.backend.max_state_bytes)
            tasks += await self._copy_below(ids, stored, is_left=is_left)
            tasks += await self._copy_remembering(ids, version, stored, is_left=is_left)
            writes = self._copy_writes(ids, stored, tasks, is_left=is_left)
            tasks += ids.found.values()
        changed: dict[str, Any] = {}
        if isinstance(parents := version.metadata.get("parents"), dict):
            changed["parents"] = {
                self._rename(name): self.places.get(value, value) for name, value in parents.items()
            }
        copy = Copy(
            found=found,
            namespace=make_line_name(new.checkpoint_ns),
            checkpoint_id=new.checkpoint_id,
            writes=writes,
            metadata=version.metadata | changed,
            labels=version.labels | make_line_labels(new.checkpoint_ns),
        )
        self.copies.append(copy)
        return tasks

    def _rename(self, checkpoint_ns: str) -> str:
        for name in (checkpoint_ns, checkpoint_ns.rpartition("|")[0]):
            if name in self.places:
                return checkpoint_ns.replace(name, self.places[name], 1)
        return checkpoint_ns

    def _copy_writes(
        self, ids: TaskIds, writes: Sequence[PendingWrite], below: list[Renamed], *, is_left: bool
    ) -> list[PendingWrite]:
        kept = select_before_stop(writes) if is_left else writes
        if not kept:
            return []
        ended = find_finished(writes) - (find_stopped(writes) if is_left else set())
        found: list[PendingWrite] = []
        has_kept = {it.task_id for it in kept}
        lost = {it.task_id: it.task_path for it in writes if it.task_id not in has_kept}
        of_tasks = [it for it in kept if it.task_id != NO_TASK]
        tasks = {it.task_id: ids.rename(it.task_id, it.task_path) for it in of_tasks}
        for old in kept:
            task = tasks.get(old.task_id)
            if task is None and old.task_id != NO_TASK:
                lost[old.task_id] = old.task_path
                continue
            # An interrupt of a task may be that of a subgraph or function that it calls.
            others, most = [*below, *ids.found.values()], self.backend.max_state_bytes
            made = move_write(old, task, [task, *others], most, first_only=is_left) if task else old
            found += [made] if made else []
        self.repeated += [describe_path(path) for task, path in lost.items() if task in ended]
        return found

    async def _copy_below(
        self, ids: TaskIds, writes: Sequence[PendingWrite], *, is_left: bool
    ) -> list[Renamed]:
        """Add the copies of the subgraphs that the tasks of a version run; return their tasks."""
        tasks: list[Renamed] = []
        ended, stops, asked = find_finished(writes), find_stopped(writes), find_answered(writes)
        known = {it.task_id for it in writes}
        lines = self._split_task_lines(ids.old.checkpoint_ns)
        number = Counter(parts[0] for parts in lines.values())
        for line, parts in lines.items():
            first, *others = [it.rpartition(":")[2] for it in parts if not it.isdigit()]
            if first not in stops if is_left else not ended.isdisjoint([first, *others]):
                continue
            called = ids.find_callers(line)
            if called is None and first not in known:  # of another step
                continue
            is_lone = not others and number[parts[0]] == 1
            place = None
            if called and (not is_left or (is_lone and first not in asked)):
                place = await self._find_origin(line, *called, is_left=is_left)
            if place is None:
                names = "|".join(it.partition(":")[0] for it in parts)
                self.repeated.append(f"the nodes of {names!r}")
            else:
                tasks += await self._add(place)
        return tasks

    def _split_task_lines(self, checkpoint_ns: str) -> dict[str, list[str]]:
        """Return the namespaces that tasks of a namespace have, in parts, without those below."""
        below = {it: split_below(checkpoint_ns, it) for it in self.lines}
        found = {line: it for line, it in below.items() if it and _are_tasks(it)}
        callers = {tuple(it) for it in found.values()}
        return {line: it for line, it in found.items() if not _is_below(it, callers)}

    async def _find_origin(
        self, line: str, tasks: list[Renamed], checkpoint_ns: str, *, is_left: bool
    ) -> _Place | None:
        """Return the version that a subgraph continues from; ``None`` if there is none.

        It is the newest. If the graph above ran on, it is the first one that was stopped.
        """
        chosen: str | None = None
        if is_left:
            chosen = await self._find_first_stop(line, await self._list_versions(line))
            if chosen is None:
                return None
        found = await self._read(line, chosen)
        if found is None or found.version.labels.get(REBUILT):
            return None
        self.places |= dict(it.place for it in tasks)
        has_left = is_left and await _is_left(self.backend, found.version)
        return _Place(found, Side(generate_graph_id(), checkpoint_ns), has_left)

    async def _copy_remembering(
        self, ids: TaskIds, version: Version, writes: Sequence[PendingWrite], *, is_left: bool
    ) -> list[Renamed]:
        """Add the copies of subgraphs that keep one namespace in all steps; return their tasks.

        Such a subgraph has the state again that it had at the time of the version. One that ran
        only later keeps its newest state.
        """
        tasks: list[Renamed] = []
        above = ids.old.checkpoint_ns
        for line in self.lines:
            parts = split_below(above, line)
            if len(parts) != 1 or _are_tasks(parts):
                continue
            versions = await self._list_versions(line)
            of_step = [it for it in versions if _find_caller(it, above) == version.checkpoint_id]
            older = [it for it in versions if it.created_at <= version.created_at]
            if is_left and not find_stopped(writes):
                of_step = []
            first = await self._find_first_stop(line, of_step) if is_left else None
            names = [it.checkpoint_id for it in [*of_step, *older]]
            chosen = first or next(iter(names), None)
            if chosen is None or (not of_step and chosen == versions[0].checkpoint_id):
                continue
            found = await self._read(line, chosen)
            if found is not None:
                below = f"{ids.new.checkpoint_ns}|{parts[0]}" if above else parts[0]
                has_left = await _is_left(self.backend, found.version)
                tasks += await self._add(_Place(found, Side(generate_graph_id(), below), has_left))
        return tasks

    async def _read(self, line: str, checkpoint_id: str | None) -> Snapshot | None:
        return await self.backend.read_state(
            self.thread_id,
            checkpoint_id,
            namespace=make_line_name(line),
            with_writes=True,
            packed=True,
        )

    async def _list_versions(self, line: str) -> list[Version]:
        """Return the versions of a line, newest first."""
        return [it async for it in read_line(self.backend, self.thread_id, make_line_name(line))]

    async def _find_first_stop(self, line: str, versions: Sequence[Version]) -> str | None:
        """Return the oldest of versions that an interrupt or an error stopped."""
        names = [it.checkpoint_id for it in versions]
        storage = needs(self.backend, StoresThreads)
        found = await storage.writes_of(self.thread_id, names, namespace=make_line_name(line))
        return next((it for it in reversed(names) if find_stopped(found.get(it, []))), None)


def generate_graph_id() -> str:
    """Return a checkpoint id as LangGraph makes them: a UUID of version 6, ordered by time."""
    time = uuid.uuid1(node=0, clock_seq=0).time
    number = time >> 12 << 80 | 6 << 76 | (time & 0xFFF) << 64 | 2 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))


def expand_writes(snapshot: Snapshot, max_bytes: int) -> list[PendingWrite]:
    """Return the writes of a version, without frames."""
    writes = select_current(snapshot.writes or [], snapshot.version.mark.sequence)
    return [expand_write(it, snapshot.state, max_bytes) for it in writes]


def _are_tasks(parts: list[str]) -> bool:
    """Return whether a namespace is that of a task, and not of a subgraph that keeps its own."""
    return all(":" in it or it.isdigit() for it in parts) and not parts[0].isdigit()


def _is_below(parts: list[str], callers: Collection[tuple[str, ...]]) -> bool:
    """Return whether the subgraph of a namespace is called from that of another."""
    sizes = range(1, len(parts))
    return any(tuple(parts[:it]) in callers and not parts[it].isdigit() for it in sizes)


def _find_caller(version: Version, checkpoint_ns: str) -> Any:
    """Return the id of the checkpoint in a namespace above that a version was made on."""
    parents = version.metadata.get("parents")
    return parents.get(checkpoint_ns) if isinstance(parents, dict) else None


async def _is_left(backend: StorageBackend, version: Version) -> bool:
    """Return whether a graph ran on from a version: a child of it has a later step."""
    step = version.metadata.get("step")
    async for other in read_line(backend, version.thread_id, version.namespace):
        if other.mark.sequence <= version.mark.sequence:
            return False
        if other.parent_id == version.checkpoint_id and other.metadata.get("step") != step:
            return True
    return False
