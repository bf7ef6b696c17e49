"""Saves and items inside a transaction of the user's: committed and undone with the user's rows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from locus_store import (
    BackendError,
    ConflictError,
    InvalidArgumentError,
    MemoryBackend,
    NotFoundError,
    PostgreSQLCheckpointSaver,
    PostgreSQLStore,
    SQLiteCheckpointSaver,
    SQLiteStore,
    StorageBackendAdapter,
    UnsupportedError,
    file_checkpointer,
    postgresql_checkpointer,
    sqlite_checkpointer,
)
from locus_store.backends.memory.backend import InMemoryStore
from locus_store.blocking import BlockingCheckpointer
from locus_store.runtime import retries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from locus_store.store import BaseStore

pytestmark = pytest.mark.anyio

ORDERS = sa.text("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
NEW = sa.text("INSERT INTO orders VALUES (:id)")


class UndoneError(Exception):
    """Ends a transaction of the user's."""


@dataclass
class World:
    """A database with a table of the user's."""

    engine: AsyncEngine | sa.Engine
    checkpointer: Any
    saver: Any
    store: BaseStore

    def begin(self, *, undo: bool = False) -> Any:
        """A transaction of the user's, rolled back at its end where ``undo`` says so."""
        return Begun(self.engine, undo=undo)

    async def orders(self) -> int:
        async with self.begin() as connection:
            return int((await execute(connection, sa.text("SELECT count(*) FROM orders"))).scalar())


class Begun:
    """``engine.begin()``, awaited or not."""

    def __init__(self, engine: AsyncEngine | sa.Engine, *, undo: bool) -> None:
        self._context: Any = engine.begin()
        self._undo = undo

    async def __aenter__(self) -> Any:
        context = self._context
        return await context.__aenter__() if hasattr(context, "__aenter__") else context.__enter__()

    async def __aexit__(self, *told: object) -> bool:
        context, is_undone = self._context, self._undo and told[0] is None
        if is_undone:
            told = (UndoneError, UndoneError(), None)
        if hasattr(context, "__aexit__"):
            await context.__aexit__(*told)
        else:
            context.__exit__(*told)
        return is_undone


async def execute(connection: Any, statement: Any, values: Any = None) -> Any:
    result = connection.execute(statement, values or {})
    return await result if hasattr(result, "__await__") else result


@pytest.fixture(
    params=["aiosqlite", "sqlite3", "sqlite3 with BEGIN", "asyncpg", "psycopg", "psycopg async"]
)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    kind = request.param
    engine: AsyncEngine | sa.Engine
    if "sqlite" in kind:
        path = tmp_path / "x.db"
        if kind == "aiosqlite":
            engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        else:
            engine = sa.create_engine(f"sqlite:///{path}")
        if kind.endswith("BEGIN"):  # as SQLAlchemy's manual has it for savepoints

            @sa.event.listens_for(engine, "connect")
            def leave(connection: Any, _: object) -> None:
                connection.isolation_level = None

            @sa.event.listens_for(engine, "begin")
            def begin(connection: sa.Connection) -> None:
                connection.exec_driver_sql("BEGIN")

        checkpointer = sqlite_checkpointer(path, state_type=dict)
        saver: Any = SQLiteCheckpointSaver(path)
        store: BaseStore = SQLiteStore(backend=checkpointer.backend)
    else:
        url = request.getfixturevalue("migrated_database")
        rest = url.partition("://")[2]
        if kind == "psycopg":
            engine = sa.create_engine(f"postgresql+psycopg://{rest}")
        else:
            driver = kind.partition(" ")[0]
            engine = create_async_engine(f"postgresql+{driver}://{rest}")
        checkpointer = postgresql_checkpointer(url, state_type=dict, pool_size=2)
        saver = PostgreSQLCheckpointSaver(url, pool_size=2)
        store = PostgreSQLStore(backend=checkpointer.backend)
    await checkpointer.save({"n": 0}, "t", "v0")
    made = World(engine, checkpointer, saver, store)
    async with made.begin() as connection:
        await execute(connection, ORDERS)
    yield made
    await checkpointer.close()
    await saver.close()
    if isinstance(engine, AsyncEngine):
        await engine.dispose()
    else:
        engine.dispose()


