"""Options of PostgreSQL's objects, and a pool that the caller hands in."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from anyio import to_thread
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from locus_store import InvalidArgumentError, postgresql_checkpointer


@pytest.mark.anyio
async def test_a_second_loop_is_refused_while_the_first_one_runs(migrated_database):
    async with asyncpg.create_pool(migrated_database, min_size=1, max_size=4) as pool:
        checkpointer = postgresql_checkpointer(pool=pool, state_type=dict)
        await checkpointer.save({"n": 1}, "t")
        with pytest.raises(InvalidArgumentError, match="one event loop at a time"):
            await to_thread.run_sync(lambda: asyncio.run(checkpointer.load("t")))
        await checkpointer.close()


@pytest.mark.parametrize(
    "option",
    [
        {"password": "x"}, {"pool_size": 3}, {"max_overflow": 1}, {"pgbouncer": True},
        {"pool_timeout_seconds": 1}, {"connect_timeout_seconds": 1},
        {"statement_timeout_seconds": 1}, {"pool_recycle_seconds": 1}, {"replicas": "h"},
        {"max_staleness_seconds": 1},
    ],
)  # fmt: skip
def test_options_of_connections_go_with_a_dsn_only(option):
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool)
    with pytest.raises(InvalidArgumentError, match=next(iter(option))):
        postgresql_checkpointer(engine=engine, **option)


@pytest.mark.parametrize(
    "option",
    [
        {"pool_size": 0}, {"pool_size": True}, {"max_overflow": -1}, {"pgbouncer": "yes"},
        {"pool_timeout_seconds": 0}, {"connect_timeout_seconds": "1"}, {"engine": object()},
        {"statement_timeout_seconds": -1}, {"pool": object()}, {"table_name": "a", "prefix": "b_"},
        {"tenant": ""}, {"auto_migrate": "maybe"}, {"replicas": ""}, {"max_staleness_seconds": 1},
        {"replicas": "h", "max_staleness_seconds": 0},
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(option):
    with pytest.raises(InvalidArgumentError):
        postgresql_checkpointer(**option)


@pytest.mark.parametrize("hosts", ["a,,b", "a:b", "a:0", "[::1"])
def test_hosts_of_replicas_that_make_no_sense_are_refused(hosts):
    with pytest.raises(InvalidArgumentError, match="replicas="):
        postgresql_checkpointer("postgresql://h/d", replicas=hosts)


def test_only_one_place_may_be_named():
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool)
    with pytest.raises(InvalidArgumentError, match="dsn or engine, not both"):
        postgresql_checkpointer("postgresql://h/d", engine=engine)
