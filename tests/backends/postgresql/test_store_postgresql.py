"""The store in PostgreSQL: its contract, statements, races and indexes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import asyncpg
import pytest
import servers
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_cursor
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from test_store_sql import items_of

from locus_store import ConnectionFailedError, PostgreSQLStore, SchemaError, UnsupportedError
from locus_store.sql import migrate
from locus_store.sql.schema.vectors import create_vector_index

pytestmark = pytest.mark.anyio

NS = ("memory", "u42")


@pytest.fixture
def ask(postgresql, migrated_database):
    name = migrated_database.rpartition("/")[2]
    return lambda query, *values: postgresql.value(query, *values, database=name)


ORPHANS = """
SELECT count(*) FROM locus_embeddings e
WHERE NOT EXISTS (SELECT FROM locus_store s WHERE s.item = e.item)
"""


async def test_a_locked_item_delays_no_other(migrated_database) -> None:
    async with PostgreSQLStore(migrated_database, pool_size=4) as store:
        await store.put(NS, "locked", 1)
        other = await asyncpg.connect(migrated_database)
        try:
            transaction = other.transaction()
            await transaction.start()
            await other.execute("SELECT FROM locus_store FOR UPDATE")
            waiting = [asyncio.ensure_future(store.put(NS, "locked", n)) for n in (2, 3)]
            puts = (store.put(NS, f"{n}", n) for n in range(100))
            assert await asyncio.wait_for(asyncio.gather(*puts), 30) == [1] * 100
            assert not any(it.done() for it in waiting)
            await transaction.rollback()
        finally:
            await other.close()
        assert await asyncio.gather(*waiting) == [2, 3]
        assert await store.get(NS, "locked") == 3


async def test_an_uncommitted_insert_delays_only_the_puts_of_its_key(migrated_database) -> None:
    store = PostgreSQLStore(migrated_database, pool_size=6, statement_timeout_seconds=60)
    engine = create_async_engine(migrated_database.replace("postgresql:", "postgresql+asyncpg:"))
    async with store:
        await store.put(NS, "there", {"n": 0})
        async with engine.begin() as connection:
            await store.put(NS, "taken", {"n": 1}, connection=connection)
            puts = {
                key: asyncio.ensure_future(store.put(NS, key, {"n": 2}))
                for key in ("a", "taken", "there", "b")
            }
            waiting = puts.pop("taken")
            await asyncio.gather(*puts.values())
            assert not waiting.done()
            lone = asyncio.ensure_future(store.put(NS, "taken", {"n": 3}))
            await asyncio.gather(*(store.put(NS, f"{n}", {"n": n}) for n in range(20)))
            assert not lone.done()
        assert [await waiting, await lone] == [2, 3]
    await engine.dispose()


async def test_every_call_is_one_statement(migrated_database) -> None:
    async with PostgreSQLStore(migrated_database, dimension=8) as store:
        await store.put_batch(items_of(50))
        target = items_of(1)[0][-1]
        calls = (
            lambda: store.put(NS, "k", 1, expected_version=0),
            lambda: store.put_with_embedding(NS, "k", 1, target, expected_version=1),
            lambda: store.put_batch(items_of(50)),
            lambda: store.get(NS, "k"),
            lambda: store.get_batch([(NS, "k"), (NS, "j"), (("v", "u1"), "0001")]),
            lambda: store.list(("v", "u1"), limit=3, after="0001"),
            lambda: store.search(("v",)),
            lambda: store.search(("v",), filter={"n": {"$lt": 50}, "even": True}),
            lambda: store.search_by_embedding(("v",), target, filter={"even": True}),
            lambda: store.get_embedding(NS, "k"),
            store.list_namespaces,
            lambda: store.touch(NS, "k"),
            lambda: store.delete(NS, "k"),
        )
        for call in calls:
            with counted() as sent:
                await call()
            assert len(sent) == 1, sent


async def test_it_works_through_pgbouncer_an_engine_and_a_pool(
    pgbouncer, migrated_database
) -> None:
    create_vector_index(migrated_database, dimension=8)
    name = migrated_database.rpartition("/")[2]
    engine = create_async_engine(
        migrated_database.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool
    )
    async with asyncpg.create_pool(migrated_database, min_size=1, max_size=2) as pool:
        ways = ({"dsn": pgbouncer.url(name, pgbouncer="true")}, {"engine": engine}, {"pool": pool})
        for way in ways:
            async with PostgreSQLStore(**way, dimension=8) as store:
                await store.clear_namespace((), recursive=True)
                assert await store.put_batch(items_of(100)) == [1] * 100
                assert await store.put_batch(items_of(100)) == [2] * 100
                target = items_of(1)[0][-1]
                found = await asyncio.gather(
                    *(store.search_by_embedding((), target, filter={"n": n}) for n in range(10))
                )
                assert [len(it) for it in found] == [1] * 10
                assert await store.search((), query="absent") == []
                for value in ("text", None, 1e16, -0.0, ["\0\1", {"\0": 2**53}]):
                    await store.put(NS, "k", value)
                    assert repr(await store.get(NS, "k")) == repr(value)
    await engine.dispose()


@pytest.mark.parametrize("method", ["hnsw", "ivfflat"])
async def test_an_index_gives_as_many_as_are_wanted(migrated_database, method) -> None:
    async with PostgreSQLStore(migrated_database, dimension=8) as store:
        await store.put_batch(items_of(1000))
        create_vector_index(migrated_database, dimension=8, method=method)
        target = items_of(1)[0][-1]
        for wanted, count in (({"n": 7}, 10), ({"n": 7, "even": True}, 0), ({"even": False}, 10)):
            found = await store.search_by_embedding(("v",), target, filter=wanted)
            assert len(found) == count
            assert found == sorted(found, key=lambda it: -it.score)
        assert len(await store.search_by_embedding(("v", "u3"), target, 500)) == 200


async def test_a_plan_for_all_values_takes_the_index(migrated_database, ask) -> None:
    """As asyncpg's prepared statements have one from their sixth execution on."""
    separator = "&" if "?" in migrated_database else "?"
    url = f"{migrated_database}{separator}options=-c%20plan_cache_mode%3Dforce_generic_plan"
    scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname LIKE '%hnsw'"
    async with PostgreSQLStore(url, dimension=8, pool_size=1) as store:
        await store.put_batch(items_of(4000))
        create_vector_index(migrated_database, dimension=8)
        for target in (it[-1] for it in items_of(8)):
            assert len(await store.search_by_embedding(("v",), target)) == 10
    await asyncio.to_thread(servers.wait_until, lambda: ask(scans) >= 8, "the statistics")


