"""``PgCheckpointer``: its construction, its environment, and what it is handed."""

from __future__ import annotations

import asyncpg
import pytest
from lazily import TESTS_RUN
from sqlalchemy.ext.asyncio import create_async_engine
from test_session import ALICE, run_blocking, said, texts

from locus_store import ConnectionFailedError, InvalidArgumentError
from locus_store.session import LocalCache, PgCheckpointer

if TESTS_RUN:
    import redis.asyncio

    from locus_store.session.redis_cache import RedisCache

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("DATABASE_URL", "CACHE_URL", "CACHE_TTL"):
        monkeypatch.delenv(name, raising=False)


async def test_setup_creates_the_schema(database) -> None:
    session = PgCheckpointer(database, schema="agent")
    await session.asetup()
    connection = await asyncpg.connect(database)
    query = "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename LIKE 'locus%'"
    assert await connection.fetchval(query, "agent") > 5
    assert await connection.fetchval(query, "public") == 0
    await connection.close()
    await session.aput_state(ALICE, said("a"))
    await session.arelease()
    await session.arelease()
    assert texts((await session.aget_state(ALICE)).context) == ["a"]
    await session.arelease()


async def test_what_is_missing_is_read_from_the_environment(
    migrated_database, redis_url, monkeypatch
) -> None:
    session = PgCheckpointer(user_id_type="string", max_cached_threads=7)
    with pytest.raises(InvalidArgumentError, match=r"postgres_dsn.*DATABASE_URL"):
        await session.asetup()
    monkeypatch.setenv("DATABASE_URL", migrated_database)
    monkeypatch.setenv("CACHE_URL", redis_url)
    monkeypatch.setenv("CACHE_TTL", "77")
    await session.aput_state(ALICE, said("a"))
    assert isinstance(session.cache, RedisCache)
    assert (session.cache.ttl_seconds, session.cache.max_threads) == (77, 7)
    await session.arelease()
    given = PgCheckpointer(migrated_database, redis_url=redis_url, cache_ttl=5)
    assert given.cache.ttl_seconds == 5
    assert texts((await given.aget_state_cache(ALICE)).context) == ["a"]
    await given.arelease()
    monkeypatch.setenv("CACHE_TTL", "soon")
    with pytest.raises(InvalidArgumentError, match="CACHE_TTL"):
        await PgCheckpointer(migrated_database).aget_state_cache(ALICE)


async def test_without_redis_the_cache_is_in_the_process(migrated_database) -> None:
    session = PgCheckpointer(migrated_database, cache_ttl=86400, max_cached_threads=3)
    assert isinstance(session.cache, LocalCache)
    assert (session.cache.max_threads, session.cache.ttl_seconds) == (3, 86400)
    await session.arelease()


async def test_what_is_handed_in_is_never_closed(migrated_database, redis_url) -> None:
    pool = await asyncpg.create_pool(migrated_database, min_size=1, max_size=2)
    client = redis.asyncio.Redis.from_url(redis_url)
    engine = create_async_engine(migrated_database.replace("postgresql:", "postgresql+asyncpg:"))
    for place in ({"pg_pool": pool}, {"engine": engine}):
        session = PgCheckpointer(**place, redis=client)
        await session.asetup()
        await session.aput_state(ALICE, said("a"))
        await session.arelease()
        assert texts((await session.aget_state_cache(ALICE)).context) == ["a"]
        await session.aclean_thread(ALICE)
        await session.arelease()
    assert await pool.fetchval("SELECT 1") == 1
    assert await client.ping()
    async with engine.connect() as connection:
        assert connection is not None
    await engine.dispose()
    await pool.close()
    await client.aclose()


def test_what_cannot_be_is_refused(migrated_database) -> None:
    for options in (
        {"postgres_dsn": migrated_database, "pg_pool": object()},
        {"postgres_dsn": "not a dsn"}, {"pg_pool": object()}, {"cache_ttl": 0},
        {"max_cached_threads": 0}, {"redis_url": "http://x"}, {"user_id_type": "uuid"},
        {"redis_url": "redis://x", "redis": object()}, {"cache_verify_seconds": None},
        {"postgres_dsn": 5}, {"postgres_dsn": ""}, {"postgres_dsn": " "},
        {"release_resources": "no"}, {"release_resources": None},
        *({"postgres_dsn": migrated_database, "schema": it} for it in ("a" * 64, "ü" * 32, ":x")),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            PgCheckpointer(**options)
    with pytest.raises(TypeError):
        PgCheckpointer(unknown=1)


async def test_an_unreachable_database_is_a_connection_error() -> None:
    session = PgCheckpointer("postgresql://u:secret@127.0.0.1:1/db")
    with pytest.raises(ConnectionError) as caught:
        await session.aget_state_cache(ALICE)
    assert isinstance(caught.value, ConnectionFailedError)
    assert "secret" not in str(caught.value)
    await session.arelease()


async def test_release_may_leave_the_connections_open(migrated_database) -> None:
    kept, closed = (PgCheckpointer(migrated_database, release_resources=it) for it in (False, True))
    for session in (kept, closed):
        await session.aput_state(ALICE, said("a"))
        await session.aclean_thread(ALICE)
        await session.arelease()
    observer = await asyncpg.connect(migrated_database)
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    assert await observer.fetchval(count) >= 2
    kept.release_resources = True
    await kept.arelease()
    await observer.close()


def test_the_blocking_twins_with_redis(migrated_database, redis_url) -> None:
    run_blocking(PgCheckpointer(migrated_database, redis_url=redis_url))


def test_a_sessions_environment_is_not_read_before_it_is_needed() -> None:
    for kind in ("string", "int", "bigint"):
        assert PgCheckpointer(user_id_type=kind).user_id_type == kind
