"""The bounds of a page, and values cut to them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locus_store.timeline.readable import about
from locus_store.values.filters import STATE_CLASS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from locus_store.types import Version

ROWS: Final = 200
"""Rows of a table."""

CHILDREN: Final = 200
"""Parts of one object or list."""

NODES: Final = 1_000
"""Parts of a tree on one page, in all levels."""

MESSAGES: Final = 50
"""Messages of one list."""

CHARACTERS: Final = 4_096
"""Characters of one string."""

ALL_CHARACTERS: Final = 100_000
"""Characters of all strings of one page in full; further ones are cut to ``SHORT``."""

SHORT: Final = 80

CELL: Final = 240
"""Characters of a value in a row."""

ABOUT: Final = 2_000
"""Characters of the metadata in a row, after which further entries are left out."""

INLINE: Final = 256_000
"""Bytes of a state above which work on it leaves the event loop."""


@dataclass(frozen=True, slots=True)
class CutText:
    """A text, or its beginning."""

    text: str
    length: int | None
    """Characters of the whole text; ``None``: of JSON that was written no further."""

    @property
    def is_cut(self) -> bool:
        """Return whether the text goes further."""
        return self.length is None or len(self.text) < self.length


class Room:
    """The characters that still fit on a page."""

    def __init__(self) -> None:
        self._left = ALL_CHARACTERS

    def cut(self, value: Any) -> CutText:
        """Return a text, or a value as JSON, within the bounds of one string and of the page."""
        return self._took(cut(value, self._most)) if isinstance(value, str) else self.json(value)

    def json(self, value: Any) -> CutText:
        """Return a value as JSON, likewise."""
        return self._took(json_line(value, self._most))

    @property
    def _most(self) -> int:
        return min(CHARACTERS, max(self._left, SHORT))

    def _took(self, found: CutText) -> CutText:
        self._left -= len(found.text)
        return found


def json_line(value: Any, characters: int = CHARACTERS) -> CutText:
    """Return the beginning of a value's JSON in one line, which is written no further."""
    text = ""
    for part in _JSON.iterencode(value):
        text += part
        if len(text) > characters:
            return CutText(text[:characters], None)
    return CutText(text, len(text))


_JSON: Final = json.JSONEncoder(ensure_ascii=False, default=str)


def cut(text: str, characters: int = CHARACTERS) -> CutText:
    """Return a text within a bound."""
    return CutText(text[:characters], len(text))


def short(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata for a row; what is too long is text that ends with an ellipsis."""
    found: dict[str, Any] = {}
    left = ABOUT
    for key, value in values.items():
        if left <= 0:
            return found | {"…": f"{len(values) - len(found)} more"}
        told = cut(value, CELL) if isinstance(value, str) else json_line(value, CELL)
        found[key[:CELL]] = f"{told.text}…" if told.is_cut else value
        left -= len(key) + len(told.text)
    return found


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
