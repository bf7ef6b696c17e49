"""Rewind: an old version as the new head."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from locus_store.backend import StorageBackend, StoresWrites, needs
from locus_store.errors import (
    BackendError,
    ConflictError,
    LocusStoreError,
    NotFoundError,
    UnsupportedError,
)
from locus_store.runtime.loops import settle
from locus_store.timeline.copies import Copy, StepCopies, expand_writes, generate_graph_id
from locus_store.timeline.paths import is_graphs
from locus_store.timeline.readable import select_metadata
from locus_store.timeline.task_ids import find_names
from locus_store.types import Expected, Mark, Snapshot, Version
from locus_store.values.msgpack import convert_to_json
from locus_store.versions import REBUILT, generate_checkpoint_id

_SHOWN: Final = 20


def is_rewound(version: Version, parent: Version) -> bool:
    """Return whether a version, which has the state of its parent, was saved by a rewind.

    It has the metadata of its parent too, and was saved after other versions.
    """
    told = select_metadata(version.metadata) == select_metadata(parent.metadata)
    return told and version.mark.sequence > parent.mark.sequence + 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rewind that is not carried out yet."""

    copies: list[Copy]
    """The versions to save: those of subgraphs, then that of the line."""

    repeated: list[str]
    """Finished tasks of a LangGraph step that will run again, in words."""

    def describe(self) -> str:
        """Return these tasks in one line; of many the first."""
        more = len(self.repeated) - _SHOWN
        shown = ", ".join(self.repeated[:_SHOWN])
        return f"{shown} and {more:,} more" if more > 0 else shown


async def rewind(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str,
    *,
    namespace: str = "",
    expected_head: str | None = None,
    names: Collection[str] = (),
    runs_again: bool = False,
) -> str:
    """Save the state of an old version, with its pending writes, as the new head; return its id.

    Removes nothing: the versions behind the old one are a side branch then. The new version has the
    metadata of the old one, which is its parent. An agent continues from it. So does a LangGraph
    graph, interrupted or not, which gets an id of its own kind; its finished tasks, and those of
    interrupted subgraphs, keep their results under new ids. ``StepCopies.add`` says which.
    A ``DeltaChannel`` is rebuilt from the parents' writes, so the parent of such a version is that
    of the old one.

    Args:
        backend: The storage.
        thread_id: The thread.
        checkpoint_id: The version to return to.
        namespace: Its line.
        expected_head: The head that the caller saw; ``None``: any.
        names: See ``prepare``.
        runs_again: Finished tasks may run again, where their new ids cannot be computed.

    Raises:
        ConflictError: The head is another one, or moved meanwhile; nothing was saved.
        NotFoundError: There is no such version.
        UnsupportedError: The backend keeps no pending writes; finished tasks would run again,
            without ``runs_again``; or the package ``xxhash`` is missing for a LangGraph thread.
            Nothing was saved.
        BackendError: The storage failed. Nothing was saved, or the head alone: the message says
            which.
    """
    found = await prepare(backend, thread_id, checkpoint_id, namespace=namespace, names=names)
    *_, copy = found.copies
    await _require_head(backend, copy.found, expected_head)
    if found.repeated and not runs_again:
        raise UnsupportedError(
            f"after a rewind to {checkpoint_id!r} these would run again, although they are "
            f"finished: {found.describe()}. Nothing was saved. Name the functions or "
            "nodes (names=, or --task), or accept that they run again (runs_again=True, or "
            "--run-again)"
        )
    await settle(_save(backend, found.copies))
    return copy.checkpoint_id


