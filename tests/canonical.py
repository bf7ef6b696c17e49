"""The canonical encoding as it is specified: MessagePack in its shortest forms, keys sorted."""

from __future__ import annotations

import struct
from typing import Any

_CONSTANTS = {None: b"\xc0", False: b"\xc2", True: b"\xc3"}


def encode_reference(value: Any) -> bytes:
    """Return the canonical encoding of a value that JSON has, or of bytes."""
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, int | float):
        return _encode_int(value) if isinstance(value, int) else b"\xcb" + struct.pack(">d", value)
    if isinstance(value, dict):
        pairs = [it for key in sorted(value) for it in (key, value[key])]
        return _head(len(value), 0x80, 16, {0xDE: 16, 0xDF: 32}) + _join(pairs)
    if isinstance(value, list | tuple):
        return _head(len(value), 0x90, 16, {0xDC: 16, 0xDD: 32}) + _join(value)
    if isinstance(value, bytes):
        return _head(len(value), 0, 0, {0xC4: 8, 0xC5: 16, 0xC6: 32}) + value
    text = value.encode()
    return _head(len(text), 0xA0, 32, {0xD9: 8, 0xDA: 16, 0xDB: 32}) + bytes(text)


def _join(values: list[Any] | tuple[Any, ...]) -> bytes:
    return b"".join(map(encode_reference, values))


def _encode_int(value: int) -> bytes:
    if value >= 0:
        return _head(value, 0, 128, {0xCC: 8, 0xCD: 16, 0xCE: 32, 0xCF: 64})
    if value >= -32:
        return struct.pack("b", value)
    tags = {8: 0xD0, 16: 0xD1, 32: 0xD2, 64: 0xD3}
    bits = next(it for it in tags if value >= -(2 ** (it - 1)))
    return bytes((tags[bits],)) + value.to_bytes(bits // 8, signed=True)


def _head(count: int, fixed: int, below: int, tags: dict[int, int]) -> bytes:
    """Return a tag with a count, or the number itself; ``tags`` have widths in bits."""
    if count < below:
        return bytes((fixed | count,))
    tag, bits = next(it for it in tags.items() if count < 2 ** it[1])
    return bytes((tag,)) + count.to_bytes(bits // 8)
