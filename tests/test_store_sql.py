"""The stores in SQL held to the contract, and what only a database can break."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
import servers
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from locus_store import (
    BackendError,
    ConnectionFailedError,
    InMemoryStore,
    InvalidArgumentError,
    PostgreSQLStore,
    SchemaError,
    SQLiteStore,
    UnsupportedError,
    open_store,
    postgresql_checkpointer,
    sqlite_checkpointer,
)
from locus_store.backends.sqlite.items import loads_vec
from locus_store.sql import migrate
from locus_store.sql.vectors import create_vector_index
from locus_store.testing import StoreContract

NS = ("memory", "u42")


class TestSQLite(StoreContract):
    @pytest.fixture
    def reopen(self, tmp_path):
        path = tmp_path / "store.db"
        return lambda **options: SQLiteStore(path, **{"dimension": 3, **options})


class TestPostgreSQL(StoreContract):
    @pytest.fixture
    def reopen(self, migrated_database):
        return lambda **options: PostgreSQLStore(
            migrated_database, **{"dimension": 3, "pool_size": 4, **options}
        )


pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgresql"])
def make(request, tmp_path):
    """Makes a store of each kind, on the same place each time."""
    if request.param == "sqlite":
        return lambda **options: SQLiteStore(tmp_path / "store.db", **options)
    url = request.getfixturevalue("migrated_database")
    return lambda **options: PostgreSQLStore(url, **{"pool_size": 4, **options})


@pytest.fixture
def ask(postgresql, migrated_database):
    name = migrated_database.rpartition("/")[2]
    return lambda query, *values: postgresql.value(query, *values, database=name)


ORPHANS = """
SELECT count(*) FROM locus_embeddings e
WHERE NOT EXISTS (SELECT FROM locus_store s WHERE s.item = e.item)
"""


def items_of(n: int) -> list[tuple[Any, ...]]:
    numbers = random.Random(n)
    return [
        (("v", f"u{it % 5}"), f"{it:04}", {"n": it % 100, "even": it % 2 == 0}, None, None, None,
         [numbers.gauss(0, 1) for _ in range(8)])
        for it in range(n)
    ]  # fmt: skip


# --- both


async def test_many_concurrent_calls_take_few_statements(make) -> None:
    statements: list[str] = []

    def note(_connection, _cursor, statement, *_) -> None:
        statements.append(statement)

    async with make() as store:
        await store.put(NS, "first", 1)
        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        try:
            puts = (store.put(NS, f"{n}", n) for n in range(600))
            gets = (store.get(NS, "first") for _ in range(600))
            results = await asyncio.gather(*puts, *gets)
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert results == [1] * 1200
    assert len(statements) <= 40


async def test_a_loop_that_ends_in_the_midst_of_calls_says_nothing(make, capfd) -> None:
    store = make()
    await store.setup()

    def other_loop() -> None:
        async def leave() -> None:
            for n in range(50):
                _tasks.add(asyncio.ensure_future(store.put(NS, f"{n}", n)))
                _tasks.add(asyncio.ensure_future(store.get(NS, f"{n}")))
            await asyncio.sleep(0)

        _tasks: set[Any] = set()
        asyncio.run(leave())

    for _ in range(3):
        await asyncio.to_thread(other_loop)
    assert await store.put(NS, "here", 1) == 1
    await store.close()
    assert capfd.readouterr().err == ""


RULES = {
    SQLiteStore: "CREATE TRIGGER a_rule BEFORE INSERT ON locus_store WHEN NEW.key = 'refused' "
    "BEGIN SELECT RAISE(ABORT, 'a constraint'); END",
    PostgreSQLStore: "ALTER TABLE locus_store ADD CONSTRAINT a_rule CHECK (key <> 'refused')",
}
"""A rule of the database's owner, which refuses one key."""


async def test_a_value_that_the_database_refuses_fails_its_own_caller_only(make) -> None:
    async with make() as store:
        await store.setup()
        await store._change(lambda it: it.exec_driver_sql(RULES[type(store)]))
        keys = ["one", "refused", "two"]
        puts = [store.put(NS, key, key) for key in keys]
        first, refused, second = await asyncio.gather(*puts, return_exceptions=True)
        assert (first, second) == (1, 1)
        assert type(refused) is BackendError
        assert "a constraint" in str(refused)
        with pytest.raises(BackendError, match="a constraint"):
            await store.put(NS, "refused", "alone")
        assert [await store.get(NS, key) for key in keys] == ["one", None, "two"]


