"""Escapes and headers, which keep stored text from being code in a browser."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_SHOWN: Final = frozenset("\n\t\u200c\u200d")
"""Line ends, tabs, and the joiners without which scripts and emoji change."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

_BLANK: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]")
"""Letters, marks and symbols without a shape."""

_ESCAPE: Final = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[\\nrt])")


def is_hidden(character: str) -> bool:
    """Return whether a character is shown as an escape."""
    if character in _SHOWN:
        return False
    return unicodedata.category(character) in _HIDDEN or _BLANK.match(character) is not None


def has_hidden(text: str) -> bool:
    """Return whether a text has a character that is shown as an escape."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return _BLANK.search(text) is not None
    return any(map(is_hidden, text))


def escape(text: str) -> str:
    r"""Return a text with escapes such as ``\\u202e``."""
    if not has_hidden(text):
        return text
    return "".join(it.encode("unicode_escape").decode() if is_hidden(it) else it for it in text)


def encode_typed(text: str) -> str:
    """Return a text with hidden characters for a field that a person may change.

    Backslashes are escapes as well, so that ``decode_typed`` returns exactly the text.
    """
    return escape(text.replace("\\", "\\\\")) if has_hidden(text) else text


def decode_typed(text: str) -> str:
    """Return the text of a field with escapes."""
    return _ESCAPE.sub(lambda it: it[0].encode().decode("unicode_escape"), text)


SECURITY: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
