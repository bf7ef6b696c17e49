"""SQLite alone: files, saves and the table of embeddings."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import sqlalchemy as sa

from locus_store import (
    AgentState,
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    SchemaError,
    SQLiteBackend,
    sqlite_checkpointer,
)
from locus_store.sql import migrate
from locus_store.sql.schema.vectors import create_vector_index

pytestmark = pytest.mark.anyio


async def test_a_cold_save_keeps_the_state_as_it_was_handed_in(tmp_path):
    path = tmp_path / "a.db"
    async with SQLiteBackend(path) as first:
        await first.write_state("t", {"m": ["x" * 30_000]})
    state, metadata = {"m": ["x" * 30_000, "mine"]}, {"k": 1}
    async with SQLiteBackend(path) as cold:
        save = asyncio.ensure_future(cold.write_state("t", state, metadata=metadata))
        await asyncio.sleep(0)
        state["m"].append("later")
        metadata["k"] = 2
        await save
        found = await cold.read_state("t")
    assert found.state["m"][1:] == ["mine"]
    assert found.version.metadata == {"k": 1}


async def test_a_thread_that_expires_at_this_moment_is_not_renewed(tmp_path):
    def stop_clock(connection, _):
        connection.create_function("julianday", 1, lambda _: 2_460_000.5)

    sa.event.listen(sa.Engine, "connect", stop_clock)
    try:
        async with SQLiteBackend(tmp_path / "a.db") as backend:
            await backend.write_state("t", {"n": 1}, ttl_seconds=1e-6)
            assert await backend.renew("t", 60) is False
            assert await backend.load("t") is None
    finally:
        sa.event.remove(sa.Engine, "connect", stop_clock)


def test_sqlite_has_the_table_and_no_index(tmp_path):
    url = f"sqlite:///{tmp_path / 'a.db'}"
    migrate.upgrade(url)
    assert create_vector_index(url, dimension=3)
    assert not create_vector_index(url, dimension=3)
    with pytest.raises(SchemaError, match="embeddings of 3 numbers, not 4"):
        create_vector_index(url, dimension=4)
    assert migrate.check(url).state == "ok"
    assert migrate.downgrade(url) is None
    migrate.upgrade(url)
    assert create_vector_index(url, dimension=4)


STATE = AgentState()


async def test_a_new_file_waits_for_another_program_that_writes_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # the busy timeout of SQLite does not hold for a switch to WAL
    async with sqlite_checkpointer(path) as checkpointer, asyncio.TaskGroup() as tasks:
        save = tasks.create_task(checkpointer.save(STATE, "t"))
        await asyncio.sleep(0.2)
        assert not save.done()
        other.execute("ROLLBACK")
    other.close()
    async with sqlite_checkpointer(path, busy_timeout_seconds=0.1) as checkpointer:
        assert await checkpointer.load("t") is not None


async def test_a_busy_new_file_is_an_error_after_the_busy_timeout(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with sqlite_checkpointer(path, busy_timeout_seconds=0.1) as checkpointer:
            with pytest.raises(BackendError, match="SQLITE_BUSY"):
                await checkpointer.save(STATE, "t")


async def refused(path: Any, error: type[Exception], match: str, **options: Any) -> Exception:
    """Return the error that reading and writing raise; its message names the file."""
    async with sqlite_checkpointer(path, **options) as checkpointer:
        with pytest.raises(error, match=match) as told:
            await checkpointer.save(STATE, "t")
        with pytest.raises(error, match=match):
            await checkpointer.load("t")
    assert str(path) in str(told.value)
    return told.value


async def test_a_directory_that_is_missing_is_told(tmp_path: Path) -> None:
    error = await refused(
        tmp_path / "no" / "file.db", ConnectionFailedError, "check that its directory exists"
    )
    assert error.__cause__ is not None


async def test_a_directory_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    await refused(tmp_path, ConnectionFailedError, "check that its directory exists")


async def test_a_file_that_is_no_database_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are notes and no database at all. " * 50)
    before = path.read_bytes()
    await refused(path, ConnectionFailedError, "name another path")
    assert path.read_bytes() == before


NOBODY = """
import asyncio, os, sys
from locus_store import AgentState, LocusStoreError, sqlite_checkpointer
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)

