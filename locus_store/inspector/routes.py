"""The pages by the last segment of their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from locus_store.inspector.pages import (
    bisects,
    changes,
    diffs,
    downloads,
    live,
    messages,
    reports,
    store,
    threads,
    timelines,
    versions,
    writes,
)

if TYPE_CHECKING:
    from locus_store.inspector.visits import Handler


class Route(NamedTuple):
    """A page."""

    handler: Handler
    writes: bool = False
    """Exists with ``allow_write`` only, for callers that may write."""


ROUTES: Final = {
    "": Route(threads.page),
    "threads": Route(threads.page),
    "version": Route(versions.page),
    "timeline": Route(timelines.page),
    "bisect": Route(bisects.page),
    "writes": Route(writes.page),
    "messages": Route(messages.page),
    "message": Route(messages.message),
    "diff": Route(diffs.page),
    "download": Route(downloads.state),
    "live": Route(live.page),
    "store": Route(store.namespaces),
    "items": Route(store.items),
    "item": Route(store.item),
    "value": Route(store.value),
    "report": Route(reports.page),
    "report-file": Route(reports.file),
    "export": Route(reports.export),
    "fork": Route(changes.fork, writes=True),
    "rewind": Route(changes.rewind, writes=True),
    "delete": Route(changes.delete, writes=True),
    "image": Route(downloads.picture),
}
"""A route with ``writes`` is also called with POST: its form was checked then."""

FILES: Final = {
    "inspector.css": "text/css; charset=utf-8",
    "inspector.js": "text/javascript; charset=utf-8",
}
"""Static files; of no caller in particular."""
