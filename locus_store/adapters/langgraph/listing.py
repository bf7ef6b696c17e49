"""Lists of checkpoints, by time over lines and threads; delta channels; and times to live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory

from locus_store.adapters.langgraph.loads import GivenIds, get_checkpoint_id, parse_config
from locus_store.adapters.langgraph.values import ChannelValues, StateHistory, is_checkpoint
from locus_store.backend import FullBackend, ListsVersions, StorageBackend
from locus_store.errors import InvalidArgumentError, NotFoundError
from locus_store.saver import make_line_name
from locus_store.timeline.ancestry import read_line
from locus_store.types import LineContents, PendingWrite, Version, VersionsWanted
from locus_store.types.arguments import (
    MAX_COUNT,
    check_limit,
    check_mapping,
    check_number,
    check_text,
)
from locus_store.values.filters import holds
from locus_store.values.frames import Folder
from locus_store.values.surrogates import escape
from locus_store.versions import CHANNELS, REBUILT, expand_write, select_current
from locus_store.versions.reading import read_states_from

PAGE: Final = 250
"""Versions that are read at once."""

FIRST_PAGE: Final = 32
"""Versions that are read at first for a filter that the database knows, at least."""

GROWTH: Final = 4
"""Each further page of versions by time is larger by this factor."""

MOST_LISTED: Final = 10_000
"""Versions of many lines that one statement lists."""

_EXACT: Final = 2**53
"""Integers below this are the same in every JSON library."""

_MAX_KEY_CHARACTERS: Final = 2**20
"""The longest key of a filter; in practice no metadata key is longer."""


async def iterate_ancestors(
    backend: StorageBackend, target: Version | None
) -> AsyncIterator[Version]:
    """Yield a version's ancestors, the nearest first."""
    at = target and target.parent_id
    if target is None or at is None:
        return
    place = target.thread_id, target.namespace, target.checkpoint_id
    async for version in read_line(backend, *place, size=PAGE):
        if version.checkpoint_id == at:
            yield version
            at = version.parent_id
        if at is None:
            return


async def iterate_line(
    backend: StorageBackend, thread_id: str, namespace: str, before: str | None, size: int
) -> AsyncIterator[list[Version]]:
    """Yield the versions of a line, newest first by the order of its saves.

    Args:
        backend: The storage.
        thread_id: The thread.
        namespace: The namespace.
        before: Only versions below this id: by the line's order, or by ids if it is not there.
        size: Versions to read at once.
    """
    below: str | None = None
    while True:
        try:
            page = await backend.history(thread_id, namespace=namespace, limit=size, before=before)
        except NotFoundError:
            if below is not None or before is None:
                raise
            below, before = before, None
            continue
        yield [it for it in page if below is None or it.checkpoint_id < below]
        if len(page) < size:
            return
        before = page[-1].checkpoint_id


async def iterate_pages(
    backend: ListsVersions, query: VersionsWanted, size: int
) -> AsyncIterator[list[Version]]:
    """Yield the wanted versions, newest first; each page but the first is larger."""
    while page := await backend.newest(query, size):
        yield page
        if len(page) < size:
            return
        query, size = replace(query, after=page[-1], may_continue=True), size * GROWTH


def group_by_database(versions: Iterable[Version]) -> Iterable[list[Version]]:
    """Return versions by the database that counts their lines; there are several in shards."""
    groups: dict[str, list[Version]] = {}
    for version in versions:
        groups.setdefault(version.mark.store, []).append(version)
    return groups.values()


Maker: TypeAlias = Callable[[], CheckpointTuple]
Write: TypeAlias = tuple[str, str, Any]
"""Task, channel and value of a pending write."""