async def prepare(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str,
    *,
    namespace: str = "",
    names: Collection[str] = (),
) -> Prepared:
    """Return what a rewind saves; saves nothing.

    Args:
        backend: The storage.
        thread_id: The thread.
        checkpoint_id: The version to return to.
        namespace: Its line.
        names: LangGraph nodes or functions that are tried where the name of a task is not stored.
            Of functions of the functional API it is stored after a step in which they ran, and of
            the nodes of ``Send`` also with the values that are not encrypted.

    Raises:
        NotFoundError: There is no such version.
        UnsupportedError: See ``rewind``.
    """
    needs(backend, StoresWrites)
    found = await backend.read_state(
        thread_id, checkpoint_id, namespace=namespace, with_writes=True, packed=True
    )
    if found is None:
        raise NotFoundError(f"there is no checkpoint {checkpoint_id!r} in thread {thread_id!r}")
    if not is_graphs(found.state):
        version = found.version
        plain = Copy(
            found=found,
            namespace=version.namespace,
            checkpoint_id=generate_checkpoint_id(),
            writes=expand_writes(found, backend.max_state_bytes),
            metadata=version.metadata,
            labels=version.labels,
        )
        return Prepared([plain], [])
    name, known = generate_graph_id(), {*names, *find_names(convert_to_json(found.state))}
    copying = StepCopies(backend, thread_id, known)
    await copying.add(found, name)
    if copying.repeated:  # later versions have more names
        head = await backend.read_state(thread_id, namespace=namespace)
        more = find_names(head.state) if head and is_graphs(head.state) else set()
        if not more <= known:
            copying = StepCopies(backend, thread_id, known | more)
            await copying.add(found, name)
    return Prepared(copying.copies, copying.repeated)


async def _save(backend: StorageBackend, copies: list[Copy]) -> None:
    """Save the copies of subgraphs, to which the new head alone leads, and then that head.

    A subgraph with one namespace for all steps has its copy as its head at once, so it comes last:
    a rewind that fails before moves nothing, and one that fails there can be repeated.
    """
    *others, last = copies
    remembering = [it for it in others if it.namespace == it.found.version.namespace]
    begun: list[Copy] = []
    try:
        for copy in others:
            if copy.namespace != copy.found.version.namespace:
                begun.append(copy)
                await _write(backend, copy)
        await _write(backend, last)
    except BaseException as exc:
        with suppress(LocusStoreError):  # the first error tells more
            if isinstance(exc, ConflictError) or not await _is_saved(backend, last):
                for copy in reversed(begun):
                    thread_id, names = copy.found.version.thread_id, [copy.checkpoint_id]
                    await backend.remove(thread_id, names, namespace=copy.namespace)
        raise
    for copy in remembering:
        try:
            await _write(backend, copy)
        except LocusStoreError as exc:
            raise BackendError(
                f"the thread was rewound, but not the subgraph {copy.namespace!r}: {exc}. Repeat "
                "the rewind"
            ) from exc


async def _is_saved(backend: StorageBackend, copy: Copy) -> bool:
    version, name = copy.found.version, copy.checkpoint_id
    found = await backend.version(version.thread_id, name, namespace=copy.namespace)
    return found is not None


async def _write(backend: StorageBackend, copy: Copy) -> None:
    version, name = copy.found.version, copy.checkpoint_id
    thread_id = version.thread_id
    expected = Expected(made_from=None, head=None)  # a namespace of its own
    if copy.namespace == version.namespace:
        made_from = await _find_made_from(backend, version)
        expected = Expected(made_from=made_from, head=copy.found.head)
    writing = needs(backend, StoresWrites)
    await writing.put_writes(thread_id, name, copy.writes, namespace=copy.namespace)
    await backend.write_state(
        thread_id,
        copy.found.state,
        namespace=copy.namespace,
        checkpoint_id=name,
        metadata=copy.metadata,
        labels=copy.labels,
        expected=expected,
        packed=True,
    )


async def _find_made_from(backend: StorageBackend, version: Version) -> Mark | None:
    if not version.labels.get(REBUILT):
        return version.mark
    parent = version.parent_id
    found = await backend.version(version.thread_id, parent, namespace=version.namespace)
    if parent is None or found is None:
        raise NotFoundError(
            f"checkpoint {version.checkpoint_id!r} is rebuilt from its parent {parent!r}, which is "
            "not stored any more"
        )
    return found.mark


async def _require_head(
    backend: StorageBackend, snapshot: Snapshot, expected_head: str | None
) -> None:
    version = snapshot.version
    head = await backend.version(version.thread_id, namespace=version.namespace)
    now = head.checkpoint_id if head else None
    if head is None or head.mark != snapshot.head or expected_head not in {None, now}:
        seen = "the one that was read" if expected_head is None else repr(expected_head)
        raise ConflictError(
            f"the head of thread {version.thread_id!r} is {now!r}, not {seen}; nothing was saved. "
            "Look at the newer versions first",
            head_id=now,
            parent_id=version.checkpoint_id,
        )
