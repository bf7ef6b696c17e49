"""The result of a transfer."""

from __future__ import annotations

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

Progress = Callable[[str, bool], None]
"""Called after each thread with its id, and whether it was written (else it was there)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of threads that were written, and that already existed with the same versions."""

    written: int = 0
    same: int = 0


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
        self._counts = Counts()
        self._failed: dict[tuple[str | None, str], LocusStoreError] = {}

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
            done = self._counts
            self._counts = Counts(done.written + is_new, done.same + (not is_new))
            if self._progress:
                self._progress(thread_id, is_new)

    def refuse(self, thread_id: str, exc: LocusStoreError, tenant: str | None) -> None:
        """Keep the error of a thread."""
        self._failed[tenant, thread_id] = exc
        step()

    def finish(self, source: str = "") -> Counts:
        """Return the counts.

        Raises:
            LocusStoreError: The first error, with the names of all threads that had one.
        """
        if not self._failed:
            return self._counts
        (first, exc), *more = self._failed.items()
        text = f"{source + ', ' if source else ''}thread {_format_name(first)}: {exc}"
        if more:
            names = ", ".join(_format_name(name) for name, _ in more[:_NAMED])
            dots = ", …" if len(more) > _NAMED else ""
            text += f". Nor were {len(more)} others: {names}{dots}"
        done = self._counts
        kind = EncryptionError if isinstance(exc, EncryptionError) else type(exc)
        raise kind(
            f"{text}. Of the others {done.written} were written, {done.same} were there"
        ) from exc


def _format_name(name: tuple[str | None, str]) -> str:
    tenant, thread_id = name
    return repr(thread_id) if tenant is None else f"{thread_id!r} of tenant {tenant!r}"