async def test_tenants_never_see_each_others_items(make) -> None:
    async with make(dimension=3) as ours, make(dimension=3, tenant="other") as theirs:
        await ours.put_with_embedding(NS, "k", "ours", [1, 0, 0], {"user_id": "u"})
        assert await theirs.get(NS, "k") is None
        assert await theirs.get_batch([(NS, "k"), (NS, "j")]) == {}
        assert await theirs.list(NS) == await theirs.search(()) == []
        assert await theirs.search_by_embedding((), [1, 0, 0]) == []
        assert await theirs.list_namespaces() == []
        assert await theirs.get_embedding(NS, "k") is None
        assert not await theirs.delete(NS, "k")
        assert await theirs.clear_namespace((), recursive=True) == 0
        assert (await theirs.backend.forget_user("u"))["store"] == 0
        assert await theirs.put(NS, "k", "theirs") == 1
        assert await ours.get_embedding(NS, "k") == [1.0, 0.0, 0.0]


async def test_another_dimension_is_refused_when_it_is_opened(make) -> None:
    async with make(dimension=3) as store:
        await store.put(NS, "k", 1)
    with pytest.raises(SchemaError, match="embeddings of 3 numbers, not 4"):
        await make(dimension=4).get(NS, "k")


async def test_a_table_that_may_not_be_made_is_asked_for(make) -> None:
    async with make():
        pass
    with pytest.raises(SchemaError, match="locus-store db vector-index --dimension 3"):
        await make(dimension=3, auto_migrate=False).setup()


async def test_who_has_no_embeddings_still_removes_old_ones(make) -> None:
    async with make() as plain:
        await plain.put(NS, "a", 1)
        async with make(dimension=3) as store:  # makes the table meanwhile
            for key in "abc":
                await store.put_with_embedding(NS, key, 1, [1, 0, 0])
            await plain.put(NS, "a", 2)
            await plain.delete(NS, "b")
            assert await store.get_embedding(NS, "a") is None
            assert [it.item.key for it in await store.search_by_embedding((), [1, 0, 0])] == ["c"]
            assert await plain.clear_namespace(NS) == 2
            assert await store.search_by_embedding((), [1, 0, 0]) == []


async def test_a_store_shares_the_connections_of_a_checkpointer(
    tmp_path, migrated_database
) -> None:
    made = (
        (sqlite_checkpointer(tmp_path / "a.db"), SQLiteStore),
        (postgresql_checkpointer(migrated_database), PostgreSQLStore),
    )
    for checkpointer, kind in made:
        async with checkpointer:
            store = kind(backend=checkpointer.backend, dimension=3)
            async with store:
                await store.put_with_embedding(NS, "k", 1, [1, 0, 0], {"user_id": "u"})
            assert await checkpointer.exists("t") is False
            assert (await checkpointer.backend.forget_user("u"))["store"] == 1
            assert await store.get(NS, "k") is None
            assert await store.search_by_embedding((), [1, 0, 0]) == []
        with pytest.raises(InvalidArgumentError, match="alone"):
            kind("place", backend=checkpointer.backend)
        with pytest.raises(InvalidArgumentError, match="must be a"):
            kind(backend=checkpointer)


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
async def test_scores_are_those_of_the_store_in_memory(make, metric) -> None:
    memory = InMemoryStore(dimension=8, metric=metric)
    async with make(dimension=8, metric=metric) as store:
        for it in (memory, store):
            await it.put_batch(items_of(300))
        for wanted in (None, {"n": {"$lt": 5}}, {"n": 1000}):
            target = items_of(1)[0][-1]
            found, reference = [
                [
                    (hit.item.key, hit.score)
                    for hit in await it.search_by_embedding(("v",), target, 20, filter=wanted)
                ]
                for it in (store, memory)
            ]
            assert found == reference


# --- a URL


