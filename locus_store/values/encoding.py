"""JSON values as bytes: valid states, the canonical encoding, digests, and frames."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import repeat, starmap
from typing import Any, Final, TypeAlias, cast
from zlib import crc32

import orjson
import ormsgpack
import zstandard

from locus_store.errors import EncryptionError, IntegrityError, SerializationError
from locus_store.values.compression import compress, decompress

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


MAX_DEPTH = 200
"""Most objects and lists that may stand inside each other, the state's own object counted."""

MIN_INT, MAX_INT = -(2**63), 2**64 - 1


def encode_canonical(value: object) -> bytes:
    """Return a value's canonical encoding, which digests use: MessagePack with sorted keys.

    Each number, string and array has the shortest form, and a float has 64 bits. The encoding is
    that of ``canonicalize`` of the value. Docstrings call it the *encoding* of a value.

    Raises:
        TypeError: It is of another type than JSON's, a tuple or a buffer, or it has an integer
            beyond 64 bits or a lone surrogate. ``require_json`` refuses what else JSON has not.
    """
    return _pack(value, None, _EXACT)  # by keyword, it takes twice as long


_pack: Final[Callable[[object, None, int], bytes]] = ormsgpack.packb
_EXACT: Final = (
    ormsgpack.OPT_SORT_KEYS
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


decode_canonical: Final[Callable[[bytes], Any]] = ormsgpack.unpackb
"""Returns the value of an encoding; raises ``ValueError`` if it is none."""


def encode_each(values: Iterable[object]) -> list[bytes]:
    """Return the encoding of each value."""
    return list(map(_pack, values, repeat(None), repeat(_EXACT)))


def encode_entries(value: dict[str, Any]) -> dict[str, bytes]:
    """Return the encoding of the value of each key."""
    return dict(zip(value, encode_each(value.values()), strict=True))


def is_msgpack_encoding(canonical_bytes: bytes) -> bool:
    """Return whether an encoding is that of MessagePack as bytes."""
    return 0xC4 <= canonical_bytes[0] <= 0xC6  # noqa: PLR2004


def make_list_head(count: int) -> bytes:
    """Return the first bytes of an encoded list; its elements follow."""
    if count < _SHORT_COUNT:
        return bytes((_FIXED_LIST | count,))
    return b"\xdc" + count.to_bytes(2) if count < _LONG_COUNT else b"\xdd" + count.to_bytes(4)


def make_object_head(count: int) -> bytes:
    """Return the first bytes of an encoded object; its sorted keys follow, each with its value."""
    if count < _SHORT_COUNT:
        return bytes((_FIXED_OBJECT | count,))
    return b"\xde" + count.to_bytes(2) if count < _LONG_COUNT else b"\xdf" + count.to_bytes(4)


def join_list(elements: list[bytes]) -> bytes:
    """Return the encoding of a list of encoded elements."""
    return b"".join([make_list_head(len(elements)), *elements])


def skip_list_head(list_encoding: bytes) -> memoryview:
    """Return the encoded elements of a list, joined."""
    return memoryview(list_encoding)[_LONG_LISTS.get(list_encoding[0], 1) :]


_FIXED_OBJECT, _FIXED_LIST = 0x80, 0x90
_LONG_LISTS: Final = {0xDC: 3, 0xDD: 5}
"""The first byte of a longer list to the length of its head."""

_SHORT_COUNT, _LONG_COUNT = 16, 2**16
"""The lengths from which a count takes more bytes."""


def are_equal(one: object, other: object) -> bool:
    """Return whether two values are equal as JSON: 1, 1.0 and True are not.

    Integers may have more than 64 bits, and strings lone surrogates.
    """
    return print_json(one) == print_json(other)


def print_json(value: object) -> bytes:
    """Return bytes that are equal for equal values; see ``are_equal``."""
    try:
        return encode_canonical(value)
    except TypeError:
        return json.dumps(value, sort_keys=True).encode()


def digest(canonical_bytes: bytes) -> bytes:
    """Return 16 bytes of SHA-256 (twice as fast as BLAKE2 on a CPU with SHA instructions)."""
    return _sha256(canonical_bytes).digest()[:16]


def digest_each(encodings: list[bytes]) -> list[bytes]:
    """Return the digest of each encoding."""
    return [it.digest()[:16] for it in map(_sha256, encodings)]


_sha256: Final = hashlib.sha256


SURE: Final = frozenset({str, int, bool, type(None)})
"""The types of which each value is JSON that can be encoded; ``require_json`` is not needed."""


def require_json(encoding: bytes, surrounding: int) -> None:
    """Raise ``ValueError`` or ``TypeError`` unless an encoded value is JSON.

    An encoding may have bytes, extensions, NaN and infinities in it, and may be nested too deeply.

    Args:
        encoding: The encoding.
        surrounding: The number of objects and lists that contain the value.
    """
    marks = encoding.translate(None, _PLAIN_BYTES)
    if len(marks) <= MAX_DEPTH - surrounding and not marks.strip(_HEADS_OF_CONTAINERS):
        return  # letters beyond ASCII, floats and large numbers may hide it
    require_values(encoding)
    require_levels(encoding, surrounding)


def require_values(encoding: bytes) -> None:
    """Raise ``ValueError`` or ``TypeError`` if an encoded value has bytes, NaN or infinities."""
    may_be_infinite = _FLOAT in encoding and _MAY_BE_INFINITE.search(encoding)
    if may_be_infinite or may_hold_binary(encoding):
        plain = orjson.dumps(decode_canonical(encoding))  # refuses bytes; NaN becomes null
        if may_be_infinite and encode_canonical(orjson.loads(plain)) != encoding:
            raise ValueError("not exactly JSON")


def may_hold_binary(encoding: bytes) -> bool:
    """Return whether MessagePack may hold bytes or an extension; numbers and text may look so."""
    return any(map(encoding.__contains__, _BINARY))


_BINARY: Final = (*range(0xC4, 0xCA), *range(0xD4, 0xD9))
"""The first bytes of MessagePack's binary values and extensions."""

_FLOAT: Final = 0xCB
_MAY_BE_INFINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""Matches the encoding of NaN and of infinities; numbers and text may look so."""


def require_levels(encoding: bytes, surrounding: int) -> None:
    """Raise ``ValueError`` if an encoded value is nested too deeply for its position."""
    levels = MAX_DEPTH - surrounding
    if len(encoding) <= levels or len(encoding.translate(None, _NO_CONTAINERS)) <= levels:
        return
    row = _list_containers([decode_canonical(encoding)])  # digits may look like heads
    while row:
        if levels == 0:
            raise ValueError("nested too deeply")
        levels -= 1
        row = [item for outer in row for item in _list_containers(outer)]


_HEADS_OF_CONTAINERS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""The bytes with which the encoding of an object or list begins."""

_NO_CONTAINERS: Final = bytes({*range(256)}.difference(_HEADS_OF_CONTAINERS))
_PLAIN_BYTES: Final = bytes({*_NO_CONTAINERS}.difference(_BINARY, [_FLOAT]))


def _list_containers(value: object) -> list[object]:
    """Return the objects and lists that an object or list holds."""
    values = value.values() if isinstance(value, dict) else cast("list[object]", value)
    return [it for it in values if type(it) in _CONTAINERS]


def are_flat(values: Iterable[object]) -> bool:
    """Return whether no value is an object or list."""
    return _CONTAINERS.isdisjoint(map(type, values))


_CONTAINERS: Final = frozenset({dict, list})

LONGEST_JSON: Final = 6
"""JSON is at most this many times as long as the canonical encoding: ``\\u0000``, ``false,``."""


def require_json_size(value: Callable[[], object], canonical_bytes: int, max_bytes: int) -> None:
    """Apply ``require_size`` to a value whose encoding has ``canonical_bytes``, and to this length.

    ``value`` is called only if this length does not show that the JSON is short enough.
    """
    if canonical_bytes * LONGEST_JSON > max_bytes:
        require_size(max(canonical_bytes, measure_json(value())), max_bytes)


def measure_json(value: object) -> int:
    """Return the length of a checked value as compact JSON; MessagePack counts by its bytes."""
    return len(orjson.dumps(value, default=lambda data: "x" * len(data)))


def require_size(size: int, max_bytes: int) -> None:
    """Refuse a value whose compact JSON is longer than ``max_bytes``.

    Args:
        size: The length of its JSON.
        max_bytes: The option ``max_state_bytes``.

    Raises:
        SerializationError: It is longer.
    """
    if size > max_bytes:
        raise SerializationError(
            f"the value takes {size:,} bytes as JSON, above max_state_bytes={max_bytes}; store "
            "large data elsewhere and keep a reference to it, or raise max_state_bytes"
        )


def encode(value: object) -> bytes:
    """Return a checked value as compact JSON with sorted keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def decode(json_bytes: bytes) -> Json:
    """Return the value of JSON bytes.

    Raises:
        IntegrityError: they are not JSON.
    """
    try:
        return cast("Json", orjson.loads(json_bytes))
    except orjson.JSONDecodeError as exc:
        raise IntegrityError(f"a stored frame is not JSON: {exc}") from exc


MAX_STATE_BYTES: Final = 256 * 1024 * 1024
"""Default of ``max_state_bytes``: the largest state that is saved or read, as compact JSON, or as
MessagePack if that is longer, as it is with short floats."""

UNLIMITED: Final = sys.maxsize
"""Limit for data that this process made itself."""

ENVELOPE_BYTES: Final = 64
"""A frame may be longer than the state by this: the operation that sets the whole state."""


class TooLargeError(IntegrityError):
    """Stored data that exceeds ``max_state_bytes``."""

    @classmethod
    def make(cls, plain_bytes: int, max_bytes: int) -> TooLargeError:
        """Return the error of data that takes at least ``plain_bytes``."""
        return cls(
            f"the stored data takes {plain_bytes:,} bytes or more as JSON, above "
            f"max_state_bytes={max_bytes}; raise max_state_bytes if you trust this data, or "
            "delete it"
        )

    def with_place(self, where: str) -> TooLargeError:
        """Return the same error with the place of the data."""
        return TooLargeError(f"{where}: {self}")


FRAME_VERSION = 3
SEALED_FORMATS: Final = frozenset({0xE1, 0xE2})
NEEDS_KEYS: Final = "it is sealed: open the storage with the encryption= that it was saved with"
"""The first bytes of sealed payloads; see ``sealing``."""

_AS_IS, _ZSTD = 0, 1
_ZSTD_MIN_BYTES = 512
"""Below, compression takes 6 microseconds and saves a fifth."""
_LOW, _MORE, _LAST_VARINT_SHIFT = 0x7F, 0x80, 56


def pack_frame(body: bytes, *, dense: bool = False) -> bytes:
    """Return one self-delimiting frame: version, codec, stored length, plain length, bytes, CRC-32.

    The lengths are unsigned varints (7 bits a byte, least first). Payloads can be joined as bytes.
    The checksum is of all that stands before it: about 1 of 200 flipped bits in what Zstandard made
    changes nothing of what it gives back. ``dense`` compresses better, and takes longer.
    """
    if len(body) >= _ZSTD_MIN_BYTES:
        packed = compress(body, dense=dense)
        if len(packed) < len(body):
            return make_frame(packed, len(body))
    return make_frame(body)


def make_frame(body: bytes, plain_bytes: int = -1) -> bytes:
    """Return a frame of a body as it is, or of one of that length as it was compressed."""
    frame = _make_head(len(body), plain_bytes) + body
    return frame + crc32(frame).to_bytes(_CHECKSUM_BYTES, "little")


@lru_cache(maxsize=4096)
def _make_head(size: int, plain_bytes: int) -> bytes:
    codec, plain = (_AS_IS, size) if plain_bytes < 0 else (_ZSTD, plain_bytes)
    return bytes((FRAME_VERSION, codec)) + make_varint(size) + make_varint(plain)


def measure_payload(payload: bytes, max_bytes: int) -> int:
    """Return the bytes that the frames of one record take once they are decompressed.

    Raises:
        TooLargeError: Together they are longer than a state of ``max_bytes``.
        IntegrityError: As ``unpack_frames``, but for what only decompressing shows.
    """
    found = sum(size for *_, size in _iterate_frames(payload, max_bytes))
    _require_room(found, max_bytes)
    return found


def unpack_frames(payload: bytes, max_bytes: int) -> Iterable[bytes]:
    """Return the bodies of a payload's frames, in order, each read when it is asked for.

    A frame's plain length is compared with ``max_bytes`` before it is decompressed.

    Raises:
        TooLargeError: one is longer than a state of ``max_bytes``.
        IntegrityError: unknown version or codec, cut off, damaged, or not the length that it says.
    """
    body = _find_plain_body(payload, max_bytes)
    return starmap(_decode_body, _iterate_frames(payload, max_bytes)) if body is None else [body]


def unpack_record(payload: bytes, max_bytes: int) -> list[bytes]:
    """Return the bodies of the frames of one record, in order.

    Raises:
        TooLargeError: Together they are longer than a state of ``max_bytes``.
        IntegrityError: As ``unpack_frames``.
    """
    body = _find_plain_body(payload, max_bytes)
    if body is not None:
        return [body]
    found = list(_iterate_frames(payload, max_bytes))
    _require_room(sum(size for *_, size in found), max_bytes)
    return [_decode_body(*frame) for frame in found]


def join_frames(payload: bytes, max_bytes: int) -> bytes:
    """Return the bodies of a payload's frames, joined; see ``unpack_record``."""
    return b"".join(unpack_record(payload, max_bytes))


def _find_plain_body(payload: bytes, max_bytes: int) -> bytes | None:
    """Return the body of a payload that is one uncompressed frame, as most are; else ``None``."""
    head = _make_plain_head(len(payload))
    if payload.startswith(head) and len(payload) <= max_bytes and crc32(payload) == _WHOLE:
        return payload[len(head) : _END]
    return None


def unpack_verified(payloads: Iterable[bytes], max_bytes: int) -> list[bytes]:
    """Return the joined bodies of payloads that a digest has verified; see ``unpack_record``.

    The checksum of an uncompressed frame is not compared.
    """
    bodies, heads = list[bytes](), dict[int, bytes]()
    for payload in payloads:
        size = len(payload)
        head = heads.get(size) or heads.setdefault(size, _make_plain_head(size))
        is_plain = payload.startswith(head) and size <= max_bytes
        bodies.append(payload[len(head) : _END] if is_plain else join_frames(payload, max_bytes))
    return bodies


@lru_cache(maxsize=4096)
def _make_plain_head(size: int) -> bytes:
    """Return the head of an uncompressed frame that has ``size`` bytes."""
    for width in range(1, 6):  # bytes of a length: up to 32 GB
        body = make_varint(max(0, size - 2 - 2 * width - _CHECKSUM_BYTES))
        if len(body) == width:
            return bytes((FRAME_VERSION, _AS_IS)) + body + body
    return bytes((FRAME_VERSION + 1,))  # no frame has this size


def _iterate_frames(payload: bytes, max_bytes: int) -> Iterator[tuple[bool, memoryview, int]]:
    """Yield for each frame whether it is compressed, its stored bytes, and its plain length."""
    start, end, view = 0, len(payload), memoryview(payload)
    while start < end:
        head = payload[start : start + 2]
        if head[0] in SEALED_FORMATS:  # what follows are no lengths
            raise EncryptionError(NEEDS_KEYS)
        stored_bytes, at = read_varint(payload, start + 2)
        plain_bytes, begin = read_varint(payload, at)
        if head not in _IS_COMPRESSED:
            raise IntegrityError(
                f"a stored frame has the unknown format {head.hex()}: it is damaged, or was "
                "written by another release of locus-store; read it with that one"
            )
        is_compressed, at = _IS_COMPRESSED[head], begin + stored_bytes
        checked, start = view[start:at], at + _CHECKSUM_BYTES
        if crc32(checked).to_bytes(_CHECKSUM_BYTES, "little") != payload[at:start]:
            raise IntegrityError("a stored frame is damaged or cut off")
        _require_room(plain_bytes, max_bytes)
        if not is_compressed and stored_bytes != plain_bytes:
            raise IntegrityError("a stored frame's length differs from its header")
        yield is_compressed, view[begin:at], plain_bytes


def find_frame_end(payload: bytes, start: int) -> int:
    """Return the end of the frame at a position; see ``pack_frame``."""
    stored_bytes, at = read_varint(payload, start + 2)
    _, at = read_varint(payload, at)
    return at + stored_bytes + _CHECKSUM_BYTES


def _require_room(plain_bytes: int, max_bytes: int) -> None:
    if plain_bytes > max_bytes + ENVELOPE_BYTES:
        raise TooLargeError.make(plain_bytes, max_bytes)


_CHECKSUM_BYTES, _END = 4, -4
_WHOLE: Final = crc32(bytes(_CHECKSUM_BYTES))
"""The CRC-32 of everything that is followed by its own, little-endian."""
_IS_COMPRESSED = {bytes((FRAME_VERSION, codec)): codec == _ZSTD for codec in (_AS_IS, _ZSTD)}
"""A frame's first two bytes to whether it is compressed."""


def _decode_body(is_compressed: bool, body: memoryview, plain_bytes: int) -> bytes:
    if not is_compressed:
        return bytes(body)
    try:
        if zstandard.frame_content_size(body) != plain_bytes:
            raise IntegrityError("a stored frame's length differs from its header")
        return decompress(body)
    except (zstandard.ZstdError, MemoryError) as exc:
        raise IntegrityError(f"a stored frame does not decompress: {exc}") from exc


def make_varint(number: int) -> bytes:
    """Return an unsigned varint; see ``pack_frame``."""
    if number < _MORE:
        return bytes((number,))
    if number < _MORE << 7:
        return bytes((number & _LOW | _MORE, number >> 7))
    out = bytearray()
    while number >= _MORE:
        out.append(number & _LOW | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(payload: bytes, at: int) -> tuple[int, int]:
    """Return the number of a varint, and its end."""
    number = shift = 0
    try:
        while (byte := payload[at]) >= _MORE and shift < _LAST_VARINT_SHIFT:
            number |= (byte & _LOW) << shift
            shift += 7
            at += 1
    except IndexError:
        byte = _MORE
    if byte >= _MORE:
        raise IntegrityError("a stored frame is cut off in its lengths")
    if byte == 0 and shift:
        raise IntegrityError("a stored frame has a length in an unknown form")
    return number | byte << shift, at + 1
