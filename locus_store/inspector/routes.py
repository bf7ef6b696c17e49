"""The pages by the last segment of their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from locus_store.inspector.pages import (
    bisects,
    diffs,
    downloads,
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
    "diff": Route(diffs.page),
    "download": Route(downloads.state),
    "image": Route(downloads.picture),
}
"""A route with ``writes`` is also called with POST: its form was checked then."""

FILES: Final = {
    "inspector.css": "text/css; charset=utf-8",
    "inspector.js": "text/javascript; charset=utf-8",
}
"""Static files; of no caller in particular."""
