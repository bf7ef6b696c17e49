"""Values as exactly JSON: a private copy, or the place of what JSON cannot hold."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, cast

from locus_store.errors import SerializationError
from locus_store.values.encoding import (
    MAX_DEPTH,
    MAX_INT,
    MIN_INT,
    SURE,
    Json,
    decode_canonical,
    encode,
    encode_canonical,
    require_json,
)
from locus_store.values.surrogates import escape

_HINTS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (enum.Enum, "store its .value"),
    ((dt.date, dt.time), "store its .isoformat()"),
    (dt.timedelta, "store its .total_seconds()"),
    ((bytes, bytearray, memoryview), "store them as base64 text"),
    ((set, frozenset), "store a sorted list"),
    ((uuid.UUID, decimal.Decimal), "store str(value)"),
    ((str, int, float, list, dict, tuple), "convert it to the plain type it derives from"),
)
_OTHER_HINT = "convert it to plain JSON values first (pydantic: model_dump(mode='json'))"


class Grown(list[object]):
    """A list of JSON values that no longer changes, with the list that it extends.

    A save after a save of that other list inspects the new elements only.

    Args:
        items: The elements.
        base: It begins with the elements of this one, the very same objects.
    """

    __slots__ = ("base", "token")

    def __init__(self, items: Iterable[object], base: Grown | None = None) -> None:
        super().__init__(items)
        self.token: Final = object()
        """Stands for the list without keeping its elements."""
        self.base: Final = base.token if base is not None else None


def canonicalize(value: object, path: str = "") -> Json:
    """Return a private copy with sorted keys, lists in place of tuples, and escaped strings.

    See ``surrogates``: below this function no string has a lone surrogate. The canonical form of a
    canonical value is the value itself.

    Raises:
        SerializationError: JSON cannot hold the value exactly; names the path below ``path``.
    """
    copy: Json = decode_canonical(encode_exactly(value, path))
    return copy


def encode_exactly(value: object, path: str) -> bytes:
    """Return the encoding of ``canonicalize``."""
    try:
        encoding = encode_canonical(value)
        if type(value) not in SURE:
            require_json(encoding, 0)
    except (TypeError, ValueError):
        pass  # a string is to be escaped, or JSON cannot hold the value
    else:
        return encoding
    try:
        return encode_canonical(_copy(value, 1))
    except _InexactError as exc:
        raise exc.with_path(path) from None


def encode_canonical_json(value: object, path: str) -> bytes:
    """Return ``canonicalize`` as compact JSON."""
    return encode(canonicalize(value, path))


def canonicalize_object(value: Mapping[str, object], path: str) -> dict[str, Json]:
    """Return ``canonicalize`` of any mapping."""
    return canonicalize(dict(value), path)  # type: ignore[return-value]  # of a dict


def canonicalize_state(state: object) -> dict[str, Json]:
    """Return a private canonical copy of a state; its root may be any mapping.

    Raises:
        SerializationError: no mapping, or a value in it is not exactly JSON.
    """
    return canonicalize_object(require_object(state), "")


def require_object(state: object) -> Mapping[str, object]:
    """Return a state; raise ``SerializationError`` unless it is a mapping."""
    if type(state) is dict or isinstance(state, Mapping):
        return state
    message = f"a state is a JSON object (a dict), not {type(state).__name__}"
    raise SerializationError(f"{message}; put the value under a key")


class _InexactError(ValueError):
    """JSON cannot hold a value; collects the steps to it from the inside out."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what, hint)
        self.steps: list[str | int] = []

    def with_path(self, path: str) -> SerializationError:
        """Return the error that the caller gets."""
        for step in reversed(self.steps):
            if isinstance(step, int) or not step.isidentifier():
                path = f"{path}[{step!r}]"
            else:
                path = f"{path}.{step}" if path else step
        what, hint = self.args
        place = path[:200] or "the state"
        return SerializationError(f"{place} {what}, which JSON cannot keep: {hint}")


def _copy(value: object, depth: int) -> Json:
    kind = type(value)
    if kind is dict:
        return _copy_dict(cast("dict[object, object]", value), depth)
    if kind is list or kind is tuple or kind is Grown:
        return _copy_list(cast("list[object]", value), depth)
    if kind is str:
        return escape(cast("str", value))
    _require_scalar(value)
    return cast("Json", value)


def _copy_dict(value: dict[object, object], depth: int) -> dict[str, Json]:
    _require_depth(depth)
    value = value.copy()  # another thread may change it
    for key in value:
        if type(key) is not str:
            hint = "keys are plain strings in JSON: use str(key)"
            raise _InexactError(f"has the key {key!r}", hint)
    names = {escape(key): key for key in cast("dict[str, object]", value)}
    if len(names) < len(value):
        raise _InexactError("has two keys with one escaped form", "rename one of them")
    copied: dict[str, Json] = {}
    key = ""
    try:
        for key in sorted(names):
            copied[key] = _copy(value[names[key]], depth + 1)
    except _InexactError as exc:
        exc.steps.append(key)
        raise
    return copied


def _copy_list(items: list[object], depth: int) -> list[Json]:
    _require_depth(depth)
    copied: list[Json] = []
    try:
        for item in items:
            copied.append(_copy(item, depth + 1))  # noqa: PERF401  (its length is the place)
    except _InexactError as exc:
        exc.steps.append(len(copied))
        raise
    return copied


def _require_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        what = f"is nested deeper than {MAX_DEPTH} levels"
        raise _InexactError(what, "store it flatter, or as text")


def _require_scalar(value: object) -> None:
    kind = type(value)
    if kind is int:
        if not MIN_INT <= cast("int", value) <= MAX_INT:
            raise _InexactError("is an integer beyond 64 bits", "store it as text")
    elif kind is float:
        if not math.isfinite(cast("float", value)):
            raise _InexactError(f"is {value}", "store None or text")
    elif value is not None and kind is not bool:
        hint = next((text for types, text in _HINTS if isinstance(value, types)), _OTHER_HINT)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        raise _InexactError(f"is of type {name}", hint)
