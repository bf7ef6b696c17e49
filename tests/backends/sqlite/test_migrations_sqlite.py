from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import zipfile
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kept_database
import pytest
import sqlalchemy as sa
from later_release import REVISIONS, Release
from lazily import TESTS_RUN
from sqlalchemy.ext.asyncio import create_async_engine
from tiers import first_of
from workers.forked import at_once

from locus_store import SQLiteBackend
from locus_store.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    MissingExtraError,
    SchemaError,
)
from locus_store.sql import migrate
from locus_store.sql.schema import status
from locus_store.sql.schema.tables import make_tables

if TESTS_RUN:
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
COMPARES = pytest.mark.skipif(
    version("alembic").startswith(("1.14", "1.15", "1.16", "1.17")),
    reason="this Alembic misses identity columns on SQLite, which has none",
)
KEPT = sorted((ROOT / "tests" / "data" / "sqlite").glob("*.sql"))
NAMES = sorted(make_tables().names)

FOREIGN = """
CREATE TABLE {0} (thread_id TEXT PRIMARY KEY, state TEXT);
INSERT INTO {0} VALUES ('t', 'precious');
"""

ENSURE = """
import sys
import sqlalchemy as sa
from locus_store.sql.migrate import ensure

engine = sa.create_engine(sys.argv[1])
{hook}
with engine.connect() as connection:
    sys.stdin.readline()
    print(ensure(connection).store_id)
engine.dispose()
"""

