from __future__ import annotations

import copy
import datetime as dt
import itertools
import math
import random
import subprocess
import sys
import textwrap
import uuid
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from canonical import encode_reference
from hypothesis import HealthCheck, strategies as st
from properties import given, settings
from tiers import ALL, first_of

from locus_store.errors import IntegrityError, SerializationError
from locus_store.values.canonical import canonicalize_state
from locus_store.values.encoding import (
    MAX_STATE_BYTES,
    decode,
    digest,
    digest_each,
    encode,
    encode_canonical,
    make_list_head,
    make_object_head,
    pack_frame,
    unpack_frames,
)
from locus_store.values.frames import (
    DigestTree,
    Folder,
    Grown,
    build_digest_tree,
    change_value,
    compare_states,
    decode_value,
    encode_value,
    extract_text,
    fold,
    fold_onto,
)
from locus_store.values.frames.alignment import align
from locus_store.values.frames.digest_trees import REFERENCE_BYTES, SMALL_BYTES
from locus_store.values.frames.folding import _Rope
from locus_store.values.frames.operations import parse_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.sampled_from(["", "a", "b", "a.b", "0", "é", "x\x00"])
SCALARS = st.one_of(
    st.sampled_from([None, True, False, 0, 1, 1.0, 0.0, -0.0, "", "1", 2**64 - 1, -(2**63)]),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.sampled_from(["ab" * 600, "ab" * 700 + "é🎉", "x" * 1100]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=25,
)
STATES = st.dictionaries(KEYS, VALUES, max_size=5)
SLOW = settings(
    max_examples=150 if ALL else 25, deadline=None, suppress_health_check=list(HealthCheck)
)


def fold_each(payloads: Iterable[bytes], max_bytes: int) -> Iterator[Any]:
    """Yield a copy of the state after each payload of a chain."""
    folder = Folder(max_bytes)
    for payload in payloads:
        folder.apply(payload)
        yield decode(encode(folder.get_state()))


def prose(rng: random.Random, size: int) -> str:
    return "".join(rng.choice("ab c\né🎉") for _ in range(size))


def message(rng: random.Random) -> Any:
    size = rng.choice([1, 3, 900, 1500])
    content: Any = prose(rng, size)
    if rng.random() < 0.3:
        content = [{"type": "text", "text": content}, {"parts": [rng.randint(0, 2)] * 3}]
    return {"role": "user", "content": content, "at": rng.choice([1, 1.0, True, None])}


class Histories:
    """Each method edits a state in place; ``KINDS`` names them all."""

    @staticmethod
    def append(state: Any, rng: random.Random) -> None:
        state["m"] += [message(rng) for _ in range(rng.randint(1, 3))]

    @staticmethod
    def slide(state: Any, rng: random.Random) -> None:
        state["m"] = [*state["m"][rng.randint(0, 3) :], message(rng)]

    @staticmethod
    def slide_behind_the_first(state: Any, rng: random.Random) -> None:
        state["m"] = [*state["m"][:1], *state["m"][2:], message(rng)]

    @staticmethod
    def truncate(state: Any, rng: random.Random) -> None:
        del state["m"][rng.randint(0, len(state["m"])) :]

    @staticmethod
    def replace(state: Any, rng: random.Random) -> None:
        for _ in range(min(len(state["m"]), 3)):
            state["m"][rng.randrange(len(state["m"]))] = message(rng)

    @staticmethod
    def insert(state: Any, rng: random.Random) -> None:
        state["m"].insert(rng.randint(0, len(state["m"])), message(rng))

    @staticmethod
    def repeat(state: Any, rng: random.Random) -> None:
        if state["m"]:
            state["m"].insert(rng.randint(0, len(state["m"])), copy.deepcopy(state["m"][-1]))

    @staticmethod
    def reorder(state: Any, rng: random.Random) -> None:
        rng.shuffle(state["m"])

    @staticmethod
    def stream(state: Any, rng: random.Random) -> None:
        if state["m"] and isinstance(state["m"][-1]["content"], str):
            state["m"][-1]["content"] += "token"
        if rng.random() < 0.3:
            state["m"].append(message(rng))

    @staticmethod
    def count(state: Any, rng: random.Random) -> None:
        for each in state["m"]:
            each["uses"] = rng.randint(0, 3)

    @staticmethod
    def nest(state: Any, rng: random.Random) -> None:
        for each in state["m"]:
            if isinstance(each["content"], list):
                each["content"].insert(rng.randint(0, 1), {"n": rng.randint(0, 9)})

    @staticmethod
    def document(state: Any, rng: random.Random) -> None:
        text, at = state["x"]["d"], rng.randint(0, 1300)
        state["x"]["d"] = text[:at] + "é🎉\x00" + text[at + rng.randint(0, 40) :]

    @staticmethod
    def retype(state: Any, rng: random.Random) -> None:
        kinds = [[], {}, None, "", 0, 0.0, False, [[1], [2]], {"": {"": []}}, "t" * 1100, [None]]
        state["x"]["l"] = rng.choice(kinds)

    @staticmethod
    def keys(state: Any, rng: random.Random) -> None:
        state["x"].pop(rng.choice("pqr"), None)
        state["x"][rng.choice("pqr")] = {"z": [rng.randint(0, 1)], "a": rng.choice([1, 1.0])}

    @staticmethod
    def nothing(state: Any, rng: random.Random) -> None:
        pass


KINDS = [name for name in vars(Histories) if not name.startswith("_")]


def start(rng: random.Random) -> Any:
    count = rng.choice([rng.randint(0, 6), rng.randint(12, 40)])
    return {"m": [message(rng) for _ in range(count)], "x": {"d": prose(rng, 1300)}}


def scrambled(value: Any, rng: random.Random) -> Any:
    """The same value with its keys in another order, and tuples for some lists."""
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: scrambled(value[key], rng) for key in keys}
    if isinstance(value, list):
        items = [scrambled(item, rng) for item in value]
        return tuple(items) if rng.random() < 0.2 else items
    return value


def same(one: Any, other: Any) -> bool:
    return encode_canonical(canonicalize_state(one)) == encode_canonical(canonicalize_state(other))


