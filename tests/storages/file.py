"""Files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from document_probe import DocumentsProbe

from locus_store import FileBackend, FileMessageLog, FileStore, file_checkpointer
from locus_store.backends.file.backend import FileDocuments
from locus_store.backends.file.format import LinesForm
from locus_store.blocking import BlockingCheckpointer
from storages import Storage
from storages.blocking import Unblocked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


OPERATIONS = b',"operations":'
CHECK_BYTES = len(b',"check":"01234567"}')


class FilesProbe(DocumentsProbe):
    """Below a directory, by its files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(FileDocuments(str(directory), 1.0), LinesForm)
        self._path = directory

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        """In place, as an editor does."""
        for path in sorted(self._path.rglob("*.json")):
            path.write_bytes(damaged(path.read_bytes(), change))

    def holds(self, text: str) -> bool:
        contents = [it.read_bytes() for it in self._path.rglob("*") if it.is_file()]
        assert contents
        return any(text.encode() in it for it in contents)


def damaged(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A document whose operations were changed."""
    lines = content.split(b"\n")
    for at, line in enumerate(lines):
        if OPERATIONS in line:
            start = line.index(OPERATIONS) + len(OPERATIONS)
            lines[at] = line[:start] + change(line[start:-CHECK_BYTES]) + line[-CHECK_BYTES:]
    return b"\n".join(lines)


class Files(Storage):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.directory: Path = self.fixture("tmp_path") / "threads"

    def checkpointer(self, **options: Any) -> Any:
        return file_checkpointer(self.directory, **options)

    def backend(self) -> Any:
        return FileBackend(self.directory)

    def store(self, **options: Any) -> Any:
        return FileStore(self.directory, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return FileMessageLog(self.directory, **options)

    def probe(self) -> FilesProbe:
        return FilesProbe(self.directory)

    def check(self) -> None:
        """No temporary file is left."""
        assert {it.suffix for it in self.directory.rglob("*") if it.is_file()} <= {".json", ""}


class Blocking(Files):
    def checkpointer(self, **options: Any) -> Any:
        return Unblocked(BlockingCheckpointer(super().checkpointer(**options)))
