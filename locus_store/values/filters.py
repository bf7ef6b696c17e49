"""The definition of a match, which every backend's query must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isinf
from sys import float_info
from typing import Any, Final, NamedTuple, cast

from locus_store.errors import InvalidArgumentError
from locus_store.values.canonical import canonicalize
from locus_store.values.encoding import MAX_DEPTH, Json


def check_key(key: object) -> str:
    """Refuse a metadata key that is not a non-empty ``str``."""
    if not isinstance(key, str) or not key:
        raise InvalidArgumentError(f"metadata key must be a non-empty str, not {key!r}")
    try:
        key.encode()
    except UnicodeEncodeError as exc:
        raise InvalidArgumentError(f"metadata key {key!r} has a lone surrogate in it") from exc
    return key


def check_wanted(key: object, value: object) -> Json:
    """Return the value of a metadata query as it is stored.

    Raises:
        InvalidArgumentError: The key is not valid.
        SerializationError: The value is not JSON.
    """
    check_key(key)
    return canonicalize(value, "value")


STATE_CLASS: Final = "state_class"
"""Label that records the class of a saved state; no metadata query finds it."""


def is_found(metadata: Mapping[str, Any], labels: Mapping[str, Any], key: str, value: Any) -> bool:
    """Return whether a version has ``value`` at ``key``, in its metadata or its state's labels."""
    return has_value(metadata, key, value) or (key != STATE_CLASS and has_value(labels, key, value))


def has_value(metadata: Mapping[str, Any], key: str, value: Any) -> bool:
    """Return whether ``metadata`` has ``value`` at ``key``.

    A dot descends into objects, unless the whole key is there. A list matches when it contains
    ``value``, or every element of a list ``value``.
    """
    return any(_matches(found, value) for found in _iterate_values(metadata, key))


def _iterate_values(metadata: Mapping[str, Any], key: str) -> Iterator[Any]:
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


def _matches(candidate: Any, value: Any) -> bool:
    if _is_equal(candidate, value):
        return True
    if not isinstance(candidate, list):
        return False
    wanted = value if isinstance(value, (list, tuple)) else [value]
    return all(any(_is_equal(item, it) for item in candidate) for it in wanted)


