"""Exports of a thread: exact, and as a report without content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from locus_store.backend import StoresThreads, needs
from locus_store.inspector.visits import Download, Page, missing_thread, missing_version
from locus_store.timeline.report import report
from locus_store.transfer.archive import to_lines

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
    found = await backend.read_thread(visit.thread)
    if found is None:
        raise missing_thread(visit.thread)
    content = await visit.jobs.run(lambda _: b"".join(to_lines(found, backend.max_state_bytes)))
    return Download(f"{visit.thread}.jsonl", content, "application/jsonl")


async def _report(visit: Visit) -> dict[str, Any]:
    name = visit.query.optional("version")
    backend, namespace = visit.parts.threads, visit.namespace
    async with visit.jobs.paced() as pace:
        found = await report(backend, visit.thread, name, namespace=namespace, step=pace.step)
    if found is None:
        raise missing_version(visit.thread, name)
    return found
