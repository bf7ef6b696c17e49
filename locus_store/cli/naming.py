"""Ids that a person types: unique prefixes, and suggestions for misspelt ones."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING

from locus_store.errors import NotFoundError
from locus_store.types.arguments import check_names, did_you_mean

if TYPE_CHECKING:
    from locus_store.backend import FullBackend

NEARBY = 1000
"""Threads and versions among which similar ids are looked for."""

NAMED = 5
"""Ids that an error names."""


async def thread_named(backend: FullBackend, typed: str, *, exactly: bool = False) -> str:
    """Return the id of the thread that is named so, or whose id alone begins so.

    Args:
        backend: The storage.
        typed: The id, or the beginning of one.
        exactly: A beginning is not enough.

    Raises:
        NotFoundError: Several ids begin so, or a similar one exists.
    """
    check_names(typed, "")
    if await backend.exists(typed) or not backend.capabilities.list_threads:
        return typed
    if backend.capabilities.branching and await backend.read_thread(typed) is not None:
        return typed  # it has pending writes only
    begin = await backend.list_threads(NAMED, f"{glob.escape(typed)}*")
    if len(begin) == 1 and not exactly:
        return begin[0]
    if begin and not exactly:
        raise _ambiguous("thread", typed, begin)
    similar = did_you_mean(typed, begin or await backend.list_threads(NEARBY))
    if similar:
        raise NotFoundError(f"there is no thread {typed!r}{similar}")
    return typed


async def version_named(
    backend: FullBackend, thread: str, typed: str | None, namespace: str = ""
) -> str | None:
    """Return the id of the version that is named so, or whose id alone begins so.

    Raises:
        NotFoundError: Several ids begin so.
    """
    if typed is None:
        return None
    check_names(thread, namespace, typed)
    if await backend.version(thread, typed, namespace=namespace) is not None:
        return typed
    page = await backend.history(thread, namespace=namespace, limit=NEARBY)
    found: list[str] = []
    while page:
        found += [it.checkpoint_id for it in page if it.checkpoint_id.startswith(typed)]
        before = page[-1].checkpoint_id
        page = await backend.history(thread, namespace=namespace, limit=NEARBY, before=before)
    if len(found) > 1:
        raise _ambiguous("version", typed, found)
    return found[0] if found else typed


def _ambiguous(what: str, typed: str, found: list[str]) -> NotFoundError:
    more = ", …" if len(found) > NAMED else ""
    names = ", ".join(map(repr, found[:NAMED]))
    return NotFoundError(f"several {what}s begin with {typed!r}: {names}{more}")