async def test_a_save_commits_with_the_users_rows(world: World) -> None:
    state = await world.checkpointer.load("t")
    state["n"] = 1
    async with world.begin() as connection:
        await execute(connection, NEW, {"id": 1})
        name = await world.checkpointer.save(state, "t", "v1", connection=connection)
        assert name == "v1"
        assert await world.checkpointer.load("t") == {"n": 0}, "others see what is committed"
    assert await world.checkpointer.load("t") == {"n": 1}
    assert await world.checkpointer.list_checkpoints("t") == ["v1", "v0"]
    assert await world.orders() == 1


async def test_a_save_is_undone_with_the_users_rows(world: World) -> None:
    state = await world.checkpointer.load("t")
    state["n"] = 1
    async with world.begin(undo=True) as connection:
        await world.checkpointer.save(state, "t", "v1", connection=connection)
        await world.checkpointer.save({"n": 5}, "new", "w0", connection=connection)
        await execute(connection, NEW, {"id": 1})
    assert await world.checkpointer.list_threads() == ["t"]
    assert await world.checkpointer.load("t") == {"n": 0}
    assert await world.orders() == 0
    # What was undone is remembered by nobody: the same object and state go on.
    await world.checkpointer.save(state, "t", "v1")
    state["n"] = 2
    await world.checkpointer.save(state, "t", "v2")
    assert await world.checkpointer.load("t") == {"n": 2}
    assert await world.checkpointer.list_checkpoints("t") == ["v2", "v1", "v0"]
    assert await world.checkpointer.load("new") is None


async def test_several_saves_share_the_users_transaction(world: World) -> None:
    large = {"said": [f"line {number}" for number in range(200)], "n": 0}
    state = await world.checkpointer.load("t")
    async with world.begin() as connection:
        for number in range(3):
            state |= {**large, "n": number}
            await world.checkpointer.save(state, "t", f"w{number}", connection=connection)
        await world.checkpointer.save({"first": True}, "new", "n0", connection=connection)
    assert await world.checkpointer.list_checkpoints("t") == ["w2", "w1", "w0", "v0"]
    assert (await world.checkpointer.load("t", "w1"))["n"] == 1
    assert await world.checkpointer.load("new") == {"first": True}
    await world.checkpointer.save({**large, "n": 9}, "t", "w9", on_conflict="overwrite")
    assert (await world.checkpointer.load("t"))["n"] == 9


async def test_the_users_transaction_waits_for_no_save_that_waits_for_it(world: World) -> None:
    async with world.begin() as connection:
        await world.checkpointer.save({"n": 1}, "new", "n1", connection=connection)
        other = asyncio.ensure_future(world.checkpointer.save({"n": 1}, "other"))
        await asyncio.sleep(0)  # on SQLite, it waits for the end of the transaction
        await world.checkpointer.save({"n": 2}, "new", "n2", connection=connection)
        await world.store.put(("a",), "k", {"n": 1}, connection=connection)
    await other
    assert await world.checkpointer.list_checkpoints("new") == ["n2", "n1"]


async def test_a_conflict_leaves_the_users_transaction_usable(world: World) -> None:
    mine = await world.checkpointer.load("t")
    await world.checkpointer.backend.save("t", {"n": 1}, checkpoint_id="v1")
    mine["n"] = 2
    async with world.begin() as connection:
        await execute(connection, NEW, {"id": 1})
        with pytest.raises(ConflictError):
            await world.checkpointer.save(mine, "t", connection=connection)
        with pytest.raises(NotFoundError):
            await world.checkpointer.save(
                mine, "t", parent_checkpoint_id="none", connection=connection
            )
        await execute(connection, NEW, {"id": 2})
    assert await world.orders() == 2
    assert await world.checkpointer.list_checkpoints("t") == ["v1", "v0"]


@pytest.mark.parametrize("world", ["asyncpg", "psycopg", "psycopg async"], indirect=True)
async def test_a_transaction_that_has_failed_is_to_be_rolled_back(world: World) -> None:
    async with world.begin(undo=True) as connection:
        with pytest.raises(sa.exc.DBAPIError):
            await execute(connection, sa.text("SELECT 1 / 0"))
        with pytest.raises(BackendError, match="of this connection has failed; roll it back"):
            await world.checkpointer.save({"n": 1}, "t", connection=connection)


