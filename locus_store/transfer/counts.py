"""The result of a transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from locus_store.errors import (
    ConflictError,
    EncryptionError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    NotFoundError,
    SerializationError,
)
from locus_store.runtime.progress import step
from locus_store.types.items import Name

Progress = Callable[[str, bool], None]
"""Called after each thread with its id, and whether it was written (else it was there)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of threads that were written, and that already existed with the same versions.

    And of items of a store, where they are part of the transfer.
    """

    written: int = 0
    same: int = 0
    items_written: int = 0
    items_same: int = 0


_OF_A_THREAD = (
    ConflictError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    SerializationError,
)
"""Errors that concern one thread and do not stop the others."""

_NAMED = 20
"""The number of threads that an error names at most."""


class Tally:
    """Counts threads, and collects the errors of threads that could not be imported.

    Args:
        progress: See ``Progress``.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._counts: Counter[str] = Counter()
        self._failed: dict[str, LocusStoreError] = {}

    async def add(
        self, thread_id: str, taking: Awaitable[bool | None], *, tenant: str | None = None
    ) -> None:
        """Import one thread and count it; ``None`` means that it no longer exists."""
        try:
            is_new = await taking
        except _OF_A_THREAD as exc:
            self.refuse(thread_id, exc, tenant)
            return
        if is_new is not None:
            self._counts["written" if is_new else "same"] += 1
            if self._progress:
                self._progress(thread_id, is_new)

    async def add_item(
        self, name: Name, taking: Awaitable[bool | None], *, tenant: str | None = None
    ) -> None:
        """Import one item of a store and count it; ``None`` means that it no longer exists."""
        try:
            is_new = await taking
        except _OF_A_THREAD as exc:
            self.refuse_item(name, exc, tenant)
            return
        if is_new is not None:
            self._counts["items_written" if is_new else "items_same"] += 1
        step()

    def refuse(self, thread_id: str, exc: LocusStoreError, tenant: str | None) -> None:
        """Keep the error of a thread."""
        self._refuse(f"thread {thread_id!r}", exc, tenant)

    def refuse_item(self, name: Name, exc: LocusStoreError, tenant: str | None) -> None:
        """Keep the error of an item."""
        self._refuse(f"item {name[1]!r} of namespace {name[0]!r}", exc, tenant)

    def _refuse(self, what: str, exc: LocusStoreError, tenant: str | None) -> None:
        self._failed[what if tenant is None else f"{what} of tenant {tenant!r}"] = exc
        step()

    def finish(self, source: str = "") -> Counts:
        """Return the counts.

        Raises:
            LocusStoreError: The first error, with the names of all threads that had one.
        """
        done = Counts(**self._counts)
        if not self._failed:
            return done
        (first, exc), *more = self._failed.items()
        text = f"{source + ', ' if source else ''}{first}: {exc}"
        if more:
            names = ", ".join(name for name, _ in more[:_NAMED])
            dots = ", …" if len(more) > _NAMED else ""
            text += f". Nor were {len(more)} others: {names}{dots}"
        written, same = done.written + done.items_written, done.same + done.items_same
        kind = EncryptionError if isinstance(exc, EncryptionError) else type(exc)
        raise kind(f"{text}. Of the others {written} were written, {same} were there") from exc
