"""Bodies of requests and answers: a JSON head, and payloads as raw bytes behind it.

A body without payloads is plain JSON. One with payloads is framed: the head's length as 4 bytes,
most significant first; the head; then each payload with its length in front. The head has the
number of a payload in place of the payload, and plain JSON has its base64 there.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Collection
from struct import Struct
from typing import Any, Final

import orjson

from locus_store.errors import InvalidArgumentError
from locus_store.values.filters import Filter

FRAMED: Final = "application/vnd.locus-store"
"""Media type of a body with payloads."""

JSON: Final = "application/json"

_LENGTH: Final = Struct(">I")


def encode_body(value: object) -> tuple[bytes, str]:
    """Return a body and its media type, which is ``JSON`` if there are no payloads.

    Raises:
        InvalidArgumentError: JSON cannot keep the value.
    """
    payloads: list[bytes] = []

    def add_payload(payload: bytes) -> int:
        payloads.append(payload)
        return len(payloads) - 1

    head = _dump(value, add_payload)
    if not payloads:
        return head, JSON
    parts = [it for part in (head, *payloads) for it in (_LENGTH.pack(len(part)), part)]
    return b"".join(parts), FRAMED


def encode_json(value: object) -> bytes:
    """Return a value as JSON, with its payloads as base64."""
    return _dump(value, lambda payload: b64encode(payload).decode())


def _dump(value: object, payload: Any) -> bytes:
    def encode_item(item: object) -> object:
        if isinstance(item, bytes):
            return payload(item)
        if isinstance(item, Filter):
            return item.wanted
        if hasattr(item, "_asdict"):
            return item._asdict()
        if isinstance(item, Collection) and not isinstance(item, bytearray | memoryview):
            return list(item)
        raise TypeError(f"{type(item).__name__} is not JSON")

    try:
        return orjson.dumps(value, default=encode_item)
    except TypeError as exc:
        raise InvalidArgumentError(f"{_blame(value)} cannot be sent as JSON: {exc}") from exc


def _blame(value: object) -> str:
    """Return the name of the first argument that is not JSON."""
    for name, argument in value.items() if isinstance(value, dict) else ():
        try:
            encode_json(argument)
        except InvalidArgumentError:
            return str(name)
    return "a value"


class Payloads:
    """The payloads of a body that was received; each is taken once."""

    def __init__(self, parts: list[bytes]) -> None:
        self._found: list[bytes | None] = [*parts]

    def take(self, place: object) -> bytes:
        """Return the payload that stands for a value of the head.

        Raises:
            ValueError: There is none.
        """
        if isinstance(place, str):
            try:
                return b64decode(place, validate=True)
            except (Base64Error, ValueError) as exc:
                raise ValueError("the payload is not base64") from exc
        if type(place) is not int or not 0 <= place < len(self._found):
            raise ValueError("there is no such payload")
        payload, self._found[place] = self._found[place], None
        if payload is None:
            raise ValueError("the payload is used twice")
        return payload

    @property
    def are_taken(self) -> bool:
        """True if no payload is left."""
        return not any(it is not None for it in self._found)


def decode_body(body: bytes, media_type: str) -> tuple[Any, Payloads]:
    """Return the value of a head, and the payloads behind it.

    Raises:
        InvalidArgumentError: The body is cut off, or is not what its media type says.
    """
    kind = media_type.partition(";")[0].strip().lower()
    if kind == JSON:
        return _load(body), Payloads([])
    if kind != FRAMED:
        raise InvalidArgumentError(f"the body must be {JSON} or {FRAMED}, not {kind[:80]!r}")
    head, *payloads = _split(body)
    return _load(head), Payloads(payloads)


def _split(body: bytes) -> list[bytes]:
    parts: list[bytes] = []
    at, end = 0, len(body)
    while at < end or not parts:
        start = at + _LENGTH.size
        if start > end:
            raise InvalidArgumentError("the body is cut off")
        at = start + _LENGTH.unpack_from(body, at)[0]
        if at > end:
            raise InvalidArgumentError("the body is cut off")
        parts.append(body[start:at])
    return parts


def _load(head: bytes) -> Any:
    try:
        return orjson.loads(head)
    except orjson.JSONDecodeError as exc:
        raise InvalidArgumentError(f"the body is not JSON: {exc}") from exc
