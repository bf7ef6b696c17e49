"""An ancestry: a version and its ancestors, oldest first, and their states in one pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.timeline.paths import Step
from locus_store.types import Version
from locus_store.values.frames import Folder

PAGE: Final = 500
"""Versions that are listed at once."""

READ: Final = 10_000
"""Versions whose records are in memory at once."""


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A version and its ancestors, the oldest first."""

    versions: list[Version]
    exact: list[bool]
    """``False``: a version that is not stored any more may have preceded this one, so that what
    came with this one came in or before it."""


Visitor: TypeAlias = Callable[[Version, Folder], None]
"""Takes the state of the next version; runs in a thread.

The folder's log has the operations since the version before, of the same folder.
"""


async def find_ancestry(
    backend: StorageBackend,
    thread_id: str,
    checkpoint_id: str | None = None,
    *,
    namespace: str = "",
) -> Ancestry | None:
    """Return the ancestry of a version, or of the head; ``None`` if it does not exist."""
    at = await backend.version(thread_id, checkpoint_id, namespace=namespace)
    if at is None:
        return None
    versions, exact, since = [at], [], 0
    async for version in read_line(backend, thread_id, namespace, at.checkpoint_id):
        newest = versions[-1]
        if version.checkpoint_id == newest.parent_id:
            exact.append(newest.mark.sequence - version.mark.sequence == since + 1)
            versions.append(version)
            since = 0
        else:
            since += 1
    oldest = versions[-1]
    exact.append(oldest.parent_id is None and oldest.mark.sequence == since + 1)
    return Ancestry(versions[::-1], exact[::-1])


async def read_line(
    backend: StorageBackend,
    thread_id: str,
    namespace: str,
    before: str | None = None,
    *,
    size: int = PAGE,
) -> AsyncIterator[Version]:
    """Yield the versions of a line, or those older than one, the newest first."""
    while page := await backend.history(thread_id, namespace=namespace, limit=size, before=before):
        before = page[-1].checkpoint_id
        for version in page:
            yield version


async def visit(
    backend: StorageBackend, versions: Sequence[Version], visitor: Visitor, step: Step | None = None
) -> None:
    """Call a function with the state of each version, in order.

    Args:
        backend: The storage.
        versions: In the order of an ancestry.
        visitor: Takes the states.
        step: Is called before each; what it raises ends the calculation.

    Raises:
        IntegrityError, NotFoundError: See ``StoresThreads.read_states``.
        UnsupportedError: The backend does not list what its versions are made of.
    """
    states = needs(backend, StoresThreads)

    def visited(version: Version, folder: Folder) -> None:
        if step is not None:
            step()
        visitor(version, folder)
        if folder.log:
            folder.log.clear()

    for start in range(0, len(versions), READ):
        await states.read_states(versions[start : start + READ], visited)
