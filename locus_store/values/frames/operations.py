"""The operations of records: MessagePack as they are stored, JSON for others, and their text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from reprlib import repr as short
from typing import Any, Final, cast

from locus_store.errors import IntegrityError
from locus_store.values.encoding import (
    Json,
    encode,
    encode_canonical,
    may_hold_binary,
    pack_frame,
    unpack_record,
)
from locus_store.values.msgpack import MSGPACK, as_json, convert_to_json, decode_sorted, get_packed
from locus_store.values.sealing import is_sealed


def read_operations(payload: bytes, max_bytes: int) -> list[list[Json]]:
    """Return the operations of one record, as JSON.

    Raises:
        IntegrityError: the payload is damaged, or too large.
    """
    found: list[list[Json]] = []
    try:
        for body in unpack_record(payload, max_bytes):
            operations = parse_frame(body)
            is_packed = has_bytes(body, operations)
            for operation in operations:
                is_json = not is_packed and operation[:1] != ["m"]
                found += [operation] if is_json else iterate_json_operations(operation)
    except RecursionError as exc:
        raise make_malformed_error("operation", "nested too deeply") from exc
    return found


def read_stored_operations(payload: bytes, max_bytes: int) -> list[list[Any]]:
    """Return the operations of one record as they are stored: with bytes for MessagePack.

    Raises:
        IntegrityError: the payload is damaged, or too large.
    """
    return list(chain.from_iterable(map(parse_frame, unpack_record(payload, max_bytes))))


def iterate_json_operations(operation: list[Any]) -> Iterator[list[Json]]:
    """Yield an operation as operations of JSON; those within MessagePack begin at its place."""
    match operation:
        case ["m", list() as path, list() as inner]:
            for operation_within in inner:
                kind, below, *rest = check_operation(operation_within)
                yield [kind, [*path, *below], *rest]
        case _:
            kind, path, *rest = check_operation(operation)
            yield [kind, path, *map(convert_to_json, rest)]


def check_operation(operation: Any) -> list[Any]:
    """Return an operation that has a kind and a path."""
    match operation:
        case [str(), list(), *_]:
            return cast("list[Any]", operation)
    raise make_malformed_error("operation", operation)


def read_restorable_operations(payload: bytes, max_bytes: int) -> bytes:
    """Return the operations of one record as JSON that restores them; see ``encode_operations``.

    A list that begins with ``"msgpack"`` may have bytes, which are ``{"$m": [the JSON of them]}``.
    An object in it whose only key is ``$m`` is ``{"$m": the object}``.

    Raises:
        IntegrityError: the payload is damaged, or too large.
    """
    found = read_stored_operations(payload, max_bytes)
    with suppress(TypeError):  # it has bytes
        return encode(found)
    try:
        return encode([MSGPACK, *map(_mark_msgpack, found)])
    except (RecursionError, TypeError) as exc:
        raise make_malformed_error("operation", "nested too deeply") from exc


def encode_operations(operations: list[Any]) -> bytes:
    """Return the payload of operations in the form of ``read_restorable_operations``.

    Raises:
        IntegrityError: They are not in this form.
    """
    try:
        if operations[:1] == [MSGPACK]:
            operations = list(map(_unmark_msgpack, operations[1:]))
        return pack_frame(encode_canonical(operations)) if operations else b""
    except (AttributeError, LookupError, TypeError, RecursionError) as exc:
        raise make_malformed_error("operation", exc) from exc


_MARK: Final = "$m"


def _mark_msgpack(value: Any) -> Any:
    if type(value) is bytes:
        return {_MARK: [as_json(value)]}
    if isinstance(value, list):
        return list(map(_mark_msgpack, value))
    if not isinstance(value, dict):
        return value
    held = {key: _mark_msgpack(it) for key, it in value.items()}
    return {_MARK: held} if held.keys() == {_MARK} else held


def _unmark_msgpack(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_unmark_msgpack, value))
    if not isinstance(value, dict):
        return value
    if value.keys() != {_MARK}:
        return {key: _unmark_msgpack(it) for key, it in value.items()}
    held = value[_MARK]
    if isinstance(held, list) and len(held) == 1:
        return get_packed(held[0])
    return {key: _unmark_msgpack(it) for key, it in held.items()}


def extract_text(payload: bytes, max_bytes: int) -> str:
    """Return all strings that a payload adds, one per line; values only, no keys.

    None of a sealed one: it is read in another way, or not at all.
    """
    if is_sealed(payload):
        return ""
    operations = read_operations(payload, max_bytes)
    return "\n".join(text for it in operations for text in iterate_strings(it[:1:-1]))  # no path


def collect_text(value: Json) -> str:
    """Return all strings of a state or other value, in the form of ``extract_text``."""
    return "\n".join(iterate_strings([value]))


def iterate_strings(rest: list[Json]) -> Iterator[str]:
    """Yield all strings of values, the last value first, whose list is empty afterwards."""
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, bytes):
            rest.append(as_json(item))
        elif isinstance(item, (list, dict)):
            rest.extend(reversed(item if isinstance(item, list) else list(item.values())))


def has_bytes(body: bytes, operations: list[list[Any]]) -> bool:
    """Return whether the operations of a frame's body have MessagePack as bytes in them."""
    if may_hold_binary(body):
        try:
            encode(operations)
        except TypeError:
            return True
    return False


def parse_frame(body: bytes) -> list[list[Any]]:
    """Return the operations of a frame, with bytes for MessagePack."""
    found = decode_sorted(body)
    if not isinstance(found, list) or not _LIST.issuperset(map(type, found)):
        raise make_malformed_error("frame", found)
    return cast("list[list[Any]]", found)


_LIST: Final = frozenset({list})


def make_malformed_error(what: str, value: object) -> IntegrityError:
    """Return the error of a frame that no save wrote."""
    return IntegrityError(f"a stored frame has an invalid {what} ({short(value)[:60]})")