async def test_racing_puts_leave_no_embedding_behind(migrated_database, ask) -> None:
    async with PostgreSQLStore(migrated_database, dimension=3, pool_size=6) as store:

        async def put(n: int) -> None:
            for turn in range(8):
                if (n + turn) % 3 == 0:
                    await store.put(NS, f"{turn % 2}", n)
                elif (n + turn) % 7 == 0:
                    await store.delete(NS, f"{turn % 2}")
                else:
                    await store.put_with_embedding(NS, f"{turn % 2}", n, [1, n, turn])

        await asyncio.gather(*map(put, range(12)))
        assert ask(ORPHANS) == 0
        await store.put(NS, "0", "last")
        assert await store.get_embedding(NS, "0") is None
        await store.clear_namespace(NS)
        assert ask("SELECT count(*) FROM locus_embeddings") == 0


async def test_a_put_whose_answer_is_lost_is_not_repeated(postgresql, migrated_database) -> None:
    proxy = servers.Proxy(postgresql.port)
    try:
        url = proxy.url(postgresql, migrated_database.rpartition("/")[2])
        async with PostgreSQLStore(url, pool_size=1) as store:
            await store.put(NS, "k", 1)
            proxy.swallow_replies()
            putting = asyncio.ensure_future(store.put(NS, "k", 2))
            async with PostgreSQLStore(migrated_database) as other:
                async with asyncio.timeout(20):
                    while await other.get(NS, "k") != 2:  # noqa: ASYNC110  (of another process)
                        await asyncio.sleep(0.005)
            proxy.drop()
            proxy.release()
            with pytest.raises(ConnectionFailedError):
                await putting
            assert (await store.get_item(NS, "k")).version == 2
    finally:
        proxy.close()


