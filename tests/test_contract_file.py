"""Files held to the contracts of ``locus_store.testing``."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from test_contract import LocusStates, Unblocked

from locus_store import FileBackend, file_checkpointer
from locus_store.backends.file import format as file_format
from locus_store.backends.file.directory import Directory
from locus_store.backends.file.names import name_of
from locus_store.backends.file.threads import ThreadFiles
from locus_store.blocking import BlockingCheckpointer
from locus_store.testing import CheckpointerContract, StorageBackendContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from locus_store.versions.threads import Thread

OPERATIONS = b',"operations":'
CHECK_BYTES = len(b',"check":"01234567"}')


class FilesProbe:
    """Below a directory, by its files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _threads(self) -> list[Thread]:
        files = ThreadFiles(Directory(str(self._directory), 1.0))
        return list(files.live())

    def age(self, seconds: float) -> None:
        for thread in self._threads():
            for space in thread.spaces.values():
                for row in space.rows.values():
                    row.created_at -= timedelta(seconds=seconds)
            content, _ = file_format.whole(thread)
            (self._directory / name_of(thread.thread_id)).write_bytes(content)

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        """Of the operations as they stand in the file; their checksum is left as it was."""
        for path in sorted(self._directory.rglob("*.json")):
            lines = path.read_bytes().split(b"\n")
            for at, line in enumerate(lines):
                if OPERATIONS in line:
                    start = line.index(OPERATIONS) + len(OPERATIONS)
                    body = change(line[start:-CHECK_BYTES])
                    lines[at] = line[:start] + body + line[-CHECK_BYTES:]
            path.write_bytes(b"\n".join(lines))

    def holds(self, text: str) -> bool:
        contents = [it.read_bytes() for it in self._directory.rglob("*") if it.is_file()]
        assert contents
        return any(text.encode() in it for it in contents)

    def rows(self) -> int:
        threads = self._threads()
        spaces = [it for thread in threads for it in thread.spaces.values()]
        return len(threads) + len(spaces) + sum(len(it.rows) for it in spaces)


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
