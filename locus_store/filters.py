"""What it means that metadata matches: the reference that every backend's query agrees with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from locus_store.errors import InvalidArgumentError


def check_key(key: object) -> str:
    """Refuse a metadata key that names nothing.

    Raises:
        InvalidArgumentError: Not a non-empty ``str``.
    """
    if not isinstance(key, str) or not key:
        raise InvalidArgumentError(f"metadata key must be a non-empty str, not {key!r}")
    try:
        key.encode()
    except UnicodeEncodeError as exc:
        raise InvalidArgumentError(f"metadata key {key!r} has a lone surrogate in it") from exc
    return key


def has_value(metadata: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether ``metadata`` has ``value`` at ``key``.

    A dot descends into objects, unless the whole key is there. A list matches when it contains
    ``value``, or every element of a list ``value``.
    """
    return any(_matches(found, value) for found in _values(metadata, key))


def _values(metadata: Mapping[str, Any], key: str) -> Iterator[Any]:
    if key in metadata:
        yield metadata[key]
    at: Any = metadata
    parts = key.split(".")
    for part in parts:
        if not isinstance(at, Mapping) or part not in at:
            return
        at = at[part]
    if len(parts) > 1:
        yield at


def _matches(found: Any, value: Any) -> bool:
    if _equal(found, value):
        return True
    if not isinstance(found, list):
        return False
    wanted = value if isinstance(value, list | tuple) else [value]
    return all(any(_equal(item, it) for item in found) for it in wanted)


def _equal(left: Any, right: Any) -> bool:
    """JSON equality: numbers by value, and ``true`` is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return (type(left) is type(right) and left == right) or (
        _numbers(left, right) and left == right
    )


def _numbers(left: Any, right: Any) -> bool:
    return isinstance(left, int | float) and isinstance(right, int | float)
