"""The bounds of a page, and values cut to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


def cut(text: str, characters: int = CHARACTERS) -> CutText:
    """Return a text within a bound."""
    return CutText(text[:characters], len(text))
