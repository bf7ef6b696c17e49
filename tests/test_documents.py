"""The engine of whole threads over three storages: memory, files, and a toy of four methods."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from document_probe import DocumentsProbe
from drawer import Drawer

from locus_store import StorageBackendAdapter
from locus_store.backends.documents import DocumentBackend
from locus_store.backends.file.documents import FileDocuments
from locus_store.backends.memory.documents import MemoryDocuments
from locus_store.testing import CheckpointerContract, StorageBackendContract
from locus_store.testing.documents import DocumentsContract
from locus_store.values.encoding import MAX_STATE_BYTES


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


def drawer_checkpointer(
    path: Path, *, max_state_bytes: int = MAX_STATE_BYTES, **options: Any
) -> Any:
    backend = DocumentBackend(Drawer(path), max_state_bytes=max_state_bytes)
    return StorageBackendAdapter(backend, **options)


@pytest.mark.variant
class TestDrawerCheckpointer(CheckpointerContract):
    """A backend of four methods keeps every promise of a checkpointer."""

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Any:
        return partial(drawer_checkpointer, tmp_path / "drawer.db", state_type=self.state_type)

    @pytest.fixture
    def checkpointer(self, reopen: Any) -> Any:
        return reopen()

    @pytest.fixture
    def storage(self, tmp_path: Path) -> DocumentsProbe:
        return DocumentsProbe(Drawer(tmp_path / "drawer.db"))


@pytest.mark.variant
class TestDrawerBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> DocumentBackend:
        return DocumentBackend(Drawer(tmp_path / "drawer.db"))


def test_the_page_shows_the_toy_as_it_is() -> None:
    here = Path(__file__).parent
    page = (here.parent / "docs/custom-backend.md").read_text("utf-8")
    assert (here / "drawer.py").read_text("utf-8") in page
