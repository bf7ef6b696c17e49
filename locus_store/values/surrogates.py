"""Strings with lone surrogates, which UTF-8 and databases refuse, in a form that all of them take.

Programs that cut strings at UTF-16 units leave half a character behind. Such a surrogate is stored
as four noncharacters, which Unicode reserves for internal use: U+FDD0, and one of U+FDE0 to U+FDEF
for each of the last three hexadecimal digits. Payloads, columns, indexes and the wire hold this
form; readers get the string that was saved. A search takes the noncharacters for a separator.

A string that contains the four noncharacters itself is read as one with a surrogate.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar, cast

from locus_store.values.encoding import Json, decode, encode_canonical

T = TypeVar("T")

_MARK: Final = "\ufdd0"
_MARK_BYTES: Final = _MARK.encode()
_FIRST_BYTE: Final = _MARK_BYTES[:1]
_FIRST_DIGIT, _FIRST_SURROGATE = 0xFDE0, 0xD800
SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = re.compile(f"{_MARK}([\ufde0-\ufde7][\ufde0-\ufdef]{{2}})")


def escape(text: str) -> str:
    """Return a string without lone surrogates, from which ``unescape`` gives the same one."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return SURROGATE.sub(_escape, text)
    return text


def unescape(text: str) -> str:
    """Return the string of ``escape``."""
    return _ESCAPED.sub(_make_surrogate, text) if _MARK in text else text


def may_be_escaped(encoding: bytes) -> bool:
    """Return whether a string in an encoding, or in MessagePack, may be one of ``escape``."""
    return _FIRST_BYTE in encoding and _MARK_BYTES in encoding  # one byte is found 20 times as fast


def restore(value: T) -> T:
    """Return a value with the strings that were given; itself if none was escaped.

    Lists and dicts are searched, and other objects stay what they are.
    """
    try:
        may_have_one = bool(value) and may_be_escaped(encode_canonical(value))
    except TypeError:
        may_have_one = True
    return cast("T", _change_strings(value, unescape)) if may_have_one else value


def decode_restored(json_bytes: bytes) -> Json:
    """Return the value of JSON bytes with the strings that were given.

    Raises:
        IntegrityError: They are not JSON.
    """
    value = decode(json_bytes)
    return cast("Json", _change_strings(value, unescape)) if may_be_escaped(json_bytes) else value


def escape_within(value: Any) -> Any:
    """Return a JSON value with all strings escaped; numbers may be any."""
    return _change_strings(value, escape)


def restore_within(value: Any) -> Any:
    """Return ``restore`` of a value; the fields of dataclasses are changed in place."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            held = getattr(value, field.name, None)
            if (found := restore_within(held)) is not held:
                object.__setattr__(value, field.name, found)
        return value
    if isinstance(value, list):
        value[:] = map(restore_within, value)
        return value
    if isinstance(value, dict):
        return {unescape(key): restore_within(it) for key, it in value.items()}
    return unescape(value) if isinstance(value, str) else value


def _change_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_change_strings(it, change) for it in value]
    if isinstance(value, dict):
        return {change(key): _change_strings(it, change) for key, it in value.items()}
    return value


def _escape(match: re.Match[str]) -> str:
    digits = f"{ord(match[0]) - _FIRST_SURROGATE:03x}"
    return _MARK + "".join(chr(_FIRST_DIGIT + int(it, 16)) for it in digits)


def _make_surrogate(match: re.Match[str]) -> str:
    digits = "".join(f"{ord(it) - _FIRST_DIGIT:x}" for it in match[1])
    return chr(_FIRST_SURROGATE + int(digits, 16))
