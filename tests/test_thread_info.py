"""The facts of threads as they are stored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from lazily import TESTS_RUN
from storages.memory import BareBackend

from locus_store import IntegrityError, UnsupportedError, open_storage
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


@pytest.mark.parametrize("url", ["memory://", "sqlite://"])
async def test_a_thread_that_is_another_users_by_now_is_not_forgotten(url: str) -> None:
    async with open_storage(url) as storage:
        backend: Any = storage.backend
        for thread_id in ("other", "t"):
            await backend.save(thread_id, {"n": 1}, metadata={"user_id": "zoe"})
        remove = backend.remove_thread

        async def remove_late(thread_id: str) -> Any:
            backend.remove_thread = remove
            await remove("t")
            await backend.save("t", {"n": 2}, metadata={"user_id": "max"})
            return await remove(thread_id)

        backend.remove_thread = remove_late
        assert await backend.threads_of("zoe") == ["other", "t"]
        assert (await backend.forget_user("zoe"))["threads"] == 1
        assert await backend.load("t") == {"n": 2}


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
