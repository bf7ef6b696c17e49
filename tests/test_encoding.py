from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import math
import random
import uuid
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import pytest
import zstandard
from canonical import encode_reference
from hypothesis import strategies as st
from properties import given, settings

from locus_store.errors import EncryptionError, IntegrityError, SerializationError
from locus_store.values import encoding
from locus_store.values.canonical import canonicalize, canonicalize_state, encode_canonical_json
from locus_store.values.encoding import (
    MAX_DEPTH,
    MAX_STATE_BYTES,
    decode,
    decode_canonical,
    digest,
    encode,
    encode_canonical,
    join_frames,
    join_list,
    make_object_head,
    measure_payload,
    pack_frame,
    require_json,
    unpack_frames,
    unpack_record,
    unpack_verified,
)
from locus_store.values.surrogates import decode_restored, restore

if TYPE_CHECKING:
    from collections.abc import Callable

INTS = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**64 - 1))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(
    st.none(), st.booleans(), INTS, st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()


class Pair(NamedTuple):
    left: int
    right: int


class Opaque:
    """Its name does not change from process to process, as a test's id may not."""

    def __repr__(self) -> str:
        return "Opaque()"


@dataclasses.dataclass
class Point:
    x: int = 1


def exact(value: object) -> object:
    """Equal for the same values of the same types only."""
    if isinstance(value, dict):
        return ("dict", [(key, exact(value[key])) for key in sorted(value)])
    if isinstance(value, list):
        return ("list", [exact(item) for item in value])
    return (type(value).__name__, repr(value))


@given(VALUES)
def test_an_encoding_is_the_specified_one(value: object) -> None:
    assert encode_canonical(value) == encode_reference(value)


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 65535, 65536])
def test_an_encoding_of_any_length_is_the_specified_one(size: int) -> None:
    ints = [
        sign * (2**bits + more)
        for bits in (5, 7, 8, 15, 16, 31, 32, 63)
        for sign in (1, -1)
        for more in (-1, 0, 1)
        if sign > 0 or bits < 63 or more < 1
    ]
    entries = {str(it): it for it in range(size)}
    for value in ("x" * size, [0] * size, entries, ints, b"x" * size):
        assert encode_canonical(value) == encode_reference(value)
        assert decode_canonical(encode_canonical(value)) == value
    assert join_list([b"\0"] * size) == encode_canonical([0] * size)
    assert encode_canonical(entries).startswith(make_object_head(size) + encode_canonical("0"))


@given(VALUES)
def test_a_canonical_copy_is_the_same_value_in_type_and_content(value: object) -> None:
    assert exact(canonicalize(value)) == exact(value)


@given(VALUES)
def test_the_quick_check_agrees_with_the_slow_one(value: object) -> None:
    require_json(encode_canonical(value), 1)
    assert encode_canonical(value) == encode_canonical(canonicalize(value))
    assert exact(decode(encode(value))) == exact(value)


@given(VALUES)
def test_the_json_of_a_value_is_that_of_its_canonical_copy(value: object) -> None:
    assert encode_canonical_json(value, "") == encode(canonicalize(value))
    assert encode_canonical_json({"z": (value, 1), "a": value}, "") == encode(
        canonicalize({"a": value, "z": [value, 1]})
    )


@given(VALUES, VALUES)
def test_digests_are_equal_only_for_equal_values(one: object, other: object) -> None:
    same = exact(one) == exact(other)
    assert (
        digest(encode_canonical(canonicalize(one))) == digest(encode_canonical(canonicalize(other)))
    ) is same


def test_a_digest_never_changes_between_releases() -> None:
    value = canonicalize(
        {"b": [1, 1.5, True, None, "é\x00"], "a": {"big": 2**63, "least": -(2**63)}}
    )
    assert digest(encode_canonical(value)).hex() == "3359ecdf55eaa52558d3f3b3fb8ea14c"


