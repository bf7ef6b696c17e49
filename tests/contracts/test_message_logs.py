"""Every message log is held to the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from locus_store.testing import MessageLogContract

if TYPE_CHECKING:
    from storages import Storage


class TestMessageLog(MessageLogContract):
    """On every storage of the table."""

    contract = "log"

    @pytest.fixture
    def reopen(self, place: Storage) -> Any:
        return place.log