KILL = """
import os, signal

@sa.event.listens_for(engine, "before_cursor_execute")
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
def count(connection, cursor, statement, *_):
    global batches
    batches += "SET title" in statement
    if batches == int(at):
        os.kill(os.getpid(), signal.SIGKILL)

with Release(Path(folder), last).installed():
    print(migrate.upgrade(url))
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'made.db'}"


@contextmanager
def connect(url: str, **options: Any) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url, **options)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def ensure(url: str, **options: Any) -> status.Settings:
    with connect(url) as connection:
        return migrate.ensure(connection, **options)


def run_sql(url: str, script: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.executescript(script)


def dump(url: str) -> list[str]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return sorted(connection.iterdump())


def things(url: str) -> set[str]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
    return {name for (name,) in rows if not name.startswith("sqlite_")}


def start(script: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def alembic(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-m", "alembic", "-c", str(ROOT / "alembic.ini"), *arguments],
        env={**base, **environment},
        cwd=cwd,
        text=True,
        capture_output=True,
        check=False,
    )


# --- what a first open makes


def test_a_database_without_a_schema_is_given_the_newest(url: str) -> None:
    assert ensure(url).revision == migrate.read_revision(url) == status.HEAD
    assert things(url) >= make_tables().names


def test_the_settings_record_identity_floor_and_chain(url: str) -> None:
    settings = ensure(url)
    assert len(settings.store_id) == 32
    assert int(settings.store_id, 16)
    assert settings.compatibility_floor == "0001"
    assert (settings.chain_factor, settings.record_overhead) == (4, 512)
    assert settings.raw["user_id_type"] == "string"
    assert "dimension" not in settings.raw


def test_a_database_keeps_its_identity_and_shares_it_with_no_other(
    url: str, tmp_path: Path
) -> None:
    first = ensure(url)
    assert ensure(url) == first
    assert ensure(f"sqlite:///{tmp_path / 'other.db'}").store_id != first.store_id


def test_opening_what_is_in_order_imports_no_alembic(url: str) -> None:
    ensure(url)
    script = ENSURE.format(hook="") + "\nassert 'alembic' not in sys.modules\n"
    with start(script, url) as process:
        _, errors = process.communicate("go\n", timeout=60)
    assert process.returncode == 0, errors


def test_opening_what_is_in_order_costs_one_statement(url: str) -> None:
    ensure(url)
    statements: list[str] = []
    with connect(url) as connection:
        sa.event.listen(
            connection, "before_cursor_execute", lambda *given: statements.append(given[2])
        )
        migrate.ensure(connection)
    assert len(statements) == 1


def test_no_transaction_is_left_behind(url: str) -> None:
    with connect(url) as connection:
        migrate.ensure(connection)
        assert not connection.in_transaction()
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 5000


def test_a_connection_in_a_transaction_is_refused(url: str) -> None:
    with connect(url) as connection, connection.begin():
        with pytest.raises(InvalidArgumentError, match="transaction"):
            migrate.ensure(connection)
        with pytest.raises(InvalidArgumentError, match="transaction"):
            migrate.upgrade(connection)


def test_a_database_in_memory_works() -> None:
    assert ensure("sqlite://").revision == status.HEAD


def test_the_newest_known_revision_is_the_newest_script() -> None:
    assert tuple(revision for revision, _ in migrate.list_revisions()) == status.REVISIONS
    assert ScriptDirectory(str(migrate.SCRIPTS)).get_heads() == [status.HEAD]


def test_the_command_line_module_knows_the_same_defaults() -> None:
    from locus_store import cli

    assert cli.DEFAULT_URL == migrate.DEFAULT_URL
    assert make_tables().prefix == cli.DEFAULT_PREFIX


# --- several at once


@pytest.mark.full
def test_sixteen_processes_may_start_cold_at_once(url: str) -> None:
    answers = at_once(ENSURE.format(hook=""), *[[url]] * 16)
    assert answers == [ensure(url).store_id] * 16


@pytest.mark.parametrize("databases", first_of(16, 1))
def test_sixteen_threads_may_start_cold_at_once(tmp_path: Path, databases: int) -> None:
    # On databases of their own nothing but the lock of the process keeps them apart.
    urls = [f"sqlite:///{tmp_path / str(number % databases)}.db" for number in range(16)]
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda url=url: found.append(ensure(url).store_id)) for url in urls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == databases


def test_a_migration_killed_half_way_leaves_nothing(url: str) -> None:
    with start(ENSURE.format(hook=KILL), url) as process:
        process.communicate("go\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert things(url) == set()
    assert ensure(url).revision == status.HEAD


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("options", [{}, {"isolation_level": "AUTOCOMMIT"}])
def test_a_migration_that_fails_half_way_leaves_nothing(
    url: str, options: Any, failure: type[BaseException]
) -> None:
    with connect(url, **options) as connection:

        @sa.event.listens_for(connection, "before_cursor_execute")
        def fail(*given: Any) -> None:
            if "CREATE VIEW" in given[2]:
                raise failure

        with pytest.raises(failure):
            migrate.ensure(connection)
        assert not connection.in_transaction()
        sa.event.remove(connection, "before_cursor_execute", fail)
        assert things(url) == set()
        assert migrate.ensure(connection).revision == status.HEAD


def test_an_engine_that_begins_by_itself_migrates_too(url: str) -> None:
    engine = sa.create_engine(url)  # SQLAlchemy's own recipe for savepoints on SQLite

    @sa.event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    with engine.connect() as connection:
        assert migrate.ensure(connection).revision == status.HEAD
    engine.dispose()
    assert migrate.check(url).state == "ok"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_async_engine_migrates_too(tmp_path: Path, anyio_backend: str) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'made.db'}")
    async with engine.connect() as connection:
        settings = await connection.run_sync(migrate.ensure)
    await engine.dispose()
    assert settings == ensure(f"sqlite:///{tmp_path / 'made.db'}")


# --- what it refuses


def test_without_auto_migrate_nothing_is_made(url: str) -> None:
    with pytest.raises(SchemaError, match="locus-store db upgrade --url 'sqlite:///"):
        ensure(url, auto_migrate=False)
    assert things(url) == set()


def test_without_auto_migrate_what_is_in_order_opens(url: str) -> None:
    made = ensure(url)
    assert ensure(url, auto_migrate=False) == made


def test_a_read_only_file_opens(url: str) -> None:
    made = ensure(url)
    path = url.removeprefix("sqlite:///")
    assert ensure(f"sqlite:///file:{path}?mode=ro&uri=true") == made


@pytest.mark.parametrize("name", NAMES)
def test_a_table_of_our_name_is_never_adopted_or_damaged(url: str, name: str) -> None:
    run_sql(url, FOREIGN.format(name))
    before = dump(url)
    for action in (
        lambda: ensure(url),
        lambda: migrate.upgrade(url),
        lambda: migrate.downgrade(url),
    ):
        with pytest.raises(SchemaError, match=rf"table {name} .*another prefix"):
            action()
    assert migrate.check(url).state == "foreign"
    assert dump(url) == before


def test_alembic_itself_is_refused_on_a_foreign_table(url: str, tmp_path: Path) -> None:
    run_sql(url, FOREIGN.format("locus_checkpoints"))
    before = dump(url)
    ran = alembic("upgrade", "head", cwd=tmp_path, LOCUS_STORE_URL=url)
    assert ran.returncode != 0
    assert "table locus_checkpoints not made by locus-store" in ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr
    assert dump(url) == before


def test_options_may_stand_in_the_url(url: str) -> None:
    assert migrate.upgrade(f"{url}?prefix=mine_&tenant=acme&busy_timeout_seconds=3") == status.HEAD
    assert migrate.read_revision(url) is None
    assert migrate.read_revision(url, prefix="mine_") == status.HEAD


def test_a_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    migrate.upgrade("sqlite:///~/mine.db")
    assert [it.name for it in tmp_path.iterdir()] == ["mine.db"]
    assert migrate.read_revision("sqlite:///~/mine.db") == status.HEAD
    with pytest.raises(InvalidArgumentError, match="no such home"):
        migrate.upgrade("sqlite:///~nobody-here/mine.db")


def test_another_prefix_lives_beside_a_foreign_table(url: str) -> None:
    run_sql(url, FOREIGN.format("locus_checkpoints"))
    assert ensure(url, prefix="mine_").revision == status.HEAD
    assert any("precious" in line for line in dump(url))


def test_somebody_elses_version_table_is_foreign(url: str) -> None:
    script = "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES"
    for revision in ("8d2a", "0001"):
        run_sql(url, f"DROP TABLE IF EXISTS alembic_version; {script} ('{revision}');")
        with pytest.raises(SchemaError, match="alembic_version not made by locus-store"):
            ensure(url, prefix="alembic_")


def test_a_schema_changed_by_hand_is_told(url: str) -> None:
    ensure(url)
    run_sql(url, "DROP VIEW locus_heads; ALTER TABLE locus_threads DROP COLUMN name;")
    assert migrate.check(url).state == "damaged"
    assert "locus_threads.name" in migrate.check(url).message


def test_lost_settings_are_told(url: str) -> None:
    ensure(url)
    run_sql(url, "DELETE FROM locus_settings")
    with pytest.raises(SchemaError, match="locus_settings is gone or empty"):
        ensure(url)


@pytest.mark.parametrize(
    "change", ["DELETE FROM locus_settings", "UPDATE locus_settings SET value = '1'"]
)
def test_a_database_in_another_stored_form_is_refused_and_stays_as_it_is(
    url: str, change: str
) -> None:
    """The names of its threads may be others, so that they would seem to be lost."""
    ensure(url)
    run_sql(url, f"{change} WHERE name = 'stored_form'")
    before = dump(url)
    for auto_migrate in (True, False, "upgrade"):
        with pytest.raises(SchemaError, match=r"another form .* import them into another database"):
            ensure(url, auto_migrate=auto_migrate)
    for move in (migrate.upgrade, migrate.downgrade):
        with pytest.raises(SchemaError, match="another form"):
            move(url)
    assert migrate.check(url).state == "foreign"
    assert dump(url) == before


def test_two_prefixes_live_in_one_database(url: str) -> None:
    assert ensure(url).store_id != ensure(url, prefix="other_").store_id
    migrate.downgrade(url, prefix="other_")
    assert migrate.check(url).state == "ok"
    assert migrate.check(url, prefix="other_").state == "missing"


def test_a_database_schema_is_kept_apart(tmp_path: Path) -> None:
    with connect("sqlite://") as connection:
        connection.exec_driver_sql(f"ATTACH '{tmp_path / 'second.db'}' AS second")
        connection.rollback()
        migrate.ensure(connection, schema="second")
        assert migrate.check(connection, schema="second").state == "ok"
        assert migrate.check(connection).state == "missing"


# --- newer and older


@pytest.mark.usefixtures("later_release")
def test_an_older_schema_is_never_upgraded_by_itself(url: str) -> None:
    migrate.upgrade(url, "0001")
    before = dump(url)
    for auto_migrate in (True, False):
        with pytest.raises(SchemaError, match=r"0001 is behind .*0003.*locus-store db upgrade"):
            ensure(url, auto_migrate=auto_migrate)
    assert migrate.check(url).state == "behind"
    assert dump(url) == before


@pytest.mark.usefixtures("later_release")
def test_an_older_schema_is_upgraded_where_that_was_asked_for(url: str) -> None:
    migrate.upgrade(url, "0001")
    before = migrate.check(url).settings
    assert before is not None
    settings = ensure(url, auto_migrate="upgrade")
    assert (settings.revision, settings.store_id) == ("0003", before.store_id)


@pytest.mark.usefixtures("later_release")
def test_a_migration_goes_up_and_down_one_step(url: str) -> None:
    assert migrate.upgrade(url) == "0003"
    for revision in ("0002", "0001"):
        assert migrate.downgrade(url, revision) == revision
    for revision in ("0002", "0003"):
        assert migrate.upgrade(url, "+1") == revision
    with connect(url) as connection:  # a table rebuilt beneath it leaves the view whole
        assert connection.execute(sa.text("SELECT * FROM locus_heads")).all() == []


def save(url: str, *thread_ids: str) -> None:
    async def saved() -> None:
        async with SQLiteBackend(url.removeprefix("sqlite:///")) as backend:
            for it in thread_ids:
                await backend.save(it, {"n": 1})

    asyncio.run(saved())


def titles(url: str) -> list[str]:
    with connect(url) as connection:
        query = sa.text("SELECT title FROM locus_threads ORDER BY thread")
        return list(connection.execute(query).scalars())


def test_an_old_library_works_beside_a_newer_one_until_the_floor_is_raised(
    url: str, release: Callable[..., Release]
) -> None:
    save(url, "before")
    with release("0002").installed():
        assert migrate.upgrade(url) == "0002"
    assert migrate.check(url).state == "newer"
    save(url, "beside")
    assert titles(url) == ["before", None]
    with release("0003").installed():
        assert migrate.upgrade(url) == "0003"
    assert titles(url) == ["before", "beside"]
    before = dump(url)
    with pytest.raises(SchemaError, match=r"0003 asks for .*0002.*pip install --upgrade"):
        save(url, "after")
    assert dump(url) == before
    with release("0002").installed():
        save(url, "after")


@pytest.mark.parametrize(("last", "at"), first_of(("0002", 2), ("0002", 1), ("0003", 2)))
def test_a_migration_of_data_that_is_killed_is_run_again(
    url: str, tmp_path: Path, release: Callable[..., Release], last: str, at: int
) -> None:
    if last == "0003":
        with release("0002").installed():
            migrate.upgrade(url)
    threads = [f"t{number}" for number in range(7)]
    save(url, *threads)
    before = dump(url)
    release(last)  # writes its scripts
    with start(UPGRADE, url, str(tmp_path), last, str(at)) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    assert dump(url) == before
    save(url, "beside")  # by an old library
    with release(last).installed():
        assert migrate.upgrade(url) == last
    assert titles(url) == [*threads, "beside"]


@pytest.mark.usefixtures("later_release")
def test_a_first_upgrade_runs_the_whole_chain(url: str) -> None:
    assert ensure(url).revision == "0003"
    assert migrate.check(url).settings.compatibility_floor == "0002"


def test_an_older_library_works_down_to_the_floor(url: str) -> None:
    made = ensure(url)
    run_sql(url, "UPDATE locus_version SET version_num = '0099'")
    settings = ensure(url)
    assert (settings.store_id, settings.revision) == (made.store_id, "0099")
    assert migrate.check(url).usable


def test_below_the_floor_a_library_is_refused(url: str) -> None:
    ensure(url)
    run_sql(url, "UPDATE locus_version SET version_num = '0099'")
    run_sql(url, "UPDATE locus_settings SET value = '0050' WHERE name = 'compatibility_floor'")
    for auto_migrate in (True, "upgrade", False):
        with pytest.raises(SchemaError, match="pip install --upgrade"):
            ensure(url, auto_migrate=auto_migrate)
    with pytest.raises(SchemaError, match="0099"):
        migrate.upgrade(url)
    with pytest.raises(SchemaError, match="0099"):
        migrate.downgrade(url)


def test_an_unknown_revision_is_told(url: str) -> None:
    with pytest.raises(SchemaError, match="nonsense"):
        migrate.upgrade(url, "nonsense")
    assert things(url) == set()


@pytest.mark.parametrize("revision", ["", "nonsense", "x" * 300, "@", "head@", "\udcff"])
def test_an_unknown_revision_is_told_also_where_all_is_up_to_date(url: str, revision: str) -> None:
    ensure(url)
    for move in (migrate.upgrade, migrate.downgrade):
        with pytest.raises(SchemaError):
            move(url, revision)
    for it in (revision, f"{revision}:head", f"0001:{revision}"):
        with pytest.raises(SchemaError):
            migrate.render_upgrade("sqlite", it)
    assert migrate.check(url).state == "ok"


def test_an_option_that_sqlite_would_leave_aside_is_told(url: str) -> None:
    ensure(url)
    for move in (migrate.check, migrate.upgrade):
        with pytest.raises(InvalidArgumentError, match="colour"):
            move(f"{url}?colour=red")
    assert migrate.upgrade(f"{url}?keep_last=3&timeout=5") == status.HEAD


def test_a_schema_is_named_by_a_text(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="schema"):
        migrate.check(url, schema="\udcff")


# --- the chain


def test_down_to_base_leaves_nothing_and_up_again_works(url: str) -> None:
    first = ensure(url)
    assert migrate.downgrade(url) is None
    assert things(url) == {"locus_version"}
    assert migrate.check(url).state == "missing"
    assert ensure(url).store_id != first.store_id


@COMPARES
@pytest.mark.parametrize("prefix", ["locus_", "mine_", "MyTable_", "a" * 51 + "_"])
def test_the_orm_schema_is_the_migrated_schema(url: str, prefix: str) -> None:
    ours = make_tables(prefix)
    ensure(url, prefix=prefix)
    with connect(url) as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_object": migrate.include_ours(ours, "sqlite"),
                "compare_type": True,
                "version_table": ours.version,
            },
        )
        assert compare_metadata(context, ours.metadata) == []


@pytest.mark.full
@COMPARES
def test_the_autogeneration_of_our_own_chain_finds_nothing(tmp_path: Path) -> None:
    assert alembic("upgrade", "head", cwd=tmp_path).returncode == 0
    ran = alembic("check", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_kept_database_is_upgraded_and_used(url: str, kept: Path) -> None:
    run_sql(url, kept.read_text())
    assert migrate.read_revision(url) == kept.stem
    ours = make_tables()
    with connect(url) as connection:
        settings = migrate.ensure(connection, auto_migrate="upgrade")
        assert f"'store_id','{settings.store_id}'" in kept.read_text()
        heads = connection.execute(sa.text("SELECT * FROM locus_heads")).mappings().all()
        assert next((row["thread_id"], row["checkpoint_id"]) for row in heads) == ("/kept", "v2")
        line = connection.execute(sa.select(ours.lines)).mappings().first()
        assert (line["namespace"], line["head"]) == ("", 2)
        row = {"line": line["line"], "sequence": 3, "chain": 1, "checkpoint_id": "v3"}
        connection.execute(ours.checkpoints.insert().values(**row, digest=b"d" * 16))
        counted = sa.select(sa.func.count()).where(ours.checkpoints.c.line == line["line"])
        assert connection.scalar(counted) == 3


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_kept_database_gives_back_all_that_it_holds(url: str, kept: Path) -> None:
    run_sql(url, kept.read_text())
    asyncio.run(kept_database.use(url, auto_migrate="upgrade"))


@pytest.mark.parametrize("revision", first_of(*REVISIONS))
@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_later_release_upgrades_a_database_of_every_revision(
    url: str, kept: Path, revision: str, release: Callable[..., Release]
) -> None:
    run_sql(url, kept.read_text())
    with release().installed():
        if revision > kept.stem:
            migrate.upgrade(url, revision)
        asyncio.run(kept_database.use(url, auto_migrate="upgrade"))
        assert migrate.check(url).state == "ok"
        assert titles(url) == ["/kept", "chain", "empty", None]
        assert migrate.downgrade(url, kept.stem) == kept.stem
    assert migrate.check(url).state == "ok"


def test_offline_sql_of_data_is_run_as_well(url: str, release: Callable[..., Release]) -> None:
    save(url, "t")
    with release().installed():
        run_sql(url, migrate.render_upgrade("sqlite", "0001:head"))
        assert migrate.check(url).state == "ok"
    assert titles(url) == ["t"]


def test_every_revision_has_a_kept_database() -> None:
    assert tuple(path.stem for path in KEPT) == status.REVISIONS


def test_the_schema_is_made_by_migrations_alone() -> None:
    word = "create_" + "all"
    for folder in ("locus_store", "alembic", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            assert word not in path.read_text(), path


def test_the_folder_of_migrations_does_not_shadow_alembic() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()


# --- SQL as text


def test_offline_sql_for_sqlite_gives_the_same_schema(url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    run_sql(other, migrate.render_upgrade("sqlite"))
    ensure(url)
    identity = "INSERT INTO \"locus_settings\" VALUES('store_id'"

    def shape(lines: list[str]) -> list[str]:
        return [" ".join(line.split()) for line in lines if not line.startswith(identity)]

    assert shape(dump(other)) == shape(dump(url))
    assert ensure(other).store_id != ensure(url).store_id


@pytest.mark.parametrize("dialect", ["postgresql", "oracle"])
@pytest.mark.full
def test_offline_sql_needs_no_driver(dialect: str) -> None:
    script = (
        "import sys\n"
        "for name in ('psycopg', 'psycopg2', 'asyncpg', 'oracledb', 'cx_Oracle'):\n"
        "    sys.modules[name] = None\n"
        "from locus_store.sql.migrate import render_upgrade\n"
        "print(render_upgrade(sys.argv[1]))"
    )
    with start(script, dialect) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert all(name in out for name in NAMES)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "oracle"])
def test_offline_sql_binds_nothing_and_mints_an_identity(dialect: str) -> None:
    text = migrate.render_upgrade(dialect, prefix="mine_", schema=None)
    words = {"sqlite": "randomblob", "postgresql": "gen_random_uuid", "oracle": "SYS_GUID"}
    assert words[dialect] in text
    assert "RETURNING" not in text  # Alembic's own row would bind what it returns on Oracle
    assert "locus_" not in text


def test_offline_sql_names_the_database_schema() -> None:
    text = migrate.render_upgrade("postgresql", schema="App")
    assert 'CREATE TABLE "App".locus_threads' in text
    assert 'FROM "App".locus_threads t' in text
    assert 'CREATE VIEW "App".locus_heads' in text


@pytest.mark.parametrize("dialect", ["oracle"])
def test_offline_sql_for_oracle_is_not_postgresqls(dialect: str) -> None:
    text = migrate.render_upgrade(dialect)
    for word in (
        "::",
        "JSONB",
        "BYTEA",
        "BIGSERIAL",
        " TEXT",
        "TIMESTAMPTZ",
        "LIMIT",
        "ON CONFLICT",
    ):
        assert word not in text
    assert text.count("TIMESTAMP WITH TIME ZONE") == 14
    assert text.rstrip().endswith("COMMIT\n\n/")  # the rows after the last DDL


def test_offline_sql_knows_three_dialects() -> None:
    with pytest.raises(InvalidArgumentError, match="sqlite, postgresql, oracle"):
        migrate.render_upgrade("mysql")


# --- URLs


def test_looking_at_a_file_that_is_not_there_does_not_make_it(url: str) -> None:
    assert migrate.check(url).state == "missing"
    assert migrate.read_revision(url) is None
    with pytest.raises(SchemaError):
        migrate.downgrade(url)
    assert not Path(url.removeprefix("sqlite:///")).exists()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailedError, match=r"x.db: .*check that its directory exists"):
        migrate.upgrade(f"sqlite:///{tmp_path / 'no' / 'x.db'}")


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite+aiosqlite:///?prefix=mine_"])
def test_a_url_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"has no path: write sqlite:///file\.db"):
        migrate.upgrade(url)


def test_a_file_that_is_no_database_is_told(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    path.write_bytes(b"not a database at all, but long enough to be read as one" * 20)
    before = path.read_bytes()
    with pytest.raises(ConnectionFailedError, match="the file is no SQLite database"):
        migrate.upgrade(url)
    assert path.read_bytes() == before


def test_a_message_never_shows_a_password() -> None:
    secrets = "postgresql+asyncpg://user:s3cret@host/db?password=s3cret&client_secret=s3cret"
    told = []
    for url in (secrets, "user:s3cret@host", "postgresql+nothing://user:s3cret@host/db"):
        with pytest.raises(
            (MissingExtraError, InvalidArgumentError, ConnectionFailedError)
        ) as error:
            migrate.upgrade(url)
        told.append(str(error.value))
    assert not any("s3cret" in message for message in told)


def test_a_missing_driver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[postgres\]"):
        migrate.upgrade("postgresql://host/db")


def test_an_async_driver_is_replaced_by_one_that_blocks(tmp_path: Path) -> None:
    assert migrate.upgrade(f"sqlite+aiosqlite:///{tmp_path / 'made.db'}") == status.HEAD


def test_an_async_engine_is_told_how_to_migrate(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'made.db'}")
    for target in (engine, engine.sync_engine):
        with pytest.raises(InvalidArgumentError, match=r"run_sync\(migrate\.upgrade\)"):
            migrate.upgrade(target)  # type: ignore[arg-type]
    for target in (engine, engine.sync_engine, "sqlite://"):
        with pytest.raises(InvalidArgumentError, match=r"run_sync\(migrate\.ensure\)"):
            migrate.ensure(target)  # type: ignore[arg-type]


# --- Alembic's own command line, in a checkout


def test_alembic_upgrade_head_makes_the_default_database(tmp_path: Path) -> None:
    ran = alembic("upgrade", "head", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "the storage is the default, sqlite:///locus_checkpoints.db" in ran.stderr
    assert migrate.check(f"sqlite:///{tmp_path / 'locus_checkpoints.db'}").state == "ok"


def test_alembic_refuses_an_empty_variable(tmp_path: Path) -> None:
    ran = alembic("upgrade", "head", cwd=tmp_path, LOCUS_STORE_URL="")
    assert ran.returncode != 0
    assert "the URL is empty: set LOCUS_STORE_URL" in ran.stderr + ran.stdout
    assert not list(tmp_path.iterdir())


def test_alembic_refuses_an_option_that_it_does_not_know(tmp_path: Path) -> None:
    ran = alembic("-x", "prefx=app_", "-x", "url=sqlite:///a.db", "upgrade", "head", cwd=tmp_path)
    assert ran.returncode != 0
    assert "no option -x prefx= (did you mean 'prefix'?)" in ran.stderr + ran.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_alembic_takes_url_prefix_and_schema(tmp_path: Path) -> None:
    options = ("-x", "url=sqlite+aiosqlite:///x.db", "-x", "prefix=mine_", "-x", "schema=main")
    ran = alembic(*options, "upgrade", "head", cwd=tmp_path, LOCUS_STORE_URL="sqlite:///no.db")
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "no.db").exists()
    assert migrate.check(f"sqlite:///{tmp_path / 'x.db'}", prefix="mine_").state == "ok"


@pytest.mark.full
def test_alembic_prints_sql_for_a_server_without_its_driver(tmp_path: Path) -> None:
    url = "postgresql+asyncpg://user:s3cret@host/db"
    ran = alembic("upgrade", "head", "--sql", cwd=tmp_path, LOCUS_STORE_URL=url)
    assert ran.returncode == 0, ran.stderr
    assert "JSONB" in ran.stdout
    assert "s3cret" not in ran.stdout + ran.stderr


# --- beside the user's own Alembic

USERS_ENV = """
import sqlalchemy as sa
from alembic import context
from locus_store.sql.migrate import {imported}