async def main():
    async with sqlite_checkpointer(sys.argv[1], state_type=dict) as checkpointer:
        for call in (checkpointer.load("t"), checkpointer.save({"n": 2}, "t")):
            try:
                print(await call)
            except LocusStoreError as exc:
                print(type(exc).__name__, exc)

asyncio.run(main())
"""


def as_nobody(path: Path) -> list[str]:
    """Return the errors of a load and of a save in a process without rights."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", NOBODY, str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def open_directory(tmp_path: Path) -> Path:
    """One that an unprivileged process can reach."""
    at = tmp_path
    while at != at.parent and at.stat().st_uid == os.getuid():
        at.chmod(0o755)
        at = at.parent
    return tmp_path


def test_a_directory_that_may_not_be_written_is_told(open_directory: Path) -> None:
    open_directory.chmod(0o555)
    load, save = as_nobody(open_directory / "new.db")
    for told in (load, save):
        assert told.startswith("ConnectionFailedError")
        assert "check that its directory exists, that both may be written, and ulimit -n" in told
    open_directory.chmod(0o755)


async def test_a_file_that_is_read_only_is_told_on_writing(open_directory: Path) -> None:
    path = open_directory / "checkpoints.db"
    async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
    path.chmod(0o444)
    load, save = as_nobody(path)
    assert load == "{'n': 1}" or load.startswith(("BackendError", "ConnectionFailedError")), load
    assert save.startswith(("BackendError", "ConnectionFailedError")), save
    assert "read-only: grant write permission" in save or "may be written" in save


async def test_a_lock_that_another_process_holds_is_told(tmp_path: Path, migrated: Path) -> None:
    path = Path(copyfile(migrated, tmp_path / "checkpoints.db"))
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        async with sqlite_checkpointer(path, busy_timeout_seconds=0) as checkpointer:
            with pytest.raises(BackendError, match="save again"):
                await checkpointer.save(STATE, "t")
            assert await checkpointer.load("t") is None
            holder.execute("ROLLBACK")
            await checkpointer.save(STATE, "t")
            assert await checkpointer.exists("t")


def damaged(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))


async def test_a_damaged_file_is_told(tmp_path: Path, migrated: Path) -> None:
    path = Path(copyfile(migrated, tmp_path / "checkpoints.db"))
    async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
        await checkpointer.save({"text": "x" * 200_000}, "t")
    damaged(path)
    async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
        with pytest.raises((BackendError, ConnectionFailedError, SchemaError, IntegrityError)):
            await checkpointer.load("t")


@pytest.mark.parametrize("table", ["locus_checkpoints", "locus_threads", "locus_store"])
async def test_a_foreign_table_of_our_name_is_told_and_left_alone(
    tmp_path: Path, table: str
) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE {table} (thread_id TEXT PRIMARY KEY, data TEXT)")
        connection.execute(f"INSERT INTO {table} VALUES ('t', 'theirs')")
    await refused(path, SchemaError, f"{table}.*Choose another prefix")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(f"SELECT * FROM {table}").fetchall() == [("t", "theirs")]
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        assert tables.fetchall() == [(table,)]
    async with sqlite_checkpointer(path, prefix="mine_") as checkpointer:
        await checkpointer.save(STATE, "t")
        assert await checkpointer.exists("t")


