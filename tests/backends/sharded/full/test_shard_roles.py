"""A rebalance beside applications that have the role of docs/postgresql.md, without settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from locus_store import BackendError, open_sharded
from locus_store.backends.sharded import shard_set
from locus_store.backends.sharded.rebalance import rebalance
from locus_store.sql import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

ROLE = "locus_sharded_app"
GRANTS = f"""
    DO $$ BEGIN
        CREATE ROLE {ROLE} LOGIN;
    EXCEPTION WHEN duplicate_object THEN NULL; END $$;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE};
    REVOKE INSERT, UPDATE, DELETE ON locus_version, locus_settings FROM {ROLE};
"""
THREADS = [f"t{it}" for it in range(16)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def urls(postgresql: Any) -> Iterator[list[tuple[str, str]]]:
    """URLs of three migrated databases: of the owner, and of the application."""
    names = [postgresql.new_database() for _ in range(3)]
    for it in names:
        migrate.upgrade(postgresql.url(it))
        postgresql.execute(GRANTS, database=it)
    yield [(postgresql.url(it), postgresql.url(it, user=ROLE)) for it in names]
    for it in names:
        postgresql.drop_database(it)


def opened(urls: list[str]) -> Any:
    return open_sharded(urls)


async def test_an_application_that_may_not_write_settings_saves_during_a_rebalance(
    urls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_set, "LEASE_SECONDS", 0.02)
    monkeypatch.setattr(shard_set, "ANNOUNCED_SECONDS", 0.1)
    owned, limited = (list(it) for it in zip(*urls, strict=True))
    async with opened(limited[:2]) as storage:
        with pytest.raises(BackendError, match="the role may not do this"):
            await storage.checkpointer(state_type=dict).save({"n": 0}, "t0")
    async with opened(owned[:2]) as storage:
        await rebalance(storage.backend)
    counts = dict.fromkeys(THREADS, 0)
    async with opened(limited) as storage, opened(owned) as another:
        checkpointer = storage.checkpointer(state_type=dict)

        async def save(thread_id: str) -> None:
            counts[thread_id] += 1
            await checkpointer.save({"n": counts[thread_id]}, thread_id)

        async def write(thread_id: str) -> None:
            while not work.done():
                await save(thread_id)

        await asyncio.gather(*map(save, THREADS))
        work = asyncio.create_task(rebalance(another.backend))
        await asyncio.gather(*map(write, THREADS[::2]), work)
        # By the application alone: no rebalance moves what a client has moved.
        assert {it: (await checkpointer.load(it))["n"] for it in THREADS} == counts
        for it, count in counts.items():
            assert len(await checkpointer.list_checkpoints(it, limit=100_000)) == count
