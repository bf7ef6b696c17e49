"""Damaged versions in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from storages.memory import MemoryProbe

from locus_store import MemoryBackend
from locus_store.types import Vacuumed
from locus_store.values.frames import encode_operations

if TYPE_CHECKING:
    from locus_store.versions.histories import Row


def spoil(row: Row) -> None:
    """Operations that cannot be done, in a document that is as it was written."""
    row.payload = encode_operations([["-", ["no such key"]]])


@pytest.mark.anyio
async def test_a_damaged_chain_fails_neither_a_sweep_nor_a_vacuum() -> None:
    backend = MemoryBackend()
    below = MemoryProbe(backend)
    for n in range(80):
        await backend.write_state("t", {"body": "b" * 1000, "n": n})
        if n == 0:
            below.age(40 * 86_400)
    below.change_rows(spoil)
    await backend.write_state("t", {"n": 80}, keep_last=10)
    assert await backend.load("t") == {"n": 80}
    assert await backend.vacuum_report(30) == Vacuumed(removed=0, skipped=0, unreadable=1)
    assert await backend.prune("t") == 80  # what goes whole is not read
