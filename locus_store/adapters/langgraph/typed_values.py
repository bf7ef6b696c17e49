"""Values of graph runners in the form that they have in a state.

LangGraph's serializer gives a type and bytes; most are MessagePack. A channel's value is stored as
these bytes, and a list as those of its elements, so that its growth costs what was added. A scalar
that is JSON, and a list of such, stay as they are. ``values.msgpack`` makes JSON of the bytes for
all other readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from locus_store.errors import IntegrityError, InvalidArgumentError
from locus_store.values.codec.forms import RefusedError
from locus_store.values.encoding import MAX_INT, MIN_INT, join_list
from locus_store.values.msgpack import MSGPACK, TAG, freeze, pack, to_json, unpack


def store_value(kind: str, data: bytes) -> Any:
    """Return a value from a serializer's type and bytes."""
    if kind != MSGPACK:
        return to_json(kind, data)
    try:
        value = unpack(data)
    except ValueError:
        return data
    if is_plain(value):
        return value
    if not isinstance(value, list):
        return data
    if are_plain(value):
        return value
    elements = list(map(pack, value))
    return elements if join_list(elements) == data else data


def store_elements(
    items: list[Any], dumps: Callable[[Any], tuple[str, bytes]]
) -> list[bytes] | None:
    """Return the MessagePack of elements; ``None`` where their serializer gives another type.

    Args:
        items: The elements.
        dumps: Gives an element's type and bytes.
    """
    found: list[bytes] = []
    for item in items:
        try:
            kind, data = dumps(item)
        except RefusedError as exc:
            exc.steps.append(len(found))
            raise
        if kind == MSGPACK:
            found.append(data)
        elif item is None or (type(item) is bytes and data == item):
            found.append(pack(item))
        else:
            return None
    return found


def is_plain(value: Any) -> bool:
    """Return whether a value is a scalar that represents itself."""
    kind = type(value)
    if (kind is int and MIN_INT <= value <= MAX_INT) or (kind is str and value.isascii()):
        return True
    return value is None or (kind in _SCALARS and are_plain([value]))


def are_plain(items: list[Any]) -> bool:
    """Return whether a list contains only scalars that represent themselves."""
    kinds = set(map(type, items))
    if not kinds <= _SCALARS:
        return False
    texts = items if kinds <= _TEXT else [it for it in items if type(it) is str]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    if texts is items:
        return True
    numbers = [it for it in items if type(it) is not str and it is not None]
    return all(map(math.isfinite, numbers)) and (
        not numbers or MIN_INT <= min(numbers) <= max(numbers) <= MAX_INT
    )


def convert_to_json(value: Any) -> Any:
    """Return a JSON value in the form it has in a channel."""
    is_large = isinstance(value, int) and not MIN_INT <= value <= MAX_INT
    return to_json("json", str(value).encode()) if is_large else freeze(value)


def get_members(value: Any) -> dict[str, Any]:
    """Return the members of an object with string keys, as JSON, in the object's order."""
    if isinstance(value, dict) and value.get(TAG) == "d":
        return dict(value["v"])
    return dict(value or {})


def convert_members(kind: str, data: bytes) -> dict[str, Any]:
    """Return the members of a serialized object by their names, as JSON.

    Those of ``channel_values`` are in the form of ``store_value``.

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
    try:
        value = unpack(data)
        members = {name: it for name, it in value.items() if name != "channel_values"}
        channels = value.get("channel_values") or {}
        return {
            **{str(name): to_json(MSGPACK, pack(it)) for name, it in members.items()},
            "channel_values": {
                str(name): store_value(MSGPACK, pack(value)) for name, value in channels.items()
            },
        }
    except (AttributeError, TypeError, ValueError) as exc:
        raise IntegrityError(f"a checkpoint is not in a form that langgraph writes: {exc}") from exc


_SCALARS: Final = {str, int, float, bool, type(None)}
_TEXT: Final = {str}
