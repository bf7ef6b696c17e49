"""Versions as rows of a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from locus_store.inspector.bounds import short
from locus_store.timeline.readable import about
from locus_store.values.filters import STATE_CLASS

if TYPE_CHECKING:
    from datetime import datetime

    from locus_store.types import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """A version without its state."""

    checkpoint_id: str
    parent_id: str | None
    created_at: datetime
    sequence: int
    about: dict[str, Any]
    """Metadata and labels within the bounds of a row, without what only LangGraph needs."""


def row(version: Version) -> VersionRow:
    """Return a version as a row."""
    labels = {name: it for name, it in version.labels.items() if name != STATE_CLASS}
    return VersionRow(
        checkpoint_id=version.checkpoint_id,
        parent_id=version.parent_id,
        created_at=version.created_at,
        sequence=version.mark.sequence,
        about=short(about(labels | version.metadata)),
    )
