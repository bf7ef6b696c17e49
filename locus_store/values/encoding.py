"""JSON values as bytes: valid states, the canonical encoding, digests, and frames."""

from __future__ import annotations

import hashlib
import marshal
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias, cast
from zlib import crc32

import orjson
import zstandard

from locus_store.errors import EncryptionError, IntegrityError, SerializationError
from locus_store.values.compression import compress, decompress

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


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


MAX_DEPTH = 200
"""Most objects and lists that may stand inside each other, the state's own object counted."""

MIN_INT, MAX_INT = -(2**63), 2**64 - 1


def encode_canonical_reference(value: object) -> bytes:
    """Return a value's canonical encoding, which digests use; independent of installed libraries.

    A tag, then for int, text, list and object what follows here; every integer little-endian:

    ======  ======================================================================
    N T F   None, True, False
    i       an integer of 32 bits: int32
    l       another: int32 count of 15-bit digits, negative for a negative integer; the digits
            as int16, least first
    g       a float: its 8 bytes
    u       text: int32 count of bytes; UTF-8
    [       list: int32 count; the elements
    {       object: key, value, key, value ... in the order given; then ``0``
    (       tuple: as a list (only in values that are not canonical yet)
    s       MessagePack: int32 count of bytes; the bytes
    ======  ======================================================================

    It is marshal's version 2 format, of these types. Reading it back is never needed.
    """
    out = bytearray()
    _write(value, out)
    return bytes(out)


def _write(value: object, out: bytearray) -> None:
    kind = type(value)
    if kind is dict:
        out += b"{"
        for key, item in cast("dict[object, object]", value).items():
            _write(key, out)
            _write(item, out)
        out += b"0"
    elif kind is list or kind is tuple:
        items = cast("list[object]", value)
        out += struct.pack("<ci", b"[" if kind is list else b"(", len(items))
        for item in items:
            _write(item, out)
    else:
        out += _write_scalar(value)


def _write_scalar(value: object) -> bytes:
    kind = type(value)
    if value is None:
        return b"N"
    if kind is bool:
        return b"T" if value else b"F"
    if kind is int:
        return _write_int(cast("int", value))
    if kind is float:
        return struct.pack("<cd", b"g", value)
    if kind is str:
        text = cast("str", value).encode("utf-8", "surrogatepass")
        return struct.pack("<ci", b"u", len(text)) + text
    if kind is bytes:
        return struct.pack("<ci", b"s", len(cast("bytes", value))) + cast("bytes", value)
    raise ValueError(f"no pinned encoding for {kind.__qualname__}")


def _write_int(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return struct.pack("<ci", b"i", value)
    digits = []
    rest = abs(value)
    while rest:
        digits.append(rest & 0x7FFF)
        rest >>= 15
    count = len(digits) if value > 0 else -len(digits)
    return struct.pack(f"<ci{len(digits)}h", b"l", count, *digits)


def _marshal(value: object) -> bytes:
    return marshal.dumps(value, 2)  # type: ignore[arg-type]  # refuses what it cannot hold


_TEXT = "sentinel"
_SENTINEL = {
    "": [None, True, False, 0, -1, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**64 - 1, -(2**63)],
    "\x00é🎉": (0.0, -0.0, 1.0, 5e-324, 1.7976931348623157e308),
    _TEXT: [_TEXT, _TEXT, "", [], {}, (), {_TEXT: [{}, {}]}, "é" * 300, "x" * 300, b"", b"x" * 300],
}


def _choose_fastest() -> Callable[[object], bytes]:
    # marshal's formats belong to CPython: one that wrote other bytes would change every digest
    same = _marshal(_SENTINEL) == encode_canonical_reference(_SENTINEL)
    return _marshal if same else encode_canonical_reference


encode_canonical: Callable[[object], bytes] = _choose_fastest()
"""``encode_canonical_reference`` at C speed. Docstrings call its result the *encoding* of a value;
the encoding of a canonical value is the input of its digest."""


def decode_canonical(canonical_bytes: bytes) -> object:
    """Return the value of an encoding that this process has made; never of stored bytes."""
    return marshal.loads(canonical_bytes)  # noqa: S302  (our own, from memory)


def digest(canonical_bytes: bytes) -> bytes:
    """Return 16 bytes of SHA-256 (twice as fast as BLAKE2 on a CPU with SHA instructions)."""
    return _sha256(canonical_bytes).digest()[:16]


def digest_each(encodings: list[bytes]) -> list[bytes]:
    """Return the digest of each encoding."""
    return [it.digest()[:16] for it in map(_sha256, encodings)]


_sha256: Final = hashlib.sha256


_STRICT = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
)


