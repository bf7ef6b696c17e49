"""The list of threads: by recent activity, and as the result of a search."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from locus_store.backend import (
    ErasesThreads,
    ListsThreads,
    QueriesMetadata,
    SearchesText,
    StorageBackend,
    needs,
)
from locus_store.errors import InvalidArgumentError
from locus_store.inspector.bounds import ROWS, shorten
from locus_store.inspector.page_requests import Page, PageRequest
from locus_store.open import Storage
from locus_store.timeline.bisect import parse_json_or_text
from locus_store.timeline.graph import find_marks
from locus_store.timeline.readable import select_metadata
from locus_store.versions.sizes import MeasuresVersions, ThreadStatus

if TYPE_CHECKING:
    from datetime import datetime

    from locus_store.types import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedThread:
    """A thread in the list."""

    thread_id: str
    active_at: datetime | None = None
    """Of a search: when the version that was found was saved."""

    checkpoint_id: str | None = None
    """The version that was found."""

    about: dict[str, Any] | None = None
    snippet: str | None = None
    versions: int | None = None
    """Stored versions in all namespaces; ``None``: not known."""

    marks: ThreadStatus = field(default_factory=ThreadStatus)


async def _with_words(backend: StorageBackend, words: str) -> list[ListedThread]:
    found = await needs(backend, SearchesText).find(words, ROWS)
    return [_of(it, it.snippet) for it in found]


async def _with_metadata(backend: StorageBackend, text: str) -> list[ListedThread]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgumentError("write metadata as key=value; the value is JSON or a text")
    found = await needs(backend, QueriesMetadata).query(
        key.strip(), parse_json_or_text(value), ROWS
    )
    return [_of(it) for it in found]


async def _of_user(backend: StorageBackend, user_id: str) -> list[ListedThread]:
    found = await needs(backend, ErasesThreads).threads_of(user_id)
    return [ListedThread(thread_id=it) for it in found[:ROWS]]


def _of(head: Head, snippet: str | None = None) -> ListedThread:
    return ListedThread(
        thread_id=head.thread_id,
        active_at=head.updated_at,
        checkpoint_id=head.checkpoint_id,
        about=shorten(select_metadata(head.metadata)),
        snippet=snippet,
    )


FINDERS: Final[dict[str, Callable[[StorageBackend, str], Awaitable[list[ListedThread]]]]] = {
    "words": _with_words,
    "metadata": _with_metadata,
    "user": _of_user,
}

CHOICES: Final = {
    "id": "id, for example order-*",
    "words": "words of their text",
    "metadata": "metadata, as key=value",
    "user": "user id",
}


async def show_threads(request: PageRequest) -> Page:
    """Return a page of threads.

    Raises:
        InvalidArgumentError: There is no such search.
        NotFoundError: The thread to continue behind does not exist.
        UnsupportedError: The backend has no such search.
    """
    by, text = request.query.get_text("by", "id"), request.query.get_text("q").strip()
    if by not in CHOICES:
        raise InvalidArgumentError(f"by={by[:40]!r} must be one of {', '.join(CHOICES)}")
    backend = request.parts.threads
    finder = FINDERS.get(by) if text else None
    if finder is None:
        rows, more = await _recent(backend, text or "*", request.query.get_optional("after"))
    else:
        rows, more = await finder(backend, text), None
    values = {
        "by": by,
        "q": text,
        "choices": _choices(backend),
        "threads": await _described(backend, rows),
        "has_counts": isinstance(backend, MeasuresVersions),
        "next": more,
    }
    return Page("threads", "Threads", values)


async def _described(backend: StorageBackend, rows: list[ListedThread]) -> list[ListedThread]:
    """Return the rows with their marks, and the numbers of versions that are counted at once."""
    ids = [it.thread_id for it in rows]
    log = Storage(backend).messages() if backend.capabilities.messages else None
    marks = await find_marks(backend, log, ids)
    rows = [replace(it, marks=marks[it.thread_id]) for it in rows]
    if not isinstance(backend, MeasuresVersions):
        return rows
    found = await backend.count_versions(ids)
    return [replace(it, versions=found.get(it.thread_id, 0)) for it in rows]


async def _recent(
    backend: StorageBackend, pattern: str, after: str | None
) -> tuple[list[ListedThread], str | None]:
    found = await needs(backend, ListsThreads).recent(ROWS + 1, pattern, after=after)
    rows = [ListedThread(thread_id=it.thread_id, active_at=it.active_at) for it in found[:ROWS]]
    return rows, rows[-1].thread_id if len(found) > ROWS else None


def _choices(backend: StorageBackend) -> dict[str, str]:
    """Return the searches that a backend has."""
    powers = {"words": SearchesText, "metadata": QueriesMetadata, "user": ErasesThreads}
    return {
        name: label
        for name, label in CHOICES.items()
        if name not in powers or isinstance(backend, powers[name])
    }
