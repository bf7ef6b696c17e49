"""The states of many versions of a line, from one read of their records."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from locus_store.errors import IntegrityError, NotFoundError
from locus_store.runtime.loops import off_loop
from locus_store.versions.reading import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from locus_store.types import Version
    from locus_store.values import frames

T = TypeVar("T")


class Chains(Protocol):
    """The methods of a backend that this module calls."""

    @property
    def max_state_bytes(self) -> int:
        """The largest state that is read."""

    async def records(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        """Return what the states of a range of sequences are made of."""

    async def version(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: str = ""
    ) -> Version | None:
        """Return a version without its state."""


async def read_states(
    backend: Chains, versions: Sequence[Version], make: Callable[[Version, frames.Folder], T]
) -> list[T]:
    """Return the results of ``make`` for versions of one line; each chain is read once.

    See ``StoresThreads.read_states`` of ``locus_store.backend`` for arguments and errors.
    """
    if not versions:
        return []
    sequences = [it.mark.sequence for it in versions]
    records = await backend.records(
        versions[0].thread_id,
        namespace=versions[0].namespace,
        first=min(sequences),
        last=max(sequences),
    )
    return await states_from(backend, versions, {versions[0].mark.line: records}, make)


async def states_from(
    backend: Chains,
    versions: Sequence[Version],
    records: Mapping[int, Sequence[tuple[int, int, bytes]]],
    make: Callable[[Version, frames.Folder], T],
    *,
    packed: bool = False,
) -> list[T]:
    """Return what ``read_states`` does for versions of any lines, from their records by line.

    With ``packed``, MessagePack in their states stays bytes.
    """
    found = {(line, sequence) for line, some in records.items() for sequence, _, _ in some}
    missing = [it for it in versions if (it.mark.line, it.mark.sequence) not in found]
    gone = {it.mark for it in missing if not await _is_there(backend, it)}
    wanted: defaultdict[int, list[Version]] = defaultdict(list)
    for version in versions:
        if version.mark not in gone:
            wanted[version.mark.line].append(version)

    def made() -> list[T]:
        read = partial(replay, max_bytes=backend.max_state_bytes, packed=packed)
        states = {
            version.mark: make(version, folder)
            for line, some in wanted.items()
            for version, folder in read(records.get(line, ()), some)
        }
        return [states[it.mark] for it in versions if it.mark not in gone]

    size = len(versions) * sum(len(it) for some in records.values() for *_, it in some)
    try:
        return await off_loop(made, size)
    except IntegrityError as exc:
        changed = [it.thread_id for it in versions if not await _is_there(backend, it)]
        if not changed:
            raise
        raise NotFoundError(
            f"thread {changed[0]!r} was changed while it was listed; list it again"
        ) from exc


async def _is_there(backend: Chains, version: Version) -> bool:
    """Return whether the version still has this name."""
    found = await backend.version(
        version.thread_id, version.checkpoint_id, namespace=version.namespace
    )
    return found is not None and found.mark == version.mark
