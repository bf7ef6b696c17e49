"""Empty storages of each form, and what is below them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def read_files(path: Path, pattern: str = "*") -> bytes:
    return b"".join(it.read_bytes() for it in path.rglob(pattern) if it.is_file())


URLS = {
    "sqlite": "sqlite:///{}/d.db",
    "file": "file://{}/d",
    "sharded": "sharded:sqlite:///{0}/a.db sqlite:///{0}/b.db",
}


class Place:
    """A storage in files."""

    def __init__(self, path: Path, scheme: str) -> None:
        self.path = path
        path.mkdir()
        self.url = URLS[scheme].format(path)

    def read(self) -> bytes:
        """Return what is stored."""
        return read_files(self.path)

    def back_up(self) -> Callable[[], object]:
        """Return the restore of what is stored now."""
        copy = self.path.with_suffix(".copy")
        shutil.copytree(self.path, copy)

        def restore() -> None:
            shutil.rmtree(self.path)
            shutil.copytree(copy, self.path)

        return restore


class IndexPlace(Place):
    """An index of OpenSearch."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self.url = index.url()

    def read(self) -> bytes:
        found: bytes = self.index.read_all()
        return found

    def back_up(self) -> Callable[[], object]:
        found = self.index.read_documents()
        return lambda: self.index.replace_documents(found)
