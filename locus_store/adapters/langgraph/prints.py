"""Prints: bytes that identify values to the bit, from one C call."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import orjson

from locus_store.adapters.langgraph.copies import SCALARS, is_message
from locus_store.values.encoding import pinned
from locus_store.values.frames.alignment import LIST_HEAD

PLAIN: Final = SCALARS - {bytes}
"""Types of scalars that no other type has the same print as."""

_AS_THEY_ARE: Final = PLAIN | {dict, list}


def printed_of(items: list[Any]) -> bytes | None:
    """Return bytes that identify elements to the bit; ``None`` if an element has none."""
    try:
        return pinned([it if type(it) in _AS_THEY_ARE else _held(it) for it in items])[LIST_HEAD:]
    except (ValueError, TypeError, RecursionError):
        return None


def _held(item: Any) -> tuple[str, dict[str, Any], Any]:
    """Return what a message holds.

    Raises:
        TypeError: It is none.
    """
    kind: Any = type(item)  # Hashable, which type checkers do not see
    return _name(kind), item.__dict__, item.__pydantic_extra__


@cache
def _name(kind: Any) -> str:
    if not is_message(kind):
        raise TypeError
    return f"{kind.__module__}.{kind.__qualname__}"


def are_plain(values: list[Any]) -> bool:
    """Return whether no values of other types have the same prints, of values that have one.

    A print shows an array as its bytes, which orjson refuses.
    """
    held = [(it.__dict__, it.__pydantic_extra__) if is_message(type(it)) else it for it in values]
    try:
        orjson.dumps(held, option=orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return False
    return True
