"""The one-line changes of versions, over generated histories and hostile values."""

from __future__ import annotations

import random
from typing import Any

import pytest
from histories import History

from locus_store import IntegrityError, MemoryBackend
from locus_store.timeline.changes import (
    CHARACTERS,
    MOST,
    PATH,
    compare_briefly,
    describe_record,
    describe_value,
    describe_versions,
)
from locus_store.timeline.graph import read_graph
from locus_store.values.encoding import MAX_STATE_BYTES, encode_canonical, pack_frame
from locus_store.values.frames import compare_states

pytestmark = pytest.mark.anyio

CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "weather"}]}
RESULT = {"role": "tool", "content": "Rain", "tool_call_id": "1"}


def said(*texts: str) -> list[Any]:
    return [{"role": "user", "content": it} for it in texts]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ({"budget": 120}, {"budget": 90}, "budget 120 → 90"),
        ({"m": said("a")}, {"m": said("a", "Zurich then")}, "m + 1: 'Zurich then'"),
        ({"m": said("a")}, {"m": [*said("a"), CALL, RESULT]}, "m + 2: 'Rain'"),
        ({"m": []}, {"m": [CALL]}, "m + 1: calls weather"),
        ({"m": said("a", "b")}, {"m": []}, "m - 2"),
        ({"m": said("a", "b")}, {"m": said("c", "d", "e")}, "m - 2 + 3: 'e'"),
        ({"m": said("a")}, {"m": said("b")}, "m[0].content 'a' → 'b'"),
        ({"a": 1}, {"a": True}, "a 1 → true"),
        ({}, {"a": None}, "a = null"),
        ({"a": None}, {}, "- a"),
        ({"a": {"b": [1]}}, {"a": {"b": 2}}, "a.b 1 element → 2"),
        ({"m": [], "a": 1}, {"a": 2, "m": [1]}, "m + 1: 1; a 1 → 2"),
        ({"n": 1}, {"n": 1}, ""),
        (
            {},
            {str(at): at for at in range(9)},
            "['0'] = 0; ['1'] = 1; ['2'] = 2; ['3'] = 3; 5 more",
        ),
    ],
)
async def test_a_change_is_one_line_of_states_and_of_stored_versions(
    old: Any, new: Any, line: str
) -> None:
    assert str(compare_briefly(old, new)) == line
    backend = MemoryBackend()
    padded = {"padding": "x" * 1_000}  # otherwise the small state would be stored as a whole
    await backend.write_state("t", old | padded, checkpoint_id="a")
    await backend.write_state("t", new | padded, checkpoint_id="b")
    found = await described(backend, "t")
    assert str(found["b"]) == line


async def described(backend: Any, thread: str) -> Any:
    page = await read_graph(backend, thread)
    assert page is not None
    return await describe_versions(backend, [it.version for it in page.nodes])


@pytest.mark.parametrize("seed", range(8))
async def test_each_version_of_a_history_is_described_by_what_it_changed(seed: int) -> None:
    """With forks, rewinds, deletions and replaced versions."""
    backend = MemoryBackend()
    history = History(backend, random.Random(seed), None)
    await history.grow(60)
    page = await read_graph(backend, "t")
    assert page is not None
    found = await describe_versions(backend, [it.version for it in page.nodes])
    known = 0
    for version in (it.version for it in page.nodes):
        if version.parent_id in history.saved and version.checkpoint_id in found:
            states = history.saved[version.parent_id], history.saved[version.checkpoint_id]
            assert bool(str(found[version.checkpoint_id])) is (states[0] != states[1])
            known += 1
    assert known > len(page.nodes) / 2


async def test_a_page_needs_no_versions_but_its_own_and_the_parent_of_the_oldest() -> None:
    backend = MemoryBackend()
    for at in range(50):
        await backend.write_state("t", {"n": at, "pad": "x" * 1_000}, checkpoint_id=f"v{at}")
    page = await backend.history("t", limit=5, before="v40")
    found = await describe_versions(backend, page)
    assert {name: str(it) for name, it in found.items()} == {
        f"v{at}": f"n {at - 1} → {at}" for at in range(35, 40)
    }


async def test_a_version_with_a_parent_far_below_is_left_out() -> None:
    backend = MemoryBackend()
    for at in range(300):
        await backend.write_state("t", {"n": at}, checkpoint_id=f"v{at}")
    await backend.write_state("t", {"n": -1}, checkpoint_id="rewound", parent_id="v1")
    found = await describe_versions(backend, await backend.history("t", limit=3))
    assert set(found) == {"v298", "v299"}


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10_000_000,
        "\u202e\x1b[31m<script>" * 50,
        {"role": "user", "content": [{"type": "text", "text": "y" * 1_000_000}]},
        {"role": "x", "tool_calls": [{"name": "n" * 10_000}] * 1_000},
        {"$": "x", "v": None},
        {"$": "x", "c": 5, "v": ["a"]},
        {"$": ["x"]},
        {"type": "human", "content": {"type": "human", "content": {}}},
        [[[[[]]]]],
        10**30,
        1.5e300,
    ],
)
def test_any_value_is_a_few_words_in_one_line(value: Any) -> None:
    text = describe_value(value)
    assert len(text) <= CHARACTERS + len("calls ") + 2
    assert "\n" not in text


@pytest.mark.parametrize("content", [["a", 1, 2], ["a", 1, "b"], ["a", 1, [{}]]])
def test_a_state_that_looks_like_an_object_of_a_class_is_described(content: list[Any]) -> None:
    payload = compare_states({"$": "x", "c": 100, "v": content}, None).to_payload()
    assert "c = 100" in str(describe_record(payload, MAX_STATE_BYTES))


@pytest.mark.parametrize(
    "operation", [["=", [], 1], ["["], ["[", ["a"], 0, 0, 5], ["=", [{}], 1], ["t", ["a"]]]
)
def test_a_record_that_no_save_wrote_is_an_integrity_error(operation: list[Any]) -> None:
    with pytest.raises(IntegrityError):
        describe_record(pack_frame(encode_canonical([operation])), MAX_STATE_BYTES)


def test_deep_and_wide_states_are_bounded() -> None:
    deep: Any = 1
    for _ in range(190):
        deep = {"k" * 100: deep}
    found = compare_briefly({"a": deep, **{str(at): at for at in range(10_000)}}, {"a": 1})
    assert len(found.shown) == MOST
    assert found.more == 10_001 - MOST
    assert all(len(it.path) <= PATH for it in found.shown)
