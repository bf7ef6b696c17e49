"""Reports to attach to a bug, without content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from locus_store.inspector.visits import Download, Page, missing_version
from locus_store.timeline.report import report

if TYPE_CHECKING:
    from locus_store.inspector.visits import Visit


async def page(visit: Visit) -> Page:
    """Return what a report tells; as JSON it is the report itself."""
    return Page("report", "Report without content", await _report(visit))


async def file(visit: Visit) -> Download:
    """Return a report to attach to a bug."""
    found = await _report(visit)
    content = orjson.dumps(found, option=orjson.OPT_INDENT_2)
    return Download(f"report-{found['checkpoint_id']}.json", content)


async def _report(visit: Visit) -> dict[str, Any]:
    name = visit.query.optional("version")
    async with visit.jobs.paced():
        found = await report(visit.parts.threads, visit.thread, name, namespace=visit.namespace)
    if found is None:
        raise missing_version(visit.thread, name)
    return found
