"""Every backend is held to the contract below a checkpointer, and documents to theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from locus_store.testing import StorageBackendContract

if TYPE_CHECKING:
    from storages import Storage


class TestBackend(StorageBackendContract):
    """On every storage of the table."""

    contract = "backend"

    @pytest.fixture
    def backend(self, place: Storage) -> Any:
        return place.backend()