def test_numbers_text_and_empty_values_that_look_alike_have_their_own_digests() -> None:
    values = [1, 1.0, True, "1", 0, 0.0, -0.0, False, None, "", [], {}, [[]], [None], "null"]
    assert len({digest(encode_canonical(value)) for value in values}) == len(values)


def test_a_float_has_one_digest_however_it_was_written() -> None:
    assert (
        encode_canonical(decode(b"1e-7"))
        == encode_canonical(decode(b"0.0000001"))
        == encode_canonical(decode(b"1E-07"))
    )


def test_keys_are_sorted_and_tuples_become_lists() -> None:
    copy = canonicalize({"z": (1, (2,)), "é": 1, "a": {"2": 0, "10": 0}})
    assert encode(copy) == '{"a":{"10":0,"2":0},"z":[1,[2]],"é":1}'.encode()
    assert list(copy) == ["a", "z", "é"]


def test_a_canonical_copy_shares_nothing_with_the_original() -> None:
    original = {"a": [{"b": []}]}
    copy = canonicalize(original)
    original["a"][0]["b"].append(1)
    assert copy == {"a": [{"b": []}]}


REFUSED = [
    (math.nan, "None or text"),
    (math.inf, "None or text"),
    (-math.inf, "None or text"),
    (2**64, "as text"),
    (-(2**63) - 1, "as text"),
    (b"x", "base64"),
    (bytearray(b"x"), "base64"),
    ({1}, "sorted list"),
    (frozenset(), "sorted list"),
    (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "isoformat"),
    (dt.date(2026, 1, 1), "isoformat"),
    (dt.timedelta(1), "total_seconds"),
    (uuid.UUID(int=1), "str(value)"),
    (decimal.Decimal(1), "str(value)"),
    (Colour.RED, ".value"),
    (Level.LOW, ".value"),
    (Name("x"), "plain type"),
    (Pair(1, 2), "plain type"),
    (OrderedDict(a=1), "plain type"),
    (Point(), "model_dump"),
    (Opaque(), "model_dump"),
    (1j, "model_dump"),
    ({1: 2}, "str(key)"),
    ({None: 2}, "str(key)"),
    ({Name("x"): 2}, "str(key)"),
    ({"\udfff": 2, "\ufdd0\ufde7\ufdef\ufdef": 1}, "two keys"),
]


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_any_string_has_a_form_that_utf8_holds_and_comes_back(value: Any) -> None:
    made = canonicalize(value)
    encode(made)
    assert restore(made) == value
    assert canonicalize(made) == made
    assert decode_restored(encode_canonical_json(value, "")) == value


@pytest.mark.parametrize(
    "value", ["a\ud83d", "\ud83d\ude00", "\ufdd0", "\ufdd0\ufde0", {"\ud83d": []}]
)
def test_a_lone_surrogate_is_escaped_one_to_one(value: Any) -> None:
    made = canonicalize(value)
    encode(made)
    assert restore(made) == value


@pytest.mark.parametrize("refuse", [canonicalize, encode_canonical_json])
@pytest.mark.parametrize(("value", "hint"), REFUSED, ids=lambda value: ascii(value)[:30])
def test_what_json_cannot_hold_is_refused_with_its_path(
    value: object, hint: str, refuse: Callable[[object, str], object]
) -> None:
    with pytest.raises(SerializationError) as caught:
        refuse({"messages": [0, {"content": value}]}, "")
    assert str(caught.value).startswith("messages[1].content ")
    assert hint in str(caught.value)


@pytest.mark.parametrize(("value", "hint"), REFUSED, ids=lambda value: ascii(value)[:30])
def test_the_quick_check_refuses_the_same(value: object, hint: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        require_json(encode_canonical([value]), 1)


def test_a_path_quotes_keys_that_are_no_names() -> None:
    with pytest.raises(SerializationError, match=r"^a\['b\.c'\]\[''\]\[0\] is nan"):
        canonicalize({"a": {"b.c": {"": [math.nan]}}})


def nested(levels: int, wrap: object = list) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value] if wrap is list else {"k": value}
    return value


