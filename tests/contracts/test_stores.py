"""Every store is held to the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from locus_store.testing import StoreContract

if TYPE_CHECKING:
    from storages import Storage


class TestStore(StoreContract):
    """On every storage of the table."""

    contract = "store"

    @pytest.fixture(autouse=True)
    def shared(self, place: Storage) -> None:
        self.persists = place.persists

    @pytest.fixture
    def reopen(self, place: Storage) -> Any:
        return place.store