def encode_checked(value: object, raw: bytes, surrounding: int) -> bytes:
    """Return the encoding of a value's canonical form, if the value is exactly JSON.

    Args:
        value: Any value that ``encode_canonical`` accepts: only exact types and buffers.
        raw: Its encoding.
        surrounding: The number of objects and lists that contain it.

    Raises:
        ValueError, TypeError: JSON cannot hold it; ``canonicalize`` says where and why.
    """
    encoded = orjson.dumps(value, option=_STRICT)
    plain = orjson.loads(encoded)
    canonical_bytes = encode_canonical(plain)
    if len(canonical_bytes) != len(raw) or canonical_bytes != raw != encode_canonical(value):
        raise ValueError("not exactly JSON")  # NaN came back as None; or a thread changes it
    require_levels(plain, encoded, surrounding)
    return canonical_bytes


def require_levels(value: object, json_bytes: bytes, surrounding: int) -> None:
    """Raise ``ValueError`` if the JSON of a value is nested too deeply for its position."""
    levels = MAX_DEPTH - surrounding
    if json_bytes.count(b"[") + json_bytes.count(b"{") <= levels:
        return
    row = [value]
    while row:
        if levels == 0:
            raise ValueError("nested too deeply")
        levels -= 1
        row = [item for outer in row for item in _list_containers(outer)]


def _list_containers(value: object) -> Iterable[object]:
    """Return the objects and lists that an object or list holds."""
    if is_flat(value):
        return ()
    values = value.values() if isinstance(value, dict) else cast("list[object]", value)
    return [it for it in values if type(it) in _CONTAINERS]


def is_flat(value: object) -> bool:
    """Return whether an object or list holds no other."""
    values = value.values() if isinstance(value, dict) else cast("list[object]", value)
    return _CONTAINERS.isdisjoint(map(type, values))


_CONTAINERS: Final = frozenset({dict, list})

LONGEST_JSON: Final = 6
"""JSON is at most this many times as long as the canonical encoding: ``\\u0000``, ``false,``."""


def require_json_size(value: Callable[[], object], canonical_bytes: int, max_bytes: int) -> None:
    """Apply ``require_size`` to a value whose encoding has ``canonical_bytes``.

    ``value`` is called only if this length does not show that the JSON is short enough.
    """
    if canonical_bytes * LONGEST_JSON > max_bytes:
        require_size(measure_json(value()), max_bytes)


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


def encode_strictly(value: object) -> bytes:
    """Return an unchecked value as compact JSON with sorted keys.

    NaN and infinities become ``null``, and enumerations, UUIDs and tuples are converted.

    Raises:
        TypeError: Another value that is not JSON, or a subclass of a plain type.
    """
    return orjson.dumps(value, option=_STRICT)


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
"""Default of ``max_state_bytes``: the largest state that is saved or read, as compact JSON."""

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


FRAME_VERSION = 2
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
    codec, size = (_AS_IS, len(body)) if plain_bytes < 0 else (_ZSTD, plain_bytes)
    head = bytes((FRAME_VERSION, codec)) + make_varint(len(body)) + make_varint(size)
    return head + body + crc32(body, crc32(head)).to_bytes(_CHECKSUM_BYTES, "little")


