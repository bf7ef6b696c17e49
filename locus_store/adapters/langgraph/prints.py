"""Prints: bytes that identify values to the bit, from one C call."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from locus_store.adapters.langgraph.copies import SCALARS, is_message
from locus_store.values.encoding import pinned
from locus_store.values.frames.alignment import LIST_HEAD

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN: Final = SCALARS - {bytes}
"""Values that no other type has the same print as: an array has that of its bytes."""

_AS_THEY_ARE: Final = PLAIN | {dict, list}


def print_of(value: Any) -> bytes | None:
    """Return the print of a dict; ``None`` for another value, or one that has none."""
    try:
        return pinned(value) if type(value) is dict else None
    except ValueError:
        return None


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


def is_plain(value: Any) -> bool:
    """Return whether no value of other types has the same print."""
    kind = type(value)
    if kind is dict:
        return PLAIN.issuperset(map(type, value)) and are_plain(value.values())
    if kind is list:
        return are_plain(value)
    if is_message(kind):
        return are_plain(value.__dict__.values()) and is_plain(value.__pydantic_extra__)
    return kind in PLAIN


def are_plain(values: Iterable[Any]) -> bool:
    """Return whether ``is_plain`` holds for all values."""
    return all(is_plain(it) for it in values if type(it) not in PLAIN)
