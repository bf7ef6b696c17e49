"""The text of messages that a person reads."""

from __future__ import annotations

import pytest

from locus_store.values.text import Readable

READABLE = Readable(said=frozenset({"content", "text"}), given=frozenset({"input"}))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "a", "role": "user"}, "a"),
        ({"content": ["a", {"text": "b", "id": "i"}, {"data": "ZGF0YQ=="}, None, 7]}, "a\nb"),
        ({"input": {"name": ["a", 7, 0.5, True, None]}}, "a\n7\n0.5"),
        ({"input": '{"name": ["a", {"other": "b"}]}'}, "a\nb"),
        ({"input": "{not JSON"}, "{not JSON"),
        ({"input": "[" * 100_000}, "[" * 100_000),
        ({"input": {"type": "economy"}}, "economy"),
        ({"input": {"type": ["string", "null"]}}, "string\nnull"),
        ({"input": '{"properties": {"type": {"type": "text", "enum": ["a"], "text": "b"}}}'}, "b"),
        ({"input": [{"type": "image", "data": "ZGF0YQ=="}, {"type": "text", "text": "a"}]}, "a"),
        ({"input": {"file": {"data": "ZGF0YQ==", "mimeType": "image/png"}, "note": "a"}}, "a"),
        ({"text": "see data:image/png;base64,iVBORw0KGgo= here"}, "see  here"),
        ({"text": f"key {'QUJD' * 100}= end"}, "key  end"),
        ({"text": "\u4f60\u597d" * 200}, "\u4f60\u597d" * 200),
        ({"text": "half \ud83d of it"}, "half \ufffd of it"),
        ({"role": "user"}, ""),
        (None, ""),
    ],
)
def test_text_is_what_a_person_reads(message: object, text: str) -> None:
    assert READABLE.get_text(message) == text


@pytest.mark.parametrize("before", [*range(0, 210, 7), 99, 100, 101])
def test_bytes_are_left_out_wherever_they_begin(before: int) -> None:
    words = ("word " * 50)[:before]
    for hidden in ("A" * 200, "data:text/plain;base64,aGk="):
        assert READABLE.get_text({"content": f"{words} {hidden} end"}) == f"{words}  end"
    assert READABLE.get_text({"content": f"{words} {'A' * 199} end"}) == f"{words} {'A' * 199} end"
