"""The facts of threads as they are stored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from lazily import TESTS_RUN
from storages.memory import BareBackend

from locus_store import IntegrityError, UnsupportedError
from locus_store.types.thread_info import RESERVED_KEY, claim_of, make_facts

if TESTS_RUN:
    pass

pytestmark = pytest.mark.anyio

NOW = datetime.now(UTC)
NAIVE = "2024-01-01T00:00:00"


async def test_a_storage_without_users_refuses_a_claim() -> None:
    backend = BareBackend()
    with pytest.raises(UnsupportedError, match="keeps no users"):
        await backend.write_state("t", {"n": 1}, claim=claim_of("t", "alice"))


@pytest.mark.parametrize(
    "stored",
    [
        None,
        7,
        "text",
        ["list"],
        {"updated_at": 1, "as_of": 2},
        {"updated_at": "never", "as_of": "never"},
        {"updated_at": NAIVE, "as_of": NAIVE},
    ],
)
def test_facts_that_no_put_stores_are_damage(stored: Any) -> None:
    with pytest.raises(IntegrityError, match="no put stores"):
        make_facts("t", None, None, {RESERVED_KEY: stored}, created_at=NOW, active_at=NOW)
