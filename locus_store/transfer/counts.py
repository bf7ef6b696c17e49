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


OF_ONE = (ConflictError, IntegrityError, InvalidArgumentError, NotFoundError, SerializationError)
"""Errors that concern one thread or item and do not stop the others."""

_NAMED = 20
"""The number of threads and items that an error names at most."""


class Tally:
    """Counts threads and items, and collects the errors of those that could not be imported.

    Args:
        progress: See ``Progress``.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._counts: Counter[str] = Counter()
        self._failed: dict[str, LocusStoreError] = {}

    async def add(
        self, what: str | Name, taking: Awaitable[bool | None], *, tenant: str | None = None
    ) -> None:
        """Import and count a thread or item by its id or name; ``None``: it exists no more."""
        try:
            is_new = await taking
        except OF_ONE as exc:
            self.refuse(what, exc, tenant)
            return
        if is_new is not None:
            done = "written" if is_new else "same"
            self._counts[done if isinstance(what, str) else f"items_{done}"] += 1
        if is_new is not None and self._progress and isinstance(what, str):
            self._progress(what, is_new)
        else:
            step()

    def refuse(self, what: str | Name, exc: LocusStoreError, tenant: str | None) -> None:
        """Keep the error of a thread or an item."""
        name = _describe(what)
        self._failed[name if tenant is None else f"{name} of tenant {tenant!r}"] = exc
        step()

    def finish(self, source: str = "") -> Counts:
        """Return the counts.

        Raises:
            LocusStoreError: The first error, with the names of others that had one.
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


def _describe(what: str | Name) -> str:
    if isinstance(what, str):
        return f"thread {what!r}"
    return f"item {what[1]!r} of namespace {what[0]!r}"
