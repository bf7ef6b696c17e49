"""The contracts on a real OpenSearch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lost_answers import LostAnswersContract

from locus_store.backends.documents import deriving
from locus_store.backends.documents.objects import ObjectDocuments
from locus_store.backends.opensearch.search import iterate_versions
from locus_store.backends.opensearch.versions import VersionPlace
from locus_store.testing.documents import WriteFaultsContract

if TYPE_CHECKING:
    from indexes import TestIndex


class TestIndexDocuments(LostAnswersContract):
    @pytest.fixture
    def reopen(self, index: TestIndex) -> Any:
        return lambda: ObjectDocuments(index.objects())


class TestFaultsOnIndex(WriteFaultsContract):
    writes = ("bulk",)

    @pytest.fixture
    def opened(self, index: TestIndex) -> Any:
        return index.backend

    @pytest.fixture
    def settle(self, index: TestIndex) -> Any:
        return index.refresh

    def list_stored(self, backend: Any) -> set[tuple[Any, ...]]:
        return super().list_stored(backend) | {it.place for it in iterate_versions(backend.index)}

    def list_named(self, backend: Any, threads: list[str]) -> set[tuple[Any, ...]]:
        parsed = [backend._threads.read_parsed(backend._documents, it) for it in threads]
        places = {
            VersionPlace(it.thread.thread_id, *name)
            for it in parsed
            for name in deriving.map_versions(it.thread)
        }
        return super().list_named(backend, threads) | places