def chain(states: list[Any]) -> list[bytes]:
    shape, payloads = None, []
    for state in states:
        done = compare_states(state, shape)
        payloads.append(done.to_payload() if done.frames is None else done.frames)
        shape = done.tree
    return payloads


def body(*operations: list[Any]) -> bytes:
    return pack_frame(encode_canonical(list(operations)))


def operations_of(payload: bytes | None) -> list[Any]:
    return [
        op for frame in unpack_frames(payload or b"", MAX_STATE_BYTES) for op in parse_frame(frame)
    ]


@SLOW
@given(st.lists(STATES, min_size=1, max_size=4))
def test_every_version_of_any_states_comes_back_exactly(states: list[Any]) -> None:
    payloads = chain(states)
    for state, folded in zip(states, fold_each(payloads, MAX_STATE_BYTES), strict=True):
        assert encode_canonical(folded) == encode_canonical(canonicalize_state(state))
    assert encode_canonical(fold(payloads, MAX_STATE_BYTES)) == encode_canonical(
        canonicalize_state(states[-1])
    )


@SLOW
@given(st.lists(st.sampled_from(KINDS), max_size=12), st.integers(0, 2**32))
def test_every_version_of_any_history_comes_back_exactly(kinds: list[str], seed: int) -> None:
    rng = random.Random(seed)
    state, states, payloads = start(rng), [], []
    shape: DigestTree | None = None
    for kind in ["nothing", *kinds]:
        getattr(Histories, kind)(state, rng)
        states.append(copy.deepcopy(state))
        done = compare_states(scrambled(state, rng), shape)
        payloads.append(done.to_payload() if done.frames is None else done.frames)
        loaded = build_digest_tree(fold(payloads, MAX_STATE_BYTES))
        assert loaded.digest == done.tree.digest
        assert loaded.state_bytes == done.tree.state_bytes == len(encode_canonical(states[-1]))
        alone = build_digest_tree(fold(payloads, MAX_STATE_BYTES), keeps=False)
        assert (alone.digest, alone.state_bytes) == (loaded.digest, loaded.state_bytes)
        assert same(fold([done.to_payload()], MAX_STATE_BYTES), state)
        shape = loaded if rng.random() < 0.5 else done.tree
    for folded, expected in zip(fold_each(payloads, MAX_STATE_BYTES), states, strict=True):
        assert encode_canonical(folded) == encode_canonical(canonicalize_state(expected))


def nested_edits(state: Any, rng: random.Random) -> None:
    """Changes objects and lists below keys, or replaces them."""
    inner = state.setdefault("n", {"a": {}, "l": [1, {"b": [2]}]})
    match rng.randint(0, 6):
        case 0:
            inner["a"] = {"x": [rng.randint(0, 3)]}
        case 1:
            inner["a"].setdefault("x", []).append([rng.random()])
        case 2:
            inner["l"].insert(rng.randint(0, len(inner["l"])), {"b": [rng.randint(0, 3)]})
        case 3:
            inner["l"] = inner["l"][1:]
        case 4:
            inner["a"] = {"y": inner["a"], "t": prose(rng, 1200)}
        case 5:
            inner["l"].append(rng.random())
        case _:
            del state["n"]


@SLOW
@given(st.lists(st.sampled_from([*KINDS, None]), min_size=1, max_size=8), st.integers(0, 2**32))
def test_a_shape_that_continues_a_known_one_is_that_of_the_state(
    kinds: list[str | None], seed: int
) -> None:
    rng = random.Random(seed)
    state, saved, payloads = start(rng), [], []
    shape: DigestTree | None = None
    for kind in ["nothing", *kinds]:
        getattr(Histories, kind)(state, rng) if kind else nested_edits(state, rng)
        done = compare_states(scrambled(state, rng) if seed % 2 else state, shape)
        payloads.append(done.to_payload() if done.frames is None else done.frames)
        saved.append((done.tree, done.tree))
        shape = done.tree
    for count, (known, near) in enumerate(saved, 1):
        folded, edits = fold_onto(known, payloads[count:], MAX_STATE_BYTES)
        continued, whole = build_digest_tree(folded, near, edits), build_digest_tree(folded)
        assert encode_canonical(folded) == encode_canonical(canonicalize_state(state))
        assert (continued.digest, continued.state_bytes) == (whole.digest, whole.state_bytes)
        assert same(continued.to_state(), state)
        nested_edits(folded, rng)
        assert (
            compare_states(folded, continued).tree.digest
            == compare_states(folded, None).tree.digest
        )


def test_a_shape_that_continues_a_known_one_encodes_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from locus_store.values.frames import arrays, digest_trees

    state: dict[str, Any] = {"m": rows(100), "n": {"m": rows(100)}}
    basis = compare_states(state, None)
    state["m"] = [*state["m"], {"new": 1}]
    done = compare_states(state, basis.tree)
    folded, edits = fold_onto(basis.tree, [done.frames or b""], MAX_STATE_BYTES)
    encoded: list[object] = []
    each = arrays.encode_each
    for module in (arrays, digest_trees):
        monkeypatch.setattr(
            module, "encode_canonical", lambda it: encoded.append(it) or encode_canonical(it)
        )
        monkeypatch.setattr(module, "encode_each", lambda all_: encoded.extend(all_) or each(all_))
    assert build_digest_tree(folded, basis.tree, edits).digest == done.tree.digest
    assert encoded == [["m", "n"], {"new": 1}]


CHANGES: dict[str, Any] = {
    "shrink": lambda it: [it["d"].pop(key, None) for key in ("k2", "k3")],
    "grow": lambda it: it["d"].update({f"l{n}": "x" * 500 for n in range(4)}),
    "append": lambda it: it["m"].append({"z": 1, "a": 2}),
    "insert": lambda it: it["m"].insert(3, {"new": [1]}),
    "edit": lambda it: it["m"][40].update(c="edited"),
    "pop": lambda it: it["m"].pop(1),
    "key": lambda it: it["d"].pop("k7", None) or it["d"].update(k7={"a": []}),
    "scalar": lambda it: it.update(n=it["n"] + 1),
    "small": lambda it: it["s"].update(z=len(it["s"]), b=[(1,)]),
}


