"""Files held to the contracts of ``locus_store.testing``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from document_probe import DocumentsProbe, damaged
from test_contract import LocusStates, Unblocked

from locus_store import FileBackend, file_checkpointer
from locus_store.backends.file.documents import FileDocuments
from locus_store.blocking import BlockingCheckpointer
from locus_store.testing import CheckpointerContract, StorageBackendContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class FilesProbe(DocumentsProbe):
    """Below a directory, by its files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(FileDocuments(str(directory), 1.0))
        self._path = directory

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        """In place, as an editor does."""
        for path in sorted(self._path.rglob("*.json")):
            path.write_bytes(damaged(path.read_bytes(), change))

    def holds(self, text: str) -> bool:
        contents = [it.read_bytes() for it in self._path.rglob("*") if it.is_file()]
        assert contents
        return any(text.encode() in it for it in contents)


class OnFiles(CheckpointerContract):
    """A directory of the test's own."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "threads"

    @pytest.fixture
    def reopen(self, directory: Path) -> Any:
        return partial(file_checkpointer, directory, state_type=self.state_type)

    @pytest.fixture
    def checkpointer(self, reopen: Any) -> Any:
        return reopen()

    @pytest.fixture
    def storage(self, directory: Path) -> FilesProbe:
        return FilesProbe(directory)

    @pytest.fixture(autouse=True)
    def no_temporary_files(self, directory: Path) -> Any:
        """Whatever a test did."""
        yield
        assert {it.suffix for it in directory.rglob("*") if it.is_file()} <= {".json", ""}


class TestFiles(OnFiles):
    pass


class TestFileBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> FileBackend:
        return FileBackend(tmp_path)


@pytest.mark.variant
class TestLocusStateOnFiles(LocusStates, OnFiles):
    pass


@pytest.mark.variant
class TestBlockingOnFiles(OnFiles):
    """Through the blocking facade."""

    @pytest.fixture
    def reopen(self, directory: Path) -> Any:
        make = partial(file_checkpointer, directory, state_type=self.state_type)
        return lambda **options: Unblocked(BlockingCheckpointer(make(**options)))
