"""The migrations on a real PostgreSQL: newest and oldest, directly and through a pooler."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kept_database
import pytest
import servers
import sqlalchemy as sa
from later_release import REVISIONS, Release
from lazily import TESTS_RUN
from sqlalchemy.ext.asyncio import create_async_engine
from tiers import first_of
from workers.forked import at_once

from locus_store import PostgreSQLBackend
from locus_store.backends.postgresql import definition
from locus_store.backends.postgresql.partitions import partition
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    SchemaError,
)
from locus_store.sql import migrate
from locus_store.sql.schema import status, vectors
from locus_store.sql.schema.tables import make_tables

if TESTS_RUN:
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[4]
KEPT = sorted((Path(__file__).parents[3] / "data" / "postgresql").glob("*.sql"))
NAMES = sorted(make_tables().names)
ODD = 'Locus "threads" %s 50%'
"""Name of a database schema that has to be quoted everywhere."""

BOTH = pytest.mark.parametrize("server", first_of("postgresql", "postgresql_16"), indirect=True)

ENSURE = """
import asyncio, os, signal, sys
from functools import partial
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from locus_store.sql.migrate import ensure

async def main():
    url = sys.argv[1].replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url)
    {hook}
    async with engine.connect() as connection:
        sys.stdin.readline()
        schema = sys.argv[2] if len(sys.argv) > 2 else None
        print((await connection.run_sync(partial(ensure, schema=schema))).store_id)
    await engine.dispose()

asyncio.run(main())
"""

KILL = """
    @sa.event.listens_for(engine.sync_engine, "before_cursor_execute")
    def kill(connection, cursor, statement, *_):
        if "CREATE VIEW" in statement:
            os.kill(os.getpid(), signal.SIGKILL)
"""

UPGRADE = """
import os, signal, sys
from pathlib import Path
import sqlalchemy as sa
from later_release import Release
from locus_store.sql import migrate

_, url, folder, last, at = sys.argv
batches = 0

@sa.event.listens_for(sa.Engine, "before_cursor_execute")
def kill(connection, cursor, statement, *_):
    global batches
    batches += "SET title" in statement
    if str(batches) == at:
        os.kill(os.getpid(), signal.SIGKILL)

with Release(Path(folder), last).installed():
    print(migrate.upgrade(url))
"""

OPEN = """
import asyncio, sys
from locus_store import postgresql_checkpointer

async def main():
    sys.stdin.readline()
    async with postgresql_checkpointer(sys.argv[1], state_type=dict) as checkpointer:
        print(await checkpointer.save({}, sys.argv[2]) != "")

asyncio.run(main())
"""

# Everything that PostgreSQL knows of a database schema but the order of what was made.
SHAPE = """
WITH mine AS (
    SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = current_schema()
)
SELECT concat_ws(' ', relkind, relname, relpersistence, reloptions) FROM mine
UNION ALL SELECT concat_ws(' ', 'column', c.relname, a.attnum, a.attname,
    format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
    pg_get_expr(d.adbin, d.adrelid), o.collname)
  FROM mine c JOIN pg_attribute a ON a.attrelid = c.oid
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  LEFT JOIN pg_collation o ON o.oid = a.attcollation
  WHERE a.attnum > 0 AND c.relkind IN ('r', 'v')
UNION ALL SELECT pg_get_indexdef(oid) FROM mine WHERE relkind = 'i'
UNION ALL SELECT concat_ws(' ', c.relname, k.conname, pg_get_constraintdef(k.oid))
  FROM mine c JOIN pg_constraint k ON k.conrelid = c.oid
UNION ALL SELECT pg_get_viewdef(oid) FROM mine WHERE relkind = 'v'
UNION ALL SELECT concat_ws(' ', 'function', proname) FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = current_schema()
UNION ALL SELECT concat_ws(' ', 'trigger', tgname) FROM pg_trigger t JOIN mine ON mine.oid = tgrelid
"""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Made:
    """A database of a server."""

    def __init__(self, server: servers.Server, name: str) -> None:
        self.server = server
        self.name = name
        self.url = server.url(name)

    def execute(self, script: str) -> None:
        self.server.execute(script, self.name)

    def value(self, query: str, *values: object) -> Any:
        return self.server.value(query, *values, database=self.name)

    def rows(self, query: str, *values: object) -> list[tuple[Any]]:
        return self.server.fetch(query, *values, database=self.name)

    def shape(self, schema: str = "public") -> list[str]:
        async def look(connection: Any) -> list[Any]:
            await connection.execute(f"SET search_path TO {quoted(schema)}")
            return list(await connection.fetch(SHAPE))

        found = servers.run(self.server.ask(self.name, look))
        # An index is shown with its schema, whatever the search path.
        return sorted(
            it[0].replace(f"{schema}.", "").replace(f"{quoted(schema)}.", "") for it in found
        )

    def things(self, schema: str = "public") -> set[str]:
        query = "SELECT relname FROM pg_class WHERE relnamespace = $1::text::regnamespace"
        return {it for (it,) in self.rows(query, quoted(schema))}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> servers.Server:
    found: servers.Server = request.getfixturevalue(getattr(request, "param", "postgresql"))
    return found


@pytest.fixture
def made(server: servers.Server) -> Iterator[Made]:
    """An empty database."""
    name = server.new_database()
    yield Made(server, name)
    server.drop_database(name)


@pytest.fixture
def ours(server: servers.Server) -> Iterator[Made]:
    """A database with our schema."""
    name = server.new_database(template=server.migrated_template())
    yield Made(server, name)
    server.drop_database(name)


@pytest.fixture
def role(server: servers.Server) -> Iterator[str]:
    """A role without any right of its own; drops of databases come before its own."""
    if not isinstance(server, servers.PostgreSQL):
        pytest.skip("LOCUS_TEST_POSTGRESQL_URL: roles are made on servers of ours only")
    name = f"role_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE ROLE {name} LOGIN")
    with contextlib.ExitStack() as stack:
        stack.callback(server.execute, f"DROP ROLE {name}")
        yield name
        for (database,) in server.fetch("SELECT datname FROM pg_database WHERE datallowconn"):
            server.execute(f"DROP OWNED BY {name}", database)


def on(url: str, body: Callable[[sa.Connection], Any], **options: Any) -> Any:
    """Return a function's result on a connection of an asynchronous engine."""

    async def run() -> Any:
        engine = create_async_engine(
            url.replace("postgresql://", "postgresql+asyncpg://"), **options
        )
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(body)
        finally:
            await engine.dispose()

    return servers.run(run())


