"""A real OpenSearch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store import OpenSearchMessageLog
from locus_store.blocking import BlockingCheckpointer, BlockingStore
from storages import Storage
from storages.blocking import Unblocked, UnblockedStore

if TYPE_CHECKING:
    from indexes import IndexProbe, TestIndex


class OnIndex(Storage):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.index: TestIndex = self.fixture("index")
        self.backends: list[Any] = []

    def checkpointer(self, **options: Any) -> Any:
        return self.index.checkpointer(**options)

    def backend(self) -> Any:
        self.backends.append(self.index.backend())
        return self.backends[-1]

    async def close(self) -> None:
        for it in self.backends:
            it.index.close()

    def log(self, **options: Any) -> Any:
        return OpenSearchMessageLog(**self.index.options(**options))

    def store(self, **options: Any) -> Any:
        return self.index.store(**options)

    def probe(self) -> IndexProbe:
        return self.index.probe()


class Blocking(OnIndex):
    def checkpointer(self, **options: Any) -> Any:
        return Unblocked(BlockingCheckpointer(super().checkpointer(**options)))

    def store(self, **options: Any) -> Any:
        return UnblockedStore(BlockingStore(super().store(**options)))
