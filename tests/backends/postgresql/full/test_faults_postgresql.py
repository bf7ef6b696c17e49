"""PostgreSQL with everything that goes wrong around it: typed errors, and then it goes on."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import ref

import asyncpg
import pytest
import servers
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    LocusStoreError,
    SchemaError,
    TurnError,
    blocking,
    postgresql_checkpointer,
    versions,
)
from locus_store.backends.postgresql import dialect
from locus_store.backends.postgresql.dialect import PostgreSQLDatabase
from locus_store.sql import migrate
from locus_store.types import Vacuumed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60.0
STATE = {"said": ["a"]}


def opened(url: str, **options: Any) -> Any:
    return postgresql_checkpointer(url, **{"state_type": dict, "pool_size": 4, **options})


def name_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def home_of(checkpointer: Any) -> Any:
    return checkpointer.backend._runner._pools._resources[asyncio.get_running_loop()]


def connections_out(checkpointer: Any) -> int:
    found: int = home_of(checkpointer)._sync.pool.checkedout()
    return found


async def eventually(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < limit, "it never came true"
        await asyncio.sleep(0.001)


async def in_time(work: Awaitable[Any]) -> Any:
    """Fail a test that hangs."""
    return await asyncio.wait_for(work, DEADLINE_SECONDS)


@asynccontextmanager
async def session(url: str, *statements: str) -> AsyncIterator[asyncpg.Connection]:
    """Another one, in a transaction that has done the statements; it is undone."""
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        for statement in statements:
            await connection.execute(statement)
        yield connection
        await transaction.rollback()
    finally:
        await connection.close()


def locked(*threads: str) -> str:
    names = ", ".join(f"'/{it}'" if it.startswith("/") else f"'{it}'" for it in threads)
    return f"SELECT line FROM locus_lines WHERE thread_id IN ({names}) FOR UPDATE"


async def waiting(url: str, count: int = 1) -> None:
    """Until so many statements wait for a lock."""
    connection = await asyncpg.connect(url)
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    try:
        limit = time.monotonic() + DEADLINE_SECONDS
        while await connection.fetchval(query) < count:
            assert time.monotonic() < limit, "nothing waits"
            await asyncio.sleep(0.005)
    finally:
        await connection.close()


@pytest.fixture
def proxy(postgresql: servers.Server) -> Iterator[servers.Proxy]:
    made = servers.Proxy(postgresql.port, postgresql.host)
    yield made
    made.close()


@pytest.fixture
def proxied(
    proxy: servers.Proxy, postgresql: servers.Server, migrated_database: str
) -> Iterator[str]:
    """URL of a database of ours, by way of the proxy."""
    yield proxy.url(postgresql, name_of(migrated_database))
    proxy.release()


# --- connections


@pytest.mark.parametrize("what", ["save", "load", "list_checkpoints", "delete"])
async def test_connections_lost_while_idle_are_nobodys_concern(
    what: str, proxied: str, proxy: servers.Proxy
) -> None:
    calls = {
        "save": lambda: checkpointer.save({"said": ["b"]}, "t", "v2"),
        "load": lambda: checkpointer.load("t"),
        "list_checkpoints": lambda: checkpointer.list_checkpoints("t"),
        "delete": lambda: checkpointer.delete("t", "v0"),
    }
    expected = {"save": "v2", "load": STATE, "list_checkpoints": ["v1", "v0"], "delete": True}
    async with opened(proxied) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        await checkpointer.save(STATE, "t", "v1")
        await asyncio.gather(*(checkpointer.load("t") for _ in range(8)))
        proxy.drop()
        assert await calls[what]() == expected[what]
        assert connections_out(checkpointer) == 0


async def test_a_black_hole_is_a_typed_error_for_each_call_and_then_forgotten(
    proxied: str, proxy: servers.Proxy
) -> None:
    limits = {"statement_timeout_seconds": 0.3, "connect_timeout_seconds": 0.3}
    async with opened(proxied, **limits) as checkpointer:
        await until_saved(checkpointer, STATE, "v0")
        proxy.hold()
        for call in (
            checkpointer.save({"said": ["b"]}, "t", "v1"),
            checkpointer.load("t"),
            checkpointer.delete("t", "v0"),
            checkpointer.list_threads(),
        ):
            with pytest.raises((ConnectionFailedError, BackendError)):
                await in_time(call)
        assert connections_out(checkpointer) == 0
        proxy.release()
        await until_saved(checkpointer, {"said": ["b"]}, "v1")
    async with opened(proxied) as checkpointer:
        assert await checkpointer.list_checkpoints("t") == ["v1", "v0"]


@pytest.mark.usefixtures("unhurried")
async def test_the_error_of_a_save_that_was_done_but_not_answered_in_time_leaves_that_open(
    proxied: str, proxy: servers.Proxy, migrated_database: str
) -> None:
    """It said that the statement was cancelled."""
    async with opened(proxied, statement_timeout_seconds=3, pool_size=1) as checkpointer:
        for name in ("v0", "v1"):  # the second one prepares the statement
            await until_saved(checkpointer, {"n": name}, name)
        proxy.swallow_replies()
        with pytest.raises(BackendError, match="the outcome of a save is unknown"):
            await in_time(checkpointer.save({"n": "v2"}, "t", "v2"))
        proxy.release()
    async with opened(migrated_database) as checkpointer:
        assert await checkpointer.list_checkpoints("t") == ["v2", "v1", "v0"]


async def until_saved(checkpointer: Any, state: Any, name: str) -> None:
    """Save with limits that a busy machine may exceed."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            with suppress(BackendError, ConnectionFailedError):
                await checkpointer.save(state, "t", name)
                return