def ensure(url: str, **options: Any) -> status.Settings:
    settings: status.Settings = on(url, partial(migrate.ensure, **options))
    return settings


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def together(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Return the outputs of processes that start together and succeed."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=180) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), answers
    assert all(errors == "" for _, errors in answers), answers
    return [out.strip() for out, _ in answers]


def alembic(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran("alembic", "-c", str(ROOT / "alembic.ini"), *arguments, cwd=cwd, **environment)


def ran(
    module: str, *arguments: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **environment},
        cwd=cwd,
        text=True,
        capture_output=True,
        check=False,
    )


# --- what a first open makes


@BOTH
def test_a_database_without_a_schema_is_given_the_newest(made: Made) -> None:
    settings = ensure(made.url)
    assert settings.revision == migrate.read_revision(made.url) == status.HEAD
    assert made.things() >= make_tables().names
    assert len(settings.store_id) == 32
    assert ensure(made.url) == settings


def test_opening_what_is_in_order_costs_one_statement_and_no_alembic(ours: Made) -> None:
    script = ENSURE.format(
        hook="""
    statements = []
    async with engine.connect():
        sa.event.listen(
            engine.sync_engine, "before_cursor_execute", lambda *it: statements.append(it[2])
        )
"""
    )
    script += "\nassert 'alembic' not in sys.modules\n"
    script = script.replace(
        "    await engine.dispose()", "    await engine.dispose(); assert len(statements) == 1"
    )
    assert len(together([start(script, ours.url)])[0]) == 32


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE", "REPEATABLE READ", None])
def test_a_connection_comes_back_as_it_was(made: Made, level: str | None) -> None:
    def use(connection: sa.Connection) -> tuple[Any, ...]:
        run = connection.exec_driver_sql
        names = ("search_path", "statement_timeout", "lock_timeout", "transaction_isolation")

        def seen() -> list[Any]:
            found = [run(f"SHOW {name}").scalar() for name in names]
            connection.rollback()
            return found

        before = seen()
        migrate.ensure(connection)
        assert not connection.in_transaction()
        run("CREATE TABLE committed ()")
        connection.rollback()
        return before, seen()

    options = {} if level is None else {"isolation_level": level}
    before, after = on(made.url, use, **options)
    assert before == after
    assert ("committed" in made.things()) == (level == "AUTOCOMMIT")


def test_a_level_of_one_connection_comes_back_too(made: Made) -> None:
    def use(connection: sa.Connection) -> Any:
        connection.execution_options(isolation_level="SERIALIZABLE")
        migrate.ensure(connection)
        return connection.exec_driver_sql("SHOW transaction_isolation").scalar()

    assert on(made.url, use, isolation_level="AUTOCOMMIT") == "serializable"


def test_a_connection_in_a_transaction_is_refused(made: Made) -> None:
    def use(connection: sa.Connection) -> None:
        with connection.begin():
            with pytest.raises(InvalidArgumentError, match="transaction"):
                migrate.ensure(connection)
            with pytest.raises(InvalidArgumentError, match="transaction"):
                migrate.upgrade(connection)

    on(made.url, use)


# --- several at once


def test_sixteen_processes_may_start_cold_at_once(made: Made) -> None:
    answers = at_once(ENSURE.format(hook=""), *[[made.url]] * 16)
    assert answers == [ensure(made.url).store_id] * 16


def test_sixteen_checkpointers_may_start_cold_at_once(made: Made) -> None:
    answers = at_once(OPEN, *([made.url, f"t{number}"] for number in range(16)))
    assert answers == ["True"] * 16
    assert made.value("SELECT count(*) FROM locus_heads") == 16


def test_processes_may_make_a_schema_at_once_for_several_prefixes(made: Made) -> None:
    # The schema's own lock: IF NOT EXISTS alone fails when two make it at once.
    script = ENSURE.format(hook="").replace("schema=schema", "schema=schema, prefix=sys.argv[3]")
    prefixes = [f"p{number}_" for number in range(4)]
    answers = together([start(script, made.url, "there", it) for it in prefixes])
    assert len(set(answers)) == 4


def test_processes_that_name_the_schema_or_not_make_one(made: Made) -> None:
    script = ENSURE.format(hook="")
    answers = together([start(script, made.url, *it) for it in [(), ("public",)] * 2])
    assert len(set(answers)) == 1


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
@pytest.mark.parametrize("databases", [1, 4])
def test_tasks_of_one_loop_may_start_cold_at_once(
    server: servers.Server, databases: int, level: str
) -> None:
    names = [server.new_database() for _ in range(databases)]

    async def one(name: str) -> str:
        url = server.url(name).replace("postgresql://", "postgresql+asyncpg://")
        engine = create_async_engine(url, isolation_level=level)
        async with engine.connect() as connection:
            settings = await connection.run_sync(migrate.ensure)
        await engine.dispose()
        return settings.store_id

    async def every() -> list[str]:
        return await asyncio.gather(*(one(names[it % databases]) for it in range(8)))

    try:
        # On databases of their own nothing but the lock of the process keeps them apart; and
        # loops in other threads compete with them.
        threads = [threading.Thread(target=ensure, args=(server.url(it),)) for it in names]
        for thread in threads:
            thread.start()
        assert len(set(asyncio.run(every()))) == databases
        for thread in threads:
            thread.join()
        assert {migrate.check(server.url(it)).state for it in names} == {"ok"}
    finally:
        for name in names:
            server.drop_database(name)


def test_a_cancelled_start_leaves_the_lock_to_the_others(made: Made) -> None:
    async def one() -> str:
        url = made.url.replace("postgresql://", "postgresql+asyncpg://")
        engine = create_async_engine(url)
        try:
            async with engine.connect() as connection:
                return (await connection.run_sync(migrate.ensure)).store_id
        finally:
            await engine.dispose()

    async def some() -> list[Any]:
        tasks = [asyncio.ensure_future(one()) for _ in range(4)]
        while "locus_version" not in await asyncio.to_thread(made.things) and not any(
            it.done() for it in tasks
        ):
            tasks[-1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(asyncio.wait_for(some(), 60))
    assert isinstance(found[-1], asyncio.CancelledError)
    assert len(set(found[:-1])) == 1


@contextlib.contextmanager
def lock_held(made: Made, what: str) -> Iterator[Callable[[], None]]:
    """As while another process migrates, until what this gives is called."""
    release = threading.Event()
    taken = threading.Event()

    async def hold(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute(
                "SELECT pg_advisory_xact_lock($1)", definition.compute_advisory_key(what)
            )
            taken.set()
            await asyncio.to_thread(release.wait)

    holder = threading.Thread(target=lambda: servers.run(made.server.ask(made.name, hold)))
    holder.start()
    taken.wait()
    try:
        yield release.set
    finally:
        release.set()
        holder.join()


@contextlib.contextmanager
def in_a_thread(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs meanwhile; its result, or what it raised, is there at the end."""
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - shown to the test
            found.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield found
    finally:
        thread.join()


WAITS = """
SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database()
  AND clock_timestamp() - a.query_start > $1::float8 * interval '1 second'
"""


@pytest.mark.parametrize("schema", [None, "public"])
def test_the_lock_is_of_one_prefix_in_one_schema(made: Made, schema: str | None) -> None:
    migrates = in_a_thread(lambda: ensure(made.url, schema=schema))
    with lock_held(made, "public locus_") as release, migrates as waiting:
        servers.wait_until(lambda: made.value(WAITS, 0.0), "the migration to wait")
        ensure(made.url, prefix="other_")
        ensure(made.url, schema="elsewhere")
        assert waiting == []
        release()
    assert waiting[0].revision == status.HEAD


# --- killed half way, and failing


@BOTH
def test_a_migration_killed_half_way_leaves_nothing(made: Made) -> None:
    with start(ENSURE.format(hook=KILL), made.url, "there") as process:
        process.communicate("go\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert ensure(made.url, schema="there").revision == status.HEAD
    assert made.things() == set()


@pytest.mark.parametrize("how", ["SIGKILL", "pg_terminate_backend"])
def test_a_migration_whose_backend_is_killed_half_way_leaves_nothing(how: str) -> None:
    try:
        own = servers.PostgreSQL()
    except servers.UnavailableError as error:
        servers.missing(error)
    try:
        made = Made(own, own.new_database())

        def kill(connection: sa.Connection) -> None:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            connection.rollback()

            @sa.event.listens_for(connection, "before_cursor_execute")
            def killed(*given: Any) -> None:
                if "CREATE VIEW" in given[2]:
                    if how == "SIGKILL":
                        own.kill_backend(pid)
                    else:
                        made.value("SELECT pg_terminate_backend($1)", pid)
                    servers.wait_until(lambda: servers.is_gone(pid), "the backend to end")

            migrate.ensure(connection)

        with pytest.raises(sa.exc.DBAPIError):
            on(made.url, kill)

        def recovered() -> Any:
            with contextlib.suppress(Exception):
                return [made.things()]

        assert servers.wait_until(recovered, "the server to recover") == [set()]
        assert ensure(made.url).revision == status.HEAD
    finally:
        own.stop()


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("level", ["AUTOCOMMIT", "READ COMMITTED"])
def test_a_migration_that_fails_half_way_leaves_nothing(
    made: Made, level: str, failure: type[BaseException]
) -> None:
    def use(connection: sa.Connection) -> None:
        @sa.event.listens_for(connection, "before_cursor_execute")
        def fail(*given: Any) -> None:
            if "CREATE VIEW" in given[2]:
                raise failure

        with pytest.raises(failure):
            migrate.ensure(connection, schema="there")
        assert not connection.in_transaction()
        sa.event.remove(connection, "before_cursor_execute", fail)
        assert made.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'there'") == 0
        assert migrate.ensure(connection, schema="there").revision == status.HEAD

    on(made.url, use, isolation_level=level)


# --- a database schema of its own


@BOTH
@pytest.mark.parametrize("schema", ["locus_threads", ODD])
def test_a_schema_is_made_where_it_is_missing(made: Made, schema: str) -> None:
    ensure(made.url, schema=schema)
    assert made.things(schema) >= make_tables().names
    assert made.things() == set()
    assert migrate.check(made.url, schema=schema).state == "ok"
    assert migrate.check(made.url).state == "missing"
    assert migrate.downgrade(made.url, schema=schema) is None
    assert made.things(schema) == {"locus_version", "locus_version_pkc"}
    assert migrate.upgrade(made.url, schema=schema) == status.HEAD


def test_a_schema_is_made_with_another_prefix_and_beside_the_default(ours: Made) -> None:
    first = migrate.check(ours.url).settings
    assert migrate.upgrade(ours.url, schema="locus_threads", prefix="mine_") == status.HEAD
    assert ours.things("locus_threads") >= make_tables("mine_").names
    assert migrate.check(ours.url).settings == first


@pytest.mark.parametrize("schema", ["locus_threads", ODD])
def test_alembic_and_the_command_line_make_the_schema_too(
    made: Made, tmp_path: Path, schema: str
) -> None:
    one = alembic(
        "-x", f"schema={schema}", "upgrade", "head", cwd=tmp_path, LOCUS_STORE_URL=made.url
    )
    assert one.returncode == 0, one.stderr
    assert migrate.check(made.url, schema=schema).state == "ok"
    compared = alembic("-x", f"schema={schema}", "check", cwd=tmp_path, LOCUS_STORE_URL=made.url)
    assert compared.returncode == 0, compared.stdout + compared.stderr

    other = ("--schema", f"{schema} 2", "--url", made.url)
    two = ran("locus_store", "db", "upgrade", *other, cwd=tmp_path)
    assert two.returncode == 0, two.stderr
    checked = ran("locus_store", "db", "check", *other, cwd=tmp_path)
    assert "up to date" in checked.stdout, checked.stderr


@BOTH
@pytest.mark.parametrize("schema", [None, "locus_threads", ODD])
def test_offline_sql_gives_the_same_schema(made: Made, schema: str | None) -> None:
    made.execute(migrate.render_upgrade("postgresql", schema=schema, prefix="off_"))
    offline = made.shape(schema or "public")
    identity = migrate.check(made.url, schema=schema, prefix="off_").settings
    migrate.downgrade(made.url, schema=schema, prefix="off_")
    made.execute(f"DROP TABLE {quoted(schema or 'public')}.off_version")
    again = ensure(made.url, schema=schema, prefix="off_")
    assert made.shape(schema or "public") == offline
    assert identity is not None
    assert identity.store_id != again.store_id


def test_offline_sql_of_a_schema_that_exists_is_run_as_well(made: Made) -> None:
    made.execute("CREATE SCHEMA locus_threads")
    made.execute(migrate.render_upgrade("postgresql", schema="locus_threads"))
    assert migrate.check(made.url, schema="locus_threads").state == "ok"


# --- roles


def as_role(made: Made, role: str) -> str:
    return made.server.url(made.name, user=role)


@BOTH
def test_a_role_that_may_not_make_a_schema_uses_one_that_exists(made: Made, role: str) -> None:
    made.execute(f"CREATE SCHEMA locus_threads AUTHORIZATION {role}")
    assert ensure(as_role(made, role), schema="locus_threads").revision == status.HEAD
    assert migrate.downgrade(as_role(made, role), schema="locus_threads") is None
    assert migrate.upgrade(as_role(made, role), schema="locus_threads") == status.HEAD


@pytest.mark.parametrize("schema", [None, "locus_threads", "public"])
def test_a_role_without_ddl_rights_is_told_where_the_schema_is_missing(
    made: Made, role: str, schema: str | None
) -> None:
    for action in (ensure, migrate.upgrade):
        with pytest.raises(SchemaError, match=r"this role may not .*locus-store db upgrade"):
            action(as_role(made, role), schema=schema)
    assert migrate.check(as_role(made, role), schema=schema).state == "missing"
    assert made.things() == set()


def test_a_role_that_may_not_create_a_schema_is_told_the_right(made: Made, role: str) -> None:
    right = "GRANT CREATE ON DATABASE"
    for schema, is_named in (("locus_threads", True), ("public", False)):
        with pytest.raises(SchemaError) as told:
            migrate.upgrade(as_role(made, role), schema=schema)
        assert (right in str(told.value)) is is_named


@BOTH
def test_a_role_without_ddl_rights_can_do_everything_but_migrate(ours: Made, role: str) -> None:
    with pytest.raises(SchemaError, match="grant this one"):
        ensure(as_role(ours, role))
    ours.execute(f"""
        GRANT USAGE ON SCHEMA public TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};
    """)
    url = as_role(ours, role)
    for auto_migrate in (True, False, "upgrade"):
        assert ensure(url, auto_migrate=auto_migrate).revision == status.HEAD
    assert migrate.upgrade(url) == migrate.read_revision(url) == status.HEAD
    with pytest.raises(SchemaError, match="this role may not"):
        migrate.downgrade(url)
    assert migrate.check(url).state == "ok"
    servers.run(everything(url))


@BOTH
def test_a_role_that_does_not_own_the_tables_is_told_who_makes_an_index(
    ours: Made, role: str
) -> None:
    ours.execute(f"""
        GRANT USAGE ON SCHEMA public TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};
    """)

    async def indexed() -> None:
        async with PostgreSQLBackend(as_role(ours, role)) as backend:
            await backend.create_search_index()

    with pytest.raises(BackendError, match="the role that owns the tables"):
        servers.run(indexed())


async def everything(url: str) -> None:
    from locus_store import postgresql_checkpointer

    async with postgresql_checkpointer(url, state_type=dict) as checkpointer:
        for n in range(3):
            await checkpointer.save({"said": f"word{n}"}, "t", f"c{n}", {"k": n})
        assert await checkpointer.load("t") == {"said": "word2"}
        assert await checkpointer.list_checkpoints("t") == ["c2", "c1", "c0"]
        assert await checkpointer.list_threads() == ["t"]
        assert await checkpointer.search("word2") != []
        assert len(await checkpointer.query_by_metadata("k", 2)) == 1
        assert await checkpointer.copy_thread("t", "copy")
        assert await checkpointer.delete("t", "c1")
        assert await checkpointer.delete("copy")
        assert await checkpointer.vacuum(0) >= 0


def test_a_server_that_only_reads_is_opened_but_not_migrated(made: Made) -> None:
    made.server.execute(f"ALTER DATABASE {made.name} SET default_transaction_read_only = on")
    with pytest.raises(SchemaError, match="read-only"):
        ensure(made.url)
    made.server.execute(f"ALTER DATABASE {made.name} RESET default_transaction_read_only")
    settings = ensure(made.url)
    made.server.execute(f"ALTER DATABASE {made.name} SET default_transaction_read_only = on")
    assert ensure(made.url) == settings


# --- what is not ours


FOREIGN = {
    "table": "CREATE TABLE {0} (thread_id text PRIMARY KEY, state text);"
    "INSERT INTO {0} VALUES ('t', 'precious')",
    "view": "CREATE VIEW {0} AS SELECT 1 AS n",
    "materialised view": "CREATE MATERIALIZED VIEW {0} AS SELECT 1 AS n",
    "partitioned table": "CREATE TABLE {0} (n int) PARTITION BY RANGE (n)",
    "sequence": "CREATE SEQUENCE {0}",
}


def refuses(made: Made, name: str, **options: Any) -> None:
    before = made.shape()
    for action in (ensure, migrate.upgrade, migrate.downgrade):
        with pytest.raises(SchemaError, match=rf"table {name} .*another prefix"):
            action(made.url, **options)
    assert migrate.check(made.url, **options).state == "foreign"
    assert made.shape() == before


@pytest.mark.parametrize("name", NAMES)
def test_a_table_of_our_name_is_never_adopted_or_damaged(made: Made, name: str) -> None:
    made.execute(FOREIGN["table"].format(name))
    refuses(made, name)
    assert made.value(f"SELECT state FROM {name}") == "precious"


@pytest.mark.parametrize("kind", FOREIGN)
def test_anything_of_our_name_is_foreign(made: Made, kind: str) -> None:
    made.execute(FOREIGN[kind].format("locus_checkpoints"))
    refuses(made, "locus_checkpoints")


def test_a_table_of_our_name_in_the_named_schema_is_refused(made: Made) -> None:
    made.execute("CREATE SCHEMA app; " + FOREIGN["table"].format("app.locus_checkpoints"))
    refuses(made, "locus_checkpoints", schema="app")
    assert ensure(made.url).revision == status.HEAD


def test_the_table_of_the_locus_sdk_is_refused_by_alembic_too(made: Made, tmp_path: Path) -> None:
    made.execute("""
        CREATE TABLE locus_checkpoints (thread_id varchar(255) PRIMARY KEY, data jsonb NOT NULL);
        INSERT INTO locus_checkpoints VALUES ('t', '{"precious": true}');
    """)
    before = made.shape()
    done = alembic("upgrade", "head", cwd=tmp_path, LOCUS_STORE_URL=made.url)
    assert done.returncode != 0
    assert "table locus_checkpoints not made by locus-store" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert made.shape() == before
    assert made.value("SELECT data ->> 'precious' FROM locus_checkpoints") == "true"
    assert ensure(made.url, prefix="mine_").revision == status.HEAD
    assert ensure(made.url, schema="mine").revision == status.HEAD


def test_a_schema_changed_by_hand_is_told(ours: Made) -> None:
    ours.execute("DROP VIEW locus_heads; ALTER TABLE locus_threads DROP COLUMN name")
    found = migrate.check(ours.url)
    assert found.state == "damaged"
    assert "locus_threads.name" in found.message


# --- search paths


def test_without_a_schema_the_search_path_of_the_role_says_where(made: Made, role: str) -> None:
    made.execute(f"""
        CREATE SCHEMA app AUTHORIZATION {role};
        ALTER ROLE {role} SET search_path = missing, app, public;
    """)
    settings = ensure(as_role(made, role))
    assert made.things("app") >= make_tables().names
    assert made.things() == set()
    assert migrate.check(as_role(made, role)).settings == settings
    assert migrate.check(made.url, schema="app").settings == settings


@pytest.mark.usefixtures("later_release")
def test_a_schema_that_came_later_on_the_search_path_does_not_hide_ours(made: Made) -> None:
    migrate.upgrade(made.url, "0001")
    before = migrate.check(made.url).settings
    # "$user" stands first on everybody's path.
    made.execute(f"CREATE SCHEMA {made.server.user}")
    found = ensure(made.url, auto_migrate="upgrade")
    assert before is not None
    assert (found.store_id, found.revision) == (before.store_id, "0003")
    assert made.things(made.server.user) == set()


def test_a_table_that_hides_one_of_ours_on_the_search_path_is_foreign(ours: Made) -> None:
    user = ours.server.user
    ours.execute(f"CREATE SCHEMA {user}; " + FOREIGN["table"].format(f"{user}.locus_checkpoints"))
    for auto_migrate in (True, "upgrade", False):
        with pytest.raises(SchemaError, match=r"table locus_checkpoints not .*schema='public'"):
            ensure(ours.url, auto_migrate=auto_migrate)
    assert migrate.check(ours.url).state == "foreign"
    assert ensure(ours.url, schema="public").revision == status.HEAD
    migrate.downgrade(ours.url)  # touches ours only
    assert migrate.check(ours.url, schema="public").state == "missing"
    assert ours.value(f"SELECT state FROM {user}.locus_checkpoints") == "precious"


def test_a_search_path_of_nothing_is_told(made: Made, role: str) -> None:
    made.execute(f"ALTER ROLE {role} SET search_path = missing")
    for action in (ensure, migrate.upgrade, migrate.check):
        with pytest.raises(SchemaError, match="--schema"):
            action(as_role(made, role))


# --- time limits


def limited(url: str, **settings: str) -> str:
    options = "%20".join(f"-c%20{key}%3D{value}" for key, value in settings.items())
    return url + ("&" if "?" in url else "?") + f"options={options}"


def test_waiting_for_another_migration_is_not_cut_short(made: Made) -> None:
    url = limited(made.url, lock_timeout="1s", statement_timeout="1s")
    migrates = in_a_thread(lambda: migrate.upgrade(url))
    with lock_held(made, "public locus_") as release, migrates as waiting:
        servers.wait_until(lambda: made.value(WAITS, 1.2), "the migration to wait for longer")
        assert waiting == []
        release()
    assert waiting == [status.HEAD]


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN PERFORM pg_sleep(1.3); RETURN new; END';
CREATE TRIGGER slow BEFORE UPDATE ON locus_threads FOR EACH ROW EXECUTE FUNCTION slow()
"""


@pytest.mark.usefixtures("later_release")
def test_a_long_migration_is_not_cut_short(made: Made) -> None:
    migrate.upgrade(made.url, "0001")
    on(made.url, lambda it: (fill(it, make_tables(), "t"), it.commit()))
    made.execute(SLOW)
    url = limited(
        made.url,
        statement_timeout="1s",
        idle_in_transaction_session_timeout="1s",
        transaction_timeout="1s",
    )
    if made.value("SELECT current_setting('server_version_num')::int") < 170_000:
        url = url.replace("%20-c%20transaction_timeout%3D1s", "")
    assert migrate.upgrade(url) == "0003"


@pytest.mark.usefixtures("later_release")
def test_a_migration_that_would_keep_others_waiting_gives_up_in_time(made: Made) -> None:
    migrate.upgrade(made.url, "0001")
    before = made.shape()

    async def reading(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("SELECT * FROM locus_threads")
            with pytest.raises(SchemaError, match="lock_timeout; nothing was changed"):
                await asyncio.to_thread(migrate.upgrade, limited(made.url, lock_timeout="100ms"))

    servers.run(made.server.ask(made.name, reading))
    assert made.shape() == before
    assert migrate.upgrade(limited(made.url, lock_timeout="10s")) == "0003"


# --- a pooler


def test_everything_works_through_a_pooler_that_swaps_connections(
    made: Made, pgbouncer: servers.PgBouncer, tmp_path: Path
) -> None:
    url = pgbouncer.url(made.name)
    assert migrate.check(url).state == "missing"
    for schema in (None, "locus_threads"):
        assert migrate.upgrade(url, schema=schema) == status.HEAD
        assert migrate.downgrade(url, schema=schema) is None
        assert migrate.upgrade(f"{url}?pgbouncer=true", schema=schema) == status.HEAD
        assert migrate.check(url, schema=schema).state == "ok"
    done = alembic("-x", "prefix=mine_", "upgrade", "head", cwd=tmp_path, LOCUS_STORE_URL=url)
    assert done.returncode == 0, done.stderr
    assert migrate.read_revision(url, prefix="mine_") == status.HEAD
    assert made.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_processes_may_start_cold_at_once_through_a_pooler(
    made: Made, pgbouncer: servers.PgBouncer
) -> None:
    script = "import sys; from locus_store.sql.migrate import upgrade; sys.stdin.readline();"
    script += "print(upgrade(sys.argv[1]))"
    answers = together([start(script, pgbouncer.url(made.name)) for _ in range(4)])
    assert set(answers) == {status.HEAD}


# --- newer and older


@BOTH
@pytest.mark.usefixtures("later_release")
def test_auto_migrate_has_three_forms(made: Made) -> None:
    with pytest.raises(SchemaError, match="locus-store db upgrade"):
        ensure(made.url, auto_migrate=False)
    assert made.things() == set()
    migrate.upgrade(made.url, "0001")
    before = made.shape()
    for auto_migrate in (True, False):
        with pytest.raises(SchemaError, match=r"0001 is behind .*0003.*locus-store db upgrade"):
            ensure(made.url, auto_migrate=auto_migrate)
    assert migrate.check(made.url).state == "behind"
    assert made.shape() == before
    assert ensure(made.url, auto_migrate="upgrade").revision == "0003"
    assert ensure(made.url, auto_migrate=False).revision == "0003"


@BOTH
@pytest.mark.usefixtures("later_release")
@pytest.mark.parametrize("schema", [None, "locus_threads"])
def test_a_migration_goes_up_and_down_one_step(made: Made, schema: str | None) -> None:
    migrate.upgrade(made.url, "0001", schema=schema)
    first = made.shape(schema or "public")
    assert migrate.upgrade(made.url, schema=schema) == "0003"
    second = made.shape(schema or "public")
    for revision in ("0002", "0001"):
        assert migrate.downgrade(made.url, revision, schema=schema) == revision
    # PostgreSQL remembers a dropped column.
    assert [it for it in made.shape(schema or "public") if "........pg.dropped" not in it] == first
    for revision in ("0002", "0003"):
        assert migrate.upgrade(made.url, "+1", schema=schema) == revision
    assert len(made.shape(schema or "public")) == len(second) + 1


@pytest.mark.usefixtures("later_release")
def test_offline_sql_between_two_revisions_is_run_as_well(made: Made) -> None:
    migrate.upgrade(made.url, "0001", schema="there")
    on(made.url, lambda it: (fill(it, make_tables("locus_", "there"), "t"), it.commit()))
    made.execute(migrate.render_upgrade("postgresql", "0001:0003", schema="there"))
    assert ensure(made.url, auto_migrate=False, schema="there").revision == "0003"
    assert titles(made, "there.") == ["t"]


@BOTH
def test_down_to_base_leaves_nothing_and_up_again_works(made: Made) -> None:
    first = ensure(made.url)
    shape = made.shape()
    assert migrate.downgrade(made.url) is None
    assert made.things() == {"locus_version", "locus_version_pkc"}
    assert migrate.check(made.url).state == "missing"
    assert ensure(made.url).store_id != first.store_id
    assert made.shape() == shape


@BOTH
def test_an_older_library_works_on_a_newer_schema_down_to_the_floor(ours: Made) -> None:
    settings = ensure(ours.url)
    ours.execute("""
        UPDATE locus_version SET version_num = '0099';
        ALTER TABLE locus_threads ADD COLUMN mood text;
    """)
    newer = ensure(ours.url)
    assert (newer.store_id, newer.revision) == (settings.store_id, "0099")
    assert migrate.check(ours.url).usable
    ours.execute("UPDATE locus_settings SET value = '0050' WHERE name = 'compatibility_floor'")
    for auto_migrate in (True, "upgrade", False):
        with pytest.raises(SchemaError, match="pip install --upgrade"):
            ensure(ours.url, auto_migrate=auto_migrate)
    for action in (migrate.upgrade, migrate.downgrade):
        with pytest.raises(SchemaError, match="0099"):
            action(ours.url)


def titles(made: Made, schema: str = "") -> list[str]:
    return [it for (it,) in made.rows(f"SELECT title FROM {schema}locus_threads ORDER BY thread")]


async def save(url: str, *thread_ids: str) -> None:
    async with PostgreSQLBackend(url) as backend:
        for it in thread_ids:
            await backend.save(it, {"n": 1})


@BOTH
@pytest.mark.parametrize(("last", "at"), [("0002", 1), ("0002", 2), ("0003", 2)])
def test_a_migration_of_data_that_is_killed_is_run_again(
    made: Made, tmp_path: Path, release: Callable[..., Release], last: str, at: int
) -> None:
    with release("0002").installed():
        migrate.upgrade(made.url, "0002" if last == "0003" else "0001")
    threads = [f"t{number}" for number in range(7)]
    servers.run(save(made.url, *threads))
    before = made.shape()
    release(last)  # writes its scripts
    with start(UPGRADE, made.url, str(tmp_path), last, str(at)) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    assert made.shape() == before
    servers.run(save(made.url, "beside"))  # by an old library
    with release(last).installed():
        assert migrate.upgrade(made.url) == last
    assert titles(made) == [*threads, "beside"]


@BOTH
def test_an_old_library_saves_while_a_newer_one_migrates(
    made: Made, tmp_path: Path, release: Callable[..., Release]
) -> None:
    servers.run(save(made.url, *(f"t{number}" for number in range(20))))
    release("0002")  # writes its scripts
    ended: list[int] = []

    def upgrades() -> None:
        for at in ("3", "never"):
            with start(UPGRADE, made.url, str(tmp_path), "0002", at) as process:
                process.communicate(timeout=60)
                ended.append(process.returncode)

    async def saves() -> int:
        """Save until both upgrades have ended, and once more."""
        async with PostgreSQLBackend(made.url) as backend:
            n = 0
            while len(ended) < 2:
                n += 1
                await backend.save(f"t{n % 30}", {"n": n})
            await backend.save("t", {"n": n})
            for last in range(max(1, n - 29), n + 1):
                assert await backend.load(f"t{last % 30}") == {"n": last}
        return n

    thread = threading.Thread(target=upgrades)
    thread.start()
    try:
        assert servers.run(saves()) > 1
    finally:
        thread.join()
    assert ended == [-signal.SIGKILL, 0]
    assert migrate.check(made.url).state == "newer"
    assert titles(made)[:20] == [f"t{number}" for number in range(20)]
    assert titles(made)[-1] is None
    with release("0003").installed():
        assert migrate.upgrade(made.url) == "0003"
    assert None not in titles(made)
    before = made.shape()
    for auto_migrate in (True, "upgrade", False):
        with pytest.raises(SchemaError, match=r"0003 asks for .*0002.*pip install --upgrade"):
            ensure(made.url, auto_migrate=auto_migrate)
    assert made.shape() == before
    with release("0002").installed():
        assert ensure(made.url).revision == "0003"


# --- the schema itself


@BOTH
@pytest.mark.parametrize(
    ("prefix", "schema"),
    [("locus_", None), ("mine_", ODD), ("MyTable_", None), ("a" * 51 + "_", None)],
)
def test_the_orm_schema_is_the_migrated_schema(made: Made, prefix: str, schema: str | None) -> None:
    mine = make_tables(prefix, schema)
    ensure(made.url, prefix=prefix, schema=schema)

    def compare(connection: sa.Connection) -> Any:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_object": migrate.include_ours(mine, "postgresql"),
                "include_schemas": schema is not None,
                "include_name": lambda name, kind, _: kind != "schema" or name == schema,
                "compare_type": True,
                "compare_server_default": True,
                "version_table": mine.version,
                "version_table_schema": schema,
            },
        )
        return compare_metadata(context, mine.metadata)

    assert on(made.url, compare) == []


@BOTH
def test_the_tables_of_the_orm_have_the_shape_of_the_migrated_ones(ours: Made) -> None:
    """With what Alembic does not compare: collations, operator classes, identities, order.

    SQLAlchemy 2.0 cannot give a table a fill factor; only the migration sets it.
    """
    orm = make_tables("locus_", "orm").metadata

    def make(connection: sa.Connection) -> None:
        connection.execute(sa.schema.CreateSchema("orm"))
        for table in orm.sorted_tables:
            connection.execute(sa.schema.CreateTable(table))
            for index in table.indexes:
                connection.execute(sa.schema.CreateIndex(index))
        connection.commit()

    on(ours.url, make)
    others = ("locus_version", "locus_heads")
    migrated = [it for it in ours.shape() if not any(name in it for name in others)]
    for name in ("lines", "logs"):
        fill_factor = f"r locus_{name} p {{fillfactor=50}}"
        migrated[migrated.index(fill_factor)] = f"r locus_{name} p"
    view = [it for it in migrated if it.startswith(" SELECT")]
    assert ours.shape("orm") == [it for it in migrated if it not in view]
    text = "\n".join(migrated)
    assert "USING gin (metadata jsonb_path_ops)" in text
    assert "USING gin (labels jsonb_path_ops)" in text
    keys = [it for it in migrated if re.match(r"column locus_lines \d+ (thread_id|run) ", it)]
    assert len(keys) == 2
    assert all(it.endswith(" C") for it in keys)


def test_the_autogeneration_of_our_own_chain_finds_nothing(ours: Made, tmp_path: Path) -> None:
    done = alembic("check", cwd=tmp_path, LOCUS_STORE_URL=ours.url)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the view


def fill(connection: sa.Connection, mine: Any, thread_id: str, **thread: Any) -> None:
    owner = {"tenant": "default", "thread_id": thread_id}
    connection.execute(mine.threads.insert().values(**owner, user_id="/u", **thread))
    for namespace in ("", "inner"):
        row = {**owner, "namespace": namespace, "head": 2, "last_sequence": 2}
        line = connection.execute(mine.lines.insert().values(row)).inserted_primary_key
        assert line is not None
        for sequence in (1, 2):
            row = {
                "line": line[0],
                "sequence": sequence,
                "chain": 1,
                "checkpoint_id": f"{namespace}{sequence}",
                "digest": b"d" * 16,
                "payload": b"p",
                "metadata": {"step": sequence},
                "labels": {"agent_id": "a1"},
            }
            connection.execute(mine.checkpoints.insert().values(row))


@BOTH
@pytest.mark.parametrize("schema", [None, ODD])
def test_the_view_shows_the_root_head_of_every_live_thread(made: Made, schema: str | None) -> None:
    ensure(made.url, schema=schema)
    mine = make_tables("locus_", schema)

    def use(connection: sa.Connection) -> list[Any]:
        fill(connection, mine, "/slash")
        fill(connection, mine, "gone", expires_at=datetime(2020, 1, 1, tzinfo=UTC))
        fill(connection, mine, "lives", expires_at=datetime(2999, 1, 1, tzinfo=UTC))
        connection.commit()
        view = sa.table("locus_heads", schema=schema)
        query = sa.select(sa.text("*")).select_from(view).order_by(sa.text("thread_id"))
        return list(connection.execute(query).mappings())

    rows = on(made.url, use)
    assert [(row["thread_id"], row["checkpoint_id"]) for row in rows] == [
        ("/slash", "2"),
        ("lives", "2"),
    ]
    assert list(rows[0]) == [
        *("tenant", "thread_id", "checkpoint_id", "agent_id", "user_id"),
        *("created_at", "updated_at", "metadata", "text"),
    ]
    assert (rows[0]["tenant"], rows[0]["agent_id"], rows[0]["user_id"]) == ("default", "a1", "/u")
    name = f"{quoted(schema or 'public')}.locus_heads"
    assert made.value(f"SELECT metadata ->> 'step' FROM {name} LIMIT 1") == "2"
    assert made.value(f"SELECT count(*) FROM {name} WHERE now() - updated_at < '1 hour'") == 2


# --- a kept database of every revision


@BOTH
@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_kept_database_is_upgraded_and_used(made: Made, kept: Path) -> None:
    made.execute(kept.read_text())
    assert migrate.read_revision(made.url) == kept.stem
    store_id = made.value("SELECT value FROM locus_settings WHERE name = 'store_id'")
    settings = ensure(made.url, auto_migrate="upgrade")
    assert (settings.store_id, settings.revision) == (store_id, status.HEAD)
    # PostgreSQL would remember columns that were dropped by a later revision.
    reference = made.server.new_database(template=made.server.migrated_template())
    assert made.shape() == Made(made.server, reference).shape()
    made.server.drop_database(reference)
    servers.run(kept_database.use(made.url))
    assert made.value("SELECT count(*) FROM locus_heads") == 3


@BOTH
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_later_release_upgrades_a_database_of_every_revision(
    made: Made, kept: Path, revision: str, release: Callable[..., Release]
) -> None:
    made.execute(kept.read_text())
    before = made.shape()
    with release().installed():
        if revision > kept.stem:
            migrate.upgrade(made.url, revision)
        ensure(made.url, auto_migrate="upgrade")
        reference = made.server.new_database()
        migrate.upgrade(made.server.url(reference))
        assert made.shape() == Made(made.server, reference).shape()
        made.server.drop_database(reference)
        servers.run(kept_database.use(made.url))
        assert titles(made) == ["/kept", "chain", "empty", None]
        assert migrate.downgrade(made.url, kept.stem) == kept.stem
    assert [it for it in made.shape() if "........pg.dropped" not in it] == before
    assert migrate.check(made.url).state == "ok"


def test_every_revision_has_a_kept_database() -> None:
    assert tuple(path.stem for path in KEPT) == status.REVISIONS


# --- DSNs


def test_every_form_of_a_dsn_reaches_the_database(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = made.server
    if not isinstance(server, servers.PostgreSQL):
        pytest.skip("LOCUS_TEST_POSTGRESQL_URL: forms are tried on servers of ours only")
    place = f"{server.host}:{server.port}/{made.name}"
    dead = servers.free_port()
    assert migrate.upgrade(f"postgres://postgres@{place}") == status.HEAD
    forms = [
        f"postgresql+asyncpg://postgres@{place}",
        f"postgresql+psycopg://postgres@{place}?sslmode=prefer&application_name=deploy",
        f"postgresql://postgres@{server.host}:{dead},{place}?target_session_attrs=read-write",
        f"postgresql://postgres@/{made.name}?host={server.socket_directory}&port={server.port}",
        f"host={server.host} port={server.port} user=postgres dbname={made.name}",
        f"postgresql://postgres@{place}?pool_size=5&pgbouncer=true&tenant=t",
        sa.make_url(f"postgresql+asyncpg://postgres@{place}"),
    ]
    for form in forms:
        assert migrate.check(form).state == "ok", form
    # Both take the same way.
    for form, module, arguments in (
        (forms[2], "locus_store", ("db", "current")),
        (forms[3], "alembic", ("-c", str(ROOT / "alembic.ini"), "current")),
        (
            forms[4],
            "alembic",
            ("-c", str(ROOT / "alembic.ini"), "-x", f"url={forms[4]}", "current"),
        ),
    ):
        done = ran(module, *arguments, cwd=tmp_path, LOCUS_STORE_URL=str(form))
        assert status.HEAD in done.stdout, (form, done.stderr)


def test_schema_and_prefix_may_stand_in_the_dsn_as_for_the_backend(made: Made) -> None:
    url = f"{made.url}?schema=there&prefix=mine_"
    assert migrate.upgrade(url) == status.HEAD
    assert made.things("there") >= make_tables("mine_").names
    assert migrate.check(made.url, schema="there", prefix="mine_").state == "ok"
    assert migrate.upgrade(url, schema="other", prefix="named_") == status.HEAD
    assert made.things("other") >= make_tables("named_").names
    with pytest.raises(InvalidArgumentError, match="--prefix"):
        migrate.upgrade(f"{made.url}?table_name=x_checkpoints")
    with pytest.raises(InvalidArgumentError, match="sslmod"):
        migrate.upgrade(f"{made.url}?sslmod=require")


def test_a_migration_may_be_called_beneath_a_running_loop(made: Made) -> None:
    async def use() -> str | None:
        return migrate.upgrade(made.url)

    assert asyncio.run(use()) == status.HEAD


def test_a_blocking_call_beneath_a_migration_of_its_own_loop_is_told(made: Made) -> None:
    def use(connection: sa.Connection) -> None:
        @sa.event.listens_for(connection, "before_cursor_execute")
        def nested(*given: Any) -> None:
            if "CREATE VIEW" in given[2]:
                with pytest.raises(InvalidArgumentError, match="under way"):
                    migrate.upgrade(made.url)
                with pytest.raises(InvalidArgumentError, match="under way"):
                    migrate.render_upgrade("postgresql")

        migrate.ensure(connection)

    on(made.url, use)


def test_an_async_engine_is_told_how_to_migrate(made: Made) -> None:
    async def use() -> None:
        engine = create_async_engine(made.url.replace("postgresql://", "postgresql+asyncpg://"))
        async with engine.connect() as connection:
            for target in (engine, connection, engine.sync_engine):
                with pytest.raises(InvalidArgumentError, match=r"run_sync\(migrate\.upgrade\)"):
                    migrate.upgrade(target)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match=r"run_sync\(migrate\.ensure\)"):
                migrate.ensure(connection)  # type: ignore[arg-type]
            assert await connection.run_sync(migrate.upgrade) == status.HEAD
        await engine.dispose()

    asyncio.run(use())


@pytest.fixture(scope="module")
def strict() -> Iterator[servers.PostgreSQL]:
    """A server that asks for passwords."""
    try:
        server = servers.PostgreSQL(hba="host all all 127.0.0.1/32 scram-sha-256\n")
    except servers.UnavailableError as error:
        servers.missing(error)
    server.execute("CREATE ROLE app LOGIN SUPERUSER PASSWORD 's3cret:/@'")
    yield server
    server.stop()


def test_failures_are_typed_and_never_show_a_password(
    strict: servers.PostgreSQL, tmp_path: Path
) -> None:
    place = f"127.0.0.1:{strict.port}"
    right = f"postgresql://app:s3cret%3A%2F%40@{place}"
    wrong = {
        f"postgresql://app:s3cretX@{place}/postgres": ConnectionFailedError,
        f"{right}/missing": ConnectionFailedError,
        f"postgresql://app:s3cret@127.0.0.1:{servers.free_port()}/postgres": ConnectionFailedError,
        f"{right}/postgres?sslmode=require": ConnectionFailedError,
        f"{right}/postgres?sslmode=s3cret": InvalidArgumentError,
        f"postgresql://app:s3cret/@{place}/postgres": InvalidArgumentError,
        f"host=127.0.0.1 port={strict.port} user=app password=s3cretX": ConnectionFailedError,
    }
    for url, kind in wrong.items():
        with pytest.raises(kind) as told:
            migrate.upgrade(url)
        assert "s3cret" not in str(told.value)
    for url in list(wrong)[::3]:
        for module, arguments in (
            ("locus_store", ("db", "upgrade")),
            ("alembic", ("-c", str(ROOT / "alembic.ini"), "upgrade", "head")),
        ):
            done = ran(module, *arguments, cwd=tmp_path, LOCUS_STORE_URL=url)
            assert done.returncode != 0
            assert "s3cret" not in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
    found = migrate.check(f"{right}/postgres")
    assert found.state == "missing"
    assert "s3cret" not in found.message
    assert "--url '…'" in found.message


def test_an_error_of_the_server_is_typed(made: Made) -> None:
    made.execute("CREATE TYPE locus_threads AS ENUM ()")  # has the name of a table's row
    with pytest.raises(BackendError, match='type "locus_threads" already exists'):
        migrate.upgrade(made.url)
    assert migrate.check(made.url).state == "missing"


# --- beside the user's own Alembic

USERS_ENV = """
import asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from alembic import context
from locus_store.sql.migrate import {imported}

metadata = sa.MetaData()
for schema in {schemas}:
    sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), schema=schema)


def run(connection):
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_object={hook},
        include_name={names},
        include_schemas={include_schemas},
    )
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()


async def main():
    engine = create_async_engine(context.config.get_main_option("sqlalchemy.url"))
    async with engine.connect() as connection:
        await connection.run_sync(run)
    await engine.dispose()


asyncio.run(main())
"""


def autogenerate(
    folder: Path,
    url: str,
    *,
    imported: str,
    hook: str,
    names: str = "None",
    schemas: tuple[str | None, ...] = (None,),
    upgrade: bool = True,
) -> str:
    with open(os.devnull, "w") as nowhere:
        config = Config(stdout=nowhere)
        config.set_main_option("script_location", str(folder))
        config.set_main_option(
            "sqlalchemy.url", url.replace("postgresql://", "postgresql+asyncpg://")
        )
        (folder / "versions").mkdir(parents=True)
        template = Path(sys.modules["alembic"].__path__[0]) / "templates/generic/script.py.mako"
        shutil.copy(template, folder)
        env = USERS_ENV.format(
            imported=imported,
            hook=hook,
            names=names,
            schemas=schemas,
            include_schemas=schemas != (None,),
        )
        (folder / "env.py").write_text(env)
        script = command.revision(config, "mine", autogenerate=True)
        if upgrade:
            command.upgrade(config, "head")
            command.check(config)
    return Path(script.path).read_text()  # type: ignore[union-attr]


@pytest.mark.parametrize("parts", [1, 4])
def test_a_users_autogenerate_leaves_our_tables_alone(
    ours: Made, tmp_path: Path, parts: int
) -> None:
    ensure(ours.url)

    async def index() -> None:
        async with PostgreSQLBackend(ours.url) as backend:
            assert await backend.create_search_index()

    servers.run(index())
    partition(ours.url, parts)
    settings, shape = ensure(ours.url), ours.shape()
    text = autogenerate(
        tmp_path / "users", ours.url, imported="include_object", hook="include_object"
    )
    assert "create_table('orders'" in text
    assert "locus_" not in text
    assert "drop_" not in text.partition("def downgrade")[0]
    assert ensure(ours.url) == settings
    assert [it for it in ours.shape() if "orders" not in it and "alembic" not in it] == shape
    assert {"orders", "alembic_version", "locus_version"} <= ours.things()


def test_a_users_autogenerate_over_all_schemas_leaves_our_tables_alone(
    ours: Made, tmp_path: Path
) -> None:
    ours.execute("CREATE SCHEMA app")
    settings = ensure(ours.url), ensure(ours.url, schema="locus_threads", prefix="mine_")
    text = autogenerate(
        tmp_path / "users",
        ours.url,
        imported="excluding",
        hook="excluding('mine_', then=excluding())",
        schemas=(None, "app"),
    )
    assert text.count("op.create_table('orders'") == 2
    assert "locus_" not in text
    assert "mine_" not in text
    assert "drop_" not in text.partition("def downgrade")[0]
    assert settings == (
        ensure(ours.url),
        ensure(ours.url, schema="locus_threads", prefix="mine_"),
    )


def test_a_users_autogenerate_does_not_reflect_our_tables(ours: Made, tmp_path: Path) -> None:
    """Warnings are errors: SQLAlchemy does not know the type ``vector``."""
    ensure(ours.url)
    vectors.create_vector_index(ours.url, dimension=3)
    imported = "include_name, include_object"
    with pytest.warns(sa.exc.SAWarning, match="vector"):
        autogenerate(
            tmp_path / "without",
            ours.url,
            imported=imported,
            hook="include_object",
            upgrade=False,
        )
    text = autogenerate(
        tmp_path / "users",
        ours.url,
        imported=imported,
        hook="include_object",
        names="include_name",
    )
    assert "create_table('orders'" in text
    assert "locus_" not in text
    assert "drop_" not in text.partition("def downgrade")[0]


def test_the_name_hook_asks_the_users_own_about_everything_else() -> None:
    hook = migrate.excluding_names("app_", then=lambda name, *_: name != "tmp")
    assert hook("app_threads", "table", {}) is False
    assert hook("app_embeddings", "table", {}) is False
    assert hook("app_version", "table", {}) is True  # so that a name passes
    assert hook("locus_threads", "table", {}) is True
    assert hook("tmp", "table", {}) is False
    assert hook("app_threads", "index", {}) is True


def test_without_the_hook_our_tables_would_be_dropped(ours: Made, tmp_path: Path) -> None:
    text = autogenerate(
        tmp_path / "users", ours.url, imported="include_object", hook="None", upgrade=False
    )
    assert "drop_table('locus_checkpoints')" in text
