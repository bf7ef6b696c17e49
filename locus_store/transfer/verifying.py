"""Whether everything that is stored is what was saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from locus_store.archives import Problem, problems
from locus_store.errors import IntegrityError
from locus_store.transfer.archive import all_threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from locus_store.backends.base import StorageBackend


@dataclass(frozen=True, slots=True)
class Checked:
    """A thread that was looked at."""

    thread_id: str
    versions: int
    """How many, those that ``keep_last`` hides among them."""


async def verify(
    backend: StorageBackend, thread_ids: Iterable[str] | None = None
) -> AsyncIterator[Problem | Checked]:
    """Read threads and fold each of their versions; without ids all, and the storage itself.

    Found are: any flipped, lost or added byte of a stored version or pending write; versions that
    do not give the state whose digest was stored; heads, parents and chains that are not there;
    rows that belong to nothing. Not found is what was changed as if by a user: another text in a
    version's metadata, or a version deleted with all that points to it.
    """
    if thread_ids is None:
        try:
            damage = await backend.damage()
        except IntegrityError as exc:
            damage = [str(exc)]
        for what in damage:
            yield Problem(thread_id=None, what=what)
        try:
            async for thread_id in all_threads(backend):
                async for it in _of_thread(backend, thread_id):
                    yield it
        except IntegrityError as exc:  # not even their names can be read
            yield Problem(thread_id=None, what=f"not all threads could be listed: {exc}")
        return
    for thread_id in thread_ids:
        async for it in _of_thread(backend, thread_id):
            yield it


async def _of_thread(backend: StorageBackend, thread_id: str) -> AsyncIterator[Problem | Checked]:
    try:
        thread = await backend.read_thread(thread_id)
    except IntegrityError as exc:
        yield Problem(thread_id=thread_id, what=str(exc))
        return
    if thread is None:
        return
    for problem in problems(thread):
        yield problem
    yield Checked(thread_id, sum(len(it.records) for it in thread.lines))
