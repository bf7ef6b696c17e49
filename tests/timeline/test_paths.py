from __future__ import annotations

from typing import Any

import pytest

from locus_store import InvalidArgumentError
from locus_store.timeline.paths import Where, find_value, format_path, parse_path

CHAT: Any = {"messages": [{"id": "m1", "n": 1}, {"id": "m7", "content": "hi"}], "a b": {"x": None}}
WRAPPED: Any = {
    "channel_values": {
        "messages": [
            {"$": "x", "c": 5, "v": ["messages.ai", "AI", {"id": "m7", "content": "hi"}]}
        ],
        "box": {"$": "d", "k": ["b", "a"], "v": {"a": 1, "b": 2}},
    },
    "channel_versions": {},
    "versions_seen": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()),
        ("messages[3].content", ("messages", 3, "content")),
        ("messages[-1]", ("messages", -1)),
        ('messages[id="m7"].content', ("messages", Where("id", "m7"), "content")),
        ("messages[id='m]7'].content", ("messages", Where("id", "m]7"), "content")),
        ("messages[id=m7]", ("messages", Where("id", "m7"))),
        ("items[n=3]", ("items", Where("n", 3))),
        ("['a b'].x", ("a b", "x")),
        ("a-b.ü", ("a-b", "ü")),
    ],
)
def test_a_path_is_read_from_its_notation_and_shown_in_it(text: str, path: Any) -> None:
    assert parse_path(text) == path
    assert parse_path(format_path(path)) == path or not path


@pytest.mark.parametrize(
    "text",
    [
        *["a..b", ".a", "a[", "a[1", "a]", "a[x", "a.", "[id='x]", "a[0]b"],
        *["[a= ]", r"['\x']", r"['\u']", r"['\N{no}']", "['a\nb']", f"[{'9' * 5000}]"],
        f"a[id={'[' * 3000}",
    ],
    ids=lambda it: it[:9],
)
def test_a_text_that_is_not_a_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a path"):
        parse_path(text)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("messages[id=m7].content", ("messages", 1, "content"), "hi"),
        ("messages[-1].content", ("messages", 1, "content"), "hi"),
        ("messages[n=1].id", ("messages", 0, "id"), "m1"),
        ("['a b'].x", ("a b", "x"), None),
    ],
)
def test_a_path_leads_to_a_value(text: str, path: Any, value: Any) -> None:
    assert find_value(CHAT, parse_path(text)) == (path, value)


@pytest.mark.parametrize(
    "text",
    ["no", "messages[2]", "messages[-3]", "messages[n=true]", "messages.x"],
)
def test_a_path_to_nothing_has_no_value(text: str) -> None:
    assert find_value(CHAT, parse_path(text)) is None


def test_a_channel_comes_before_a_field_of_the_checkpoint_with_its_name() -> None:
    channels = {"ts": "noon", "v": {"$": "d", "k": ["v", "k"], "v": {"v": 1, "k": 2}}}
    graph = {**WRAPPED, "ts": "2026-11-23", "v": 4, "channel_values": channels}
    assert find_value(graph, parse_path("ts")) == (("channel_values", "ts"), "noon")
    assert find_value(graph, parse_path("v.k")) == (("channel_values", "v", "v", "k"), 2)
    assert find_value(graph, parse_path("channel_values.ts")) == (("channel_values", "ts"), "noon")
    assert find_value(graph | {"channel_values": {}}, parse_path("ts")) == (("ts",), "2026-11-23")


def test_a_path_leads_through_what_wraps_a_graphs_values() -> None:
    found = find_value(WRAPPED, parse_path("messages[id=m7].content"))
    assert found == (("channel_values", "messages", 0, "v", 2, "content"), "hi")
    assert find_value(WRAPPED, parse_path("box.a")) == (("channel_values", "box", "v", "a"), 1)
    assert find_value(WRAPPED, parse_path("channel_values.messages[0].c")) is not None


def test_a_path_leads_to_the_fields_of_an_object_whose_order_is_kept() -> None:
    fields = {"$": "d", "k": ["content", "call"], "v": {"call": "c1", "content": "hi"}}
    state = {"messages": [{"$": "x", "c": 5, "v": ["messages.ai", "AI", fields]}]}
    found = find_value(state, parse_path("messages[call=c1].content"))
    assert found == (("messages", 0, "v", 2, "v", "content"), "hi")
