"""The bounds of a page, and values cut to them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

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

INLINE: Final = 256_000
"""Bytes of a state above which work on it leaves the event loop."""


@dataclass(frozen=True, slots=True)
class CutText:
    """A text, or its beginning."""

    text: str
    length: int
    """Characters of the whole text."""

    @property
    def is_cut(self) -> bool:
        """Return whether the text goes further."""
        return len(self.text) < self.length


class Room:
    """The characters that still fit on a page."""

    def __init__(self) -> None:
        self._left = ALL_CHARACTERS

    def cut(self, text: str) -> CutText:
        """Return a text within the bounds of one string and of the page."""
        found = cut(text, min(CHARACTERS, max(self._left, SHORT)))
        self._left -= len(found.text)
        return found


def json_line(value: Any) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def cut(text: str, characters: int = CHARACTERS) -> CutText:
    """Return a text within a bound."""
    return CutText(text[:characters], len(text))