async def test_a_black_hole_delays_no_close_for_long(proxied: str, proxy: servers.Proxy) -> None:
    checkpointer = opened(proxied)
    await checkpointer.save(STATE, "t")
    proxy.hold()
    await in_time(checkpointer.close())


async def test_the_time_to_connect_is_the_users_to_choose(
    proxied: str, proxy: servers.Proxy
) -> None:
    proxy.hold()
    async with opened(proxied, connect_timeout_seconds=0.2) as checkpointer:
        with pytest.raises(ConnectionFailedError, match="no answer in time"):
            await in_time(checkpointer.load("t"))


async def test_a_statement_that_takes_too_long_is_told_and_its_connection_goes_on(
    migrated_database: str,
) -> None:
    async with opened(
        migrated_database, statement_timeout_seconds=0.2, pool_size=1
    ) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        async with session(migrated_database, "LOCK TABLE locus_checkpoints"):
            for call in (checkpointer.load("t"), checkpointer.save(STATE, "t", "v1")):
                with pytest.raises(BackendError, match="took longer than its timeout"):
                    await in_time(call)
        assert await checkpointer.load("t") == STATE
        assert await checkpointer.list_checkpoints("t") == ["v0"]
        assert connections_out(checkpointer) == 0


async def test_a_session_that_an_administrator_ends_is_nobodys_concern(
    migrated_database: str, postgresql: servers.Server
) -> None:
    async with opened(migrated_database) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        async with session(migrated_database, "LOCK TABLE locus_lines"):
            save = asyncio.create_task(checkpointer.save({"said": ["b"]}, "t", "v1"))
            await waiting(migrated_database)
            postgresql.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{name_of(migrated_database)}' AND wait_event_type = 'Lock'"
            )
        assert await in_time(save) == "v1"
        assert await checkpointer.list_checkpoints("t") == ["v1", "v0"]


async def test_a_delete_whose_connection_was_lost_before_its_commit_is_done_again(
    proxied: str, migrated_database: str, proxy: servers.Proxy
) -> None:
    async with opened(proxied) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        await checkpointer.save({"said": ["b"]}, "t", "v1")
        async with session(migrated_database, locked("t")):
            delete = asyncio.create_task(checkpointer.delete("t", "v0"))
            await waiting(migrated_database)
            proxy.drop()
        assert await in_time(delete) is True
        assert await checkpointer.list_checkpoints("t") == ["v1"]


async def test_one_connection_serves_64_tasks(migrated_database: str) -> None:
    async def work(number: int) -> None:
        for step in range(3):
            await checkpointer.save({"step": step}, f"t{number}", f"v{step}")
            assert await checkpointer.load(f"t{number}", f"v{step}") == {"step": step}

    async with opened(migrated_database, pool_size=1) as checkpointer:
        await in_time(asyncio.gather(*(work(it) for it in range(64))))
        assert len(await checkpointer.list_threads(limit=100)) == 64
        assert connections_out(checkpointer) == 0


# --- saves in groups