@pytest.mark.parametrize("wrap", [list, dict])
def test_the_deepest_allowed_nesting_is_kept_and_one_more_refused(wrap: object) -> None:
    deepest = nested(MAX_DEPTH, wrap)
    assert canonicalize(deepest) == deepest
    assert encode_canonical_json(deepest, "") == encode(deepest)
    with pytest.raises(SerializationError, match="nested deeper than 200"):
        encode_canonical_json([deepest], "")
    require_json(encode_canonical(deepest), 0)
    with pytest.raises(SerializationError, match="nested deeper than 200"):
        canonicalize([deepest])
    with pytest.raises(ValueError, match="too deeply"):
        require_json(encode_canonical(deepest), 1)


def test_a_value_inside_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(SerializationError, match="nested deeper"):
        canonicalize(loop)


def test_many_brackets_in_a_text_are_not_depth() -> None:
    value = {"code": "[{" * 500}
    require_json(encode_canonical(value), 1)


@pytest.mark.parametrize("value", [0x80808080, -0x7F7F7F7F7F7F7F80, -3.0e-200])
def test_digits_that_look_like_lists_are_not_depth(value: float) -> None:
    require_json(encode_canonical(value), MAX_DEPTH)
    with pytest.raises(ValueError, match="too deeply"):
        require_json(encode_canonical([value]), MAX_DEPTH)


def test_nul_is_kept() -> None:
    assert canonicalize({"a\x00": "\x00b\x00"}) == {"a\x00": "\x00b\x00"}


@pytest.mark.parametrize("root", [[], "x", 1, None, [("a", 1)]])
def test_a_state_is_an_object(root: object) -> None:
    with pytest.raises(SerializationError, match="JSON object"):
        canonicalize_state(root)


def test_a_dict_subclass_will_do_at_the_root_only() -> None:
    assert type(canonicalize_state(OrderedDict(b=1, a=2))) is dict
    with pytest.raises(SerializationError, match=r"^a is of type collections\.OrderedDict"):
        canonicalize_state({"a": OrderedDict()})


@given(st.lists(st.binary(max_size=400) | st.binary(max_size=9).map(lambda b: b * 60), max_size=5))
def test_joined_frames_come_back_one_by_one(bodies: list[bytes]) -> None:
    assert list(unpack_frames(b"".join(map(pack_frame, bodies)), MAX_STATE_BYTES)) == bodies


@pytest.mark.parametrize("rest", [b"", b"\xff" * 20, b"\x01\x01x"])
@pytest.mark.parametrize("first", sorted(encoding.SEALED_FORMATS))
def test_sealed_bytes_say_that_keys_are_missing(first: int, rest: bytes) -> None:
    with pytest.raises(EncryptionError, match="it is sealed"):
        list(unpack_frames(bytes([first]) + rest, MAX_STATE_BYTES))


@settings(deadline=None)  # some bodies have 2 MB
@given(st.integers(0, 20_000) | st.sampled_from([127, 128, 16_383, 16_384, 2_097_152]))
def test_a_payload_of_one_frame_has_one_body(size: int) -> None:
    for body in (b"x" * size, random.Random(size).randbytes(size)):
        payload = pack_frame(body)
        assert join_frames(payload, MAX_STATE_BYTES) == body
        assert unpack_verified([payload, payload * 2], MAX_STATE_BYTES) == [body, body * 2]
        if size > 200:
            for read in (partial(join_frames, payload), partial(unpack_verified, [payload])):
                with pytest.raises(IntegrityError, match="max_state_bytes"):
                    read(size - 100)


def test_frames_of_one_payload_count_together() -> None:
    payload = pack_frame(b"x" * 600) * 2
    for read in (partial(join_frames, payload), partial(unpack_verified, [payload])):
        with pytest.raises(IntegrityError, match="1,200 bytes or more"):
            read(1000)


