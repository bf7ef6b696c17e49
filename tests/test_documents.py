"""The engine of whole threads over three storages: memory, files, and a toy of four methods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from drawer import Drawer

from locus_store import memory_checkpointer
from locus_store.backends.file.backend import FileDocuments
from locus_store.backends.memory.backend import MemoryDocuments
from locus_store.testing.documents import DocumentsContract


class TestMemoryDocuments(DocumentsContract):
    @pytest.fixture
    def reopen(self) -> Any:
        documents = MemoryDocuments()
        return lambda: documents


class TestFileDocuments(DocumentsContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Any:
        return partial(FileDocuments, str(tmp_path / "threads"), 10.0)


class TestDrawer(DocumentsContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Any:
        return partial(Drawer, tmp_path / "drawer.db")


@pytest.mark.anyio
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_thread_expires_by_the_clock_of_the_storage(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_clock(_: MemoryDocuments) -> datetime:
        return datetime.now(UTC) + timedelta(hours=hours)

    monkeypatch.setattr(MemoryDocuments, "read_clock", read_clock)
    checkpointer = memory_checkpointer(state_type=dict)
    await checkpointer.save({"n": 1}, "t", ttl_seconds=600)
    await checkpointer.save({"n": 2}, "t")
    assert len(await checkpointer.list_checkpoints("t")) == 2
    assert await checkpointer.backend.renew("t", 900) is True
    assert await checkpointer.list_threads() == ["t"]
    hours += 1
    assert await checkpointer.load("t") is None
    assert await checkpointer.list_threads() == []
    await checkpointer.save({"n": 3}, "t")
    assert len(await checkpointer.list_checkpoints("t")) == 1


def test_the_page_shows_the_toy_as_it_is() -> None:
    here = Path(__file__).parent
    page = (here.parent / "docs/custom-backend.md").read_text("utf-8")
    assert (here / "drawer.py").read_text("utf-8") in page
