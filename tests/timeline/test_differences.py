from __future__ import annotations

from typing import Any

import pytest

from locus_store import open_checkpointer
from locus_store.timeline.paths import format_path
from locus_store.timeline.readable import cut_common_ends, find_differences

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1.0}, ["changed a"]),
        ({"a": True}, {"a": 1}, ["changed a"]),
        ({"a": None}, {}, ["removed a"]),
        ({}, {"a": None}, ["added a"]),
        ({"a": [1, 2, 3]}, {"a": [2, 3, 4]}, ["removed a[0]", "added a[2]"]),
        ({"a": [{"x": 1}, 5]}, {"a": [{"x": 2}, 5]}, ["changed a[0].x"]),
        ({"a": [1]}, {"a": {"x": 1}}, ["changed a"]),
        ({"a b": 1}, {"a b": 2}, ["changed ['a b']"]),
        ({"a": []}, {"a": []}, []),
    ],
)
def test_differences_are_told_by_path(old: Any, new: Any, expected: list[str]) -> None:
    assert [f"{it.what} {format_path(it.path)}" for it in find_differences(old, new)] == expected


def test_differences_of_long_lists_and_deep_states_end() -> None:
    old: Any = list(range(50_000))
    assert len(list(find_differences({"a": old}, {"a": [*old[1:], -1]}))) == 2
    deep: Any = 1
    for _ in range(190):
        deep = {"a": deep}
    assert len(list(find_differences(deep, {"a": {"a": 2}}))) == 1
    other: Any = 2
    for _ in range(190):
        other = {"a": other}
    assert len(list(find_differences(deep, other))) == 1


def test_long_texts_are_shown_where_they_differ() -> None:
    before, after = cut_common_ends("x" * 500 + "A" + "y" * 500, "x" * 500 + "B" + "y" * 500)
    assert (len(before), before[21], after[21]) == (43, "A", "B")


async def test_states_that_a_checkpointer_has_loaded_are_compared() -> None:
    async with open_checkpointer("memory://", state_type=dict) as checkpointer:
        for number in range(2):
            await checkpointer.save({"n": number}, "t", str(number))
        states = [await checkpointer.load("t", str(number)) for number in range(2)]
    assert [(it.path, it.before, it.after) for it in find_differences(*states)] == [(("n",), 0, 1)]