def check_frames(payload: bytes, max_bytes: int) -> None:
    """Check the frames of one record without decompressing them.

    Raises:
        TooLargeError: Together they are longer than a state of ``max_bytes``.
        IntegrityError: As ``unpack_frames``, but for what only decompressing shows.
    """
    _require_room(measure_payload(payload, max_bytes), max_bytes)


def measure_payload(payload: bytes, max_bytes: int) -> int:
    """Return the bytes that the frames of a payload take once they are decompressed.

    Raises:
        TooLargeError, IntegrityError: As ``check_frames``, of one frame.
    """
    return sum(size for *_, size in _iterate_frames(payload, max_bytes))


def unpack_frames(payload: bytes, max_bytes: int) -> Iterator[bytes]:
    """Yield the bodies of a payload's frames, in order.

    A frame's plain length is compared with ``max_bytes`` before it is decompressed.

    Raises:
        TooLargeError: one is longer than a state of ``max_bytes``.
        IntegrityError: unknown version or codec, cut off, damaged, or not the length that it says.
    """
    for frame in _iterate_frames(payload, max_bytes):
        yield _decode_body(*frame)


def unpack_record(payload: bytes, max_bytes: int) -> list[bytes]:
    """Return the bodies of the frames of one record, in order.

    Raises:
        TooLargeError: Together they are longer than a state of ``max_bytes``.
        IntegrityError: As ``unpack_frames``.
    """
    found = list(_iterate_frames(payload, max_bytes))
    _require_room(sum(size for *_, size in found), max_bytes)
    return [_decode_body(*frame) for frame in found]


def join_frames(payload: bytes, max_bytes: int) -> bytes:
    """Return the bodies of a payload's frames, joined; see ``unpack_record``."""
    head, size = _make_plain_head(len(payload)), len(payload)
    if size <= max_bytes and payload.startswith(head) and crc32(payload) == _WHOLE:
        return payload[len(head) : _END]
    if not payload:
        return b""
    is_compressed, stored, plain_bytes, end = _parse_at(payload, memoryview(payload), 0, max_bytes)
    if end < len(payload):
        return b"".join(unpack_record(payload, max_bytes))
    return _decode_body(is_compressed, stored, plain_bytes)


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
    at, end, view = 0, len(payload), memoryview(payload)
    while at < end:
        is_compressed, stored, plain_bytes, at = _parse_at(payload, view, at, max_bytes)
        yield is_compressed, stored, plain_bytes


def _parse_at(
    payload: bytes, view: memoryview, start: int, max_bytes: int
) -> tuple[bool, memoryview, int, int]:
    """Return what ``_frames`` yields for the frame at a position, and the frame's end."""
    head = payload[start : start + 2]
    if head and head[0] in SEALED_FORMATS:  # what follows are no lengths
        raise EncryptionError(NEEDS_KEYS)
    stored_bytes, at = read_varint(payload, start + 2)
    plain_bytes, at = read_varint(payload, at)
    begin, at = at, at + stored_bytes
    if head not in _IS_COMPRESSED:
        raise IntegrityError(
            f"a stored frame has the unknown format {head.hex()}: it is damaged, or was written by "
            "another release of locus-store; read it with that one"
        )
    is_compressed, stored = _IS_COMPRESSED[head], view[begin:at]
    checked, checksum = view[start:at], payload[at : at + _CHECKSUM_BYTES]
    at += _CHECKSUM_BYTES
    if crc32(checked).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
        raise IntegrityError("a stored frame is damaged or cut off")
    if plain_bytes > max_bytes:
        _require_room(plain_bytes, max_bytes)
    if not is_compressed and stored_bytes != plain_bytes:
        raise IntegrityError("a stored frame's length differs from its header")
    return is_compressed, stored, plain_bytes, at


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
