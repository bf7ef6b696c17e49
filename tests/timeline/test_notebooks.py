"""Versions and differences in notebooks and terminals."""

from __future__ import annotations

import pytest

from locus_store import MemoryBackend
from locus_store.runtime.notebooks import CHARACTERS, ROWS, make_table
from locus_store.timeline.graph import graph
from locus_store.timeline.readable import Difference

pytestmark = pytest.mark.anyio


async def test_a_version_and_a_history_are_tables_in_a_notebook() -> None:
    backend = MemoryBackend()
    for name in ("v1", "v2"):
        await backend.write_state("t<b>", {"n": name}, checkpoint_id=name, metadata={"a": "<b>"})
    page = await graph(backend, "t<b>")
    assert page is not None
    version = page.nodes[0].version
    shown = version._repr_html_()
    assert "<tr><th>checkpoint_id</th><td>v2</td></tr>" in shown
    assert "t&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert page._repr_html_().count("<tr>") == 3
    assert version.mark.digest.hex() not in repr(version)
    assert "digest" not in repr(version)


def test_a_difference_is_a_table_in_a_notebook() -> None:
    shown = Difference("changed", ("a", 1), "<script>", "new")._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "a/1" in shown


def test_a_table_is_bounded_and_shows_hidden_characters_as_escapes() -> None:
    shown = make_table(("a",), ((f"\u202e\x1b{'x' * 1_000}",) for _ in range(ROWS + 1)))
    assert shown.count("<td>") == ROWS
    assert "\\u202e\\x1b" in shown
    assert "x" * CHARACTERS not in shown
    assert shown.endswith("<p>Further rows are left out.</p>")