@pytest.mark.parametrize("auto_migrate", [True, False])
async def test_without_pgvector_everything_else_works(postgresql_tls, auto_migrate: bool) -> None:
    name = postgresql_tls.new_database()
    url = postgresql_tls.url(name)
    if not auto_migrate:
        migrate.upgrade(url)
    async with PostgreSQLStore(url, dimension=3, auto_migrate=auto_migrate) as store:
        assert not store.capabilities.semantic_search
        assert store.capabilities.embedding_dimension is None
        assert await store.put(NS, "k", {"n": 1}) == 1
        assert len(await store.search((), filter={"n": {"$gte": 1}})) == 1
        calls = (
            lambda: store.put_with_embedding(NS, "k", 2, [1, 0, 0]),
            lambda: store.search_by_embedding((), [1, 0, 0]),
            lambda: store.get_embedding(NS, "k"),
        )
        for call in calls:
            with pytest.raises(UnsupportedError, match=r"pgvector.*install it"):
                await call()
        assert (await store.get_item(NS, "k")).version == 1
    postgresql_tls.drop_database(name)


async def test_an_extension_that_is_made_later_is_found(postgresql, migrated_database) -> None:
    """The administrator does what the error says, and the program goes on."""
    name = migrated_database.rpartition("/")[2]
    postgresql.execute("CREATE ROLE plain LOGIN", name)
    postgresql.execute("GRANT ALL ON SCHEMA public TO plain", name)
    postgresql.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO plain", name)
    async with PostgreSQLStore(postgresql.url(name, user="plain"), dimension=3) as store:
        with pytest.raises(UnsupportedError, match="CREATE EXTENSION vector"):
            await store.put_with_embedding(NS, "k", 1, [1, 0, 0])
        assert not store.capabilities.semantic_search
        postgresql.execute("CREATE EXTENSION vector", name)
        assert await store.put_with_embedding(NS, "k", 1, [1, 0, 0]) == 1
        assert store.capabilities.semantic_search


async def test_a_database_of_a_revision_before_names_the_command(database, later_release) -> None:
    command = "as the role that owns the tables: locus-store db upgrade"
    with pytest.raises(SchemaError, match=f"create it {command}"):
        await PostgreSQLStore(database, auto_migrate=False).get(NS, "k")
    migrate.upgrade(database, "0001")
    with pytest.raises(SchemaError, match=f"0001 is behind .* upgrade it {command}"):
        await PostgreSQLStore(database).get(NS, "k")
    async with PostgreSQLStore(database, auto_migrate="upgrade", dimension=3) as store:
        assert store.capabilities.semantic_search
        assert await store.put_with_embedding(NS, "k", 1, [1, 0, 0]) == 1


async def test_items_of_many_names_are_found_by_the_index(migrated_database, ask) -> None:
    """The table has no statistics: the database would read all of it for a list of pairs."""
    scans = "SELECT {}_scan FROM pg_stat_user_tables WHERE relname = 'locus_store'"
    names = [((f"n{number % 7}",), f"k{number}") for number in range(300)]

    async def wait_for_scans(count: int) -> None:
        async with asyncio.timeout(servers.DEADLINE_SECONDS):
            while ask(scans.format("idx")) < count:  # noqa: ASYNC110  (a connection's end tells)
                await asyncio.sleep(0.05)

    async with PostgreSQLStore(migrated_database, pool_size=1) as store:
        await store.put_batch([(*name, 1) for name in names])
    await wait_for_scans(len(names))
    whole, by_index = ask(scans.format("seq")), ask(scans.format("idx"))
    async with PostgreSQLStore(migrated_database, pool_size=1) as store:
        assert len(await store.get_batch(names)) == len(names)
    await wait_for_scans(by_index + len(names))
    assert ask(scans.format("seq")) == whole


@contextmanager
def counted():
    """The statements that are sent meanwhile."""
    sent: list[str] = []

    def noting(send: Any) -> Any:
        def note(cursor: Any, text: str, *parameters: Any) -> Any:
            sent.append(text)
            return send(cursor, text, *parameters)

        return note

    with ExitStack() as stack:
        for name in ("execute", "executemany"):  # of compiled statements, too
            noted = noting(getattr(AsyncAdapt_asyncpg_cursor, name))
            stack.enter_context(patch.object(AsyncAdapt_asyncpg_cursor, name, noted))
        yield sent
