"""The files of the Locus SDK's ``FileCheckpointer``: mostly one directory per thread."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from locus_store.adapters.locus.records import (
    Content,
    Entry,
    FoundThread,
    content,
    moment,
    parsed,
    repeated,
)
from locus_store.errors import BackendError, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path


class Files:
    """Checkpoints sorted by their contents: the SDK puts ``a/b`` and ``a_b`` in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.shown = f"directory {directory}"
        self._seen: dict[Path, tuple[int, ...]] = {}

    async def threads(self) -> dict[str, FoundThread]:
        found: defaultdict[str, FoundThread] = defaultdict(FoundThread)
        inside = sorted(it for it in self._directory.iterdir() if it.is_dir())
        for directory in (self._directory, *inside):
            self._add(directory, found)
        for it in found.values():
            it.entries.sort(key=lambda entry: (entry.created_at, str(entry.key)))
            for checkpoint_id in repeated(it.entries):
                files = [e.where for e in it.entries if e.checkpoint_id == checkpoint_id]
                what = f"{' and '.join(files)} are both checkpoint {checkpoint_id!r}"
                it.problem = it.problem or IntegrityError(f"{what}; remove one of them")
        return dict(found)

    def _add(self, directory: Path, found: defaultdict[str, FoundThread]) -> None:
        """Add a directory's files; one that cannot be read blocks every thread of the directory."""
        problem: IntegrityError | None = None
        here: set[str] = set()
        for path in sorted(directory.glob("*.json")):
            try:
                thread_id, entry = self._entry(path)
            except FileNotFoundError:  # deleted meanwhile
                continue
            except IntegrityError as exc:
                problem = problem or exc
                continue
            found[thread_id].entries.append(entry)
            here.add(thread_id)
        if problem:
            for thread_id in here or {directory.name}:
                found[thread_id].problem = problem

    def _entry(self, path: Path) -> tuple[str, Entry]:
        where = f"file {path.relative_to(self._directory)}"
        self._seen[path] = _stamp(path)
        data = _parsed(path, where)
        checkpoint_id, thread_id = data.get("checkpoint_id"), data.get("thread_id")
        if not isinstance(checkpoint_id, str) or not isinstance(thread_id, str):
            raise IntegrityError(
                f"{where} is not a checkpoint of the Locus SDK; move it to another directory"
            )
        created_at = moment(data.get("created_at"), where)
        return thread_id, Entry(
            checkpoint_id=checkpoint_id, created_at=created_at, key=path, where=where
        )

    async def read(self, entry: Entry) -> Content:
        try:
            data = _parsed(entry.key, entry.where)
            is_same = _stamp(entry.key) == self._seen[entry.key]
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise IntegrityError(f"{entry.where} changed meanwhile; stop the agents, and run again")
        return content(data.get("state"), data.get("metadata"), entry.where)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return a value that changes when the file is changed or replaced."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _parsed(path: Path, where: str) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise BackendError(f"{where} cannot be read: {exc.strerror}") from exc
    data = parsed(raw, where)
    if not isinstance(data, dict):
        raise IntegrityError(f"{where} is not a JSON object")
    return data
