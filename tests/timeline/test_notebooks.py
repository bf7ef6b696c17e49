"""Versions and differences in notebooks and terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tiers import first_of

from locus_store import InMemoryStore, MemoryBackend, open_checkpointer
from locus_store.runtime.notebooks import CHARACTERS, ROWS, Table, make_table
from locus_store.timeline.graph import read_graph
from locus_store.timeline.readable import Difference

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_a_version_and_a_history_are_tables_in_a_notebook() -> None:
    backend = MemoryBackend()
    for name in ("v1", "v2"):
        await backend.write_state("t<b>", {"n": name}, checkpoint_id=name, metadata={"a": "<b>"})
    page = await read_graph(backend, "t<b>")
    assert page is not None
    version = page.nodes[0].version
    shown = version._repr_html_()
    assert "<tr><th>checkpoint_id</th><td>v2</td></tr>" in shown
    assert "t&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert page._repr_html_().count("<tr>") == 3
    assert version.mark.digest.hex() not in repr(version)
    assert "digest" not in repr(version)


@pytest.mark.parametrize("kind", first_of("memory", "sqlite", "postgresql", "encrypted"))
async def test_histories_and_lists_of_threads_are_tables_in_a_notebook(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, encryption = f"sqlite:///{tmp_path / 'agents.db'}", None
    if kind == "postgresql":
        url = request.getfixturevalue("migrated_database")
    elif kind == "encrypted":
        from locus_store.encryption import Encryption, LocalKeyRing

        encryption = Encryption(LocalKeyRing({"a": bytes(32)}, "a"), InMemoryStore())
    checkpointer: Any = open_checkpointer(
        "memory://" if kind == "memory" else url, state_type=dict, encryption=encryption
    )
    async with checkpointer:
        for name in ("v1", "v2"):
            about = {"node": "<script>", "kind": "a"}
            await checkpointer.save({"n": name}, "t<b>", name, metadata=about)
        history: Any = await checkpointer.backend.history("t<b>")
        lists: list[Any] = [await checkpointer.list_with_metadata()]
        lists.append(await checkpointer.query_by_metadata("kind", "a"))
        if checkpointer.capabilities.search:
            lists.append(await checkpointer.search("v2"))
    assert isinstance(history, list)
    assert history == list(history)
    for found in (history, *lists):
        shown = found._repr_html_()
        assert shown.count("<tr>") == 1 + len(found) > 1
        assert "t&lt;b&gt;" in shown
        assert "&lt;script&gt;" in shown
        assert "<script>" not in shown


def test_a_table_of_nothing_is_empty_in_a_notebook() -> None:
    assert Table()._repr_html_() == "<table></table>"


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
