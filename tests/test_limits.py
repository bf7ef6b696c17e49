"""``max_state_bytes`` below the contracts: frames, folding, items of a store, and telemetry."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
import zstandard

from locus_store import (
    IntegrityError,
    InvalidArgumentError,
    SerializationError,
    open_checkpointer,
    open_saver,
    open_store,
)
from locus_store.values.encoding import (
    MAX_DEPTH,
    MAX_STATE_BYTES,
    decode,
    encode,
    encode_canonical,
    make_varint,
    pack_frame,
    unpack_frames,
)
from locus_store.values.frames import (
    build_digest_tree,
    change_value,
    compare_states,
    decode_value,
    diff_value,
    encode_value,
    extract_text,
    fold,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@contextmanager
def at_most(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


def framed(*operation: Any) -> bytes:
    return pack_frame(encode_canonical([operation]))


def whole(state: Any) -> bytes:
    return framed("=", [], state)


# --- frames


@pytest.mark.full
def test_a_frame_above_the_limit_is_not_decompressed() -> None:
    bomb = whole({"a": "a" * 300 * MIB})
    assert len(bomb) < 50_000
    for use in (
        lambda it: fold([it], MAX_STATE_BYTES),
        lambda it: extract_text(it, MAX_STATE_BYTES),
    ):
        with at_most(MIB), pytest.raises(IntegrityError, match="max_state_bytes=268435456"):
            use(bomb)


def test_frames_of_one_payload_are_added_up() -> None:
    payload = framed("=", ["a"], "a" * MIB) * 64
    with at_most(24 * MIB), pytest.raises(IntegrityError, match="max_state_bytes"):
        extract_text(payload, 2 * MIB)


@pytest.mark.parametrize("said", [10, 1000], ids=["less", "nothing"])
def test_a_frame_that_says_too_little_is_not_decompressed(said: int) -> None:
    options = {"write_content_size": said == 10}
    stored = zstandard.ZstdCompressor(**options).compress(bytes(64 * MIB))
    frame = b"\3\1" + make_varint(len(stored)) + make_varint(said) + stored
    payload = frame + crc32(frame).to_bytes(4, "little")
    with at_most(MIB), pytest.raises(IntegrityError, match="length differs"):
        list(unpack_frames(payload, MAX_STATE_BYTES))


# --- folding


def test_changes_that_add_up_are_found_before_they_take_memory() -> None:
    splices = [framed("[", ["m"], 0, 0, ["a" * 1000] * 1000)] * 200
    with at_most(32 * MIB), pytest.raises(IntegrityError, match="max_state_bytes=4194304"):
        fold([whole({"m": []}), *splices], 4 * MIB)


def test_texts_that_add_up_are_found_before_they_take_memory() -> None:
    splices = [framed("t", ["t"], 0, 0, "a" * MIB)] * 300
    with at_most(100 * MIB), pytest.raises(IntegrityError, match="max_state_bytes=4194304"):
        fold([whole({"t": ""}), *splices], 4 * MIB)


def test_a_long_chain_of_large_changes_to_a_small_state_is_folded() -> None:
    """A text that compresses well makes chains with few stored bytes and many plain bytes."""
    replaced = [framed("=", ["a"], str(it) * 100_000) for it in range(200)]
    assert fold([whole({}), *replaced], MIB) == {"a": "199" * 100_000}


@pytest.mark.parametrize("unchanged", range(1, 9))
def test_a_frame_of_many_operations_is_read_under_the_limit_of_its_state(unchanged: int) -> None:
    keys = [chr(ord("a") + it) for it in range(17)]
    states = [{"": "x" * unchanged, **dict.fromkeys(keys, number)} for number in (0.5, 1.5)]
    first = compare_states(states[0], None)
    done = compare_states(states[1], first.tree)
    if done.frames is not None:
        payloads = [first.to_payload(), done.frames]
        assert fold(payloads, done.tree.state_bytes) == states[1]


def test_a_frame_is_never_longer_than_the_state() -> None:
    """The path to each change repeats the key."""
    key = "k" * 10_000
    before = {key: {str(it): 0 for it in range(1000)}}
    after = {key: {str(it): 1 for it in range(1000)}}
    done = compare_states(after, compare_states(before, None).tree)
    for payloads in (
        [done.to_payload()],
        [compare_states(before, None).to_payload(), done.frames or done.to_payload()],
    ):
        assert fold(payloads, len(encode(after))) == after


@pytest.mark.parametrize("text", ["a" * 1000, "\x01" * 1000, "é" * 500, '"' * 1000])
def test_the_limit_is_the_length_of_the_json(text: str) -> None:
    state: dict[str, Any] = {"text": text, "list": [False, None, 1, 1.5] * 50, "none": {}}
    size = len(encode(state))
    done = compare_states(state, None)
    done.tree.require_size(size)
    assert fold([done.to_payload()], size) == state
    with pytest.raises(SerializationError, match=f"max_state_bytes={size - 1}"):
        done.tree.require_size(size - 1)


def test_the_limit_is_also_the_length_of_the_messagepack() -> None:
    state: dict[str, Any] = {"floats": [0.5] * 1000}
    done = compare_states(state, None)
    size = done.tree.state_bytes
    assert size > len(encode(state))
    done.tree.require_size(size)
    assert fold([done.to_payload()], size) == state
    with pytest.raises(SerializationError, match=f"max_state_bytes={size - 1}"):
        done.tree.require_size(size - 1)


def test_the_limit_of_a_value_is_the_same_for_a_change_of_an_older_one() -> None:
    old, new = [0.5] * 200, [*[0.5] * 199, 1.5]
    size, tree = len(encode_canonical(new)), compare_states({"a": old}, None).tree
    assert decode_value(encode_value(new, size), size) == new
    payload = diff_value(new, tree, ["a"], size)
    assert payload is not None
    assert change_value(old, payload, size) == new
    for write in (encode_value, lambda value, most: diff_value(value, tree, ["a"], most)):
        with pytest.raises(SerializationError, match=f"max_state_bytes={size - 1}"):
            write(new, size - 1)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 1000, 100_000])
@pytest.mark.parametrize("head", [b"\x91", b"\x81\xa1a"], ids=["lists", "objects"])
def test_deep_nesting_is_an_integrity_error(levels: int, head: bytes) -> None:
    deep = b"\x81\xa1a" + head * levels + b"\0"
    for body in (deep, b"\x91\x93\xa1=\x90" + deep):
        with pytest.raises(IntegrityError):
            build_digest_tree(fold([pack_frame(body)], MAX_STATE_BYTES))


def test_nesting_that_grows_with_each_change_is_an_integrity_error() -> None:
    path, deep = [], decode("[" * 150 + "]" * 150)
    payloads = [whole({"a": deep})]
    for _ in range(20):
        path += [0] * 149
        payloads.append(framed("[", ["a", *path], 0, 0, [deep]))
    with pytest.raises(IntegrityError):
        build_digest_tree(fold(payloads, MAX_STATE_BYTES))


# --- the option


@pytest.mark.parametrize("url", ["sqlite:///{}/a.db", "file://{}/files", "memory://"])
async def test_the_option_may_stand_in_the_url(url: str, tmp_path: Path) -> None:
    place = f"{url.format(tmp_path)}?max_state_bytes=1000"
    async with open_checkpointer(place, state_type=dict) as checkpointer:
        await checkpointer.save({"a": "a" * 900}, "t")
        with pytest.raises(SerializationError, match="max_state_bytes=1000"):
            await checkpointer.save({"a": "a" * 1000}, "t")
    async with open_saver(place) as saver:
        with pytest.raises(SerializationError, match="max_state_bytes=1000"):
            await saver.put(thread_id="u", checkpoint_id="v", checkpoint_data={"a": "a" * 1000})


# --- a store's items


@pytest.mark.parametrize("url", ["sqlite:///{}/a.db", "memory://"])
async def test_an_item_above_the_limit_is_refused(url: str, tmp_path: Path) -> None:
    async with open_store(f"{url.format(tmp_path)}?max_state_bytes=1000") as store:
        await store.put(("a",), "k", {"a": "a" * 900})
        with pytest.raises(SerializationError, match="max_state_bytes=1000"):
            await store.put(("a",), "k", {"a": "a" * 1000})
        assert await store.get(("a",), "k") == {"a": "a" * 900}
    with pytest.raises(InvalidArgumentError, match="max_state_bytes"):
        open_store("memory://", max_state_bytes=0)


async def test_a_compressed_item_above_the_limit_is_not_read(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        await store.put(("a",), "k", {"a": "a" * 100_000})
    async with open_store(redis_url, max_state_bytes=1000) as store:
        with pytest.raises(IntegrityError, match="max_state_bytes=1000"):
            await store.get(("a",), "k")
        with pytest.raises(SerializationError, match="max_state_bytes=1000"):
            await store.put(("a",), "k", {"a": "a" * 1000})