async def test_a_schema_that_is_too_new_names_the_upgrade_of_the_library(
    tmp_path: Path, migrated: Path
) -> None:
    path = Path(copyfile(migrated, tmp_path / "checkpoints.db"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE locus_version SET version_num = '9999'")
        connection.execute(
            "UPDATE locus_settings SET value = '9999' WHERE name = 'compatibility_floor'"
        )
    await refused(path, SchemaError, "pip install --upgrade locus-store")


async def test_a_schema_that_is_missing_names_the_command_where_it_may_not_be_made(
    tmp_path: Path,
) -> None:
    path = tmp_path / "empty.db"
    await refused(path, SchemaError, "locus-store db upgrade", auto_migrate=False)
    assert not os.path.exists(path)  # noqa: ASYNC240  (at once)


async def test_a_schema_that_is_behind_names_the_command(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from locus_store.sql.schema import status

    path = Path(copyfile(migrated, tmp_path / "checkpoints.db"))
    monkeypatch.setattr(status, "REVISIONS", (*status.REVISIONS, "0099"))
    monkeypatch.setattr(status, "HEAD", "0099")
    await refused(path, SchemaError, "locus-store db upgrade")


# --- files that are removed or truncated while they are open


@pytest.mark.parametrize("removed", [("-wal",), ("-wal", "-shm")])
async def test_saves_survive_the_removal_of_the_log(database_file, tmp_path, removed) -> None:
    checkpointer = sqlite_checkpointer(database_file, state_type=dict)
    await checkpointer.save({"n": 1}, "before")
    for log in removed:
        os.remove(f"{database_file}{log}")
    await checkpointer.save({"n": 2}, "after")
    crashed = tmp_path / "crashed.db"  # what a process finds that comes after a kill
    for log in ("", "-wal"):
        copyfile(f"{database_file}{log}", f"{crashed}{log}")
    await checkpointer.close()
    found = sqlite_checkpointer(crashed, state_type=dict)
    assert [await found.load(it) for it in ("before", "after")] == [{"n": 1}, {"n": 2}]
    await found.close()


async def test_no_save_goes_into_a_removed_log_that_others_use(database_file, tmp_path) -> None:
    checkpointer, other = (sqlite_checkpointer(database_file, state_type=dict) for _ in range(2))
    await checkpointer.save({"n": 1}, "before")
    assert await other.load("before") == {"n": 1}
    os.remove(f"{database_file}-wal")
    with pytest.raises(BackendError, match="-wal was removed or replaced while it was open"):
        await checkpointer.save({"n": 2}, "after")
    crashed = tmp_path / "crashed.db"
    copyfile(database_file, crashed)
    found = sqlite_checkpointer(crashed, state_type=dict)
    assert await found.load("before") == {"n": 1}
    for it in (found, other):
        await it.close()
    await checkpointer.save({"n": 2}, "after")
    await checkpointer.close()
    assert await other.load("after") == {"n": 2}
    await other.close()


async def test_a_file_that_was_emptied_while_it_was_open_is_reported_at_once(database_file) -> None:
    checkpointer, other = (sqlite_checkpointer(database_file, state_type=dict) for _ in range(2))
    await checkpointer.save({"n": 1}, "t")
    os.truncate(database_file, 0)
    for call in (other.load("t"), other.save({}, "t"), checkpointer.load("t")):
        with pytest.raises(IntegrityError, match="truncated to 0 bytes while it was open"):
            await call
    with pytest.raises(IntegrityError, match="truncated to 0 bytes while it was open"):
        await checkpointer.save({}, "t")
    await other.close()
    await checkpointer.close()


# --- threads, and ends of processes


async def test_a_thread_that_could_not_begin_is_begun_by_a_later_call(
    database_file, monkeypatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    checkpointer = sqlite_checkpointer(database_file, state_type=dict)
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            await checkpointer.save({"n": 1}, "t")
    await asyncio.wait_for(checkpointer.save({"n": 2}, "t"), 60)
    assert await checkpointer.load("t") == {"n": 2}
    await checkpointer.close()


def test_an_object_may_be_closed_as_python_ends(database_file) -> None:
    code = """
import atexit, sys
from locus_store import blocking

checkpointer = blocking.open_checkpointer(f"sqlite:///{sys.argv[1]}", state_type=dict)
atexit.register(checkpointer.close)
checkpointer.save({"n": 1}, "t")
"""
    run = [sys.executable, "-c", code, database_file]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert not done.stderr
    assert not Path(f"{database_file}-wal").exists()


async def test_a_reading_thread_may_collect_an_object_that_was_not_closed(database_file) -> None:
    checkpointer = sqlite_checkpointer(database_file, state_type=dict)
    assert await checkpointer.load("t") is None
    here = checkpointer.backend._runner._open
    await asyncio.wrap_future(here._readers.submit(here.finalizer))
    await checkpointer.close()
