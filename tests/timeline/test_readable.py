from __future__ import annotations

from typing import Any

import pytest

from locus_store.timeline.readable import make_readable

LOCUS = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "look", "arguments": {"a": 1}}]}  # fmt: skip  # noqa: E501
OPENAI = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{\"a\":1}"}}]}  # fmt: skip  # noqa: E501
PARTS = {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url"}]}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "user", "content": "hi"}, "user: hi"),
        ({"role": "user", "name": "bob", "content": "hi"}, "user (bob): hi"),
        (LOCUS, 'assistant: [calls look({"a":1})]'),
        (OPENAI, 'assistant: [calls look({"a":1})]'),
        (PARTS, "user: See [image_url]"),
        ({"role": "tool", "content": {"a": 1}, "tool_calls": 3}, 'tool: {"a":1}'),
    ],
)
def test_a_message_is_its_role_and_text(message: Any, text: str) -> None:
    assert make_readable({"messages": [message], "n": 1}) == {"messages": [text], "n": 1}


@pytest.mark.parametrize("value", [{"role": "admin"}, {"role": 1, "content": ""}, {"$": "x"}, [1]])
def test_what_is_not_a_message_stays(value: Any) -> None:
    assert make_readable({"a": value}) == {"a": value}