@pytest.mark.parametrize("work", CHANGES)
@pytest.mark.parametrize("own", [None, *first_of(*CHANGES)])
def test_a_state_that_another_thread_changes_can_be_loaded(
    own: str | None, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread works after the n-th call of a function that encodes."""
    from locus_store.values.frames import arrays, diffing, digest_trees

    calls, at = 0, 0
    state: dict[str, Any] = {}

    def hook(call: Any) -> Any:
        def run(*args: Any) -> Any:
            nonlocal calls
            made, calls = call(*args), calls + 1
            if calls == at:
                CHANGES[work](state)
            return made

        return run

    while calls >= at:
        state |= {"m": rows(70), "d": {f"k{n}": {"a": "x" * 500} for n in range(9)}, "n": 1}
        state["s"] = {"b": [1], "a": 2}
        basis = compare_states(state, None)
        if own is not None:
            CHANGES[own](state)
        calls, at = 0, at + 1
        with monkeypatch.context() as patched:
            for module in (arrays, diffing, digest_trees):
                for name in {"encode_canonical", "require_json"} & vars(module).keys():
                    patched.setattr(module, name, hook(getattr(module, name)))
            change = compare_states(state, basis.tree)
        found = [fold([change.to_payload()], MAX_STATE_BYTES)]
        if change.frames:
            found.append(fold_onto(basis.tree, [change.frames], MAX_STATE_BYTES)[0])
        assert {build_digest_tree(it).digest for it in found} == {change.tree.digest}
        last = compare_states(state, change.tree)
        assert last.tree.to_state() == canonicalize_state(state)


@SLOW
@given(STATES, st.integers(0, 2**32))
def test_order_of_keys_and_tuples_make_no_difference(state: Any, seed: int) -> None:
    first = compare_states(state, None)
    again = compare_states(scrambled(state, random.Random(seed)), first.tree)
    assert again.frames == b""
    assert again.tree.digest == first.tree.digest
    assert again.to_payload() == first.to_payload()


@SLOW
@given(STATES, STATES)
def test_digests_are_equal_only_for_equal_states(one: Any, other: Any) -> None:
    digests = compare_states(one, None).tree.digest, compare_states(other, None).tree.digest
    assert (digests[0] == digests[1]) is same(one, other)


ALIKE = st.recursive(
    st.sampled_from([None, 0, 1.0, True, "", "u", "x" * 1100]),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
"""Values whose pinned forms often end like others."""

PARTS = st.lists(ALIKE, max_size=6)


def test_a_shape_that_keeps_nothing_takes_the_memory_of_the_digests() -> None:
    state = {"said": ["x" * 2_000 + str(number) for number in range(1_000)]}
    assert build_digest_tree(state, keeps=False).weight < 50_000
    assert build_digest_tree(state).weight > 4_000_000


@SLOW
@given(st.lists(ALIKE, min_size=9, max_size=30), st.lists(PARTS, min_size=3, max_size=3), st.data())
def test_a_list_compared_as_bytes_has_the_shape_of_a_new_one(
    old: list[Any], new: list[Any], data: Any
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(old)), min_size=4, max_size=4)))
    nested = data.draw(st.booleans())  # it ends with the bytes of the elements within
    kept = [old[: cuts[1]], old[cuts[2] : cuts[3]], [old[cuts[2] :]] if nested else []]
    parts = [*new[: data.draw(st.integers(0, 3))], [], [], []]
    pads: list[Any] = [["x" * SMALL_BYTES], []]
    first, last = pads if data.draw(st.booleans()) else pads[::-1]
    edited = [it for pair in zip(parts, kept, strict=False) for part in pair for it in part]
    state = {"m": [*first, *edited, *last]}
    basis = compare_states({"m": [*first, *old, *last]}, None)
    expected = compare_states(state, None)
    for known in (basis.tree, basis.tree.without_elements()):
        done = compare_states(state, known)
        node, right = done.tree._root.children["m"], expected.tree._root.children["m"]
        assert (done.tree.digest, len(node)) == (expected.tree.digest, len(right))
        assert (node.digests, node.large) == (right.digests, right.large)
        assert node.chunks == right.chunks
        assert node.lengths == right.lengths
        payloads = [basis.to_payload(), done.to_payload() if done.frames is None else done.frames]
        assert same(fold(payloads, MAX_STATE_BYTES), state)


@pytest.mark.parametrize("kind", ["edit", "slide", "append", "delete"])
def test_a_change_of_a_long_list_hashes_what_is_new(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from locus_store.values.frames import arrays

    state: dict[str, Any] = {"m": [{"n": n, "text": "x" * n} for n in range(500)]}
    basis = compare_states(state, None).tree
    if kind == "edit":
        state["m"][250]["n"] = -1
    if kind in {"slide", "delete"}:
        del state["m"][0 if kind == "slide" else 250]
    if kind in {"slide", "append"}:
        state["m"].append({"n": -1})
    hashed: list[bytes] = []
    monkeypatch.setattr(
        arrays, "digest_each", lambda raws: hashed.extend(raws) or digest_each(raws)
    )
    done = compare_states(state, basis)
    assert len(hashed) == (0 if kind == "delete" else 1)
    assert done.tree.digest == build_digest_tree({"m": state["m"]}).digest


def test_a_digest_never_changes_between_releases() -> None:
    state = {"m": [{"b": 1.5, "a": "é"}, []], "d": {"t": "x" * 2000, "": {}}, "n": [1, None, True]}
    assert compare_states(state, None).tree.digest.hex() == "5401e5132d4b401d042bbb3e1a4811a9"


def reference_digest(state: dict[str, Any]) -> bytes:
    """The digest of a canonical state, as it is specified; bytes are MessagePack."""

    def by_entries(value: dict[str, Any]) -> bytes:
        names = encode_reference(sorted(value))
        return digest(b"D" + names + b"".join(token(value[it]) for it in sorted(value)))

    def has_msgpack(value: Any) -> bool:
        held = value.values() if isinstance(value, dict) else value
        return isinstance(value, bytes) or (
            isinstance(value, dict | list) and any(map(has_msgpack, held))
        )

    def token(value: Any) -> bytes:
        pin = encode_reference(value)
        is_large = len(pin) > SMALL_BYTES or has_msgpack(value)
        if isinstance(value, dict) and is_large:
            return b"\xc1" + by_entries(value)
        if isinstance(value, list) and is_large:
            inner = b"".join(digest(encode_reference(it)) for it in value)
            return b"\xc1" + digest(b"L" + len(value).to_bytes(8) + inner)
        stands_for_itself = len(pin) <= REFERENCE_BYTES
        return pin if stands_for_itself else b"\xc1" + digest(pin)

    return by_entries(state)


@SLOW
@given(STATES, STATES, st.sampled_from([0, 1, 3900, 5000]))
def test_a_digest_is_the_specified_one(state: Any, before: Any, size: int) -> None:
    state = {**state, "pad": "x" * size, "inner": {"pad": "y" * size, **before}}
    canonical = canonicalize_state(state)
    wanted = reference_digest(canonical)
    assert compare_states(state, None).tree.digest == wanted
    assert compare_states(state, compare_states(before, None).tree).tree.digest == wanted
    assert (
        build_digest_tree(canonical).digest
        == build_digest_tree(canonical, keeps=False).digest
        == wanted
    )


@pytest.mark.parametrize("more", range(-3, 4))
@pytest.mark.parametrize("kind", ["object", "list"])
def test_the_digest_of_a_value_of_about_the_limit_is_that_of_its_size(kind: str, more: int) -> None:
    value: Any = {"b": [1, {"z": 1, "a": 2}], "t": ""}
    value["t"] = "x" * (
        SMALL_BYTES + more - len(encode_canonical([value] if kind == "list" else value))
    )
    state = {"a": {"in": [value] if kind == "list" else value}}
    canonical = canonicalize_state(state)
    wanted = reference_digest(canonical)
    for before in ("y", [{"t": "y" * 6000}], {"t": "y" * 6000}, [{"t": "y"}], {"t": "y"}, {}, []):
        basis = compare_states({"a": {"in": before}}, None).tree
        for known in (None, basis, basis.without_elements()):
            assert compare_states(state, known).tree.digest == wanted
    assert (
        build_digest_tree(canonical).digest
        == build_digest_tree(canonical, keeps=False).digest
        == wanted
    )


def test_values_that_look_alike_have_their_own_digests() -> None:
    pad = "x" * SMALL_BYTES
    values: list[Any] = [1, 1.0, True, "1", None, "", [], {}, [[]], [{}], {"": None}, 0.0, -0.0]
    for more in ({}, {"pad": pad}):
        digests = {compare_states({"k": value, **more}, None).tree.digest for value in values}
        digests |= {compare_states({"k": [value], **more}, None).tree.digest for value in values}
        assert len(digests) == 2 * len(values) - 2  # {"k": [[]]} and {"k": [{}]} are in both


@pytest.mark.parametrize("size", [10, 40, 2000])
def test_a_change_between_equal_numbers_of_other_types_is_seen(size: int) -> None:
    pad = "x" * size
    before = {"a": 1, "m": [{"n": 1, "z": 0.0, "l": [True], "pad": pad}]}
    after = {"a": 1.0, "m": [{"n": True, "z": -0.0, "l": [1], "pad": pad}]}
    assert encode_canonical(fold(chain([before, after]), MAX_STATE_BYTES)) == encode_canonical(
        canonicalize_state(after)
    )


@pytest.mark.parametrize("count", [50, 500])
def test_a_known_element_is_not_checked_whatever_the_order_of_its_keys(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from locus_store.values.frames import arrays, digest_trees

    state = {"m": [{"z": n, "a": (n,)} for n in range(count)]}
    known = build_digest_tree(fold([compare_states(state, None).to_payload()], MAX_STATE_BYTES))
    for module in (arrays, digest_trees):
        monkeypatch.setattr(module, "require_json", None)
    assert compare_states(state, known).frames == b""


REFUSED = [math.nan, math.inf, b"", dt.datetime.now(dt.UTC), uuid.UUID(int=1), {1}]
REFUSED += [{1: 2}, 2**64, -(2**63) - 1, OrderedDict(), object(), 1j]
DEEP: list[Any] = []
for _ in range(199):
    DEEP = [DEEP]


@pytest.mark.parametrize("value", [*REFUSED, DEEP], ids=lambda value: ascii(value)[:20])
@pytest.mark.parametrize("with_basis", [False, True])
def test_what_json_cannot_hold_is_refused_wherever_it_stands(value: Any, with_basis: bool) -> None:
    basis = (
        compare_states({"a": {"b": 1}, "m": [{"c": 1}, {"c": [1]}]}, None).tree
        if with_basis
        else None
    )
    with pytest.raises(SerializationError, match=r"^a\.b"):
        compare_states({"a": {"b": value}}, basis)
    with pytest.raises(SerializationError, match=r"^m\[1\]\.c\[0\]"):
        compare_states({"m": [{"c": 1}, {"c": [value]}]}, basis)
    with pytest.raises(SerializationError, match=r"^m\[0\]"):
        compare_states({"m": [value if value is not DEEP else [DEEP]]}, basis)


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"x"])
def test_other_keys_are_refused_at_the_root_and_in_a_large_object(key: Any) -> None:
    for state in ({key: 1, "a": 2}, {key: 1}):
        with pytest.raises(SerializationError, match=r"^the state"):
            compare_states(state, None)
    basis = compare_states({"a": {"b": "x" * SMALL_BYTES}}, None).tree
    with pytest.raises(SerializationError, match=r"^a has the key"):
        compare_states({"a": {key: "x" * SMALL_BYTES}}, basis)


@pytest.mark.parametrize("root", [[], "x", 1, None])
def test_a_state_is_an_object(root: Any) -> None:
    with pytest.raises(SerializationError, match="JSON object"):
        compare_states(root, None)


def test_any_mapping_will_do_at_the_root() -> None:
    assert fold([compare_states(OrderedDict(b=1, a=2), None).to_payload()], MAX_STATE_BYTES) == {
        "a": 2,
        "b": 1,
    }


def deepest(kind: type, leaf: Any) -> Any:
    value = leaf
    for _ in range(198):
        value = [value] if kind is list else {"k": value}
    return {"m": [value] if kind is list else value, "pad": "x"}


@pytest.mark.parametrize("kind", [list, dict])
def test_the_deepest_state_can_be_saved_edited_and_loaded(kind: type) -> None:
    states = [deepest(kind, [leaf, "x" * 2000][:1]) for leaf in (1, 2, "x" * 3000, "y" * 3000)]
    if kind is list:
        states = [deepest(kind, leaf) for leaf in (1, 2, "x" * 3000, "x" * 3000 + "y")]
    for state, folded in zip(states, fold_each(chain(states), MAX_STATE_BYTES), strict=True):
        assert encode_canonical(folded) == encode_canonical(canonicalize_state(state))


def test_an_unchanged_state_is_no_frames() -> None:
    state = {"a": [1, {"b": "x" * 3000}], "t": "y" * 3000}
    assert compare_states(copy.deepcopy(state), compare_states(state, None).tree).frames == b""


def test_empty_payloads_change_nothing() -> None:
    payloads = [compare_states({"a": 1}, None).to_payload(), b"", b""]
    assert list(fold_each(payloads, MAX_STATE_BYTES)) == [{"a": 1}] * 3


@pytest.mark.parametrize("with_basis", [False, True])
def test_whole_gives_the_state_as_it_was(with_basis: bool) -> None:
    basis = compare_states({"m": []}, None).tree if with_basis else None
    state = {"m": [{"a": [1]}], "d": {"e": 1}}
    done = compare_states(state, basis)
    state["m"][0]["a"].append(2)  # type: ignore[index]
    state["d"]["e"] = 5  # type: ignore[index,call-overload]
    assert fold([done.to_payload()], MAX_STATE_BYTES) == {"m": [{"a": [1]}], "d": {"e": 1}}
    assert done.to_payload() is done.to_payload()


def test_a_state_mutated_in_place_is_compared_with_what_was_saved() -> None:
    state: Any = {"m": [{"content": "x" * 2000, "tags": ["a"]}], "d": {}}
    payloads, shape = [], None
    for step in range(5):
        state["m"][0]["tags"].append(str(step))
        state["m"][0]["content"] += "!"
        state["d"][str(step)] = [step]
        done = compare_states(state, shape)
        payloads.append(done.frames or done.to_payload())
        shape = done.tree
    assert encode_canonical(fold(payloads, MAX_STATE_BYTES)) == encode_canonical(
        canonicalize_state(state)
    )


def test_change_leaves_its_argument_alone() -> None:
    state = {"z": (1, 2), "a": {"y": [{"b": 1, "a": 2}]}}
    before = repr(state)
    compare_states(state, compare_states({"z": [1]}, None).tree)
    assert repr(state) == before


def test_folded_states_are_copies_of_their_own() -> None:
    payloads = chain([{"m": [{"a": [1]}]}, {"m": [{"a": [1]}, {"b": []}]}, {"m": [], "x": {}}])
    for folded in fold_each(payloads, MAX_STATE_BYTES):
        folded["m"].append("spoiled")
        folded["m"][0] = "spoiled"
    spoiled = fold(payloads[:2], MAX_STATE_BYTES)
    spoiled["m"][0]["a"].append("spoiled")
    assert fold(payloads[:2], MAX_STATE_BYTES) == {"m": [{"a": [1]}, {"b": []}]}


def test_folded_keys_are_sorted() -> None:
    states = [
        {"b": 1, "m": [{"y": "x" * 2000}]},
        {"b": 1, "a": 1, "m": [{"y": "x" * 2000, "c": 1}]},
    ]
    assert encode(fold(chain(states), MAX_STATE_BYTES)).startswith(b'{"a":1,"b":1,"m":[{"c":1,"y"')
    assert list(fold(chain(states), MAX_STATE_BYTES)) == ["a", "b", "m"]


BASE = body(["=", [], {"a": {"b": 1}, "l": [1, 2], "t": "text"}])
MALFORMED: dict[str, list[Any]] = {
    "no operation": [],
    "unknown operation": ["?", ["a"], 1],
    "too few operands": ["=", ["a"]],
    "too many operands": ["-", ["a"], 1],
    "no path": ["=", "a", 1],
    "a list at the root": ["=", [], [1]],
    "the root deleted": ["-", []],
    "set below nothing": ["=", ["x", "y"], 1],
    "set in a number": ["=", ["a", "b", "c"], 1],
    "set behind the end": ["=", ["l", 2], 1],
    "set before the start": ["=", ["l", -1], 1],
    "set at a key of a list": ["=", ["l", "0"], 1],
    "set at an index of an object": ["=", ["a", 0], 1],
    "set at true": ["=", ["l", True], 1],
    "set at null": ["=", ["a", None], 1],
    "set at a list": ["=", ["a", []], 1],
    "delete in a list": ["-", ["l", 0]],
    "delete below a number": ["-", ["a", "b", "c"]],
    "delete below a list": ["-", ["l", "a"]],
    "splice an object": ["[", ["a"], 0, 0, []],
    "splice a text": ["[", ["t"], 0, 0, []],
    "splice nothing": ["[", ["x"], 0, 0, []],
    "splice past the end": ["[", ["l"], 1, 2, []],
    "splice before the start": ["[", ["l"], -1, 1, []],
    "splice less than none": ["[", ["l"], 1, -1, []],
    "splice from true": ["[", ["l"], True, 0, []],
    "splice from 0.0": ["[", ["l"], 0.0, 0, []],
    "splice in a text": ["[", ["l"], 0, 0, "ab"],
    "text splice in a list": ["t", ["l"], 0, 0, "x"],
    "text splice past the end": ["t", ["t"], 3, 2, "x"],
    "text splice before the start": ["t", ["t"], -1, 0, "x"],
    "text splice of a list": ["t", ["t"], 0, 0, ["x"]],
    "text splice of the root": ["t", [], 0, 0, "x"],
    "text splice of nothing": ["t", ["x"], 0, 0, "x"],
}


@pytest.mark.parametrize("operation", MALFORMED.values(), ids=MALFORMED.keys())
def test_an_operation_that_makes_no_sense_is_an_integrity_error(operation: list[Any]) -> None:
    with pytest.raises(IntegrityError):
        fold([BASE, body(operation)], MAX_STATE_BYTES)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        *map(encode_canonical, (1, {"=": 1}, [1], ["=", [], {}], [[]])),
        b'[["=",[],{}]]',
    ],
)
def test_a_frame_that_is_no_list_of_operations_is_an_integrity_error(content: bytes) -> None:
    with pytest.raises(IntegrityError):
        fold([BASE, pack_frame(content)], MAX_STATE_BYTES)


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_a_whole_state_of_any_width_is_its_encoding(count: int) -> None:
    entries: dict[str, Any] = {f"é{it}": it for it in range(count)}
    for state in (
        entries,
        {"a": {"b": entries, "c": list(range(count))}},
        {"a": ["x" * 9] * count},
    ):
        done = compare_states(state, compare_states({"a": 1}, None).tree)
        assert operations_of(done.to_payload()) == [["=", [], canonicalize_state(state)]]
        whole = done.to_payload() if done.frames is None else done.frames
        assert fold([body(["=", [], {"a": 1}]), whole], MAX_STATE_BYTES) == state


@pytest.mark.parametrize("payloads", [[], [b""], [body(["=", ["a"], 1])], [body(["-", ["a"]])]])
def test_a_chain_begins_with_a_whole_state(payloads: list[bytes]) -> None:
    with pytest.raises(IntegrityError):
        fold(payloads, MAX_STATE_BYTES)


@pytest.mark.parametrize("path", [["x"], ["x", "y"], ["a", "x"]])
def test_deleting_what_is_absent_is_fine(path: list[str]) -> None:
    assert fold([BASE, body(["-", path])], MAX_STATE_BYTES) == fold([BASE], MAX_STATE_BYTES)


@pytest.mark.parametrize("levels", [201, 260, 900])
def test_a_stored_state_nested_too_deeply_is_an_integrity_error(levels: int) -> None:
    for opening in (make_list_head(1), make_object_head(1) + encode_canonical("k")):
        deep = make_object_head(1) + encode_canonical("k") + opening * levels + b"\1"
        payload = pack_frame(b"\x91\x93\xa1=\x90" + deep)
        with pytest.raises(IntegrityError):
            build_digest_tree(fold([payload], MAX_STATE_BYTES))


NO_STATE: dict[str, Any] = {
    "an object with NaN": {"a": {"b": math.nan}},
    "a list with infinity": {"a": [[1.5, math.inf]]},
    "a long list with NaN": {"a": [math.nan, *map(str, range(5000))]},
    "bytes in an element": {"a": [1, {"b": b"\1"}]},
    "bytes before a number": {"a": [b"\1", 1]},
    "bytes behind a long list": {"a": [*map(str, range(5000)), b"\1"]},
}
"""States that a save refuses."""


@pytest.mark.parametrize("state", NO_STATE.values(), ids=NO_STATE)
def test_a_stored_state_that_a_save_would_refuse_is_an_integrity_error(
    state: dict[str, Any],
) -> None:
    with pytest.raises(SerializationError):
        compare_states(state, None, packed=True)
    payload = pack_frame(encode_canonical([["=", [], state]]))
    before = compare_states({"a": []}, None).tree
    for keeps in (True, False):
        with pytest.raises(IntegrityError, match="cannot hold"):
            build_digest_tree(fold([payload], MAX_STATE_BYTES), keeps=keeps)
    found, edits = fold_onto(before, [payload], MAX_STATE_BYTES)
    with pytest.raises(IntegrityError, match="cannot hold"):
        build_digest_tree(found, before, edits)


@pytest.mark.parametrize("value", [math.nan, [1.5, {"b": -math.inf}], {"b": [1, b"\1"]}])
def test_a_pending_write_that_a_save_would_refuse_is_an_integrity_error(value: Any) -> None:
    operation = encode_canonical(["=", ["value"], value])
    with pytest.raises(IntegrityError, match="invalid value"):
        change_value([1], pack_frame(b"\x91" + operation), MAX_STATE_BYTES)
    operation = encode_canonical(["=", [], {"value": value}])
    with pytest.raises(IntegrityError, match="invalid value"):
        decode_value(pack_frame(b"\x91" + operation), MAX_STATE_BYTES)


@pytest.mark.parametrize("behind", [b"\0", b"\1", encode_canonical([]), bytes(40)])
def test_bytes_behind_a_payload_or_a_frame_are_noticed(behind: bytes) -> None:
    """The checksum of a frame is behind its bytes, and nothing may be behind the last frame."""
    [first, *_] = chain(sample())
    value = encode_value({"a": 1}, MAX_STATE_BYTES)
    read_value = partial(decode_value, max_bytes=MAX_STATE_BYTES)
    for payload, read in ((first, lambda it: fold([it], MAX_STATE_BYTES)), (value, read_value)):
        for broken in (payload + behind, payload[:-4] + behind + payload[-4:]):
            with pytest.raises(IntegrityError):
                read(broken)


def sample() -> list[Any]:
    text = "".join(chr(97 + n * n % 23) for n in range(1300))
    first = {"m": [{"c": text, "n": 12}], "t": text, "k": {"a": True}}
    second = {"m": [{"c": text + "tok", "n": 13}, {"c": "x"}], "t": "Q" + text, "k": {"b": None}}
    return [first, second, {**second, "m": second["m"][1:]}]


def outcome(payloads: list[bytes]) -> list[bytes] | None:
    try:
        return [build_digest_tree(state).digest for state in fold_each(payloads, MAX_STATE_BYTES)]
    except IntegrityError:
        return None


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80, 0xFF])
def test_a_changed_byte_is_an_error_another_digest_or_the_same_states(mask: int) -> None:
    payloads = chain(sample())
    wanted = list(fold_each(payloads, MAX_STATE_BYTES))
    digests = [compare_states(state, None).tree.digest for state in sample()]
    assert outcome(payloads) == digests
    unnoticed = 0
    for number, payload in enumerate(payloads):
        for at in range(len(payload)):
            damaged = bytearray(payload)
            damaged[at] ^= mask
            broken = [*payloads[:number], bytes(damaged), *payloads[number + 1 :]]
            if outcome(broken) == digests:
                assert list(fold_each(broken, MAX_STATE_BYTES)) == wanted
                unnoticed += 1
    assert unnoticed <= 4  # bits of a compressed stream that mean nothing


def test_a_payload_cut_anywhere_is_noticed() -> None:
    payloads = chain(sample())
    digests = outcome(payloads)
    for number, payload in enumerate(payloads):
        for at in range(len(payload) if number else len(payload) - 1):
            cut = [*payloads[:number], payload[:at], *payloads[number + 1 :]]
            assert outcome(cut) != digests


def test_text_of_is_the_values_and_never_the_keys() -> None:
    before = {"keyed": [{"named": "hello"}], "t": "a" * 2000, "n": 5, "gone": "old"}
    after = {
        "keyed": [{"named": "hello"}, {"named": ["new", 1]}],
        "t": "a" * 1000 + "mid" + "a" * 1000,
    }
    done = compare_states(after, compare_states(before, None).tree)
    assert sorted(extract_text(done.frames or b"", MAX_STATE_BYTES).split("\n")) == ["mid", "new"]
    whole = extract_text(compare_states(before, None).to_payload(), MAX_STATE_BYTES).split("\n")
    assert whole == ["old", "hello", "a" * 2000]
    assert sorted(
        extract_text(
            compare_states({"b": ["x", {"c": "y"}], "a": "z"}, None).to_payload(), MAX_STATE_BYTES
        )
    ) == sorted("z\nx\ny")
    assert extract_text(b"", MAX_STATE_BYTES) == ""


def size_of(states: list[Any]) -> int:
    return sum(map(len, chain(states)[1:]))


def rows(count: int, size: int = 300) -> list[Any]:
    rng = random.Random(count)
    return [{"n": n, "c": rng.randbytes(size // 2).hex()} for n in range(count)]


def test_a_sliding_window_costs_what_was_appended() -> None:
    every = rows(140)
    states = [{"m": every[n : n + 100]} for n in range(40)]
    assert size_of(states) < 40 * 500
    done = compare_states(states[1], compare_states(states[0], None).tree)
    assert [op[0] for op in operations_of(done.frames)] == ["[", "["]


def test_a_window_behind_a_fixed_first_element_costs_what_was_appended() -> None:
    every = rows(60)
    states = [{"m": [{"system": "s"}, *every[n : n + 30]]} for n in range(30)]
    assert size_of(states) < 30 * 500


def test_an_edit_near_the_front_and_an_append_cost_both_only() -> None:
    every = rows(100, 3000)
    states = []
    for n in range(50, 100):
        every[1] = {**every[1], "uses": n}
        states.append({"m": every[:n]})
    assert size_of(states) < 50 * 3600


@pytest.mark.parametrize("where", [0, 100_000, 200_000])
def test_an_edit_of_a_long_text_costs_the_edit(where: int) -> None:
    text = rows(1, 200_000)[0]["c"]
    edited = text[:where] + "more" + text[where + 2 :]
    for wrap in (
        lambda t: {"t": t},
        lambda t: {"a": {"b": {"t": t}}},
        lambda t: {"m": [1, {"p": [{"t": t}]}]},
        lambda t: {"m": [t]},
    ):
        states = [wrap(text), wrap(edited)]
        assert size_of(states) < 100
        assert same(fold(chain(states), MAX_STATE_BYTES), states[1])


def test_tokens_streamed_onto_the_last_message_cost_the_tokens() -> None:
    every = rows(20, 3000)
    states = []
    for n in range(50):
        every = [*every[:-1], {**every[-1], "c": every[-1]["c"] + f" tok{n}"}]
        every += [{"n": n}] if n % 10 == 0 else []
        every[-1].setdefault("c", "x" * 2000)
        states.append({"m": every})
    assert size_of(states) < 50 * 90 + 5 * 2100


def test_lists_inside_elements_cost_what_was_appended() -> None:
    tasks = [{"name": n, "log": rows(10)} for n in range(4)]
    states = []
    for n in range(40):
        tasks = copy.deepcopy(tasks)
        tasks[n % 4]["log"].append({"n": n, "c": "x" * 40})
        states.append({"tasks": tasks})
    assert size_of(states) < 40 * 120


def test_elements_that_moved_are_not_diffed_against_each_other() -> None:
    every = rows(50, 3000)
    shuffled = random.Random(1).sample(every, 50)
    done = compare_states({"m": shuffled}, compare_states({"m": every}, None).tree)
    assert {op[0] for op in operations_of(done.frames)} == {"["}


def test_a_rewritten_object_is_one_set() -> None:
    before = {"deep": {"down": {f"key{n}": n for n in range(100)}}, "pad": "x" * 9000}
    after = {"deep": {"down": {f"key{n}": n + 1 for n in range(100)}}, "pad": "x" * 9000}
    assert len(operations_of(compare_states(after, compare_states(before, None).tree).frames)) == 1


@pytest.mark.parametrize("sizes", [(4000, 4200), (4200, 4000)])
def test_an_object_that_becomes_small_or_large_costs_what_changed(sizes: tuple[int, int]) -> None:
    states = [{"m": rows(5, 100), "n": {"a": 1}, "t": "x" * (size - 570)} for size in sizes]
    states[1]["n"] = {"a": 2}
    states[1]["m"] = [*states[0]["m"], {"new": 1}]
    shapes = [compare_states(it, None).tree for it in states]
    assert {it.state_bytes > SMALL_BYTES for it in shapes} == {False, True}
    done = compare_states(states[1], shapes[0])
    assert {op[1][0]: op[0] for op in operations_of(done.frames)} == {"m": "[", "n": "=", "t": "t"}


def test_a_key_among_thousands_costs_itself() -> None:
    state = {f"k{n}": n for n in range(5000)}
    done = compare_states({**state, "k17": "new"}, compare_states(state, None).tree)
    assert operations_of(done.frames) == [["=", ["k17"], "new"]]


@given(st.lists(st.integers(0, 6), max_size=14), st.lists(st.integers(0, 6), max_size=14))
def test_an_alignment_turns_one_list_into_the_other(old: list[int], new: list[int]) -> None:
    packed = [b"".join(bytes(15) + bytes([n]) for n in items) for items in (old, new)]
    out = list(old)
    for start_, stop, first, last in reversed(align(*packed)):
        assert start_ < stop or first <= last
        out[start_:stop] = new[first:last]
    assert out == new


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), TEXTS), max_size=30))
def test_a_rope_is_the_text_that_it_stands_for(splices: list[tuple[int, int, str]]) -> None:
    text = "abcdefghij" * 4
    rope = _Rope(text)
    rope._piece, rope._pieces = 3, [text[n : n + 3] for n in range(0, len(text), 3)]
    for at, gone, new in splices:
        begin = min(at, len(text))
        count = min(gone, len(text) - begin)
        rope.splice(begin, count, new)
        text = text[:begin] + new + text[begin + count :]
        assert rope.join() == text


TEXT_EDITS: dict[str, list[list[Any]]] = {
    "set": [["=", ["t"], "new"]],
    "set, then spliced": [["=", ["t"], "newer"], ["t", ["t"], 0, 2, ""]],
    "deleted": [["-", ["t"]]],
    "deleted, set and spliced": [["-", ["t"]], ["=", ["t"], "abc"], ["t", ["t"], 3, 0, "d"]],
    "its neighbour set": [["=", ["u"], 1], ["t", ["t"], 0, 0, "?"]],
    "the list in front of it spliced": [["[", ["l"], 0, 1, []], ["t", ["l", 0], 1, 0, "?"]],
    "the list element set": [["=", ["l", 1], "B"], ["t", ["l", 1], 1, 0, "?"]],
    "the root set": [["=", [], {"t": "0", "l": ["", "b"]}], ["t", ["t"], 0, 1, "1"]],
}


@pytest.mark.parametrize("edits", TEXT_EDITS.values(), ids=TEXT_EDITS.keys())
def test_a_spliced_text_meets_other_operations_in_order(edits: list[list[Any]]) -> None:
    first = [["=", [], {"t": "text", "u": 0, "l": ["a", "b"]}]]
    splices = [["t", ["t"], 4, 0, "!"], ["t", ["l", 1], 0, 0, "x"]]
    at_once = fold([body(*first, *splices, *edits)], MAX_STATE_BYTES)
    stepwise = [*fold_each([body(op) for op in [*first, *splices, *edits]], MAX_STATE_BYTES)][-1]
    reference: Any = copy.deepcopy(first[0][2])
    for kind, path, *rest in itertools.chain(splices, copy.deepcopy(edits)):
        reference = apply_plainly(reference, kind, path, rest)
    assert at_once == stepwise == reference


def apply_plainly(state: Any, kind: str, path: list[Any], rest: list[Any]) -> Any:
    if not path:
        return rest[0]
    holder = state
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    if kind == "=":
        holder[key] = rest[0]
    elif kind == "-":
        del holder[key]
    else:
        begin, gone, new = rest
        holder[key] = holder[key][:begin] + new + holder[key][begin + gone :]
    return state


def test_a_shape_knows_its_size_and_weight() -> None:
    small = compare_states({"a": 1}, None).tree
    large = compare_states({"m": [{"c": "x" * 5000}] * 1 + rows(100, 3000)}, small).tree
    assert large.state_bytes > 300_000
    assert 300_000 < large.without_elements().weight < 500_000 < large.weight < 1_000_000
    assert small.weight < 2_000


IMPORTS = """
    import sys
    from locus_store.values import frames as layout
    from locus_store.values.encoding import MAX_STATE_BYTES, encode_canonical, pack_frame
    from locus_store.errors import IntegrityError

    seen = []
    bad = [b"cos\\nsystem\\n(S'true'\\ntR.", b"\\x80\\x04.", b"\\x01\\x01\\x03\\x03abc"]
    state = {"__class__": "os.system", "py/object": "os.system"}
    for said in ([["=", [], state]], [["!", "os", "system"]], [[]], "{"):
        bad.append(pack_frame(encode_canonical(said)))
    sys.addaudithook(lambda event, args: seen.append((event, args)))
    for payload in bad:
        for use in (layout.fold, lambda *each: list(layout.fold_each(*each))):
            try:
                layout.build_digest_tree(use([payload], MAX_STATE_BYTES))
            except (IntegrityError, AttributeError, TypeError):
                pass
        try:
            layout.extract_text(payload, MAX_STATE_BYTES)
        except IntegrityError:
            pass
    loads = ("marshal.loads", "pickle.find_class")
    loud = [each for each in seen if each[0] in
            ("import", "exec", "compile", "open", "os.system", *loads)]
    sys.exit(str(loud) if loud else 0)
"""


def test_the_loader_imports_opens_and_runs_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(IMPORTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_list_that_says_what_it_grew_from_has_the_same_shape_and_frames() -> None:
    plain: list[Any] = [{"n": number, "text": "x" * (number * 300)} for number in range(8)]
    known, expected, grown = None, None, None
    for count in (0, 3, 3, 5, 8):
        grown = Grown(plain[:count], grown)
        mine = compare_states({"k": {"list": grown}}, known)
        theirs = compare_states({"k": {"list": plain[:count]}}, expected)
        assert (mine.tree.digest, mine.frames) == (theirs.tree.digest, theirs.frames)
        assert mine.to_payload() == theirs.to_payload()
        assert mine.tree.state_bytes == theirs.tree.state_bytes
        known, expected = mine.tree, theirs.tree


def test_a_list_that_grew_from_another_one_than_the_basis_is_looked_at_as_a_whole() -> None:
    first, other = Grown([1, {"a": 1}]), Grown([2, {"a": 1}])
    basis = compare_states({"list": first}, None).tree
    for known in (basis, basis.without_elements(), None):
        for state in (Grown([*other, 3], other), Grown([*first, 3], first), other):
            made = compare_states({"list": state}, known)
            assert made.tree.digest == compare_states({"list": list(state)}, None).tree.digest
            assert made.tree.to_state() == {"list": list(state)}


def test_a_value_that_cannot_be_kept_is_named_within_a_list_that_grew() -> None:
    with pytest.raises(SerializationError, match=r"list\[0\]"):
        compare_states({"list": Grown([2**70])}, None)
