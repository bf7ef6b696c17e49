"""The engine of whole threads over three storages: memory, files, and a toy of four methods."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from drawer import Drawer

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


def test_the_page_shows_the_toy_as_it_is() -> None:
    here = Path(__file__).parent
    page = (here.parent / "docs/custom-backend.md").read_text("utf-8")
    assert (here / "drawer.py").read_text("utf-8") in page