async def test_a_line_locked_for_long_delays_no_other_threads_saves(
    migrated_database: str,
) -> None:
    async with opened(migrated_database) as checkpointer:
        for thread in ("held", "a", "b"):
            await checkpointer.save(STATE, thread, "v0")
        async with session(migrated_database, locked("held")):
            held = asyncio.create_task(checkpointer.save({"said": ["b"]}, "held", "v1"))
            others = (checkpointer.save({"said": ["b"]}, it, "v1") for it in "ab")
            assert await in_time(asyncio.gather(*others)) == ["v1", "v1"]
            await waiting(migrated_database)
            assert await in_time(checkpointer.save({"said": ["c"]}, "a", "v2")) == "v2"
            assert not held.done()
        assert await in_time(held) == "v1"
        assert await checkpointer.load("held") == {"said": ["b"]}


async def test_lines_locked_one_by_one_delay_no_other_threads_saves(
    migrated_database: str,
) -> None:
    names = ["held-1", "held-2", "held-3"]
    lines = [f"line {it}" for it in range(50)]
    async with opened(migrated_database, pool_size=8) as checkpointer:
        for thread in (*names, "free"):
            await checkpointer.save({"lines": lines}, thread, "v0")
        async with session(migrated_database, locked(*names)):
            held = []
            for number, thread in enumerate(names, 1):
                save = checkpointer.save({"lines": [*lines, "b"]}, thread, "v1")
                held.append(asyncio.create_task(save))
                await waiting(migrated_database, number)
            assert await in_time(checkpointer.save({"lines": [*lines, "b"]}, "free", "v1")) == "v1"
            assert not any(it.done() for it in held)
        assert await in_time(asyncio.gather(*held)) == ["v1"] * 3


@pytest.mark.parametrize("group", [True, False])
async def test_what_the_server_refuses_in_a_group_fails_alone(
    group: bool, migrated_database: str, postgresql: servers.Server
) -> None:
    postgresql.execute(
        "ALTER TABLE locus_checkpoints ADD CHECK (NOT metadata ? 'refused')",
        name_of(migrated_database),
    )
    async with opened(migrated_database, group_saves=group) as checkpointer:
        for thread in range(0, 16, 2):
            await checkpointer.save(STATE, f"t{thread}", "v0")
        saves = (
            checkpointer.save({"said": ["b"]}, f"t{it}", "v1", {"refused": 1} if it == 5 else {})
            for it in range(16)
        )
        answers = await in_time(asyncio.gather(*saves, return_exceptions=True))
        refused = answers.pop(5)
        assert isinstance(refused, BackendError)
        assert answers == ["v1"] * 15
        assert await checkpointer.load("t5") is None
        assert await checkpointer.load("t6") == {"said": ["b"]}
        assert connections_out(checkpointer) == 0


async def test_saves_that_deadlock_with_others_are_done_again(migrated_database: str) -> None:
    """Another session takes what a transaction of ours waits for, in the other order."""
    async with opened(migrated_database) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        async with session(
            migrated_database,
            "SET LOCAL deadlock_timeout = '10s'",
            "SELECT FROM locus_threads FOR UPDATE",
        ) as other:
            delete = asyncio.create_task(checkpointer.delete("t"))
            await waiting(migrated_database)
            await other.execute(locked("t"))
        assert await in_time(delete) is True
        assert await checkpointer.load("t") is None


# --- cancelled callers


def in_clear(url: str) -> str:
    """asyncpg leaves a future of its own behind when it is cancelled while it asks for TLS."""
    return f"{url}?sslmode=disable"


