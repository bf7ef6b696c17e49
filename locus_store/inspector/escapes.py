"""Characters that cannot be seen, or that reorder others, as escapes."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN: Final = frozenset("\n\t\u200c\u200d")
"""Line ends, tabs, and the joiners without which scripts and emoji change."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class Run(NamedTuple):
    """A part of a text."""

    text: str
    is_escape: bool


def is_hidden(character: str) -> bool:
    """Return whether a character is shown as an escape."""
    return character not in _SHOWN and unicodedata.category(character) in _HIDDEN


def visible(text: str) -> str:
    r"""Return a text with escapes such as ``\\u202e``."""
    if text.isprintable():
        return text
    return "".join(_escape(it) if is_hidden(it) else it for it in text)


def runs(text: str) -> Iterator[Run]:
    """Yield the parts of a text: those to show unchanged, and escapes."""
    start = 0
    for at, character in enumerate("" if text.isprintable() else text):
        if is_hidden(character):
            if start < at:
                yield Run(text[start:at], is_escape=False)
            yield Run(_escape(character), is_escape=True)
            start = at + 1
    if start < len(text):
        yield Run(text[start:], is_escape=False)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