async def test_a_url_names_a_store(tmp_path, migrated_database) -> None:
    path = tmp_path / "a.db"
    for url in (f"sqlite:///{path}?keep_last=3&tenant=t", f"{migrated_database}?keep_last=3"):
        async with open_store(url, dimension=3) as store:
            await store.put_with_embedding(NS, "k", 1, [1, 0, 0])
    async with open_store(f"sqlite:///{path}", tenant="t") as store:
        assert await store.get(NS, "k") == 1
    assert isinstance(open_store("memory://?keep_last=2", dimension=3), InMemoryStore)
    with pytest.raises(InvalidArgumentError, match=r"no store for file.*memory://.*sqlite://"):
        open_store("file:///somewhere")
    with pytest.raises(InvalidArgumentError, match="colour"):
        open_store("sqlite:///a.db?colour=red")


# --- SQLite


@pytest.mark.parametrize("metric", ["cosine", "l2"])
async def test_sqlite_vec_gives_the_same_as_numpy(tmp_path, metric) -> None:
    module = pytest.importorskip("pysqlite3.dbapi2", reason="no SQLite that loads extensions")
    pytest.importorskip("sqlite_vec")
    path = tmp_path / "a.db"
    options = {"dimension": 8, "metric": metric}
    engine = sa.create_engine(f"sqlite:///{path}", module=module, poolclass=NullPool)
    with engine.connect() as connection:
        assert loads_vec(connection)
    async with SQLiteStore(path, **options) as plain:
        await plain.put_batch(items_of(500))
        async with SQLiteStore(engine=engine, **options) as store:
            for wanted in (None, {"n": {"$lt": 5}}, {"even": False, "n": {"$ne": 7}}):
                for limit in (1, 10, 300):
                    target = items_of(2)[1][-1]
                    found, reference = [
                        await it.search_by_embedding(("v",), target, limit, filter=wanted)
                        for it in (store, plain)
                    ]
                    assert found == reference
    engine.dispose()


async def test_an_async_engine_serves_a_store(tmp_path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}", poolclass=NullPool)
    async with SQLiteStore(engine=engine, dimension=8) as store:
        await store.put_batch(items_of(10))
        assert len(await store.search_by_embedding((), items_of(1)[0][-1], filter={"n": 3})) == 1
        assert len(await store.search((), filter={"even": True})) == 5
    await engine.dispose()


# --- PostgreSQL


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
    store = PostgreSQLStore(migrated_database, pool_size=6, statement_timeout_seconds=2)
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


@asynccontextmanager
async def counted(store: PostgreSQLStore):
    """The statements that are sent meanwhile."""
    home = await store.backend._runner.home()
    sent: list[str] = []

    def note(*given: Any) -> None:
        sent.append(given[2])

    sa.event.listen(home._sync, "before_cursor_execute", note)
    yield sent
    sa.event.remove(home._sync, "before_cursor_execute", note)


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
            lambda: store.clear_namespace(("v", "u1")),
        )
        for call in calls:
            async with counted(store) as sent:
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


async def test_without_pgvector_everything_else_works(postgresql_tls) -> None:
    name = postgresql_tls.new_database()
    async with PostgreSQLStore(postgresql_tls.url(name), dimension=3) as store:
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


async def test_overlapping_changes_wait_in_one_order(make) -> None:
    """Batches, clears and renewals of the same names: nobody is told of a deadlock."""
    names = [(NS, f"k{it}") for it in range(20)]

    async def work(store: Any, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(6):
            chance.shuffle(names)
            await store.put_batch([(*it, seed, None, 60.0) for it in names])
            await store.renew(names)
            if chance.random() < 0.3:
                await store.clear_namespace(NS)

    async with make() as store:
        await asyncio.gather(*(work(store, seed) for seed in range(8)))


async def test_a_database_of_the_revision_before_names_the_command(database) -> None:
    migrate.upgrade(database, "0001")
    with pytest.raises(SchemaError, match=r"0001 is behind .* locus-store db upgrade"):
        await PostgreSQLStore(database).get(NS, "k")
    async with PostgreSQLStore(database, auto_migrate="upgrade", dimension=3) as store:
        assert store.capabilities.semantic_search
        assert await store.put_with_embedding(NS, "k", 1, [1, 0, 0]) == 1
