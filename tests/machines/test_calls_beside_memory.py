"""Hostile calls of the public methods: each storage answers them as memory does."""

from __future__ import annotations

import asyncio

import pytest
from beside_memory import find_difference
from storages import STORAGES
from tiers import LONG, full

CALLS = 3000 if LONG else 150


@pytest.mark.parametrize(
    "name",
    [
        "file",
        *full("sqlite", "objects", "objects-segments", "redis", "s3", "http", "http-sqlite"),
        *full("sqlite-encrypted", "file-encrypted", "redis-encrypted", "http-encrypted"),
        *full("opensearch-encrypted", "s3-encrypted", "oracle-encrypted"),
        *full("postgresql", "postgresql-segments", "sharded", "opensearch", "oci"),
    ],
)
def test_hostile_calls_are_answered_as_in_memory(name: str, request: pytest.FixtureRequest) -> None:
    storage = STORAGES[name].storage(request)

    async def run() -> str | None:
        await storage.open()
        try:
            return await find_difference(storage, 1, CALLS)
        finally:
            await storage.close()

    assert asyncio.run(run()) is None
