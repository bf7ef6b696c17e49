"""Encryption and services: the service has the keys, or its client does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from services import Service

from locus_store import IntegrityError, open_storage

if TYPE_CHECKING:
    from locus_store import Encryption

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM locus_checkpoints WHERE sequence = 2",
        "UPDATE locus_checkpoints SET payload = NULL WHERE sequence = 3",
        "UPDATE locus_checkpoints SET digest = (SELECT digest FROM locus_checkpoints x "
        "WHERE x.sequence = 2) WHERE sequence = 3",
    ],
)
async def test_a_service_with_keys_verifies_states_for_its_clients(
    change: str, encryption: Encryption, url: str
) -> None:
    state = {"said": "x" * 900}
    async with open_storage(url, encryption=encryption) as behind:
        service = Service(behind.backend)
        async with open_storage(service.url) as storage:
            for number in range(3):
                state |= {"n": number}
                await storage.backend.save("t", state)
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(change)
        async with open_storage(service.url) as storage:
            with pytest.raises(IntegrityError):
                await storage.backend.load("t")
        service.stop()
