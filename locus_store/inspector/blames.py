"""Blame for a page: computed once for a version, within the time of a job."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from locus_store.inspector.rows import VersionRow, row
from locus_store.timeline.blame import trace
from locus_store.timeline.graph import channel_of, writers

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend
    from locus_store.inspector.states import Seen
    from locus_store.inspector.work import Jobs
    from locus_store.timeline.blame import Blamed, Origin, Trace
    from locus_store.timeline.graph import Writer
    from locus_store.timeline.paths import Query
    from locus_store.types import Mark

KEPT: Final = 4
"""Versions whose origins are kept."""


@dataclass(frozen=True, slots=True)
class OriginRow:
    """The version that a value came with, or that changed it last."""

    version: VersionRow
    is_exact: bool
    nodes: list[str]
    """Of LangGraph, whose tasks wrote it."""

    tasks: list[str]


@dataclass(frozen=True, slots=True)
class BlameRow:
    """The origin of a value."""

    made: OriginRow
    changed: OriginRow


class Blames:
    """The origins of the versions that pages asked about last."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._kept: OrderedDict[tuple[str | None, Mark], Trace] = OrderedDict()

    async def of(self, backend: StorageBackend, seen: Seen, path: Query) -> BlameRow | None:
        """Return the origin of a value; ``None`` if it does not exist any more.

        Raises:
            RefusalError: It took too long.
            UnsupportedError: The backend does not list what its versions are made of.
        """
        found = await self._trace(backend, seen)
        value = found.of(seen.state).of(path) if found else None
        if value is None:
            return None
        steps = (value.made, value.changed)
        tasks = await writers(backend, [it.version for it in steps])
        made, changed = (_origin_row(value, it, tasks) for it in steps)
        return BlameRow(made, changed)

    async def _trace(self, backend: StorageBackend, seen: Seen) -> Trace | None:
        version = seen.version
        key = backend.tenant, version.mark
        found = self._kept.get(key)
        if found is None:
            async with self._jobs.paced() as pace:
                found = await trace(
                    backend,
                    version.thread_id,
                    version.checkpoint_id,
                    namespace=version.namespace,
                    step=pace.step,
                )
            if found is None or found.version.mark != version.mark:
                return None
            self._kept[key] = found
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found


def _origin_row(value: Blamed, origin: Origin, tasks: dict[str, list[Writer]]) -> OriginRow:
    channel = channel_of(value.path)
    made = tasks.get(origin.version.checkpoint_id, ())
    found = [it for it in made if channel in {None, it.channel}]
    return OriginRow(
        row(origin.version),
        origin.is_exact,
        list(dict.fromkeys(it.node for it in found if it.node is not None)),
        list(dict.fromkeys(it.task_id for it in found)),
    )