@dataclass(frozen=True, slots=True)
class CheckpointLists:
    """The checkpoints of a saver as lists."""

    backend: FullBackend
    values: ChannelValues
    given: GivenIds
    """Remembers the ids that a list returns."""

    make_tuple: Callable[[Version, str, dict[str, Any], list[Write]], CheckpointTuple]
    write_of: Callable[[PendingWrite, Mapping[str, Any]], Write]
    """Returns the pending write of a stored one."""

    shares: bool
    """A message that several checkpoints have is one object in all of them."""

    async def iterate_pages(
        self,
        config: RunnableConfig | None,
        criteria: Mapping[str, Any],
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncIterator[list[Maker]]:
        for name in check_mapping("filter", criteria):
            check_text("a filter's key", name, minimum=0, maximum=_MAX_KEY_CHARACTERS)
        left = MAX_COUNT if limit is None else check_limit(limit)
        below = get_checkpoint_id(before) if before else None
        if not left:
            return
        async for listed in self._find_pages(config, criteria, below, limit):
            read = self.values.read_fields
            found = [it for it in listed if not criteria or holds(read(it.metadata), criteria)]
            while found and left > 0:
                some, found = found[: min(left, PAGE)], found[min(left, PAGE) :]
                if makers := await self._read(some, skips_others=config is None):
                    left -= len(makers)
                    yield makers
            if left <= 0:
                break

    def _find_pages(
        self,
        config: RunnableConfig | None,
        criteria: Mapping[str, Any],
        before: str | None,
        limit: int | None,
    ) -> AsyncIterator[list[Version]]:
        """Return the pages of a list, by time; those of a whole namespace by its own order."""
        thread_id, _, checkpoint_id = parse_config(config) if config else (None, "", None)
        name = config["configurable"].get("checkpoint_ns") if config else None
        namespace = None if name is None else make_line_name(name)
        size = MAX_COUNT if limit is None else limit
        if thread_id is not None and namespace is not None and not (criteria or checkpoint_id):
            return iterate_line(self.backend, thread_id, namespace, before, min(size, PAGE))
        hints = tuple(self._iterate_hints(criteria))
        listed = VersionsWanted(
            thread_id=thread_id,
            namespace=namespace,
            checkpoint_id=checkpoint_id,
            before=before,
            metadata=hints,
            may_continue=bool(criteria) or (not config and limit is None),
        )
        size = min(size, MOST_LISTED)
        if criteria:
            size = PAGE if len(hints) < len(criteria) else min(PAGE, max(FIRST_PAGE, size))
        return iterate_pages(self.backend, listed, size)

    def _iterate_hints(self, criteria: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the equalities of a filter that hold for the stored metadata too."""
        for name, value in criteria.items():
            is_plain = isinstance(value, (bool, str)) or type(value) is int
            is_key = bool(name) and "." not in name
            if is_key and is_plain and (isinstance(value, str) or abs(value) < _EXACT):
                stored = self.values.convert_metadata({name: value})[name]
                if type(stored) is type(value):
                    yield escape(name), escape(stored) if isinstance(stored, str) else stored

    async def _read(self, versions: list[Version], *, skips_others: bool) -> list[Maker]:
        """Return the makers of the versions' tuples, one for each and in their order.

        With ``skips_others``, a thread that is not LangGraph's is passed over, not refused.
        """
        backend, made = self.backend, dict[int, Maker | None]()
        for some in group_by_database(versions):
            lines = {it.line: it for it in await backend.contents(some)}
            records = {at: it.records for at, it in lines.items()}
            reading = self._prepare(lines, skips_others=skips_others)
            made.update(await read_states_from(backend, some, records, reading, packed=True))
        return [make for it in versions if (make := made.get(id(it)))]

    def _prepare(
        self, lines: Mapping[int, LineContents], *, skips_others: bool
    ) -> Callable[[Version, Folder], tuple[int, Maker | None]]:
        """Return the function that gives the ``id`` of a version and the maker of its tuple."""
        of_chain = partial(StateHistory, self.values, shares=self.shares)
        histories: defaultdict[Folder, StateHistory] = defaultdict(of_chain)

        def read(version: Version, folder: Folder) -> tuple[int, Maker | None]:
            state, writes = folder.get_state(), lines[version.mark.line].writes
            if skips_others and not is_checkpoint(state):
                return id(version), None
            shown = select_current(writes.get(version.checkpoint_id, []), version.mark.sequence)
            pending = [self.write_of(it, state) for it in shown]
            name = self.given.give(version.checkpoint_id, None)
            make = histories[folder].read(version, state, folder.log or [])
            return id(version), lambda: self.make_tuple(version, name, make(), pending)

        return read


_KNOWN: Final = ("default_ttl", "refresh_on_read")


def make_ttl_options(ttl: Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a saver for ``ttl={"default_ttl": minutes, "refresh_on_read": True}``.

    Raises:
        InvalidArgumentError: It has another key, or an option says the same.
    """
    if ttl is None:
        return {}
    for key in ttl if isinstance(ttl, Mapping) else [ttl]:
        if key not in _KNOWN:
            raise InvalidArgumentError(f"ttl= takes {', '.join(_KNOWN)}, not {key!r}")
    for name in ("ttl_seconds", "refresh_on_read"):
        if name in options:
            raise InvalidArgumentError(f"give ttl= or {name}=, not both")
    minutes = check_number("default_ttl, in minutes,", ttl.get("default_ttl"), optional=True)
    return {
        "ttl_seconds": None if minutes is None else minutes * 60,
        "refresh_on_read": ttl.get("refresh_on_read", False),
    }


Path: TypeAlias = "list[str]"


@dataclass(frozen=True, slots=True)
class DeltaHistories:
    """Reads what delta channels are rebuilt from: an ancestor's value, and the later writes."""

    backend: FullBackend
    values: ChannelValues
    write_of: Callable[[PendingWrite, Mapping[str, Any]], Write]
    """Returns the pending write of a stored one."""

    async def read(
        self, place: tuple[str, str, str | None], channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """Return the history of each channel at a checkpoint (thread, namespace, id)."""
        thread_id, checkpoint_ns, checkpoint_id = place
        backend, line = self.backend, make_line_name(checkpoint_ns)
        target = await backend.version(thread_id, checkpoint_id, namespace=line)
        seeds: dict[str, Any] = {}
        path: Path = []
        ends: dict[str, int] = {}
        async for version in iterate_ancestors(backend, target):
            missing = [it for it in channels if it not in seeds]
            if not missing:
                break
            path.append(version.checkpoint_id)
            if any(it not in version.labels.get(REBUILT, ()) for it in missing):
                found = await backend.read_kept(thread_id, version.checkpoint_id, namespace=line)
                state: Mapping[str, Any] = found.snapshot.to_state() if found else {}
                values = state.get(CHANNELS, {})
                seeds |= {it: self.values.read(values[it]) for it in missing if it in values}
            ends |= dict.fromkeys(missing, len(path))
        on_path = {it: path[: ends.get(it, 0)][::-1] for it in channels}
        return await self._read_histories(thread_id, line, on_path, seeds)

    async def _read_histories(
        self, thread_id: str, namespace: str, path: Mapping[str, Path], seeds: Mapping[str, Any]
    ) -> dict[str, DeltaChannelHistory]:
        ids: Path = max(path.values(), key=len, default=[])
        writes = await self.backend.writes_of(thread_id, ids, namespace=namespace)
        histories: dict[str, DeltaChannelHistory] = {}
        for name, on_path in path.items():
            found = [
                self.write_of(whole, {})
                for of in on_path
                for write in writes.get(of, [])
                if write.channel == name
                and (whole := await self._expand(thread_id, namespace, of, write)) is not None
            ]
            histories[name] = {"writes": found}
            if name in seeds:
                histories[name]["seed"] = seeds[name]
        return histories

    async def _expand(
        self, thread_id: str, namespace: str, checkpoint_id: str, write: PendingWrite
    ) -> PendingWrite | None:
        """Return the write without frames; ``None`` for a write left behind by another version."""
        if write.basis is None:
            return write
        found = await self.backend.read_kept(thread_id, checkpoint_id, namespace=namespace)
        if found is None or not select_current([write], found.version.mark.sequence):
            return None
        return expand_write(write, found.snapshot.to_state(), self.backend.max_state_bytes)


async def remove_ended_calls(backend: FullBackend, thread_id: str) -> None:
    """Remove the namespaces of a thread's calls of subgraphs whose root checkpoint was removed.

    Those of calls that are over are older than each root checkpoint that is left, and so is the id
    of their root; others may be of one that is not saved yet. A subgraph with a memory of its own
    has no task in its namespace's name, and stays.
    """
    lines = defaultdict(list)
    for version in await backend.newest(VersionsWanted(thread_id=thread_id), MAX_COUNT):
        lines[version.namespace].append(version)
    roots = lines.pop("", [])
    kept = [None, *(it.checkpoint_id for it in roots)]
    for name, found in lines.items():
        parents = found[0].metadata.get("parents")
        root = parents.get("") if isinstance(parents, dict) and ":" in name else None
        is_over = bool(roots) and found[0].created_at < roots[-1].created_at
        if root not in kept and is_over and str(root) < roots[-1].checkpoint_id:
            await backend.remove(thread_id, [it.checkpoint_id for it in found], namespace=name)
