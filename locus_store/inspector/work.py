"""Work in threads: states and the origins of their values, read once for several viewers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Any, Final, TypeVar

from locus_store.backend import StorageBackend
from locus_store.errors import BackendError, LocusStoreError
from locus_store.inspector.bounds import make_row
from locus_store.runtime.recent import Recent
from locus_store.service.exchange import RefusalError
from locus_store.timeline.blame import Blame, Blamed, Origin, blame
from locus_store.timeline.changes import PARENTS, BriefChanges, describe_versions
from locus_store.timeline.graph import (
    Node,
    Writers,
    find_channel,
    find_steps,
    find_writers,
    list_nodes,
    measure_stored,
    name_nodes,
)
from locus_store.timeline.paths import Query, Step, parse_path
from locus_store.timeline.rewind import is_rewound
from locus_store.types import Mark, Version
from locus_store.versions import decode_state_alone
from locus_store.versions.sizes import MeasuresVersions

T = TypeVar("T")

AT_ONCE: Final = 2
SECONDS: Final = 30.0


class Jobs:
    """Runs heavy work.

    Args:
        seconds: The time of one job, without the wait for its turn.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._gate = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def wait_for_turn(self) -> AsyncIterator[Step]:
        """Wait for a turn; yield the function that ends the job when its time is over."""
        async with self._gate, self._limit_time() as step:
            yield step

    @asynccontextmanager
    async def _limit_time(self) -> AsyncIterator[Step]:
        end = monotonic() + self._seconds

        def step() -> None:
            if monotonic() > end:
                message = f"this page took longer than {self._seconds:g} seconds and was stopped; "
                message += "the command line has no limit of time"
                raise RefusalError(503, BackendError(message))

        try:
            async with asyncio.timeout(self._seconds + 1):
                yield step
        except TimeoutError:
            end = -inf
            step()
        finally:
            end = -inf

    async def run(self, work: Callable[[Step], T]) -> T:
        """Return the result of work in a thread; the turn ends with the thread.

        Args:
            work: Calls the function that it is given often: it ends the work of a caller who left.
        """
        await self._gate.acquire()
        async with self._limit_time() as step:
            thread = asyncio.get_running_loop().run_in_executor(None, work, step)
            thread.add_done_callback(self._finish)
            await asyncio.wait({thread})
            return thread.result()

    def _finish(self, thread: asyncio.Future[Any]) -> None:
        self._gate.release()
        if not thread.cancelled():
            thread.exception()  # read here: the caller may have left


_BYTES: Final = 64_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """A version with its state, which no page changes."""

    version: Version
    state: dict[str, Any]
    size: int
    """Bytes of the state as JSON."""


class States:
    """The states that pages looked at last. A version is never stored in another form.

    Args:
        jobs: Reading a state is a heavy job.
        most_bytes: Of all states as JSON; the newest one is kept whatever its size.
    """

    def __init__(self, jobs: Jobs, most_bytes: int = _BYTES) -> None:
        self._jobs = jobs
        self._kept: Recent[tuple[str | None, Mark], Seen] = Recent(most_bytes, keeps_last=True)
        self._readings: dict[tuple[str | None, Mark], asyncio.Task[Seen | None]] = {}
        self._waiting: Counter[asyncio.Task[Seen | None]] = Counter()

    async def read(
        self, backend: StorageBackend, thread: str, version: str | None, namespace: str
    ) -> Seen | None:
        """Return a version with its state, or the head; ``None`` if it does not exist."""
        found = await backend.version(thread, version, namespace=namespace)
        if found is None:
            return None
        key = backend.tenant, found.mark
        if seen := self._kept.get(key):
            return seen
        if key not in self._readings:
            self._readings[key] = asyncio.create_task(self._read(backend, found))
        reading = self._readings[key]
        self._waiting[reading] += 1
        try:
            await asyncio.wait({reading})
            return reading.result()
        finally:
            self._waiting[reading] -= 1
            if not self._waiting[reading]:  # the last that waits for it has left
                reading.cancel()
                del self._waiting[reading], self._readings[key]

    async def _read(self, backend: StorageBackend, version: Version) -> Seen | None:
        thread, name = version.thread_id, version.checkpoint_id
        async with self._jobs.wait_for_turn():
            stored = await backend.fetch(thread, namespace=version.namespace, checkpoint_id=name)
            if stored is None:
                return None
            state, size = await asyncio.to_thread(
                decode_state_alone, stored, backend.max_state_bytes, backend.is_digest_of
            )
            seen = Seen(stored.version, state, size)
        self._kept.put((backend.tenant, seen.version.mark), seen, seen.size)
        return seen


KEPT: Final = 4
"""Versions whose origins are kept."""