metadata = sa.MetaData()
sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True))
engine = sa.create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(
        connection=connection, target_metadata=metadata, include_object={hook}
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""


def autogenerate(folder: Path, url: str, *, imported: str, hook: str) -> str:
    config = Config(stdout=open(os.devnull, "w"))  # noqa: SIM115
    config.set_main_option("script_location", str(folder))
    config.set_main_option("sqlalchemy.url", url)
    (folder / "versions").mkdir(parents=True)
    template = Path(sys.modules["alembic"].__path__[0]) / "templates/generic/script.py.mako"
    shutil.copy(template, folder)
    (folder / "env.py").write_text(USERS_ENV.format(imported=imported, hook=hook))
    try:
        script = command.revision(config, "mine", autogenerate=True)
        command.upgrade(config, "head")
    finally:
        config.stdout.close()
    return Path(script.path).read_text()  # type: ignore[union-attr]


def test_a_users_autogenerate_leaves_our_tables_alone(url: str, tmp_path: Path) -> None:
    made = ensure(url)
    text = autogenerate(tmp_path / "users", url, imported="include_object", hook="include_object")
    assert "create_table('orders'" in text
    assert "locus_" not in text
    assert ensure(url) == made
    assert {"orders", "alembic_version", "locus_version"} <= things(url)


def test_a_users_autogenerate_leaves_another_prefix_alone(url: str, tmp_path: Path) -> None:
    ensure(url, prefix="mine_")
    text = autogenerate(tmp_path / "users", url, imported="excluding", hook="excluding('mine_')")
    assert "create_table('orders'" in text
    assert "mine_" not in text.replace("_mine_", "")
    assert ensure(url, prefix="mine_").revision == status.HEAD


def test_without_the_hook_our_tables_would_be_dropped(url: str, tmp_path: Path) -> None:
    ensure(url)
    text = autogenerate(tmp_path / "users", url, imported="include_object", hook="None")
    assert "drop_table('locus_checkpoints')" in text


def test_a_users_own_hook_is_asked_about_the_rest() -> None:
    hook = migrate.excluding(then=lambda *given: given[1] == "orders")
    assert hook(None, "orders", "table", True, None)
    assert not hook(None, "other", "table", True, None)
    assert not hook(None, "locus_lines", "table", True, None)
    assert not hook(None, "locus_search_data", "table", True, None)


# --- the wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our wheel and nothing else in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.db", "build", "dist")
    )
    for name in ("README.md", "LICENSE"):  # needed to build, not the subject here
        (source / name).touch()
    init = source / "locus_store" / "__init__.py"
    if "__version__" not in init.read_text():
        init.write_text('__version__ = "0"\n')
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "-o",
            str(folder),
            str(source),
        ],
        check=True,
        capture_output=True,
    )
    target = folder / "site"
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


@pytest.mark.full
def test_the_wheel_carries_the_migrations(installed: Path) -> None:
    carried = {path.name for path in (installed / "locus_store" / "_alembic").rglob("*.*")}
    ours = {path.name for path in (ROOT / "alembic").rglob("*.py")}
    assert ours | {"script.py.mako"} <= carried
    assert not (installed / "alembic").exists()


@pytest.mark.full
def test_an_installed_wheel_migrates_in_any_directory(installed: Path, tmp_path: Path) -> None:
    script = (
        "import locus_store.sql.migrate as m, sys; assert m.SCRIPTS.name == '_alembic';"
        "from locus_store.cli import main; sys.argv[1:] = ['db', 'upgrade']; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert migrate.check(f"sqlite:///{tmp_path / 'locus_checkpoints.db'}").state == "ok"
