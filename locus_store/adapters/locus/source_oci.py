"""The objects of the Locus SDK's ``OCIBucketBackend``: JSON below a prefix. Read-only."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

from locus_store.adapters.locus.records import (
    Content,
    Entry,
    FoundThread,
    find_repeated,
    make_changed_error,
    make_content,
    parse_json,
    parse_time,
)
from locus_store.backends.documents.objects import LAYOUT
from locus_store.backends.documents.protocol import Tag
from locus_store.backends.oci.backend import SDK_POINTER, BucketBackend
from locus_store.errors import IntegrityError
from locus_store.open import open_checkpointer

T = TypeVar("T")

_STATE: Final = ".json"
_METADATA: Final = ".meta.json"


@asynccontextmanager
async def open_source(url: str) -> AsyncIterator[SourceObjects]:
    """Open the reader for ``oci://namespace/bucket/prefix``."""
    backend = open_checkpointer(url).backend
    assert isinstance(backend, BucketBackend)  # noqa: S101  (the scheme says so)
    try:
        yield SourceObjects(backend)
    finally:
        await backend.close()


class _Read(NamedTuple):
    """An object that may be a checkpoint."""

    name: str
    tag: Tag
    data: Any


class SourceObjects:
    """Checkpoints sorted by their contents: an id may contain slashes."""

    def __init__(self, backend: BucketBackend) -> None:
        self._objects = backend.bucket
        self._prefix = backend.documents.prefix
        self._seen: dict[str, Tag] = {}
        self.shown = f"{backend.bucket.place}, prefix {self._prefix!r}"

    async def _run_aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._objects.pool, work)

    async def read_threads(self) -> dict[str, FoundThread]:
        return await self._run_aside(self._list_threads)

    def _list_threads(self) -> dict[str, FoundThread]:
        found: defaultdict[str, FoundThread] = defaultdict(FoundThread)
        names = [it.name for it in self._objects.list(self._prefix)]
        names = [it for it in names if not it.startswith(self._prefix + LAYOUT)]
        states = [it for it in names if it.endswith(_STATE) and not it.endswith(_METADATA)]
        for read in self._objects.run_each(self._read, states):
            self._add(read, found)
        for thread_id, thread in found.items():
            thread.entries.sort(key=lambda entry: (entry.created_at, entry.checkpoint_id))
            self._put_head_last(thread_id, thread, names)
            for checkpoint_id in find_repeated(thread.entries):
                thread.problem = IntegrityError(f"checkpoint {checkpoint_id!r} exists twice")
        return dict(found)

    def _read(self, name: str) -> _Read | IntegrityError | None:
        found = self._objects.get(name)
        if found is None:  # deleted meanwhile
            return None
        try:
            return _Read(name, found.tag, parse_json(found.content or b"", f"object {name!r}"))
        except IntegrityError as exc:
            exc.add_note(name)
            return exc

    def _add(
        self, read: _Read | IntegrityError | None, threads: defaultdict[str, FoundThread]
    ) -> None:
        if isinstance(read, IntegrityError):
            threads[self._parse_thread_id(read.__notes__[-1])].problem = read
        elif read is not None:
            where = f"object {read.name!r}"
            data = read.data if isinstance(read.data, dict) else {}
            thread_id, checkpoint_id = data.get("thread_id"), data.get("checkpoint_id")
            if read.name != f"{self._prefix}{thread_id}/{checkpoint_id}{_STATE}":
                owner = self._parse_thread_id(read.name)
                threads[owner].problem = IntegrityError(f"{where} is not a checkpoint of the SDK")
                return
            self._seen[read.name] = read.tag
            at = parse_time(data.get("created_at"), where)
            entry = Entry(
                checkpoint_id=str(checkpoint_id), created_at=at, key=read.name, where=where
            )
            threads[str(thread_id)].entries.append(entry)

    def _parse_thread_id(self, name: str) -> str:
        return name.removeprefix(self._prefix).rpartition("/")[0]

    def _put_head_last(self, thread_id: str, thread: FoundThread, names: list[str]) -> None:
        """Put the checkpoint last that the SDK's pointer names."""
        pointer = self._prefix + thread_id + SDK_POINTER
        there = self._objects.get(pointer) if pointer in names else None
        head = (there.content or b"").decode(errors="replace").strip() if there else None
        thread.entries.sort(key=lambda it: it.checkpoint_id == head)

    async def read(self, entry: Entry) -> Content:
        def read() -> tuple[Any, Any]:
            there = self._objects.get(entry.key)
            beside = self._objects.get(entry.key.removesuffix(_STATE) + _METADATA)
            if there is None or there.tag != self._seen[entry.key]:
                raise make_changed_error(entry)
            facts = parse_json(beside.content or b"", entry.where) if beside else {}
            return parse_json(there.content or b"", entry.where), facts

        data, facts = await self._run_aside(read)
        return make_content(data.get("state"), facts.get("metadata"), entry.where)
