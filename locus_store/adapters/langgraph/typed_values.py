"""Values of graph runners as JSON, which restores their serializer's bytes exactly.

LangGraph's serializer gives a type and bytes; most are MessagePack, in which an object of a class
is an extension: a code and, as MessagePack again, its module, name and fields. Taken apart, a list
of messages is a list whose text can be searched and whose growth costs what was added. Nothing is
imported and no object is made: that is left to the reader of the bytes.

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
from typing import TYPE_CHECKING, Any, Final

from locus_store.adapters.forms import FORM, RefusedError, dumped
from locus_store.adapters.langgraph.recent import Recent, memory_of
from locus_store.errors import IntegrityError, InvalidArgumentError, MissingExtraError, pip_install
from locus_store.values.encoding import MAX_INT, MIN_INT, pinned

try:
    import ormsgpack
except ImportError:  # reported on first use
    ormsgpack = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MSGPACK: Final = "msgpack"
TAG: Final = "$"
_MAX_LEVELS: Final = 150
"""Levels of the JSON; what is deeper stays bytes, since a state has 200 at most."""


def to_json(kind: str, data: bytes) -> Any:
    """Return a serializer's type and bytes as JSON.

    Raises:
        MissingExtraError: ``ormsgpack`` is not installed.
    """
    if kind == MSGPACK:
        value = _taken_apart(data, _MAX_LEVELS)
        if value is not _OPAQUE:
            return value
    return {TAG: "t", "t": kind, "v": _base64(data)}


def from_json(value: Any) -> tuple[str, bytes]:
    """Return the type and bytes that ``to_json`` was given.

    Raises:
        IntegrityError: ``value`` is nothing that it gave.
    """
    try:
        if stands_for_itself(pinned(value)):
            return MSGPACK, _packed(value)
        if isinstance(value, list):
            return MSGPACK, joined(list(map(packed, value)))
        if isinstance(value, dict) and value.get(TAG) == "t":
            return str(value["t"]), _bytes(value["v"])
        return MSGPACK, _packed(_thawed(value))
    except (LookupError, TypeError, ValueError) as exc:
        raise IntegrityError(f"a stored value of a channel is not valid: {exc}") from exc


def stands_for_itself(pin: bytes) -> bool:
    """Return whether no key of a pinned value is a tag; a string may look like one."""
    return _TAGGED not in pin


_ENTRY_BYTES: Final = 250
"""Memory per entry of ``Elements`` in bytes, beside its bytes and its JSON."""


class Elements:
    """A cache of list elements as JSON, so that a message that is sent again is not decoded again.

    Elements are recognized by their bytes, so that a changed one is another one.

    Args:
        max_bytes: See ``Recent``.
    """

    def __init__(self, max_bytes: int) -> None:
        self._known: Recent[bytes, Any] = Recent(max_bytes)

    @property
    def held_bytes(self) -> int:
        """The memory in use, in bytes (an estimate)."""
        return self._known.held_bytes

    def to_json(self, data: bytes) -> Any:
        """Return the JSON of an element's MessagePack. It is shared: do not change it."""
        found = self._known.get(data)
        if found is None:
            found = to_json(MSGPACK, data)
            self._known.put(data, found, _ENTRY_BYTES + len(data) + memory_of(pinned(found)))
        return found


def list_to_json(
    items: list[Any], dumps: Callable[[Any], tuple[str, bytes]], known: Elements
) -> list[Any] | None:
    """Return a list, element by element; ``None`` where its serializer gives no MessagePack.

    Args:
        items: The list itself.
        dumps: Gives an element's type and bytes.
        known: What is known of elements.
    """
    if _are_plain(items):
        return items.copy() if dumps(items)[0] == MSGPACK else None
    found: list[Any] = []
    for item in items:
        try:
            kind, data = dumps(item)
        except RefusedError as exc:
            exc.steps.append(len(found))
            raise
        if kind == MSGPACK:
            found.append(known.to_json(data))
        elif item is None:
            found.append(None)
        elif type(item) is bytes and data == item:
            found.append(_frozen(item, 1))
        else:
            return None
    return found


def is_plain(value: Any) -> bool:
    """Return whether a value is a scalar that represents itself."""
    return value is None or type(value) is bool or (type(value) in _SCALARS and _are_plain([value]))


