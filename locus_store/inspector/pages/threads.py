"""The list of threads, with its filters, the list of tenants; and reports, downloads and news."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import orjson

from locus_store.backend import (
    LimitsTenants,
    ListsThreads,
    SearchesText,
    SharedByTenants,
    StoresThreads,
    needs,
)
from locus_store.errors import LocusStoreError, NotFoundError, UnsupportedError
from locus_store.inspector.bounds import CELL, decode_image
from locus_store.inspector.escapes import escape
from locus_store.inspector.page_requests import Download, Page, PageRequest
from locus_store.inspector.pages.versions import find_in_state
from locus_store.service.exchange import RefusalError
from locus_store.timeline.changes import describe_record, describe_value
from locus_store.timeline.graph import list_statuses
from locus_store.timeline.paths import Step, parse_path
from locus_store.timeline.report import report
from locus_store.transfer.archive import make_lines
from locus_store.transfer.items import make_last_line
from locus_store.types.messages import decode_message
from locus_store.values.encoding import encode
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
    statuses = await list_statuses(backend, wanted)
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


async def show_report(request: PageRequest) -> Page:
    """Return the content of a report; as JSON it is the report itself."""
    return Page("report", "Report without content", await _report(request))


async def download_report(request: PageRequest) -> Download:
    """Return a report to attach to a bug."""
    found = await _report(request)
    content = await request.jobs.run(lambda _: orjson.dumps(found, option=orjson.OPT_INDENT_2))
    return Download(f"report-{found['checkpoint_id']}.json", content)


async def export(request: PageRequest) -> Download:
    """Return the whole thread, as ``locus-store export`` writes it."""
    backend = needs(request.parts.threads, StoresThreads)
    found = request.require(await backend.read_thread(request.thread))
    lines = await make_lines(backend, found)
    content = await request.jobs.run(lambda _: b"".join([*lines, make_last_line(1)]))
    return Download(f"{request.thread}.jsonl", content, "application/jsonl")


async def _report(request: PageRequest) -> dict[str, Any]:
    name = request.query.get_optional("version")
    backend, namespace = request.parts.threads, request.namespace
    async with request.jobs.wait_for_turn() as step:
        found = await report(backend, request.thread, name, namespace=namespace, step=step)
    return request.require(found, name)


async def download_state(request: PageRequest) -> Download:
    """Return a version's state, or the value at a path, as JSON.

    Raises:
        NotFoundError: There is no such version or value.
    """
    seen = await request.read_version(request.query.get_optional("version"))
    found = find_in_state(seen, parse_path(request.query.get_text("path")))
    content = await request.run_heavy(seen.size, lambda _: encode(found.value))
    return Download(f"{request.thread}-{seen.version.checkpoint_id}.json", content)


async def download_picture(request: PageRequest) -> Download:
    """Return an image that a state holds as a data URI.

    Raises:
        NotFoundError: There is none at the path.
    """
    seen = await request.read_version(request.query.get_optional("version"))
    found = find_in_state(seen, parse_path(request.query.require("path")))
    image = decode_image(found.value) if isinstance(found.value, str) else None
    if image is None:
        raise NotFoundError("there is no PNG, JPEG, GIF or WebP image at this path")
    return Download("image", image[1], image[0], is_inline=True)


async def show_live(request: PageRequest) -> Page:
    """Return the versions above a sequence, the oldest first, without states.

    Raises:
        NotFoundError: There is no such thread any more.
    """
    after = request.query.get_number("after")
    threads, namespace = request.parts.threads, request.namespace
    newer = await request.poller.find_newer(threads, request.thread, after, namespace=namespace)
    found = request.require(newer)
    versions = [
        {
            "checkpoint_id": version.checkpoint_id,
            "name": escape(version.checkpoint_id),
            "created_at": version.created_at,
            "address": request.to("version", version=version.checkpoint_id),
        }
        for version in found
    ]
    last = found[-1].mark.sequence if found else after
    values = {"versions": versions, "next": request.to("live", after=last, format="json")}
    return request.make_page("live", "Newer versions", values)
