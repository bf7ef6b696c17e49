"""The list of threads: by recent activity, and as the result of a search."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from locus_store.backend import (
    ErasesThreads,
    ListsThreads,
    QueriesMetadata,
    SearchesText,
    SharedByTenants,
    StorageBackend,
    needs,
)
from locus_store.errors import InvalidArgumentError, LocusStoreError, UnsupportedError
from locus_store.inspector.bounds import CELL, ROWS, shorten
from locus_store.inspector.page_requests import Page, PageRequest
from locus_store.open import Storage
from locus_store.service.exchange import RefusalError
from locus_store.timeline.bisect import parse_json_or_text
from locus_store.timeline.changes import BriefChanges, describe_record
from locus_store.timeline.graph import find_marks
from locus_store.timeline.readable import select_metadata
from locus_store.versions.sizes import MeasuresVersions, ThreadStatus

if TYPE_CHECKING:
    from locus_store.inspector.work import Step
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

    kind: str = "agent"
    """``graph``, ``agent``, ``session`` or ``log``."""

    marks: list[str] = field(default_factory=list)
    """``waits``: for an answer; ``turn``: one is held; ``expires``: within a day."""

    messages: int | None = None
    """Messages of its logs; ``None``: it has none."""

    user_id: str | None = None
    expires_at: datetime | None = None
    changes: BriefChanges | None = None
    """Of the newest save; ``None``: not known."""


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
        InvalidArgumentError: There is no such search or filter.
        NotFoundError: The thread to continue behind does not exist.
        UnsupportedError: The backend has no such search.
    """
    by, text = request.query.get_text("by", "id"), request.query.get_text("q").strip()
    only = request.query.get_text("only")
    for name, value, known in (("by", by, CHOICES), ("only", only, FILTERS)):
        if value not in known:
            names = ", ".join(filter(None, known))
            raise InvalidArgumentError(f"{name}={value[:40]!r} must be one of {names}")
    backend = request.parts.threads
    finder = FINDERS.get(by) if text else None
    if finder is None:
        after = request.query.get_optional("after")
        rows, more = await _recent(request, text or "*", after, only)
    else:
        found = await _described(request, await finder(backend, text))
        rows, more = [it for it in found if _is_taken(it, only)], None
    values = {
        "by": by,
        "q": text,
        "only": only,
        "choices": _choices(backend),
        "filters": FILTERS,
        "threads": rows,
        "has_counts": isinstance(backend, MeasuresVersions),
        "next": more,
    }
    return Page("threads", "Threads", values)


FILTERS: Final = {
    "": "all",
    "waits": "waiting for an answer",
    "turn": "with a turn that is held",
    "expires": "expiring within a day",
    "graph": "graphs",
    "agent": "agents",
    "session": "sessions",
    "log": "message logs",
}
"""The threads that a list is limited to."""

LISTED: Final = 100
"""Threads on a page."""

LOOKED_AT: Final = 2_000
"""Threads that a page with a filter looks at."""


def _is_taken(row: ListedThread, only: str) -> bool:
    return not only or only == row.kind or only in row.marks


async def _described(request: PageRequest, rows: list[ListedThread]) -> list[ListedThread]:
    """Return the rows with their marks, numbers, and what the newest save changed."""
    backend, ids = request.parts.threads, [it.thread_id for it in rows]
    log = Storage(backend).messages() if backend.capabilities.messages else None
    marks = await find_marks(backend, log, ids)
    counts = await backend.count_versions(ids) if isinstance(backend, MeasuresVersions) else {}
    size = sum(len(it.record or b"") for it in marks.values())
    most, soon = backend.max_state_bytes, datetime.now(UTC) + SOON

    def describe(step: Step) -> list[ListedThread]:
        described = []
        for row in rows:
            step()
            made = _describe(row, marks[row.thread_id], soon, most)
            described.append(replace(made, versions=counts.get(row.thread_id) if counts else None))
        return described

    return await request.run_heavy(size * 10, describe)


SOON: Final = timedelta(days=1)


def _describe(row: ListedThread, status: ThreadStatus, soon: datetime, most: int) -> ListedThread:
    expires = status.expires_at
    changes = None
    if status.record is not None:
        with suppress(LocusStoreError):  # damaged; its page says so
            changes = describe_record(status.record, most)
    user = status.user_id or (status.metadata or {}).get("user_id")
    marks = {
        "waits": status.is_interrupted,
        "turn": status.has_turn,
        "expires": expires is not None and expires < soon,
    }
    return replace(
        row,
        kind=status.kind,
        marks=[name for name, is_so in marks.items() if is_so],
        messages=status.messages,
        user_id=user[:CELL] if isinstance(user, str) else None,
        expires_at=expires,
        changes=changes,
    )


async def _recent(
    request: PageRequest, pattern: str, after: str | None, only: str
) -> tuple[list[ListedThread], str | None]:
    """Return a page of the threads that a filter takes, and the thread to continue behind."""
    lists = needs(request.parts.threads, ListsThreads)
    rows: list[ListedThread] = []
    for _ in range(LOOKED_AT // LISTED):
        found = await lists.recent(LISTED + 1, pattern, after=after)
        listed = [ListedThread(thread_id=it.thread_id, active_at=it.active_at) for it in found]
        for row in await _described(request, listed[:LISTED]):
            after = row.thread_id
            if _is_taken(row, only):
                rows.append(row)
            if len(rows) == LISTED:
                break
        if len(found) <= LISTED and (not listed or after == listed[-1].thread_id):
            return rows, None
        if len(rows) == LISTED:
            break
    return rows, after


async def show_tenants(request: PageRequest) -> Page:
    """Return the tenants of the storage with their numbers of threads and items.

    Raises:
        RefusalError: The viewer sees one tenant only.
        UnsupportedError: The storage has no tenants.
    """
    if not request.may_choose_tenant:
        raise RefusalError(404, UnsupportedError("the inspector has no page at this address"))
    found = await needs(request.parts.threads, SharedByTenants).tenants()
    return Page("tenants", "Tenants", {"tenants": found[:TENANTS], "more": len(found[TENANTS:])})


TENANTS: Final = 1_000
"""Tenants on a page."""


def _choices(backend: StorageBackend) -> dict[str, str]:
    """Return the searches that a backend has."""
    powers = {"words": SearchesText, "metadata": QueriesMetadata, "user": ErasesThreads}
    return {
        name: label
        for name, label in CHOICES.items()
        if name not in powers or isinstance(backend, powers[name])
    }