def _are_plain(items: list[Any]) -> bool:
    """Return whether a list contains only scalars that represent themselves."""
    if not set(map(type, items)) <= _SCALARS:
        return False
    texts = [it for it in items if type(it) is str]
    numbers = [it for it in items if type(it) is not str and it is not None]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return all(map(math.isfinite, numbers)) and (
        not numbers or MIN_INT <= min(numbers) <= max(numbers) <= MAX_INT
    )


def packed(value: Any) -> bytes:
    """Return the MessagePack of an element of a list.

    Raises:
        IntegrityError: It is nothing that ``list_to_json`` gave.
    """
    try:
        if isinstance(value, dict) and value.get(TAG) == "t":
            return _of_kind(str(value["t"]), _bytes(value["v"]))
        return _packed(_thawed(value))
    except (LookupError, TypeError, ValueError) as exc:
        raise IntegrityError(f"a stored value of a channel is not valid: {exc}") from exc


def _of_kind(kind: str, data: bytes) -> bytes:
    if kind != MSGPACK:
        raise ValueError(f"an element of type {kind!r}")
    return data


def joined(elements: list[bytes]) -> bytes:
    """Return the MessagePack of a list of packed elements."""
    count = len(elements)
    if count < _FIXED_LIST:
        head = bytes([0x90 | count])
    elif count < _SHORT_LIST:
        head = b"\xdc" + count.to_bytes(2)
    else:
        head = b"\xdd" + count.to_bytes(4)
    return head + b"".join(elements)


def plain_to_json(value: Any) -> Any:
    """Return a JSON value in the form it has in a channel."""
    is_large = isinstance(value, int) and not MIN_INT <= value <= MAX_INT
    if is_large:
        return {TAG: "t", "t": "json", "v": _base64(str(value).encode())}
    return _frozen(value, _MAX_LEVELS)


def members(value: Any) -> dict[str, Any]:
    """Return the members of an object with string keys, as JSON, in the object's order."""
    if isinstance(value, dict) and value.get(TAG) == "d":
        return dict(value["v"])
    return dict(value or {})


def members_to_json(kind: str, data: bytes) -> dict[str, Any]:
    """Return the members of a serialized object by their names, those of ``channel_values`` too.

    A member that cannot be taken apart stays bytes by itself.

    Raises:
        IntegrityError: It is not an object with text for keys.
        InvalidArgumentError: It is encrypted.
    """
    if "+" in kind:
        raise InvalidArgumentError(
            f"a checkpoint is encrypted (type {kind!r}), its channels with it. Give its key: "
            "--decrypt with the key in LANGGRAPH_AES_KEY, or cipher= in Python. It is then stored "
            "in clear"
        )
    if kind != MSGPACK:
        raise IntegrityError(
            f"a checkpoint is of type {kind!r}; those of type {MSGPACK!r} can be imported, which "
            "LangGraph's serializer has written since langgraph-checkpoint 2"
        )
    codec = _codec()
    try:
        value = codec.unpackb(data, ext_hook=_Extension, option=codec.OPT_NON_STR_KEYS)
        members = {name: it for name, it in value.items() if name != "channel_values"}
        channels = value.get("channel_values") or {}
        return {
            **{str(name): to_json(MSGPACK, _packed(it)) for name, it in members.items()},
            "channel_values": {
                str(name): to_json(MSGPACK, _packed(it)) for name, it in channels.items()
            },
        }
    except (AttributeError, TypeError, ValueError) as exc:
        raise IntegrityError(f"a checkpoint is not in a form that langgraph writes: {exc}") from exc


