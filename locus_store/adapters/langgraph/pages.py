"""The versions of a line, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from locus_store.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from locus_store.backends.base import StorageBackend
    from locus_store.types import Version

PAGE: Final = 250
"""Versions that are read at once."""


async def ancestors(backend: StorageBackend, target: Version | None) -> AsyncIterator[Version]:
    """The versions that one was made from, the nearest first."""
    known: dict[str, Version] = {}
    at, before, is_all = (
        (target.parent_id, target.checkpoint_id, False) if target else ("", "", True)
    )
    while at:
        while at not in known and not is_all and target:
            page = await backend.history(
                target.thread_id, namespace=target.namespace, limit=PAGE, before=before
            )
            known |= {it.checkpoint_id: it for it in page}
            before, is_all = (page[-1].checkpoint_id if page else before), len(page) < PAGE
        version = known.pop(at, None)
        if version is None:
            return
        yield version
        at = version.parent_id or ""


class Line:
    """The versions of a line, newest first, a page at a time.

    Args:
        backend: Where.
        thread_id: The thread.
        namespace: The line's name.
        before: Only those below this id, by the line's order or, where it is another line's, by
            the ids.
    """

    def __init__(
        self, backend: StorageBackend, thread_id: str, namespace: str, before: str | None
    ) -> None:
        self._backend = backend
        self._where = thread_id, namespace
        self._before = before
        self._below: str | None = None
        self._is_over = False

    async def page(self, size: int) -> list[Version]:
        """The next ones; none at the end."""
        found: list[Version] = []
        while not found and not self._is_over:
            page = await self._next(size)
            self._is_over = len(page) < size
            self._before = page[-1].checkpoint_id if page else None
            found = [it for it in page if self._below is None or it.checkpoint_id < self._below]
        return found

    async def _next(self, size: int) -> list[Version]:
        thread_id, namespace = self._where
        before = None if self._before is None else str(self._before)
        try:
            return await self._backend.history(
                thread_id, namespace=namespace, limit=size, before=before
            )
        except NotFoundError:
            if self._below is not None or before is None:
                raise
            self._below = before
            return await self._backend.history(thread_id, namespace=namespace, limit=size)
