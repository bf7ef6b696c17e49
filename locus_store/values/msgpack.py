"""MessagePack as JSON: what a graph runner's serializer gives, to be read by everything else.

In MessagePack an object of a class is an extension: a code and, as MessagePack again, its module,
name and fields. As JSON, its text can be searched and its fields compared. The JSON restores the
bytes exactly. Nothing is imported and no object is made: that is left to the reader of the bytes.

Plain JSON stands for itself. Everything else is an object with the key ``$``, and so is an object
that has such a key of its own, so that no data can pass for a tag:

======  ==========================================================================
``d``   an object whose keys are not in order: ``k`` their order, ``v`` the object
``m``   a map whose keys are not all text: ``v`` pairs of key and value
``b``   bytes: ``v`` in base64
``f``   a float that JSON has not: ``v`` its text
``x``   an extension: ``c`` its code, and ``v`` what it holds, or ``b`` its bytes in base64
``t``   another serializer's bytes: ``t`` the type, ``v`` in base64
======  ==========================================================================
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import ormsgpack

from locus_store.errors import IntegrityError
from locus_store.values.encoding import (
    MAX_INT,
    MIN_INT,
    decode_canonical,
    encode,
    encode_canonical,
    join_list,
)

MSGPACK: Final = "msgpack"
TAG: Final = "$"
FORM: Final = 100
"""The extension of a value of a Python type: its tag and content; see ``values.codec``."""

_MAX_LEVELS: Final = 150
"""Levels of the JSON; what is deeper stays bytes, since a state has 200 at most."""


def to_json(kind: str, data: bytes) -> Any:
    """Return a serializer's type and bytes as JSON."""
    if kind == MSGPACK:
        value = _freeze_bytes(data, _MAX_LEVELS)
        if value is not _OPAQUE:
            return value
    return {TAG: "t", "t": kind, "v": encode_base64(data)}


def from_json(value: Any) -> tuple[str, bytes]:
    """Return the type and bytes that ``to_json`` was given.

    Raises:
        IntegrityError: ``value`` is nothing that it gave.
    """
    try:
        if has_no_tag(encode_canonical(value)):
            return MSGPACK, pack(value)
        if isinstance(value, list):
            return MSGPACK, join_list(list(map(get_packed, value)))
        if isinstance(value, dict) and value.get(TAG) == "t":
            return str(value["t"]), _decode_base64(value["v"])
        return MSGPACK, pack(thaw(value, _thaw_extension))
    except (LookupError, TypeError, ValueError) as exc:
        raise _make_invalid_error(exc) from exc


def as_json(data: object) -> Any:
    """Return MessagePack as JSON; see ``get_packed`` for the way back.

    Raises:
        IntegrityError: It is not bytes.
    """
    if not isinstance(data, bytes):
        raise IntegrityError("a stored list has MessagePack and other values")
    return to_json(MSGPACK, data)


def convert_to_json(value: Any) -> Any:
    """Return a stored value, or a state, with all its MessagePack as JSON.

    MessagePack stands behind keys, or is the elements of a list that is reached through keys.
    """
    if type(value) is bytes:
        return as_json(value)
    if isinstance(value, dict):
        return {key: convert_to_json(it) for key, it in value.items()}
    if isinstance(value, list) and value and type(value[0]) is bytes:
        return list(map(as_json, value))
    return value


def has_no_tag(canonical: bytes) -> bool:
    """Return whether no key of an encoded JSON value is a tag; a string may look like one."""
    return _TAGGED not in canonical or b'"$"' not in encode(decode_canonical(canonical))


def get_packed(value: Any) -> bytes:
    """Return the MessagePack that ``to_json`` was given.

    Raises:
        IntegrityError: It is nothing that ``to_json`` gave.
    """
    try:
        if isinstance(value, dict) and value.get(TAG) == "t":
            return _require_kind(str(value["t"]), _decode_base64(value["v"]))
        return pack(thaw(value, _thaw_extension))
    except (LookupError, TypeError, ValueError) as exc:
        raise _make_invalid_error(exc) from exc


def _make_invalid_error(exc: Exception) -> IntegrityError:
    return IntegrityError(f"a stored value of a channel is not valid: {exc}")


def _require_kind(kind: str, data: bytes) -> bytes:
    if kind != MSGPACK:
        raise ValueError(f"bytes of type {kind!r}")
    return data


def pack_each(values: list[Any]) -> list[bytes]:
    """Return the MessagePack of stored values, each of which is JSON, or MessagePack as bytes."""
    if {*map(type, values)} == {bytes}:
        return values
    return [it if type(it) is bytes else get_packed(it) for it in values]