class Blames:
    """The origins of the versions that pages asked about last."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._kept: Recent[tuple[str | None, Mark], Blame] = Recent(KEPT)
        """Without the states, which are at hand."""

    async def find(
        self, backend: StorageBackend, snapshot: Seen, path: Query
    ) -> dict[str, Any] | None:
        """Return the versions that a value came with (``made``), and that changed it last.

        ``None`` if the value does not exist any more.

        Raises:
            RefusalError: It took too long.
            UnsupportedError: The backend does not list what its versions are made of.
        """
        found = await self._blame(backend, snapshot)
        value = found.find(path) if found else None
        if value is None:
            return None
        steps = {"made": value.made, "changed": value.changed}
        tasks = await find_writers(backend, [it.version for it in steps.values()])
        return {name: _make_origin_row(value, it, tasks) for name, it in steps.items()}

    async def find_all(
        self, backend: StorageBackend, current: Seen, places: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the versions that changed values last, by their paths; see ``find``."""
        found = await self._blame(backend, current)
        values = {it: found.find(parse_path(it)) for it in places} if found else {}
        there = {name: it for name, it in values.items() if it is not None}
        versions = {it.changed.version.mark: it.changed.version for it in there.values()}
        tasks = await find_writers(backend, list(versions.values()))
        return {name: _make_origin_row(it, it.changed, tasks) for name, it in there.items()}

    async def _blame(self, backend: StorageBackend, snapshot: Seen) -> Blame | None:
        version = snapshot.version
        key = backend.tenant, version.mark
        found = self._kept.get(key)
        if found is None:
            async with self._jobs.wait_for_turn() as step:
                found = await blame(
                    backend,
                    version.thread_id,
                    version.checkpoint_id,
                    namespace=version.namespace,
                    step=step,
                )
            if found is None or found.version.mark != version.mark:
                return None
            self._kept.put(key, replace(found, state={}))
        return replace(found, state=snapshot.state)


KEPT_CHANGES: Final = 5_000
"""Versions whose one-line changes are kept."""

WAIT: Final = 2.0
"""Seconds that a list waits for the changes of its versions."""

READ_BYTES: Final = 16_000_000
"""Stored bytes of the versions of a page that their changes are read from."""


@dataclass(frozen=True, slots=True)
class Described:
    """The nodes that made a version, and its changes."""

    nodes: list[str]
    """See ``timeline.graph.name_nodes``."""

    changes: BriefChanges | None
    """``None``: not known."""

    is_interrupted: bool
    """A task of it waited for an answer, or waits."""

    rewound_to: str | None
    """Its parent, which a rewind saved again as this version."""


class Descriptions:
    """The one-line changes of the versions that pages listed last, which never change."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._kept: Recent[tuple[str | None, Mark], BriefChanges] = Recent(KEPT_CHANGES)

    async def find(
        self, backend: StorageBackend, versions: Sequence[Version]
    ) -> tuple[dict[str, Described], str | None]:
        """Return what made versions of one line and what they changed, by their checkpoint ids.

        The second value is the reason why some changes are not known.
        """
        reason: str | None = None
        missing = [it for it in versions if self._kept.get((backend.tenant, it.mark)) is None]
        writers = Writers()
        stopped: set[str] = set()
        rewound: set[str] = set()
        try:
            await _require_few_bytes(backend, missing)
            writers, stopped = await find_steps(backend, versions)
            async with asyncio.timeout(WAIT), self._jobs.wait_for_turn() as step:
                found = await describe_versions(backend, missing, step=step)
            for version in missing:
                if changes := found.get(version.checkpoint_id):
                    self._kept.put((backend.tenant, version.mark), changes)
            known = ((it, self._kept.get((backend.tenant, it.mark))) for it in versions)
            same = [version for version, changes in known if changes == BriefChanges()]
            rewound = await _find_rewound(backend, versions, same)
        except TimeoutError:
            reason = f"they took longer than {WAIT:g} seconds"
        except (RefusalError, LocusStoreError) as exc:
            reason = str(exc)
        return {
            (name := version.checkpoint_id): Described(
                ["rewind"] if name in rewound else name_nodes(version, writers),
                self._kept.get((backend.tenant, version.mark)),
                name in stopped,
                version.parent_id if name in rewound else None,
            )
            for version in versions
        }, reason


async def _find_rewound(
    backend: StorageBackend, versions: Sequence[Version], same: list[Version]
) -> set[str]:
    """Return the ids of those with the states of their parents that rewinds saved."""
    known: dict[str | None, Version | None] = {it.checkpoint_id: it for it in versions}
    found = set()
    for version in same:
        name = version.parent_id
        if name and name not in known and len(known) < len(versions) + PARENTS:
            known[name] = await backend.version(
                version.thread_id, name, namespace=version.namespace
            )
        parent = known.get(name)
        if parent is not None and is_rewound(version, parent):
            found.add(version.checkpoint_id)
    return found


async def _require_few_bytes(backend: StorageBackend, versions: Sequence[Version]) -> None:
    """Refuse to read the records of versions that are large."""
    if versions and isinstance(backend, MeasuresVersions):
        sizes = await measure_stored(backend, [Node(it, None) for it in versions])
        if (size := sum(sizes.values())) > READ_BYTES:
            raise RefusalError(413, BackendError(f"these versions have {size:,} stored bytes"))


def _make_origin_row(value: Blamed, origin: Origin, tasks: Writers) -> dict[str, Any]:
    """Return a version, with LangGraph's nodes and tasks that wrote the value."""
    channel, made = find_channel(value.path), tasks.get(origin.version.checkpoint_id, ())
    return {
        "version": make_row(origin.version),
        "is_exact": origin.is_exact,
        "nodes": list_nodes(origin.version, tasks, channel),
        "tasks": list(dict.fromkeys(it.task_id for it in made if channel in {None, it.channel})),
    }
