"""Memory, and a backend with nothing optional."""

from __future__ import annotations

from typing import Any, ClassVar

from document_probe import DocumentsProbe

from locus_store import (
    InMemoryMessageLog,
    InMemoryStore,
    MemoryBackend,
    MemoryCheckpointer,
    StorageBackend,
    StorageBackendAdapter,
    blocking,
)
from storages import Storage
from storages.blocking import UnblockedStore


class MemoryProbe(DocumentsProbe):
    """Below a ``MemoryBackend``."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend._documents)


class Memory(Storage):
    persists = False

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.first: Any = None

    def checkpointer(self, **options: Any) -> Any:
        self.first = MemoryCheckpointer(**options)
        return self.first

    def backend(self) -> Any:
        return MemoryBackend()

    def store(self, **options: Any) -> Any:
        return InMemoryStore(**{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        if "max_state_bytes" in options:
            return InMemoryMessageLog(**options)
        made = InMemoryMessageLog(**options, backend=self.first)
        self.first = made.backend
        return made

    def probe(self) -> MemoryProbe:
        return MemoryProbe(self.first.backend)


class Blocking(Memory):
    def store(self, **options: Any) -> Any:
        return UnblockedStore(blocking.InMemoryStore(**{"dimension": 3, **options}))


class BareBackend(StorageBackend):
    """Only what a backend must implement."""

    def __init__(self) -> None:
        super().__init__()
        inner = MemoryBackend()
        self.commit, self.fetch = inner.commit, inner.fetch
        self.history, self.remove = inner.history, inner.remove

    commit: ClassVar[Any]
    fetch: ClassVar[Any]
    history: ClassVar[Any]
    remove: ClassVar[Any]


BareBackend.__abstractmethods__ = frozenset()


class Bare(Storage):
    """Nothing optional is declared, everything else holds."""

    persists = False

    def checkpointer(self, **options: Any) -> Any:
        return StorageBackendAdapter(BareBackend(), **options)