@pytest.mark.parametrize("world", ["sqlite3 with BEGIN"], indirect=True)
async def test_a_transaction_that_read_before_another_wrote_is_to_be_rolled_back(
    world: World,
) -> None:
    async with world.begin(undo=True) as connection:
        await execute(connection, sa.text("SELECT * FROM orders"))
        await world.checkpointer.save({"n": 1}, "other")
        with pytest.raises(BackendError, match="roll it back and run it again"):
            await world.checkpointer.save({"n": 1}, "t", connection=connection)


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("world", ["asyncpg", "psycopg", "psycopg async"], indirect=True)
async def test_a_transaction_with_a_snapshot_from_before_another_wrote_is_to_be_rolled_back(
    world: World, level: str, new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its save was run again for five seconds, in the same snapshot."""
    monkeypatch.delattr(retries, "pause")
    thread = "new" if new else "t"
    async with world.begin(undo=True) as connection:
        await execute(connection, sa.text(f"SET TRANSACTION ISOLATION LEVEL {level}"))
        await execute(connection, sa.text("SELECT * FROM orders"))
        await world.checkpointer.save({"n": 1}, thread)
        await world.store.put(("a",), "k", {"n": 1})
        with pytest.raises(BackendError, match=f"{level}.*roll it back and run it again"):
            await world.checkpointer.save({"n": 2}, thread, connection=connection)
        with pytest.raises(BackendError, match=f"{level}.*roll it back and run it again"):
            await world.store.put(("a",), "k", {"n": 2}, connection=connection)
        await execute(connection, NEW, {"id": 1})


async def test_a_steps_put_shares_the_users_transaction(world: World) -> None:
    step: dict[str, Any] = {"thread_id": "g", "checkpoint_data": {"channel_values": {"a": 1}}}
    async with world.begin(undo=True) as connection:
        await world.saver.put(**step, checkpoint_id="c1", connection=connection)
    assert await world.saver.get(thread_id="g") is None
    async with world.begin() as connection:
        await world.saver.put(**step, checkpoint_id="c1", connection=connection)
        await execute(connection, NEW, {"id": 1})
    found = await world.saver.get(thread_id="g")
    assert found["checkpoint_id"] == "c1"


async def test_items_share_the_users_transaction(world: World) -> None:
    store = world.store
    await store.put(("a",), "old", {"n": 0})
    async with world.begin(undo=True) as connection:
        assert await store.put(("a",), "k", {"n": 1}, connection=connection) == 1
        assert await store.delete(("a",), "old", connection=connection)
        await store.put_batch([(("a",), "x", 1), (("a",), "y", 2)], connection=connection)
    assert await store.list_keys(("a",)) == ["old"]
    async with world.begin() as connection:
        await execute(connection, NEW, {"id": 1})
        await store.put(("a",), "k", {"n": 1}, connection=connection)
        with pytest.raises(ConflictError):
            await store.put(("a",), "old", 5, expected_version=7, connection=connection)
        await store.delete(("a",), "old", connection=connection)
    assert await store.list_keys(("a",)) == ["k"]
    assert await world.orders() == 1


async def test_a_connection_in_autocommit_is_refused(world: World) -> None:
    engine: Any = world.engine.execution_options(isolation_level="AUTOCOMMIT")
    context = engine.connect()
    connection = await context if isinstance(engine, AsyncEngine) else context
    try:
        with pytest.raises(InvalidArgumentError, match="AUTOCOMMIT"):
            await world.checkpointer.save({"n": 1}, "t", connection=connection)
    finally:
        closing = connection.close()
        if closing is not None:
            await closing
    assert await world.checkpointer.load("t") == {"n": 0}


async def test_an_engine_in_autocommit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    asynchronous = create_async_engine(f"sqlite+aiosqlite:///{path}", isolation_level="AUTOCOMMIT")
    blocking = sa.create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 0}, "t", "v0")
        async with asynchronous.begin() as connection:
            with pytest.raises(InvalidArgumentError, match="AUTOCOMMIT"):
                await checkpointer.save({"n": 1}, "t", connection=connection)
        with blocking.begin() as begun, pytest.raises(InvalidArgumentError, match="AUTOCOMMIT"):
            await checkpointer.save({"n": 1}, "t", connection=begun)
        assert await checkpointer.list_checkpoints("t") == ["v0"]
    await asynchronous.dispose()
    blocking.dispose()


async def test_a_tenants_save_is_the_tenants(world: World) -> None:
    theirs = world.checkpointer.for_tenant("theirs")
    async with world.begin() as connection:
        await theirs.save({"n": 7}, "t", "w0", connection=connection)
    assert await theirs.load("t") == {"n": 7}
    assert await world.checkpointer.load("t") == {"n": 0}


async def test_a_connection_to_another_database_is_refused(world: World, tmp_path: Path) -> None:
    other = sqlite_checkpointer(tmp_path / "other.db", state_type=dict)
    await other.save({"n": 1}, "t", "v0")
    async with world.begin() as connection:
        with pytest.raises(InvalidArgumentError, match=r"another database|is of postgresql"):
            await other.save({"n": 2}, "t", connection=connection)
        await execute(connection, NEW, {"id": 1})
    assert await other.list_checkpoints("t") == ["v0"]
    assert await world.checkpointer.list_checkpoints("t") == ["v0"]
    assert await world.orders() == 1
    await other.close()
    empty = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'empty.db'}")
    async with empty.begin() as connection:
        with pytest.raises(InvalidArgumentError, match=r"another database|is of sqlite"):
            await world.checkpointer.save({"n": 2}, "t", connection=connection)
    await empty.dispose()


@pytest.mark.parametrize("wrong", ["x.db", 5, object()])
async def test_what_is_not_a_connection_is_refused(wrong: object, tmp_path: Path) -> None:
    async with sqlite_checkpointer(tmp_path / "x.db", state_type=dict) as checkpointer:
        with pytest.raises(InvalidArgumentError, match="AsyncConnection"):
            await checkpointer.save({"n": 1}, "t", connection=wrong)
        assert not await checkpointer.exists("t")


async def test_backends_without_sql_refuse_a_connection(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    memory = StorageBackendAdapter(MemoryBackend(), state_type=dict)
    with engine.begin() as connection:
        for checkpointer in (memory, file_checkpointer(tmp_path / "files", state_type=dict)):
            with pytest.raises(UnsupportedError, match="SQLite, PostgreSQL or Oracle"):
                await checkpointer.save({"n": 1}, "t", connection=connection)
            assert not await checkpointer.exists("t")
            await checkpointer.close()
        with pytest.raises(UnsupportedError, match="SQLite, PostgreSQL or Oracle"):
            await InMemoryStore().put(("a",), "k", 1, connection=connection)
    engine.dispose()


def test_code_without_an_event_loop_shares_its_transaction(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with BlockingCheckpointer(sqlite_checkpointer(path, state_type=dict)) as checkpointer:
        checkpointer.save({"n": 0}, "t", "v0")
        with engine.begin() as connection:
            connection.execute(ORDERS)
            checkpointer.save({"n": 1}, "t", "v1", connection=connection)
        assert checkpointer.load("t") == {"n": 1}
        with engine.connect() as connection:
            checkpointer.save({"n": 2}, "t", "v2", connection=connection)
            connection.rollback()
        assert checkpointer.load("t") == {"n": 1}
        made = create_async_engine(f"sqlite+aiosqlite:///{path}")
        with pytest.raises(InvalidArgumentError, match="sync engine"):
            checkpointer.save({"n": 2}, "t", "v2", connection=made.connect())
    engine.dispose()


async def test_a_large_state_is_saved_on_the_only_connection_of_a_pool(
    migrated_database: str,
) -> None:
    engine = create_async_engine(
        migrated_database.replace("postgresql://", "postgresql+asyncpg://"),
        pool_size=1,
        max_overflow=0,
        pool_timeout=5,
    )
    async with postgresql_checkpointer(engine=engine, state_type=dict) as checkpointer:
        await checkpointer.open()
        async with engine.begin() as connection:
            await checkpointer.save({"text": "x" * 200_000}, "t", connection=connection)
        assert await checkpointer.exists("t")
    await engine.dispose()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///shared.db"])
async def test_a_connection_that_others_share_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = sa.create_engine(url, poolclass=sa.pool.StaticPool)
    async with sqlite_checkpointer(engine=engine, state_type=dict) as checkpointer:
        with engine.begin() as connection, pytest.raises(InvalidArgumentError, match="share one"):
            await checkpointer.save({"n": 1}, "t", connection=connection)
    engine.dispose()
