"""States with MessagePack in them, as LangGraph's adapter saves them."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from typing import Any

import ormsgpack
import pytest
from hypothesis import strategies as st
from properties import given
from test_frames import KINDS, SLOW, Histories, reference_digest, start

from locus_store import CheckpointSaver, IntegrityError, MemoryCheckpointer, SerializationError
from locus_store.backends.memory.backend import MemoryBackend
from locus_store.values import frames
from locus_store.values.encoding import (
    MAX_STATE_BYTES,
    decode,
    encode,
    encode_canonical,
    pack_frame,
)
from locus_store.values.frames import folding
from locus_store.values.msgpack import as_json, convert_to_json, get_packed

pytestmark = pytest.mark.anyio

WORDS = "one two three four five six seven eight nine ten " * 120


def of_channels(values: dict[str, Any], number: int) -> dict[str, Any]:
    """A state of a graph: lists as their elements, other values whole, scalars as they are."""
    channels: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            channels[name] = list(map(ormsgpack.packb, value))
        else:
            is_scalar = isinstance(value, str | int | float | None)
            channels[name] = value if is_scalar else ormsgpack.packb(value)
    return {"channel_values": channels, "channel_versions": dict.fromkeys(values, f"{number:032}")}


def chain(states: list[Any]) -> tuple[list[bytes], list[frames.DigestTree]]:
    shapes: list[frames.DigestTree] = []
    payloads: list[bytes] = []
    for state in states:
        done = frames.compare_states(state, shapes[-1] if shapes else None, packed=True)
        payloads.append(done.to_payload() if done.frames is None else done.frames)
        shapes.append(done.tree)
    return payloads, shapes


def history(kinds: list[str], seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    values, states = start(rng), []
    for number, kind in enumerate(["nothing", *kinds]):
        getattr(Histories, kind)(values, rng)
        states.append(of_channels(copy.deepcopy(values), number))
    return states


@SLOW
@given(st.lists(st.sampled_from(KINDS), max_size=10), st.integers(0, 2**32))
def test_every_version_of_any_history_comes_back_exactly(kinds: list[str], seed: int) -> None:
    states = history(kinds, seed)
    payloads, shapes = chain(states)
    exact = frames.Folder(MAX_STATE_BYTES)
    shown = frames.Folder(MAX_STATE_BYTES, in_json=True)
    for state, payload, shape in zip(states, payloads, shapes, strict=True):
        exact.apply(payload)
        shown.apply(payload)
        assert encode_canonical(exact.get_state()) == encode_canonical(state)
        assert encode_canonical(shown.build_exact()) == encode_canonical(state)
        assert encode_canonical(shown.get_state()) == encode_canonical(convert_to_json(state))
        assert frames.build_digest_tree(copy.deepcopy(exact.get_state())).digest == shape.digest
        assert frames.compare_states(state, None, packed=True).tree.digest == shape.digest
        assert reference_digest(state) == shape.digest
        assert encode_canonical(shape.to_state()) == encode_canonical(state)
        told = decode(frames.read_restorable_operations(payload, MAX_STATE_BYTES))
        again = frames.Folder(MAX_STATE_BYTES)
        for it in [*payloads[: payloads.index(payload)], frames.encode_operations(told)]:
            again.apply(it)
        assert encode_canonical(again.get_state()) == encode_canonical(state)


@SLOW
@given(st.lists(st.sampled_from(KINDS), max_size=4), st.integers(0, 2**32), st.data())
def test_a_flipped_bit_is_told_or_changes_nothing(
    kinds: list[str], seed: int, data: st.DataObject
) -> None:
    states = history(kinds, seed)
    payloads, shapes = chain(states)
    at = data.draw(st.integers(0, len(payloads) - 1))
    if not payloads[at]:
        return
    bit = data.draw(st.integers(0, len(payloads[at]) * 8 - 1))
    damaged = bytearray(payloads[at])
    damaged[bit // 8] ^= 1 << bit % 8
    payloads[at] = bytes(damaged)
    try:
        state = frames.fold(payloads, MAX_STATE_BYTES)
        assert frames.build_digest_tree(state).digest != shapes[-1].digest or encode_canonical(
            state
        ) == encode_canonical(states[-1])
    except IntegrityError:
        pass


BYTES = ormsgpack.packb({"a": 1})


@pytest.mark.parametrize(
    "state",
    [
        {"a": BYTES},
        {"a": {"b": BYTES}},
        {"a": [BYTES]},
        {"a": [{"b": BYTES}]},
        {"a": [1, BYTES]},
        {"channel_values": {"a": BYTES}, "channel_versions": {}},
    ],
)
async def test_a_user_s_bytes_are_refused_before_anything_is_written(state: Any) -> None:
    async with MemoryBackend() as backend:
        await backend.save("t", {"a": [1], "channel_values": {}, "channel_versions": {}})
        with pytest.raises(SerializationError, match=r"a.*bytes.*base64"):
            await backend.save("t", state)
        assert len(await backend.history("t", limit=9)) == 1


def test_other_values_beside_known_messagepack_are_refused() -> None:
    packed = [ormsgpack.packb(str(number) * 2000) for number in range(5)]
    known = frames.compare_states({"c": packed}, None, packed=True).tree
    for mixed in ([1, *packed[:3]], [*packed[2:], 1]):
        with pytest.raises(SerializationError):
            frames.compare_states({"c": mixed}, known, packed=True)


@pytest.mark.parametrize("mixed", [[1, BYTES], [BYTES, 1], [BYTES, {"a": 1}], [BYTES, [BYTES]]])
async def test_a_list_of_both_forms_is_refused_before_anything_is_written(mixed: Any) -> None:
    async with MemoryBackend() as backend:
        for before in ([], [1], [BYTES], mixed[:1]):
            await backend.write_state("t", {"c": before}, packed=True)
            with pytest.raises(SerializationError):
                await backend.write_state("t", {"c": mixed}, packed=True)
        saver = CheckpointSaver(backend)
        names = {"thread_id": "w", "checkpoint_id": "v", "task_id": "t"}
        for value in (mixed, math.nan, {"a": BYTES}):
            with pytest.raises(SerializationError):
                await saver.put_writes(**names, writes=[("c", value)], packed=True)
        assert not await backend.exists("w")


async def test_bytes_like_those_that_are_stored_are_refused_too() -> None:
    async with MemoryBackend() as backend:
        state = of_channels({"a": {"b": 1}, "c": [{"d": 1}]}, 1)
        await backend.write_state("t", state, packed=True)
        with pytest.raises(SerializationError, match="base64"):
            await backend.write_state("t", state)
        longer = {**state, "channel_values": {**state["channel_values"], "c": [1, BYTES]}}
        with pytest.raises(SerializationError):
            await backend.write_state("t", longer)


LONG = "y" * 2000
FORMS = [
    [LONG],
    [LONG, {"t": LONG}],
    [{"t": LONG}],
    [{"t": LONG}, {"t": LONG[:-1]}],
    [],
    ["short"],
    {"t": LONG},
    LONG,
    "short",
    None,
    [None, {"t": 1}],
    [[LONG], LONG],
]


def form_of(value: Any) -> Any:
    """A channel's value as the adapter stores it."""
    if isinstance(value, dict):
        return ormsgpack.packb(value)
    if isinstance(value, list) and any(isinstance(it, dict | list) for it in value):
        return list(map(ormsgpack.packb, value))
    return value