class _Extension:
    """An extension of MessagePack, unpacked."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code, self.data = code, data


class _TooDeepError(ValueError):
    pass


_TAGGED: Final = pinned(TAG)
"""Matches a pinned value that may have a tag as a key; a string may match too."""

_SCALARS: Final = {str, int, float, bool, type(None)}
_FIXED_LIST: Final = 16
_SHORT_LIST: Final = 2**16
"""The length from which the count of a list takes more bytes."""

_OPAQUE: Final = object()
_PLAIN: Final = (str, int, float, bool, type(None))


def _taken_apart(data: bytes, levels: int) -> Any:
    """Return the JSON of MessagePack bytes; ``_OPAQUE`` if it would not restore the same bytes."""
    codec = _codec()
    try:
        value = codec.unpackb(data, ext_hook=_Extension, option=codec.OPT_NON_STR_KEYS)
        frozen = _frozen(value, levels)
        return frozen if _packed(_thawed(frozen)) == data else _OPAQUE
    except (_TooDeepError, ValueError, TypeError, OverflowError):
        return _OPAQUE


def _frozen(value: Any, levels: int) -> Any:
    """Return the JSON of a value that is nested at most this many levels deep."""
    if isinstance(value, _PLAIN):
        return _frozen_scalar(value, levels)
    if isinstance(value, bytes):
        return _tagged("b", levels, v=_base64(value))
    if levels <= 0:
        raise _TooDeepError
    if isinstance(value, list):
        return [_frozen(it, levels - 1) for it in value]
    if isinstance(value, dict):
        return _frozen_dict(value, levels)
    if isinstance(value, _Extension):
        return _frozen_extension(value, levels)
    raise TypeError(f"no JSON for a {type(value).__name__}")


def _frozen_scalar(value: Any, levels: int) -> Any:
    if type(value) is float and not math.isfinite(value):
        return _tagged("f", levels, v=repr(value))
    if type(value) is int and not MIN_INT <= value <= MAX_INT:
        return _tagged("x", levels, c=FORM, v=list(dumped(value) or ()))
    return value


def _tagged(tag: str, levels: int, **held: Any) -> dict[str, Any]:
    """Return a tagged object; pass ``held`` in the order of its keys, as stored JSON has it."""
    if levels <= 0:
        raise _TooDeepError
    return {TAG: tag, **held}


def _frozen_extension(value: _Extension, levels: int) -> dict[str, Any]:
    inner = _taken_apart(value.data, levels - 1)
    if inner is _OPAQUE:
        return _tagged("x", levels, b=_base64(value.data), c=value.code)
    return _tagged("x", levels, c=value.code, v=inner)


def _frozen_dict(value: dict[Any, Any], levels: int) -> Any:
    keys = list(value)
    if not all(isinstance(key, str) for key in keys):
        below = levels - 3
        pairs = [[_frozen(key, below), _frozen(it, below)] for key, it in value.items()]
        return _tagged("m", below, v=pairs)
    in_order = sorted(keys)
    is_plain = TAG not in value and keys == in_order
    below = levels - 1 if is_plain else levels - 2
    frozen = {key: _frozen(value[key], below) for key in in_order}
    return frozen if is_plain else _tagged("d", below, k=keys, v=frozen)


def _thawed(value: Any) -> Any:
    if isinstance(value, list):
        return [_thawed(it) if type(it) in _NESTED else it for it in value]
    if not isinstance(value, dict):
        return value
    if TAG in value:
        return _TAGS[value[TAG]](value)
    return {key: _thawed(it) for key, it in sorted(value.items())}


def _thawed_object(value: Mapping[str, Any]) -> dict[str, Any]:
    held = value["v"]
    return {key: _thawed(it) if type(it := held[key]) in _NESTED else it for key in value["k"]}


def _thawed_pairs(value: Mapping[str, Any]) -> dict[Any, Any]:
    return {_key(_thawed(key)): _thawed(it) for key, it in value["v"]}


def _key(value: Any) -> Any:
    return tuple(map(_key, value)) if isinstance(value, list) else value


def _thawed_extension(value: Mapping[str, Any]) -> Any:
    data = _bytes(value["b"]) if "b" in value else _packed(_thawed(value["v"]))
    return _codec().Ext(value["c"], data)


_NESTED: Final = {list, dict}

_TAGS: Final[dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "d": _thawed_object,
    "m": _thawed_pairs,
    "b": lambda value: _bytes(value["v"]),
    "f": lambda value: float(value["v"]),
    "x": _thawed_extension,
}


def _packed(value: Any) -> bytes:
    codec = _codec()
    packed: bytes = codec.packb(value, default=_repacked, option=codec.OPT_NON_STR_KEYS)
    return packed


def _repacked(value: Any) -> Any:
    if isinstance(value, _Extension):
        return _codec().Ext(value.code, value.data)
    raise TypeError(f"no MessagePack for a {type(value).__name__}")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _codec() -> Any:
    if ormsgpack is None:
        raise MissingExtraError(
            f"reading and writing LangGraph's values needs ormsgpack: {pip_install('langgraph')}"
        )
    return ormsgpack