def holds(metadata: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Return whether ``metadata`` has all wanted values, by the rules of LangGraph's savers.

    A dot in a key descends into objects, unless the whole key is there. An object matches one that
    has at least its keys, with values that match; a list matches one that has a match for each of
    its elements. All else is equality: ``1`` is ``1.0``, and neither is ``True`` or ``"1"``.
    """
    return all(
        any(_contains(found, value) for found in _iterate_values(metadata, key))
        for key, value in conditions.items()
    )


def _contains(candidate: Any, part: Any) -> bool:
    if isinstance(part, Mapping):
        return isinstance(candidate, Mapping) and all(
            key in candidate and _contains(candidate[key], item) for key, item in part.items()
        )
    if isinstance(part, (list, tuple)):
        return isinstance(candidate, (list, tuple)) and all(
            any(_contains(item, element) for item in candidate) for element in part
        )
    if isinstance(candidate, str) and isinstance(part, str):
        return candidate == part  # also one of a class of the caller's
    return _is_equal(candidate, part)


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: numbers by value, and ``true`` is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    return (type(one) is type(other) and one == other) or (
        _are_numbers(one, other) and one == other
    )


def _are_numbers(one: Any, other: Any) -> bool:
    return isinstance(one, (int, float)) and isinstance(other, (int, float))


class Clause(NamedTuple):
    """One condition of a filter; all conditions must hold."""

    path: tuple[str, ...]
    """Keys, from the value's own object downwards; ``()`` is the value itself."""

    operator: str
    """One of ``OPERATORS``, or ``IS_OBJECT``."""

    operand: Any


IS_OBJECT: Final = "{}"
_MISSING: Final = object()


class Filter:
    """Conditions on a JSON value, as LangGraph and MongoDB write them.

    ``{"kind": "note"}`` is equality, by JSON: 1 is 1.0, and ``True`` is not 1. An object descends:
    ``{"user": {"age": {"$gte": 18}}}``; a key is one key, dots and all. The operators are ``$eq``,
    ``$ne``, ``$gt``, ``$gte``, ``$lt``, ``$lte``, ``$in`` and ``$exists``, alone or several.
    Numbers are compared with numbers and strings with strings (by code point); nothing else has an
    order. A bound may be infinite. A missing value is equal to nothing, not even ``None``: only
    ``$ne`` and ``{"$exists": False}`` match it.

    Args:
        wanted: The conditions; ``None`` and ``{}`` take everything.

    Raises:
        InvalidArgumentError: An operator is unknown, or takes no such operand.
        SerializationError: An operand is not JSON.
    """

    def __init__(self, wanted: Mapping[str, Any] | None = None) -> None:
        if wanted is not None and not isinstance(wanted, Mapping):
            raise InvalidArgumentError(f"a filter is an object (a dict), not {wanted!r}")
        checked = canonicalize(_without_infinity(dict(wanted or {})), "filter")
        self.wanted = cast("dict[str, Any]", checked)
        """The conditions as JSON; a ``Filter`` of them has the same clauses."""
        self.clauses = tuple(_iterate_clauses((), checked)) if checked else ()

    def takes(self, value: Any) -> bool:
        """Return whether all conditions hold."""
        return all(OPERATORS[it.operator](_get(value, it.path), it.operand) for it in self.clauses)


def _iterate_clauses(path: tuple[str, ...], conditions: Any) -> Iterator[Clause]:
    if not isinstance(conditions, dict):
        yield Clause(path, "$eq", conditions)
        return
    operators = [key for key in conditions if key.startswith("$")]
    if not operators:
        if not conditions:
            yield Clause(path, IS_OBJECT, None)
        for key, below in conditions.items():
            yield from _iterate_clauses((*path, key), below)
        return
    for key in conditions:
        if key not in OPERATORS:
            beside = "" if key.startswith("$") else f" beside {operators[0]!r}"
            raise InvalidArgumentError(
                f"filter: no operator {key!r}{beside}; known operators: "
                + ", ".join(it for it in OPERATORS if it != IS_OBJECT)
                + ". An object with such a key is compared by $eq"
            )
        operand = conditions[key]
        if key in _ORDERS and isinstance(operand, dict) and operand.keys() == {_INFINITY}:
            yield _replace_infinite_bound(path, key, operand[_INFINITY])
            continue
        _check_operand(key, operand)
        yield Clause(path, key, operand)


_INFINITY: Final = "\0infinity"


def _without_infinity(conditions: Any, depth: int = 1) -> Any:
    """Return the conditions with infinite bounds replaced by marks, as JSON has no infinity."""
    if not isinstance(conditions, dict) or depth > MAX_DEPTH:
        return conditions
    return {
        key: {_INFINITY: value > 0}
        if key in _ORDERS and isinstance(value, float) and isinf(value)
        else _without_infinity(value, depth + 1)
        for key, value in conditions.items()
    }


def _replace_infinite_bound(path: tuple[str, ...], operator: str, is_positive: bool) -> Clause:
    """Return the equivalent of an infinite bound with the greatest finite number."""
    is_below = operator in {"$lt", "$lte"}
    if is_below == is_positive:
        operator = "$lte" if is_below else "$gte"  # every number
    else:
        operator = "$lt" if is_below else "$gt"  # none
    return Clause(path, operator, float_info.max if is_positive else -float_info.max)


def _check_operand(operator: str, operand: Any) -> None:
    if operator == "$in" and not isinstance(operand, list):
        raise InvalidArgumentError(f"filter: $in takes a list, not {operand!r}")
    if operator == "$exists" and not isinstance(operand, bool):
        raise InvalidArgumentError(f"filter: $exists takes True or False, not {operand!r}")
    is_ordered = isinstance(operand, (str, int, float)) and not isinstance(operand, bool)
    if operator in _ORDERS and not is_ordered:
        raise InvalidArgumentError(f"filter: {operator} needs a number or string, not {operand!r}")


def _get(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _is_ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def both(value: Any, operand: Any) -> bool:
        if isinstance(value, bool):
            return False
        is_text = isinstance(value, str) and isinstance(operand, str)
        return (is_text or _are_numbers(value, operand)) and compare(value, operand)

    return both


_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": _is_ordered(lambda found, operand: found > operand),
    "$gte": _is_ordered(lambda found, operand: found >= operand),
    "$lt": _is_ordered(lambda found, operand: found < operand),
    "$lte": _is_ordered(lambda found, operand: found <= operand),
}
OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": lambda found, operand: found is not _MISSING and _is_equal(found, operand),
    "$ne": lambda found, operand: found is _MISSING or not _is_equal(found, operand),
    **_ORDERS,
    "$in": lambda found, operand: (
        found is not _MISSING and any(_is_equal(found, it) for it in operand)
    ),
    "$exists": lambda found, operand: (found is not _MISSING) == operand,
    IS_OBJECT: lambda found, _: isinstance(found, dict),
}
"""The comparison of each operator."""