@pytest.mark.parametrize("before", FORMS)
@pytest.mark.parametrize("after", FORMS)
def test_any_form_of_a_value_follows_any_other(before: Any, after: Any) -> None:
    states = [{"channel_values": {"a": form_of(it)}} for it in (before, after, before)]
    payloads, shapes = chain(states)
    exact, shown = (frames.Folder(MAX_STATE_BYTES, in_json=it) for it in (False, True))
    for state, payload, shape in zip(states, payloads, shapes, strict=True):
        exact.apply(payload)
        shown.apply(payload)
        assert encode_canonical(exact.get_state()) == encode_canonical(state)
        assert encode_canonical(shown.get_state()) == encode_canonical(convert_to_json(state))
        assert frames.build_digest_tree(copy.deepcopy(shown.build_exact())).digest == shape.digest


def test_a_chain_of_edits_is_folded_in_the_time_of_the_edits() -> None:
    rows = {str(n): {"n": n, "text": WORDS[: n % 50]} for n in range(1000)}
    states = []
    for n in range(30):
        rows[str(n)]["n"] = -1
        states.append(of_channels({"doc": copy.deepcopy(rows), "list": [dict(rows)]}, n))
    payloads, shapes = chain(states)
    assert max(map(len, payloads[1:])) < 600
    folder = frames.Folder(MAX_STATE_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        taken: list[bytes] = []
        patch.setattr(folding, "as_json", lambda it: taken.append(it) or as_json(it))
        for payload in payloads:
            folder.apply(payload)
        state = folder.get_state()
    assert len(taken) == 2  # each value once
    assert frames.build_digest_tree(state).digest == shapes[-1].digest


def test_an_unchanged_word_of_a_small_value_is_not_added_again() -> None:
    before = of_channels({"d": {"word": "chrysanthemum", "long": "x" * 90, "n": 1}}, 1)
    after = of_channels({"d": {"word": "chrysanthemum", "long": "x" * 90, "n": 2}}, 1)
    shape = frames.compare_states(before, None, packed=True).tree
    done = frames.compare_states(after, shape, packed=True)
    assert done.frames is not None
    assert "chrysanthemum" not in frames.extract_text(done.frames, MAX_STATE_BYTES)


def test_the_limit_counts_what_is_stored_for_all_readers() -> None:
    state = of_channels({"d": {"a": [False] * 3000}}, 1)
    limit = 4000
    done = frames.compare_states(state, None, packed=True)
    done.tree.require_size(limit)
    shown = frames.Folder(limit, in_json=True)
    shown.apply(done.to_payload())
    assert len(encode(shown.get_state())) > limit
    assert shown.build_exact() == state


def applied(folder: frames.Folder, payload: bytes) -> frames.Folder:
    folder.apply(payload)
    folder.get_state()
    return folder


def test_a_list_of_both_forms_is_damage_to_all_readers() -> None:
    payload = pack_frame(ormsgpack.packb([["=", [], {"a": [b"\xc0", 1]}]]))
    for read in (frames.read_operations, frames.extract_text):
        with pytest.raises(IntegrityError):
            read(payload, MAX_STATE_BYTES)


@pytest.mark.parametrize(
    "operation",
    [
        ["m", ["a"], [["-", []]]],
        ["m", ["a"], [["-"]]],
        ["m", ["a"], 1],
        ["m", ["b"], [["=", [], 1]]],
        ["m", [], [["=", [], 1]]],
        ["=", ["a"]],
        [],
        [1, 2],
    ],
)
def test_a_frame_that_no_save_wrote_is_damage(operation: list[Any]) -> None:
    whole = ["=", [], {"a": BYTES, "b": 1}]
    payload = pack_frame(ormsgpack.packb([whole, operation]))
    for in_json in (False, True):
        folder = frames.Folder(MAX_STATE_BYTES, in_json=in_json)
        with pytest.raises(IntegrityError):
            frames.build_digest_tree(applied(folder, payload).build_exact())
    with contextlib.suppress(IntegrityError):
        frames.extract_text(payload, MAX_STATE_BYTES)
    with contextlib.suppress(IntegrityError):
        frames.encode_operations(
            decode(frames.read_restorable_operations(payload, MAX_STATE_BYTES))
        )


@pytest.mark.parametrize("levels", [300, 900, 1000])
@pytest.mark.parametrize("head", [b"\x91", b"\x81\xa1a"], ids=["lists", "objects"])
def test_an_operation_with_bytes_that_is_nested_too_deeply_is_damage(
    levels: int, head: bytes
) -> None:
    state, path = ormsgpack.packb({"a": BYTES}), ormsgpack.packb(["a"])
    deep = b"\x93\xa1=" + path + head * levels + ormsgpack.packb(BYTES)
    payload = pack_frame(b"\x93\x93\xa1=\x90" + state + deep + b"\x93\xa1=" + path + b"\1")
    with contextlib.suppress(IntegrityError):
        frames.Folder(MAX_STATE_BYTES, in_json=True).apply(payload)
    with contextlib.suppress(IntegrityError):
        frames.read_operations(payload, MAX_STATE_BYTES)
    with pytest.raises(IntegrityError):
        frames.read_restorable_operations(payload, MAX_STATE_BYTES)


@pytest.mark.parametrize("head", [b"\x91", b"\x81\xa1a"], ids=["lists", "objects"])
def test_a_written_value_that_no_save_wrote_is_damage(head: bytes) -> None:
    whole = b"\x91\x93\xa1=\x90\x81\xa5value"
    bodies = [(), (b"",), (b"\x90",), (whole,), (whole.replace(b"value", b"other") + b"\1",)]
    for some in [*bodies, (whole + b"\1",) * 2]:
        payload = b"".join(map(pack_frame, some))
        for packed in (False, True):
            with pytest.raises(IntegrityError):
                frames.decode_value(payload, MAX_STATE_BYTES, packed=packed)
    assert frames.decode_value(pack_frame(whole + b"\1"), MAX_STATE_BYTES) == 1
    with contextlib.suppress(IntegrityError):
        frames.decode_value(
            pack_frame(whole + head * 1000 + ormsgpack.packb(BYTES)), MAX_STATE_BYTES
        )


def test_an_edit_of_a_large_value_costs_the_edit_and_brings_its_words() -> None:
    values = {"doc": {"text": WORDS, "n": 1}, "said": [{"text": WORDS, "by": "user"}]}
    before = frames.compare_states(of_channels(values, 1), None, packed=True)
    values["doc"]["text"] = values["said"][0]["text"] = WORDS.replace("six", "chrysanthemum", 1)
    done = frames.compare_states(of_channels(values, 1), before.tree, packed=True)
    assert done.frames is not None
    assert len(done.frames) < 200
    assert frames.extract_text(done.frames, MAX_STATE_BYTES).count("chrysanthemum") == 2
    paths = [it[1] for it in frames.read_operations(done.frames, MAX_STATE_BYTES)]
    assert ["channel_values", "doc", "v", "text"] in paths
    assert ["channel_values", "said", 0, "v", "text"] in paths


async def test_other_readers_get_json() -> None:
    values = {"m": [{"b": 1, "a": "x"}], "d": {"z": 1, "a": [None]}, "n": 1}
    async with MemoryBackend() as backend:
        await backend.write_state("t", of_channels(values, 1), checkpoint_id="v1", packed=True)
        expected = {
            "m": [{"$": "d", "k": ["b", "a"], "v": {"a": "x", "b": 1}}],
            "d": {"$": "d", "k": ["z", "a"], "v": {"a": [None], "z": 1}},
            "n": 1,
        }
        for reader in (backend, await copied(backend)):
            state = await reader.load("t")
            assert state is not None
            assert state["channel_values"] == expected
            assert (await reader.load("t", "v1")) == state
            [version] = await reader.history("t", limit=1)
            [found] = await reader.read_states([version], lambda _, it: dict(it.get_state()))
            assert found == state


async def copied(backend: MemoryBackend) -> MemoryBackend:
    other = MemoryBackend()
    thread = await backend.read_thread("t")
    assert thread is not None
    await other.write_thread(thread)
    return other


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xff\xff", b"\x81\xa1", b"\xc7\x01\x05"])
def test_bytes_that_are_no_messagepack_are_kept(data: bytes) -> None:
    state = {"channel_values": {"a": data, "b": [data, data]}, "channel_versions": {}}
    [payload], [shape] = chain([state])
    assert frames.fold([payload], MAX_STATE_BYTES) == state
    assert frames.build_digest_tree(frames.fold([payload], MAX_STATE_BYTES)).digest == shape.digest
    assert get_packed(as_json(data)) == data
    told = decode(frames.read_restorable_operations(payload, MAX_STATE_BYTES))
    assert frames.fold([frames.encode_operations(told)], MAX_STATE_BYTES) == state


@pytest.mark.parametrize(
    "told",
    [
        *(b"5", b"{}", b"null", b'["msgpack",5]'),
        *(b'["msgpack",["=",[],{"a":{"$m":%b}}]]' % it for it in (b"5", b"[1,2]", b"null")),
        *(b"[" * 300 + b"]" * 300, b'["msgpack",%b1%b]' % (b"[" * 1000, b"]" * 1000)),
        b'["msgpack",["=",[],{"$m":[%b1%b]}]]' % (b'{"a":' * 1000, b"}" * 1000),
    ],
    ids=lambda told: told[:30].decode(),
)
def test_operations_that_no_save_wrote_are_damage(told: bytes) -> None:
    with pytest.raises(IntegrityError):
        frames.fold([frames.encode_operations(decode(told))], MAX_STATE_BYTES)


@pytest.mark.parametrize(
    "value", [{"$m": 1}, {"$m": [1]}, {"$m": [{"$m": []}]}, {"$": "d"}, {"$m": {"$m": {}}}]
)
def test_no_key_of_a_user_passes_for_a_mark(value: Any) -> None:
    state = {"fields": value, "channel_values": {"a": ormsgpack.packb(value), "$m": [BYTES]}}
    [payload], _ = chain([state])
    told = decode(frames.read_restorable_operations(payload, MAX_STATE_BYTES))
    assert frames.fold([frames.encode_operations(told)], MAX_STATE_BYTES) == state
    plain = frames.compare_states({"a": value}, None).to_payload()
    told = decode(frames.read_restorable_operations(plain, MAX_STATE_BYTES))
    assert frames.encode_operations(told) == plain


HALF = "half \ud83d"


@pytest.mark.parametrize(
    "state",
    [
        {"text": HALF},
        {"text": HALF * 2_000},
        {"small": {"deep": [1, {"text": HALF}]}},
        {"small": {HALF: 1}},
        {HALF: 1},
        {"long": [{"content": "x" * 100}] * 500 + [HALF]},
        {"large": {f"k{at}": "x" * 100 for at in range(100)} | {"k": [HALF]}},
    ],
)  # fmt: skip
async def test_half_a_character_comes_back_from_each_kind_of_node(state: dict[str, Any]) -> None:
    async with MemoryCheckpointer(state_type=dict) as checkpointer:
        await checkpointer.save(state, "t")
        assert await checkpointer.load("t") == state
        snapshot = await checkpointer.backend.read_state("t")
        assert snapshot is not None
        assert snapshot.has_escaped
        await checkpointer.save({"text": "漢字 \uf000" * 2_000, "n": [1]}, "t")
        snapshot = await checkpointer.backend.read_state("t")
        assert snapshot is not None
        assert not snapshot.has_escaped