@pytest.mark.parametrize("what", ["save", "first save", "load", "delete"])
async def test_a_call_cancelled_at_any_point_keeps_no_connection(
    what: str, migrated_database: str
) -> None:
    acknowledged: list[str] = ["v"]
    async with opened(in_clear(migrated_database), pool_size=2) as checkpointer:
        await checkpointer.save(STATE, "t", "v")

        async def call(n: int) -> None:
            if what == "load":
                await checkpointer.load("t", "v")
            elif what == "delete":
                await checkpointer.delete("t", f"v{n}")
            else:
                thread = "t" if what == "save" else f"t{n}"
                acknowledged.append(await checkpointer.save({"n": n}, thread, f"v{n}"))

        for n in range(60):
            task = asyncio.create_task(call(n))
            for _ in range(n // 2):
                await asyncio.sleep(0)
            if n % 2:
                await asyncio.sleep(0.0001 * n)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await eventually(lambda: connections_out(checkpointer) == 0)
        await in_time(checkpointer.save({"last": True}, "t", "last", {}))
        for checkpoint_id in acknowledged:
            is_one = what != "first save" or checkpoint_id == "v"
            thread = "t" if is_one else f"t{checkpoint_id[1:]}"
            assert await checkpointer.exists(thread, checkpoint_id)


async def test_a_connection_is_opened_again_after_its_opening_was_cancelled(
    migrated_database: str,
) -> None:
    async with opened(in_clear(migrated_database), pool_size=1) as checkpointer:
        for n in range(60):
            task = asyncio.create_task(checkpointer.load("t"))
            for _ in range(n):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            if n % 10 == 9:
                await checkpointer.close()
        assert await in_time(checkpointer.load("t")) is None
        assert connections_out(checkpointer) == 0


async def test_when_all_tasks_of_a_loop_are_cancelled_its_threads_can_still_be_saved(
    migrated_database: str,
) -> None:
    ours = asyncio.all_tasks()
    async with opened(migrated_database, pool_size=2) as checkpointer:
        await checkpointer.save(STATE, "t")
        for n in range(20):
            saves = [
                asyncio.create_task(
                    checkpointer.save({"n": [n, it]}, f"t{it % 20}", on_conflict="overwrite")
                )
                for it in range(40)
            ]
            for _ in range(n):
                await asyncio.sleep(0)
            others = asyncio.all_tasks() - ours
            for task in others:
                task.cancel()
            await asyncio.gather(*others, *saves, return_exceptions=True)
            again = (
                checkpointer.save({"n": n}, f"t{it}", on_conflict="overwrite") for it in range(20)
            )
            await in_time(asyncio.gather(*again))
        assert connections_out(checkpointer) == 0


# --- what is handed in, and what is left behind


async def test_an_engine_that_was_handed_in_is_left_open(migrated_database: str) -> None:
    engine = create_async_engine(migrated_database.replace("://", "+asyncpg://"))
    async with postgresql_checkpointer(engine=engine, state_type=dict) as checkpointer:
        await checkpointer.save(STATE, "t")
    assert engine.sync_engine.pool.checkedout() == 0
    assert engine.sync_engine.pool.checkedin() > 0
    async with engine.connect() as connection:
        assert await connection.scalar(sa.text("SELECT count(*) FROM locus_checkpoints")) == 1
    assert await checkpointer.load("t") == STATE
    await engine.dispose()


async def test_a_pool_that_was_handed_in_is_left_open(migrated_database: str) -> None:
    async with asyncpg.create_pool(migrated_database, min_size=1, max_size=2) as pool:
        async with postgresql_checkpointer(pool=pool, state_type=dict) as checkpointer:
            saves = (checkpointer.save(STATE, f"t{it}") for it in range(20))
            await in_time(asyncio.gather(*saves))
        assert pool.get_idle_size() == pool.get_size()
        assert await pool.fetchval("SELECT count(*) FROM locus_checkpoints") == 20
        assert await checkpointer.load("t0") == STATE


def test_a_loop_that_ended_leaves_nothing_behind(
    migrated_database: str, postgresql: servers.Server
) -> None:
    checkpointer = opened(migrated_database)
    homes = []

    async def turn(closes: bool) -> None:
        await checkpointer.save(STATE, "t", on_conflict="overwrite")
        homes.append(ref(home_of(checkpointer)))
        if closes:
            await checkpointer.close()

    for closes in (True, False, True):
        asyncio.run(turn(closes))

    def are_free() -> bool:
        gc.collect()
        return not any(it() for it in homes)

    try:
        servers.wait_until(are_free, "what the loops had to be free")
    except TimeoutError:
        held_by = [[*map(repr, gc.get_referrers(it()))] for it in homes if it() is not None]
        pytest.fail(f"homes are held by {held_by}")
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1"
    servers.wait_until(
        lambda: not postgresql.value(query, name_of(migrated_database)), "connections to end"
    )


# --- passwords, PgBouncer


@pytest.fixture(scope="module")
def guarded() -> Iterator[servers.PostgreSQL]:
    """Asks for passwords."""
    try:
        server = servers.PostgreSQL(hba="host all all 127.0.0.1/32 scram-sha-256\n")
    except servers.UnavailableError as error:
        servers.missing(error)
    yield server
    server.stop()


async def test_a_password_may_change_in_mid_use(guarded: servers.PostgreSQL) -> None:
    name = guarded.new_database(template=guarded.migrated_template())
    guarded.execute("CREATE ROLE keeper SUPERUSER LOGIN PASSWORD 'old'")
    known = {"password": "old"}

    async def password() -> str:
        return known["password"]

    url = guarded.url(name, user="keeper")
    async with opened(url, password=password) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        guarded.execute("ALTER ROLE keeper PASSWORD 'new'")
        await checkpointer.save({"said": ["b"]}, "t", "v1")
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'keeper'"
        guarded.execute(end)
        with pytest.raises(ConnectionFailedError) as told:
            await checkpointer.load("t")
        assert "old" not in str(told.value)
        known["password"] = "new"  # noqa: S105  (made up)
        await checkpointer.save({"said": ["c"]}, "t", "v2")
        assert await checkpointer.list_checkpoints("t") == ["v2", "v1", "v0"]


async def work_of(checkpointer: Any) -> None:
    for step in range(50):
        thread = f"t{step % 5}"
        await checkpointer.save({"step": step}, thread, on_conflict="overwrite")
        answers = await asyncio.gather(*(checkpointer.load(thread) for _ in range(4)))
        assert answers == [{"step": step}] * 4


async def test_a_pooler_that_nobody_told_of_is_named_in_the_error(
    pgbouncer: servers.PgBouncer, migrated_database: str
) -> None:
    name = name_of(migrated_database)
    async with opened(pgbouncer.url(name)) as checkpointer:
        with pytest.raises(BackendError, match="pgbouncer=true"):
            await work_of(checkpointer)
    async with opened(pgbouncer.url(name, pgbouncer="true")) as checkpointer:
        await work_of(checkpointer)


# --- the database itself


async def test_tables_that_are_gone_are_told_and_used_again_once_they_are_back(
    migrated_database: str, postgresql: servers.Server
) -> None:
    async with opened(migrated_database, auto_migrate=False) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        postgresql.execute(
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public", name_of(migrated_database)
        )
        for call in (
            checkpointer.save(STATE, "t", "v1"),
            checkpointer.load("t"),
            checkpointer.delete("t"),
            checkpointer.list_threads(),
        ):
            with pytest.raises(SchemaError):
                await in_time(call)
        await asyncio.to_thread(migrate.upgrade, migrated_database)
        with suppress(SchemaError):  # the first one may tell that this is another database
            await checkpointer.load("t")
        assert await checkpointer.load("t") is None
        await checkpointer.save(STATE, "u", "v0")
        assert await checkpointer.load("u") == STATE
        assert connections_out(checkpointer) == 0


async def test_a_database_that_is_gone_is_told(
    migrated_database: str, postgresql: servers.Server
) -> None:
    async with opened(migrated_database) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        postgresql.drop_database(name_of(migrated_database))
        for call in (checkpointer.save(STATE, "t", "v1"), checkpointer.load("t")):
            with pytest.raises(ConnectionFailedError):
                await in_time(call)


async def test_another_database_in_the_place_of_ours_gets_no_frames_of_the_old_one(
    migrated_database: str, postgresql: servers.Server
) -> None:
    name = name_of(migrated_database)
    async with opened(migrated_database) as checkpointer:
        lines = [f"line {it}" for it in range(50)]
        for step in range(3):
            await checkpointer.save({"lines": lines, "step": step}, "t", f"v{step}")
        state = await checkpointer.load("t")
        postgresql.drop_database(name)
        postgresql.execute(f'CREATE DATABASE {name} TEMPLATE "{postgresql.migrated_template()}"')
        # The template is the same, and so is its identity: this is a backup put back, or another.
        postgresql.execute(
            "UPDATE locus_settings SET value = gen_random_uuid()::text WHERE name = 'store_id'",
            name,
        )
        async with opened(migrated_database) as other:
            for step in range(3):
                await other.save({"other": [step]}, "t", f"w{step}")
        state["step"] = 4
        with pytest.raises((SchemaError, ConflictError, ConnectionFailedError)):
            await checkpointer.save(state, "t", "v4")
        assert await checkpointer.load("t") == {"other": [2]}
        await checkpointer.save({"other": [2], "mine": True}, "t", "v5")
        assert await checkpointer.load("t") == {"other": [2], "mine": True}
        assert await checkpointer.load("t", "w1") == {"other": [1]}


async def test_a_backup_put_back_under_an_open_object_is_noticed(
    migrated_database: str, postgresql: servers.Server
) -> None:
    name = name_of(migrated_database)
    backup = None
    try:
        async with opened(migrated_database) as checkpointer:
            await checkpointer.save({"lines": ["a"] * 50, "step": 0}, "t", "v0")
            await checkpointer.close()
            backup = postgresql.new_database(template=name)
            for step in (1, 2):
                await checkpointer.save({"lines": ["a"] * 50, "step": step}, "t", f"v{step}")
            state = await checkpointer.load("t")
            await checkpointer.close()
            postgresql.drop_database(name)
            postgresql.execute(f"CREATE DATABASE {name} TEMPLATE {backup}")
            with pytest.raises(ConflictError):
                await checkpointer.save({**state, "step": 3}, "t", "v3")
            async with opened(migrated_database) as other:
                for step in (1, 2):
                    await other.save({"lines": ["b"] * 50, "step": step}, "t", f"w{step}")
            with pytest.raises(ConflictError):
                await checkpointer.save({**state, "step": 3}, "t", "v3")
            assert await checkpointer.load("t") == {"lines": ["b"] * 50, "step": 2}
    finally:
        if backup is not None:
            postgresql.drop_database(backup)


async def test_a_table_that_changes_under_prepared_statements_is_no_error(
    migrated_database: str, postgresql: servers.Server
) -> None:
    """As a migration does that only adds, while everybody goes on."""
    async with opened(migrated_database, pool_size=2) as checkpointer:
        for step in range(3):
            await checkpointer.save({"step": step}, "t", f"v{step}")
            await checkpointer.load("t")
            await checkpointer.query_by_metadata("a", 1)
            await checkpointer.delete("t", f"v{step - 1}")
            for table in ("threads", "lines", "checkpoints", "settings"):
                postgresql.execute(
                    f"ALTER TABLE locus_{table} ADD COLUMN extra{step} bigint",
                    name_of(migrated_database),
                )
            await checkpointer.save({"more": step}, "t", f"w{step}")
            assert await checkpointer.load("t") == {"more": step}
            assert await checkpointer.delete("t", f"v{step}")
            assert await checkpointer.list_threads() == ["t"]


async def test_errors_are_ours_whatever_is_called_without_a_server() -> None:
    url = f"postgresql://postgres@{servers.LOOPBACK}:{servers.free_port()}/none"
    async with opened(url) as checkpointer:
        for call in (
            checkpointer.save(STATE, "t"),
            checkpointer.load("t"),
            checkpointer.delete("t"),
            checkpointer.list_threads(),
            checkpointer.search("a"),
            checkpointer.vacuum(),
            checkpointer.copy_thread("t", "u"),
            checkpointer.query_by_metadata("a", 1),
        ):
            with pytest.raises(LocusStoreError) as told:
                await call
            assert isinstance(told.value, ConnectionFailedError)


async def test_saves_that_wait_for_one_locked_thread_share_one_timeout(
    migrated_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that a save may take is counted from its submission, not from its turn."""
    given: list[float] = []
    begin = PostgreSQLDatabase.begin_write

    def noted(self: PostgreSQLDatabase, connection: sa.Connection, seconds: float) -> None:
        given.append(seconds)
        begin(self, connection, seconds)

    monkeypatch.setattr(PostgreSQLDatabase, "begin_write", noted)
    async with opened(migrated_database, statement_timeout_seconds=0.5) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        async with session(migrated_database, locked("t")):
            saves = (checkpointer.save({"said": [it]}, "t", f"w{it}") for it in "abc")
            answers = await in_time(asyncio.gather(*saves, return_exceptions=True))
            assert [type(it) for it in answers] == [BackendError] * 3
            assert all("took longer than its timeout" in str(it) for it in answers)
            assert given, "the first save was given the time that was left"
            assert sum(given) < 2 * 0.5, "the others were given no time of their own"
        assert await checkpointer.save({"said": ["d"]}, "t", "v1") == "v1"
        assert await checkpointer.list_checkpoints("t") == ["v1", "v0"]


async def test_saves_without_a_timeout_wait_for_a_locked_thread(migrated_database: str) -> None:
    async with opened(migrated_database, statement_timeout_seconds=None) as checkpointer:
        await checkpointer.save(STATE, "t", "v0")
        async with session(migrated_database, locked("t")):
            saves = [
                asyncio.create_task(checkpointer.save({"said": [it]}, "t", f"w{it}")) for it in "ab"
            ]
            await waiting(migrated_database)
        assert await in_time(asyncio.gather(*saves)) == ["wa", "wb"]


async def test_vacuum_skips_a_locked_thread_and_counts_it(
    migrated_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(migrated_database, statement_timeout_seconds=None) as checkpointer:
        for thread in ("held", "free"):
            await checkpointer.save(STATE, thread, "v0")
        async with session(migrated_database, locked("held")):
            found = await in_time(checkpointer.backend.vacuum_report(0))
            assert found == Vacuumed(removed=1, skipped=1, threads=1)
            assert await in_time(checkpointer.vacuum(0)) == 0
            assert "vacuum: skipped 1 thread" in caplog.text
        assert await checkpointer.list_threads() == ["held"]
        assert await checkpointer.vacuum(0) == 1


async def test_vacuum_skips_a_thread_whose_row_is_locked(migrated_database: str) -> None:
    async with opened(migrated_database, statement_timeout_seconds=None) as checkpointer:
        await checkpointer.save(STATE, "held", "v0")
        query = "SELECT FROM locus_threads WHERE thread_id = 'held' FOR UPDATE"
        async with session(migrated_database, query):
            found = await in_time(checkpointer.backend.vacuum_report(0))
        assert found == Vacuumed(removed=0, skipped=1)
        assert await checkpointer.exists("held")


async def test_a_save_that_stands_still_keeps_its_turn_for_a_limited_time(
    migrated_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "LONGEST_PAUSE", "200ms")
    save, seconds = versions.save, []

    def replace_turn() -> None:
        with (
            blocking.open_checkpointer(migrated_database) as other,
            other.turn("t", wait="replace"),
        ):
            pass

    def stand_still(*args: Any) -> Any:
        if not seconds:  # the event loop stops here, between two statements
            began, other = time.monotonic(), threading.Thread(target=replace_turn)
            other.start()
            other.join(DEADLINE_SECONDS)
            seconds.append(time.monotonic() - began)
        return save(*args)

    async with opened(migrated_database) as checkpointer, checkpointer.turn("t"):
        first = await checkpointer.save(STATE, "t")
        monkeypatch.setattr(versions, "save", stand_still)
        with pytest.raises(TurnError, match="of thread 't' is over"):
            await checkpointer.save(STATE, "t", parent_checkpoint_id=first)
    assert 0.2 < seconds[0] < DEADLINE_SECONDS / 2


UNLUCKY = """
CREATE SEQUENCE readings; GRANT USAGE ON SEQUENCE readings TO locus_reader;
CREATE FUNCTION loses() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN
  IF nextval('readings') = 1 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF;
  RETURN true; END$$;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO locus_reader;
"""


async def test_a_read_that_loses_to_another_transaction_is_run_again(
    postgresql: servers.Server, migrated_database: str
) -> None:
    """As where an administrator has made ``serializable`` the default of the role."""
    async with opened(migrated_database) as writer:
        await writer.save(STATE, "t", metadata={"n": 1})
    name = name_of(migrated_database)
    if not postgresql.value("SELECT 1 FROM pg_roles WHERE rolname = 'locus_reader'"):
        postgresql.execute("CREATE ROLE locus_reader LOGIN")
    postgresql.execute(UNLUCKY, name)
    for table in ("lines", "threads"):
        postgresql.execute(f"ALTER TABLE locus_{table} ENABLE ROW LEVEL SECURITY", name)
        postgresql.execute(f"CREATE POLICY p ON locus_{table} USING ((SELECT loses()))", name)
    async with opened(postgresql.url(name, user="locus_reader")) as reader:
        for call in (
            lambda: reader.load("t"),
            lambda: reader.exists("t"),
            lambda: reader.list_checkpoints("t"),
            reader.list_threads,
            lambda: reader.search("a"),
            lambda: reader.query_by_metadata("n", 1),
        ):
            postgresql.execute("SELECT setval('readings', 1, false)", name)
            assert await call()
            assert postgresql.value("SELECT last_value FROM readings", database=name) > 1
