"""Reports, downloads and news of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from locus_store.backend import StoresThreads, needs
from locus_store.errors import NotFoundError
from locus_store.inspector.bounds import image
from locus_store.inspector.escapes import visible
from locus_store.inspector.pages.versions import heavy, place, read
from locus_store.inspector.visits import Download, Page
from locus_store.timeline.paths import parsed
from locus_store.timeline.report import report
from locus_store.transfer.archive import to_lines
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from locus_store.inspector.visits import Visit


async def page(visit: Visit) -> Page:
    """Return what a report tells; as JSON it is the report itself."""
    return Page("report", "Report without content", await _report(visit))


async def file(visit: Visit) -> Download:
    """Return a report to attach to a bug."""
    found = await _report(visit)
    content = await visit.jobs.run(lambda _: orjson.dumps(found, option=orjson.OPT_INDENT_2))
    return Download(f"report-{found['checkpoint_id']}.json", content)


async def export(visit: Visit) -> Download:
    """Return the whole thread, as ``locus-store export`` writes it."""
    backend = needs(visit.parts.threads, StoresThreads)
    found = visit.require(await backend.read_thread(visit.thread))
    content = await visit.jobs.run(lambda _: b"".join(to_lines(found, backend.max_state_bytes)))
    return Download(f"{visit.thread}.jsonl", content, "application/jsonl")


async def _report(visit: Visit) -> dict[str, Any]:
    name = visit.query.optional("version")
    backend, namespace = visit.parts.threads, visit.namespace
    async with visit.jobs.paced() as pace:
        found = await report(backend, visit.thread, name, namespace=namespace, step=pace.step)
    return visit.require(found, name)


async def state(visit: Visit) -> Download:
    """Return a version's state, or the value at a path, as JSON.

    Raises:
        NotFoundError: There is no such version or value.
    """
    seen = await read(visit, visit.query.optional("version"))
    found = place(seen, parsed(visit.query.text("path")))
    content = await heavy(visit, seen.size, lambda _: encode(found.value))
    return Download(f"{visit.thread}-{seen.version.checkpoint_id}.json", content)


async def picture(visit: Visit) -> Download:
    """Return an image that a state holds as a data URI.

    Raises:
        NotFoundError: There is none at the path.
    """
    seen = await read(visit, visit.query.optional("version"))
    found = place(seen, parsed(visit.query.required("path")))
    told = image(found.value) if isinstance(found.value, str) else None
    if told is None:
        raise NotFoundError("there is no PNG, JPEG, GIF or WebP image at this path")
    return Download("image", told[1], told[0], is_inline=True)


async def live(visit: Visit) -> Page:
    """Return the versions above a sequence, the oldest first, without states.

    Raises:
        NotFoundError: There is no such thread any more.
    """
    after = visit.query.number("after")
    threads, namespace = visit.parts.threads, visit.namespace
    newer = await visit.looks.newer(threads, visit.thread, after, namespace=namespace)
    found = visit.require(newer)
    versions = [
        {
            "checkpoint_id": it.checkpoint_id,
            "name": visible(it.checkpoint_id),
            "created_at": it.created_at,
            "address": visit.to("version", version=it.checkpoint_id),
        }
        for it in found
    ]
    last = found[-1].mark.sequence if found else after
    values = {"versions": versions, "next": visit.to("live", after=last, format="json")}
    return visit.make_page("live", "Newer versions", values)