class Extension:
    """An extension of MessagePack, unpacked."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code, self.data = code, data


class TypedForm(NamedTuple):
    """The extension of a value of a Python type, not yet packed."""

    tag: str
    held: Sequence[Any]
    """The parts that follow the tag."""


class _TooDeepError(ValueError):
    pass


_TAGGED: Final = encode_canonical(TAG)
"""Matches the encoding of a value that may have a tag as a key; a string may match too."""

_OPAQUE: Final = object()
_PLAIN: Final = (str, int, float, bool, type(None))
_TEXT: Final = frozenset({str})
_SIMPLE: Final = frozenset({str, bool, type(None)})
"""Exact types of scalars that are JSON whatever they hold."""


def _freeze_bytes(data: bytes, levels: int) -> Any:
    """Return the JSON of MessagePack bytes; ``_OPAQUE`` if it would not restore the same bytes."""
    try:
        value = unpack(data)
        found = freeze(value, levels)
        return found if pack(thaw(found, _thaw_extension)) == data else _OPAQUE
    except (_TooDeepError, ValueError, TypeError, OverflowError):
        return _OPAQUE


def freeze(value: Any, levels: int = _MAX_LEVELS) -> Any:
    """Return the JSON of a value that is nested at most this many levels deep."""
    if isinstance(value, _PLAIN):
        return _freeze_scalar(value, levels)
    if isinstance(value, bytes):
        return _make_tagged("b", levels, v=encode_base64(value))
    if levels <= 0:
        raise _TooDeepError
    if isinstance(value, TypedForm):
        held = [freeze(it, levels - 2) for it in (value.tag, *value.held)]
        return _make_tagged("x", levels, c=FORM, v=held)
    if isinstance(value, (list, tuple)):
        return [it if type(it) in _SIMPLE else freeze(it, levels - 1) for it in value]
    if isinstance(value, dict):
        return _freeze_dict(value, levels)
    if isinstance(value, Extension):
        return _freeze_extension(value, levels)
    raise TypeError(f"no JSON for a {type(value).__name__}")


def _freeze_scalar(value: Any, levels: int) -> Any:
    if type(value) is float and not math.isfinite(value):
        return _make_tagged("f", levels, v=repr(value))
    if type(value) is int and not MIN_INT <= value <= MAX_INT:
        return _make_tagged("x", levels, c=FORM, v=["int", str(value)])
    return value


def _make_tagged(tag: str, levels: int, **held: Any) -> dict[str, Any]:
    """Return a tagged object; pass ``held`` in the order of its keys, as stored JSON has it."""
    if levels <= 0:
        raise _TooDeepError
    return {TAG: tag, **held}


def _freeze_extension(value: Extension, levels: int) -> dict[str, Any]:
    inner = _freeze_bytes(value.data, levels - 1)
    if inner is _OPAQUE:
        return _make_tagged("x", levels, b=encode_base64(value.data), c=value.code)
    return _make_tagged("x", levels, c=value.code, v=inner)


def _freeze_dict(value: dict[Any, Any], levels: int) -> Any:
    keys = list(value)
    if not _TEXT.issuperset(map(type, keys)) and not all(isinstance(it, str) for it in keys):
        below = levels - 3
        pairs = [[freeze(key, below), freeze(it, below)] for key, it in value.items()]
        return _make_tagged("m", below, v=pairs)
    in_order = sorted(keys)
    is_plain = TAG not in value and keys == in_order
    below = levels - 1 if is_plain else levels - 2
    held = {key: it if type(it := value[key]) in _SIMPLE else freeze(it, below) for key in in_order}
    return held if is_plain else _make_tagged("d", below, k=keys, v=held)


Read: TypeAlias = "Callable[[Mapping[str, Any]], Any]"
"""Returns the value of a tagged extension."""


def thaw(value: Any, read: Read) -> Any:
    """Return the value of JSON that ``freeze`` made; ``read`` gives those of extensions.

    Raises:
        LookupError, TypeError, ValueError: It is not such JSON.
    """
    if isinstance(value, list):
        return [thaw(it, read) if type(it) in _NESTED else it for it in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: thaw(it, read) for key, it in sorted(value.items())}
    return _UNTAGGED[value[TAG]](value, read)


def _thaw_ordered(value: Mapping[str, Any], read: Read) -> dict[str, Any]:
    held = value["v"]
    return {key: thaw(it, read) if type(it := held[key]) in _NESTED else it for key in value["k"]}


def _thaw_extension(value: Mapping[str, Any]) -> Any:
    data = _decode_base64(value["b"]) if "b" in value else pack(thaw(value["v"], _thaw_extension))
    return ormsgpack.Ext(value["c"], data)


def _thaw_key(value: Any) -> Any:
    return tuple(map(_thaw_key, value)) if isinstance(value, list) else value


_NESTED: Final = {list, dict}

_UNTAGGED: Final[dict[str, Callable[[Mapping[str, Any], Read], Any]]] = {
    "d": _thaw_ordered,
    "m": lambda value, read: {_thaw_key(thaw(k, read)): thaw(it, read) for k, it in value["v"]},
    "b": lambda value, _: _decode_base64(value["v"]),
    "f": lambda value, _: float(value["v"]),
    "x": lambda value, read: read(value),
}


def decode_sorted(data: bytes) -> Any:
    """Return the value of a stored encoding.

    Raises:
        IntegrityError: It is none.
    """
    try:
        return decode_canonical(data)
    except ValueError as exc:
        raise IntegrityError(f"a stored frame is not MessagePack: {exc}") from exc


def unpack(data: bytes) -> Any:
    """Return the value of MessagePack, in which extensions are ``Extension`` objects.

    Raises:
        ValueError: It is not MessagePack.
    """
    return ormsgpack.unpackb(data, ext_hook=Extension, option=ormsgpack.OPT_NON_STR_KEYS)


def pack(value: Any) -> bytes:
    """Return the MessagePack of a value, in which extensions are ``Extension`` objects."""
    packed: bytes = ormsgpack.packb(value, default=_repack, option=ormsgpack.OPT_NON_STR_KEYS)
    return packed


def _repack(value: Any) -> Any:
    if isinstance(value, Extension):
        return ormsgpack.Ext(value.code, value.data)
    raise TypeError(f"no MessagePack for a {type(value).__name__}")


def encode_base64(data: bytes) -> str:
    """Return bytes as text."""
    return base64.b64encode(data).decode()


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