def test_a_large_frame_is_compressed_and_a_small_one_is_not() -> None:
    assert len(pack_frame(b"agent " * 100)) < 60
    assert len(pack_frame(b"agent " * 100_000)) < 6_000
    assert pack_frame(b"agent") == b"\x03\x00\x05\x05agent\xff\xfd\xd8="


@pytest.mark.parametrize("version", [2, 4])
def test_a_frame_of_another_version_is_refused(version: int) -> None:
    payload = bytes((version,)) + pack_frame(b"agent")[1:]
    for read in (unpack_frames, unpack_record, join_frames):
        with pytest.raises(IntegrityError, match=r"unknown format.*another release"):
            list(read(payload, MAX_STATE_BYTES))
    with pytest.raises(IntegrityError, match=r"unknown format.*another release"):
        measure_payload(payload, MAX_STATE_BYTES)


@pytest.mark.parametrize("body", [b"agent", b"hello, world " * 60], ids=["plain", "packed"])
def test_every_flipped_bit_of_a_frame_is_noticed(body: bytes) -> None:
    packed = pack_frame(body)
    for at in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(IntegrityError):
            list(unpack_frames(bytes(damaged), MAX_STATE_BYTES))
        with pytest.raises(IntegrityError):
            join_frames(bytes(damaged), MAX_STATE_BYTES)


def varint(number: int) -> bytes:
    return encoding.make_varint(number)


def with_checksum(frame: bytes) -> bytes:
    """Return a frame with its checksum."""
    return frame + crc32(frame).to_bytes(4, "little")


def packed(stored: bytes, plain_bytes: int) -> bytes:
    """Return a compressed frame with these lengths."""
    return with_checksum(b"\x03\x01" + varint(len(stored)) + varint(plain_bytes) + stored)


SMALL = zstandard.ZstdCompressor().compress(b"x" * 300)
BAD_FRAMES = {
    "version": with_checksum(b"\x04\x00\x01\x01a"),
    "no checksum": b"\x03\x00\x01\x01a",
    "codec": with_checksum(b"\x03\x02\x01\x01a"),
    "cut in the head": b"\x03",
    "cut in the lengths": b"\x03\x00\x80",
    "no lengths": b"\x03\x00",
    "cut in the body": b"\x03\x00\x05\x05abc",
    "cut in the checksum": with_checksum(b"\x03\x00\x01\x01a")[:-1],
    "long length": with_checksum(b"\x03\x00" + b"\x80" * 12 + b"\x01\x01a"),
    "another form of a length": with_checksum(b"\x03\x00\x81\x00\x01a"),
    "plain length": with_checksum(b"\x03\x00\x01\x02a"),
    "garbage behind": pack_frame(b"a") + b"zz",
    "not zstd": packed(b"abcde", 5),
    "zstd, longer": packed(SMALL, 299),
    "zstd, shorter": packed(SMALL, 301),
    "zstd, empty": packed(SMALL, 0),
    "zstd, cut": packed(SMALL[:-1], 300),
    "zstd, more behind": packed(SMALL + b"x", 300),
    "zstd, a length it cannot have": packed(SMALL, 999_999),
}


@pytest.mark.parametrize("payload", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_frame_that_is_not_ours_is_an_integrity_error(payload: bytes) -> None:
    with pytest.raises(IntegrityError):
        list(unpack_frames(payload, MAX_STATE_BYTES))


def test_a_compressed_bomb_is_not_inflated_past_what_it_says() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    with pytest.raises(IntegrityError, match="length differs"):
        list(unpack_frames(packed(bomb, 100), MAX_STATE_BYTES))


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_give_frames_or_an_integrity_error(payload: bytes) -> None:
    with contextlib.suppress(IntegrityError):
        list(unpack_frames(payload, MAX_STATE_BYTES))


def test_bytes_that_are_not_json_are_an_integrity_error() -> None:
    with pytest.raises(IntegrityError, match="not JSON"):
        decode(b"{")
