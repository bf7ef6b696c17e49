"""JSON as text: what a database's JSON cannot hold is escaped, one to one."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

_ESCAPES: Final = (("\x01", "\x011"), ("\x00", "\x010"))
"""PostgreSQL's JSONB refuses U+0000, so two characters stand for it, and two others for the first
of those: order is kept, and nothing is lost."""

NEGATIVE_ZERO: Final = "\x012"
"""Stands for ``-0.0`` where numbers are decimals; no escaped text."""

FLOAT: Final = "\x013"
"""Begins a float that a database of decimals would give back as an integer, or not at all."""


def escape_text(value: str) -> str:
    """Text without NUL, one to one; also for values that a query compares with stored ones."""
    for plain, escaped in _ESCAPES:
        value = value.replace(plain, escaped)
    return value


def unescape_text(value: str) -> str:
    """Inverse of ``escape_text``."""
    for plain, escaped in reversed(_ESCAPES):
        value = value.replace(escaped, plain)
    return value


def escape_json(value: Any) -> Any:
    """Return a JSON value with every string and key escaped, as a ``Json`` column holds it."""
    return _mapped(value, escape_text)


def unescape_json(value: Any) -> Any:
    """Inverse of ``escape_json``; Decimals become int or float."""
    return _mapped(value, _unescaped)


def _unescaped(value: str) -> Any:
    if value == NEGATIVE_ZERO:
        return -0.0
    return float(value[2:]) if value.startswith(FLOAT) else unescape_text(value)


def _mapped(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def dump_value(value: Any) -> str:
    """Return the text that a ``JsonValue`` column of text holds.

    Args:
        value: A JSON value, or the bytes of its JSON with sorted keys.
    """
    raw = value if isinstance(value, bytes) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if b"\\u000" in raw:
        raw = orjson.dumps(escape_json(orjson.loads(raw)), option=orjson.OPT_SORT_KEYS)
    return raw.decode()


def load_value(raw: bytes) -> Any:
    """Inverse of ``dump_value``."""
    loaded = orjson.loads(raw)
    return unescape_json(loaded) if b"\\u0001" in raw else loaded
