"""A rebalance beside applications that have the role of docs/postgresql.md, without settings."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest
from lazily import TESTS_RUN

from locus_store import BackendError, InvalidArgumentError, open_sharded
from locus_store.backends.postgresql import row_security
from locus_store.backends.sharded import shard_set
from locus_store.backends.sharded.rebalance import rebalance
from locus_store.sql import migrate
from locus_store.sql.sharding import SqlShard

if TESTS_RUN:
    import asyncpg

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

ROLE = "locus_app"
OWNER = "locus_owner_of_shards"
GRANTS = f"""
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE};
    REVOKE INSERT, UPDATE, DELETE ON locus_version, locus_settings FROM {ROLE};
"""
THREADS = [f"t{it}" for it in range(16)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["grants", "row security"])
def urls(request: Any, postgresql: Any) -> Iterator[list[tuple[str, str]]]:
    """URLs of three migrated databases: of the owner, and of the application."""
    names = [postgresql.new_database() for _ in range(3)]
    for role in (OWNER, ROLE):
        with suppress(asyncpg.DuplicateObjectError):
            postgresql.execute(f"CREATE ROLE {role} LOGIN")
    for it in names:
        postgresql.execute(f"ALTER DATABASE {it} OWNER TO {OWNER}")
        migrate.upgrade(postgresql.url(it, user=OWNER))
        if request.param == "row security":
            row_security.enable(postgresql.url(it, user=OWNER))
        postgresql.execute(GRANTS, database=it)
    yield [tuple(postgresql.url(it, user=role) for role in (OWNER, ROLE)) for it in names]
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


async def begin_moving(urls: list[str]) -> None:
    """Announce a third shard, and begin to move, as a rebalance does that ends there."""
    async with opened(urls) as storage:
        of = storage.backend.shard_set
        layout = (await of.open()).change(state="moving", former=2, shards=3)
        await of.write_layout(layout)


async def add_wall(urls: list[str], postgresql: Any) -> list[str]:
    """Bind a role to a tenant; return its URLs."""
    with suppress(asyncpg.DuplicateObjectError):
        await asyncio.to_thread(postgresql.execute, "CREATE ROLE locus_walled LOGIN")
    for url in urls:
        admin = url.replace(OWNER, "postgres")
        await asyncio.to_thread(row_security.add_role, admin, "acme", "locus_walled")
    return [it.replace(OWNER, "locus_walled") for it in urls]


@pytest.mark.parametrize("urls", ["row security"], indirect=True)
async def test_a_role_of_one_tenant_is_refused_what_it_cannot_move(
    urls: list[tuple[str, str]], postgresql: Any
) -> None:
    owned = [owner for owner, _ in urls]
    walled = await add_wall(owned, postgresql)
    states = {it: {"n": 1} for it in THREADS}
    async with opened(owned[:2]) as storage:
        checkpointer = storage.checkpointer(state_type=dict).for_tenant("acme")
        for thread_id, state in states.items():
            await checkpointer.save(state, thread_id)
    await begin_moving(owned)
    async with opened(walled) as storage:
        checkpointer = storage.checkpointer(state_type=dict).for_tenant("acme")
        refused = 0
        for thread_id in THREADS:
            assert await checkpointer.load(thread_id) == {"n": 1}
            try:
                await checkpointer.save(states[thread_id] | {"n": 2}, thread_id)
                states[thread_id] = {"n": 2}
            except BackendError:
                refused += 1
        assert 0 < refused < len(THREADS)
        with pytest.raises(InvalidArgumentError, match="row security hides other tenants"):
            await rebalance(storage.backend)
    async with opened(owned) as storage:
        await rebalance(storage.backend)
        checkpointer = storage.checkpointer(state_type=dict).for_tenant("acme")
        assert {it: await checkpointer.load(it) for it in THREADS} == states


@pytest.mark.parametrize("urls", ["row security"], indirect=True)
async def test_a_list_of_a_role_of_one_tenant_does_not_end_a_move(
    urls: list[tuple[str, str]], postgresql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_set, "ANNOUNCED_SECONDS", 0.1)
    owned = [owner for owner, _ in urls]
    walled = await add_wall(owned, postgresql)
    async with opened(owned[:2]) as storage:
        checkpointer = storage.checkpointer(state_type=dict).for_tenant("acme")
        for thread_id in THREADS:
            await checkpointer.save({"n": 1}, thread_id)
    with monkeypatch.context() as patch:
        patch.setattr(SqlShard, "admit_thread", AsyncMock(side_effect=BackendError("ended here")))
        async with opened(owned) as storage:
            with pytest.raises(BackendError, match="ended here"):
                await rebalance(storage.backend)
    async with opened(walled) as storage:
        with pytest.raises(BackendError, match="row security hides its copy"):
            await storage.checkpointer().for_tenant("acme").list_threads()
    async with opened(owned) as storage:
        await rebalance(storage.backend)
        checkpointer = storage.checkpointer(state_type=dict).for_tenant("acme")
        assert [await checkpointer.load(it) for it in THREADS] == [{"n": 1}] * len(THREADS)
