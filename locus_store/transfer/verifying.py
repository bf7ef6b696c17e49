"""Verification of all stored data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from locus_store.backend import StorageBackend, StoresThreads, needs
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    SchemaError,
    UnsupportedError,
)
from locus_store.transfer.archive import all_threads
from locus_store.versions.archives import Problem, find_problems

DAMAGE = (IntegrityError, BackendError, TypeError, ValueError)
"""Errors that damaged rows may cause; a value of another type fails in unforeseen places."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A verified thread."""

    thread_id: str
    versions: int
    """The number of versions, including those that ``keep_last`` hides."""


async def verify(
    backend: StorageBackend, thread_ids: Iterable[str] | None = None, *, storage: bool = True
) -> AsyncIterator[Problem | Checked]:
    """Read a tenant's threads and fold each of their versions; without ids all, and the storage.

    ``storage=False`` leaves the storage's own check out, which concerns all tenants: do it once,
    where several tenants are verified.

    Found are: any flipped, lost or added byte of a stored version or pending write; versions that
    do not give the state whose digest was stored; heads, parents and chains that are not there;
    rows that belong to nothing. Not found is what was changed as if by a user: another text in a
    version's metadata, another parent or id that could have been, versions that were exchanged
    together with their digests, a version or pending write that was removed without a trace.
    """
    backend = needs(backend, StoresThreads)
    if thread_ids is None:
        damage = await _find_damage(backend) if storage else []
        for what in damage:
            yield Problem(thread_id=None, what=what)
        try:
            async for thread_id in all_threads(backend):
                async for finding in _check_thread(backend, thread_id):
                    yield finding
        except DAMAGE as exc:  # not even their names can be read
            if str(exc) not in damage:
                yield Problem(thread_id=None, what=f"not all threads could be listed: {exc}")
        return
    for thread_id in thread_ids:
        async for finding in _check_thread(backend, thread_id):
            yield finding


async def _find_damage(backend: StorageBackend) -> list[str]:
    try:
        return await backend.damage()
    except UnsupportedError as exc:
        raise UnsupportedError(
            f"{exc}; the check of the storage needs it: name threads to verify them alone"
        ) from exc
    except DAMAGE as exc:
        return [str(exc)]


async def _check_thread(backend: StoresThreads, thread_id: str) -> AsyncIterator[Problem | Checked]:
    try:
        thread = await backend.read_thread(thread_id)
    except DAMAGE as exc:
        yield Problem(thread_id=thread_id, what=str(exc))
        return
    except (SchemaError, ConnectionFailedError) as exc:
        await backend.scan(1)  # fails too if more than this thread is affected
        yield Problem(thread_id=thread_id, what=str(exc))
        return
    if thread is None:
        return
    for problem in await asyncio.to_thread(
        lambda: list(find_problems(thread, backend.max_state_bytes))
    ):
        yield problem
    yield Checked(thread_id, sum(len(it.records) for it in thread.lines))
