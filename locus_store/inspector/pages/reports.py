"""Reports, downloads and news of a thread."""

from __future__ import annotations

from typing import Any

import orjson

from locus_store.backend import StoresThreads, needs
from locus_store.errors import NotFoundError
from locus_store.inspector.bounds import decode_image
from locus_store.inspector.escapes import escape
from locus_store.inspector.page_requests import Download, Page, PageRequest
from locus_store.inspector.pages.versions import find_in_state
from locus_store.timeline.paths import parse_path
from locus_store.timeline.report import report
from locus_store.transfer.archive import make_lines
from locus_store.transfer.items import make_last_line
from locus_store.values.encoding import encode


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
