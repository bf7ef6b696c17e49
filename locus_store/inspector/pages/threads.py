"""The list of threads, with its filters, and the list of tenants."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from locus_store.backend import LimitsTenants, ListsThreads, SearchesText, SharedByTenants, needs
from locus_store.errors import LocusStoreError, UnsupportedError
from locus_store.inspector.bounds import CELL
from locus_store.inspector.page_requests import Page, PageRequest
from locus_store.service.exchange import RefusalError
from locus_store.timeline.changes import describe_record, describe_value
from locus_store.timeline.graph import list_statuses
from locus_store.timeline.paths import Step
from locus_store.types.messages import decode_message
from locus_store.versions.sizes import BADGES, KINDS, StatusesWanted, ThreadStatus

SHOWN: Final = (
    *("thread_id", "active_at", "kind", "badges", "messages", "versions", "stored_bytes"),
    "expires_at",
)
"""Attributes of a ``ThreadStatus`` that a row has unchanged."""

LISTED: Final = 100
"""Threads on a page."""

FOUND: Final = 1_000
"""Threads that are counted."""

FILTERS: Final = ("text", "kind", "badge", "user", "metadata", "id", "since", "until")


async def show_threads(request: PageRequest) -> Page:
    """Return a page of threads that meet all filters.

    Raises:
        InvalidArgumentError: A filter makes no sense.
        UnsupportedError: The backend has no search.
    """
    backend, query = request.parts.threads, request.query
    given = {name: query.get_text(name).strip() for name in FILTERS}
    wanted = StatusesWanted(
        limit=LISTED + 1,
        place=query.get_optional("after"),
        pattern=given["id"] or "*",
        user_id=given["user"] or None,
        metadata=query.get_pair("metadata"),
        kind=given["kind"] or None,
        badge=given["badge"] or None,
        since=query.get_time("since"),
        until=query.get_time("until"),
        text=given["text"] or None,
    )
    log = request.log if backend.capabilities.messages else None
    statuses = await list_statuses(backend, log, wanted)
    shown, has_more, count = statuses[:LISTED], len(statuses) > LISTED, len(statuses[:LISTED])
    if has_more and not any(it for name, it in given.items() if name != "id"):
        count = len(await needs(backend, ListsThreads).list_threads(FOUND, wanted.pattern))
    values = {
        "given": given,
        "kinds": KINDS,
        "badges": BADGES,
        "has_search": isinstance(backend, SearchesText),
        "threads": await _describe(request, shown),
        "count": None if query.get_optional("after") else count,
        "is_least": has_more and count in {LISTED, FOUND},
        "next": shown[-1].place if has_more else None,
    }
    return Page("threads", "Threads", values)


async def _describe(request: PageRequest, statuses: list[ThreadStatus]) -> list[dict[str, Any]]:
    """Return the rows, with what the newest save of each changed."""
    most = request.parts.threads.max_state_bytes
    sizes = (len(it.record or (it.message and it.message.payload) or b"") for it in statuses)
    return await request.run_heavy(
        sum(sizes) * 10, lambda step: [_make_row(it, most, step) for it in statuses]
    )


def _make_row(status: ThreadStatus, most: int, step: Step) -> dict[str, Any]:
    """Return a thread, the change of its newest save or its newest message, and what was found."""
    step()
    changes = said = None
    if status.record is not None:
        with suppress(LocusStoreError):  # damaged; its page says so
            changes = describe_record(status.record, most)
    elif status.message is not None:
        with suppress(LocusStoreError):
            said = describe_value(decode_message(status.message, most).content)
    about = {**status.facts, **status.labels, **(status.metadata or {})}
    user = status.user_id or about.get("user_id")
    checkpoint_id, snippet = status.found or (None, None)
    return {name: getattr(status, name) for name in SHOWN} | {
        "user_id": user[:CELL] if isinstance(user, str) else None,
        "changes": changes,
        "role": status.message.role[:CELL] if status.message is not None else None,
        "said": said,
        "checkpoint_id": checkpoint_id,
        "snippet": snippet,
    }


async def show_tenants(request: PageRequest) -> Page:
    """Return the tenants of the storage with what they store, and the quota of the chosen one.

    Raises:
        RefusalError: The viewer sees one tenant only.
        UnsupportedError: The storage has no tenants.
    """
    if not request.may_choose_tenant:
        raise RefusalError(404, UnsupportedError("the inspector has no page at this address"))
    backend, quota = request.parts.threads, {}
    found = await needs(backend, SharedByTenants).tenants()
    if backend.capabilities.quotas:
        quota = (await needs(backend, LimitsTenants).get_quota()).to_amounts()
    values = {"tenants": found[:TENANTS], "more": len(found[TENANTS:]), "quota": quota}
    return Page("tenants", "Tenants", values)


TENANTS: Final = 1_000
"""Tenants on a page."""
