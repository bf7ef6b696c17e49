"""Blame: the version that each value of a state came with."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from locus_store.timeline.layouts import CHANNELS, inside, is_bookkeeping
from locus_store.timeline.lineage import Ancestry, lineage, visit
from locus_store.timeline.origins import Origins
from locus_store.timeline.paths import Located, located

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.backend import StorageBackend
    from locus_store.timeline.layouts import Path
    from locus_store.timeline.paths import Query
    from locus_store.types import Version
    from locus_store.values.frames import Folder


@dataclass(frozen=True, slots=True)
class Origin:
    """A version that something came with."""

    version: Version
    is_exact: bool
    """``False``: in this version or before it, in one that is not stored any more."""


@dataclass(frozen=True, slots=True)
class Blamed:
    """A value of a state, and its origin."""

    path: Path
    """The stored path."""

    query: Query
    """The path in the notation of the caller: without wrappings of LangGraph."""

    value: Any
    made: Origin
    """The version that the value came with."""

    changed: Origin
    """The last version that changed anything in it; of a value without parts, as ``made``."""


class Blame:
    """The origins of all values of one version's state; see ``blame``.

    Args:
        way: The version and its ancestors.
        state: Of the version; neither copied nor changed.
        origins: Of its values.
    """

    def __init__(self, way: Ancestry, state: dict[str, Any], origins: Origins) -> None:
        self._way = way
        self._origins = origins
        self.state = state
        """The state of the version."""

    @property
    def version(self) -> Version:
        """The version whose values are explained."""
        return self._way.versions[-1]

    @property
    def way(self) -> list[Version]:
        """The version and its ancestors, the oldest first."""
        return self._way.versions

    def of(self, path: Query = ()) -> Blamed | None:
        """Return the value at a path with its origin; ``None`` if there is none."""
        found = located(self.state, path)
        return None if found is None else self._blamed(found, path)

    def parts(
        self, path: Query = (), *, limit: int = 200, start: int = 0, is_raw: bool = False
    ) -> list[Blamed]:
        """Return the values directly inside the one at a path, with their origins.

        Args:
            path: Of an object or a list.
            limit: At most this many.
            start: Leave out so many at the beginning.
            is_raw: With the wrappings of LangGraph, and the channels that only LangGraph needs.
        """
        found = located(self.state, path)
        if found is None:
            return []
        parts = islice(_parts(found, is_raw=is_raw), start, start + limit)
        return [self._blamed(it, (*path, it.path[-1])) for it in parts]

    def _blamed(self, found: Located, query: Query) -> Blamed:
        made, changed = map(self._origin, self._origins.steps(found.path))
        return Blamed(found.path, query, found.value, made, changed)

    def _origin(self, step: int) -> Origin:
        return Origin(self._way.versions[step], self._way.exact[step])


def _parts(of: Located, *, is_raw: bool) -> Iterator[Located]:
    prefix, value = ((), of.value) if is_raw else inside(of.value)
    path = (*of.path, *prefix)
    if isinstance(value, dict):
        of_graph = prefix[:1] == (CHANNELS,)
        for key, item in value.items():
            if not (of_graph and is_bookkeeping(key)):
                yield Located((*path, key), item)
    elif isinstance(value, list):
        yield from (Located((*path, at), item) for at, item in enumerate(value))


class Trace:
    """The origins of the values of one version, without its state; see ``trace``."""

    def __init__(self, way: Ancestry, origins: Origins) -> None:
        self._way = way
        self._origins = origins

    @property
    def version(self) -> Version:
        """The version whose values are explained."""
        return self._way.versions[-1]

    def of(self, state: dict[str, Any]) -> Blame:
        """Return the origins beside the values of the version's state."""
        return Blame(self._way, state, self._origins)


class _Tracer:
    """The origins of values along a lineage."""

    def __init__(self) -> None:
        self.origins = Origins()
        self._folder: Folder | None = None

    def visit(self, version: Version, folder: Folder) -> None:
        """Take the state of the next version."""
        del version
        if folder is not self._folder:
            self._cross(folder)
        if folder.log:
            folder.log.clear()
        self.origins.step += 1

    def _cross(self, folder: Folder) -> None:
        """Compare the first state of a chain with its parent's, and follow the chain."""
        if self._folder is not None:
            self.origins.compare(self.state(), folder.settled())
        self._folder = folder
        self.origins.follow(folder)

    def state(self) -> dict[str, Any]:
        """Return the newest state, and follow its chain no further."""
        folder, self._folder = self._folder, None
        if folder is None:
            return {}
        folder.watch = None  # it leads back to the folder, and would keep the state in memory
        return folder.settled()


async def blame(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str | None = None,
    *,
    namespace: str = "",
    step: Callable[[], None] | None = None,
) -> Blame | None:
    """Return the origins of the values of a version, or of the head; ``None`` if there is none.

    Reads each version on the way to it once. ``origins`` has the rules by which a value is kept
    from one version to the next. ``step`` is called before each version, in a thread; what it
    raises ends the calculation.

    Raises:
        IntegrityError, NotFoundError: See ``StoresThreads.read_states``.
        UnsupportedError: The backend does not list what its versions are made of.
    """
    found = await _traced(backend, thread_id, checkpoint_id, namespace, step)
    return None if found is None else found[0].of(found[1])


async def trace(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str | None = None,
    *,
    namespace: str = "",
    step: Callable[[], None] | None = None,
) -> Trace | None:
    """Return what ``blame`` does, without the state, for a caller who has it."""
    found = await _traced(backend, thread_id, checkpoint_id, namespace, step)
    return None if found is None else found[0]


async def _traced(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str | None,
    namespace: str,
    step: Callable[[], None] | None,
) -> tuple[Trace, dict[str, Any]] | None:
    way = await lineage(backend, thread_id, checkpoint_id, namespace=namespace)
    if way is None:
        return None
    tracer = _Tracer()
    await visit(backend, way.versions, tracer, step)
    return Trace(way, tracer.origins), tracer.state()
