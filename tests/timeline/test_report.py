from __future__ import annotations

from typing import Any

import orjson
import pytest
from test_graph import backend  # noqa: F401  (a fixture)

from locus_store import MemoryBackend
from locus_store.timeline.report import Redaction, report

pytestmark = pytest.mark.anyio
WORD = "Wanda"
NUMBER = 4711_0815_4711_0815
"""Longer than what a digest in hexadecimal has by chance."""


async def test_a_report_has_no_text_of_the_thread(backend: Any) -> None:  # noqa: F811
    state = {
        "messages": [
            {"role": "user", "id": "m7", "content": f"I am {WORD}"},
            {"role": WORD, "tool_call_id": f"call {WORD}", "content": [WORD, NUMBER, None]},
        ],
        f"of {WORD}": {"deep": [[[WORD]]]},
    }
    thread = f"{WORD}'s thread"
    for name in ("a", WORD):
        await backend.write_state(
            thread, state | {"n": name}, checkpoint_id=name, metadata={WORD: f"by {WORD}"}
        )
    found = await report(backend, thread)
    told = orjson.dumps(found).decode()
    assert WORD not in told
    assert str(NUMBER) not in told
    assert await report(backend, "unknown") is None


async def test_a_report_tells_structure_roles_sizes_and_blame() -> None:
    memory = MemoryBackend()
    one = {"role": "user", "content": "Basel"}
    await memory.write_state("1", {"messages": [one]}, checkpoint_id="1")
    two = {"role": "assistant", "content": "Basel", "id": "0" * 32}
    await memory.write_state("1", {"messages": [one, two]}, checkpoint_id="2")
    found = await report(memory, "1", key=b"k")
    assert found is not None
    values = {tuple(it["path"]): it for it in found["values"]}
    assert list(values) == [
        ("messages",),
        ("messages", 0),
        ("messages", 0, "content"),
        ("messages", 0, "role"),
        ("messages", 1),
        ("messages", 1, "content"),
        ("messages", 1, "id"),
        ("messages", 1, "role"),
    ]
    first, second = (
        {"checkpoint_id": "1", "is_exact": True},
        {"checkpoint_id": "2", "is_exact": True},
    )
    assert values["messages",] == {
        "path": ["messages"],
        "kind": "list",
        "length": 2,
        "made": first,
        "changed": second,
    }
    text = Redaction(b"k").redact_text("Basel")
    assert values["messages", 0, "content"] == {
        "path": ["messages", 0, "content"],
        "kind": "text",
        **text,
        "made": first,
    }
    assert values["messages", 1, "content"]["hash"] == text["hash"]
    assert values["messages", 1, "role"]["role"] == "assistant"
    assert values["messages", 1, "id"]["id"] == "0" * 32
    assert [it["checkpoint_id"] for it in found["versions"]] == ["1", "2"]
    assert all(it["stored_bytes"] > 0 for it in found["versions"])
    other = await report(memory, "1")
    assert other is not None
    assert other["values"][2]["hash"] != text["hash"]
