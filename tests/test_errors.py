"""Whatever can go wrong is told by a typed error whose message says what to do."""

from __future__ import annotations

import asyncio
import inspect
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import date
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from locus_store import (
    AgentState,
    BackendError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    MemoryBackend,
    MemoryCheckpointer,
    SchemaError,
    SerializationError,
    SQLiteBackend,
    StorageBackendAdapter,
    errors,
    open_checkpointer,
    open_saver,
    open_store,
    sqlite_checkpointer,
)

pytestmark = pytest.mark.anyio
STATE = AgentState()

# --- the tree


def test_every_error_is_in_the_tree_that_the_module_draws() -> None:
    found = [it for _, it in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(it, LocusStoreError) for it in found)
    assert all(it.__name__ in errors.__doc__ for it in found)
    for ours, builtin in (
        (errors.NotFoundError, LookupError), (errors.UnsupportedError, NotImplementedError),
        (errors.SerializationError, ValueError), (errors.ConnectionFailedError, ConnectionError),
        (errors.InvalidArgumentError, ValueError), (errors.MissingExtraError, ImportError),
    ):  # fmt: skip
        assert issubclass(ours, builtin)


def test_a_backend_without_its_driver_says_what_to_install() -> None:
    code = """
import sys
sys.modules["asyncpg"] = None  # as if it were not installed
import locus_store
try:
    locus_store.open_checkpointer("postgresql://user:secret@host/db")
except locus_store.MissingExtraError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'locus-store[postgres]'")
    assert "secret" not in done.stdout


# --- URLs and options


@pytest.mark.parametrize("url", ["mysql://host/db", "nonsense", "", "://", "sqlite:/file", "x:y"])
def test_an_unknown_scheme_names_the_known_ones(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"memory://.*sqlite://"):
        open_checkpointer(url)


@pytest.mark.parametrize("opening", [open_checkpointer, open_saver, open_store])
@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("x.db", "sqlite:///x.db"),
        ("data/agents.sqlite3", "sqlite:///data/agents.sqlite3"),
        ("/var/x.db", "sqlite:////var/x.db"),
    ],
)
def test_a_path_in_place_of_a_url_is_answered_by_the_url(opening: Any, path: str, url: str) -> None:
    with pytest.raises(InvalidArgumentError) as told:
        opening(path)
    assert str(told.value) == f"{path!r} is not a URL; did you mean {url}?"


def test_a_directory_in_place_of_a_url_is_answered_by_a_file_url(tmp_path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"did you mean file:{tmp_path}"):
        open_checkpointer(str(tmp_path))


@pytest.mark.parametrize(
    "url", ["sqlite://file.db", "sqlite://host/file.db", "memory://name", "sqlite:///a.db#x"]
)
def test_a_url_that_says_too_much_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        open_checkpointer(url)


def test_a_secret_in_a_wrong_url_is_not_repeated() -> None:
    for url in (
        "user:s3cret@host/x.db",
        "mysql://user:s3cret@host/db",
        "sqlite://user:s3cret@host/db",
    ):
        with pytest.raises(InvalidArgumentError) as told:
            open_checkpointer(url)
        assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("url", ["memory://", "sqlite://", "file:d", "postgresql://u@h/d"])
def test_an_unknown_option_in_a_url_is_named(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="colour"):
        open_checkpointer(f"{url}?colour=red")


@pytest.mark.parametrize("url", ["memory://", "sqlite://", "file:d"])
def test_an_unknown_option_in_a_url_is_told_with_those_that_there_are(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"keep_last.*ttl_seconds") as told:
        open_checkpointer(f"{url}?colour=red")
    assert "state_type" not in str(told.value)


@pytest.mark.parametrize("query", ["sqlite:///a?path=b", "file:a?directory=b"])
def test_a_url_names_its_place_once(query: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no option"):
        open_checkpointer(query)


def test_an_unknown_argument_is_a_type_error_everywhere() -> None:
    for factory in (sqlite_checkpointer, SQLiteBackend, MemoryCheckpointer, open_checkpointer):
        with pytest.raises(TypeError, match="colour"):
            factory("memory://" if factory is open_checkpointer else ":memory:", colour="red")


@pytest.mark.parametrize("query", ["keep_last=x", "ttl_seconds=soon", "keep_last=", "keep_last=0"])
def test_an_option_in_a_url_that_makes_no_sense_is_named(query: str) -> None:
    with pytest.raises(InvalidArgumentError, match=query.partition("=")[0]):
        open_checkpointer(f"memory://?{query}")


@pytest.mark.parametrize(
    "options",
    [
        {"path": ""}, {"path": None}, {"path": 7}, {"path": "a\0b"}, {"prefix": "1x"},
        {"prefix": "x;y"}, {"table_name": "t", "prefix": "p"}, {"engine": "sqlite://"},
        {"tenant": ""}, {"tenant": None}, {"tenant": "x" * 256}, {"busy_timeout_seconds": -1},
        {"auto_migrate": "yes"}, {"state_type": int}, {"state_type": "dict"}, {"on_conflict": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        sqlite_checkpointer(**{"path": ":memory:", **options})


def test_an_adapter_wraps_backends_only() -> None:
    for wrong in (MemoryCheckpointer(), object(), MemoryBackend):
        with pytest.raises(TypeError, match="StorageBackend"):
            StorageBackendAdapter(wrong)


# --- files


async def refused(path: Any, error: type[Exception], match: str, **options: Any) -> Exception:
    """What reading and writing raise; both the same, and the message names the file."""
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
    """What a process without rights is told by a load and by a save."""
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
        assert "check that its directory exists and may be written" in told
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


# --- the schema


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
    from locus_store.sql import status

    path = Path(copyfile(migrated, tmp_path / "checkpoints.db"))
    monkeypatch.setattr(status, "REVISIONS", (*status.REVISIONS, "0099"))
    monkeypatch.setattr(status, "HEAD", "0099")
    await refused(path, SchemaError, "locus-store db upgrade")


# --- what is saved


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (float("nan"), "nan"), (float("inf"), "inf"), (date(2026, 1, 1), "isoformat"),
        ({1, 2}, "list"), (b"bytes", "base64"), ({1: 2}, "str"), (2**64, "64 bits"),
        ("\ud800", "surrogate"), (object(), "JSON"),
    ],
    ids=lambda it: ascii(it)[:20],
)  # fmt: skip
async def test_what_json_cannot_keep_is_named_with_a_way_out(value: Any, hint: str) -> None:
    checkpointer = MemoryCheckpointer(state_type=dict)
    with pytest.raises(SerializationError) as told:
        await checkpointer.save({"messages": [{"content": value}]}, "t")
    assert "messages[0].content" in str(told.value)
    assert hint in str(told.value)
    with pytest.raises(SerializationError, match=r"metadata\.key"):
        await checkpointer.save({}, "t", metadata={"key": value})
    assert not await checkpointer.exists("t")


async def test_a_state_that_is_too_deep_or_round_is_refused() -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    around: dict[str, Any] = {}
    around["self"] = around
    for value in (deep, around):
        with pytest.raises(SerializationError, match=r"deep|nested"):
            await MemoryCheckpointer(state_type=dict).save({"value": value}, "t")


async def test_a_stored_state_that_does_not_fit_the_type_says_how_to_look_at_it() -> None:
    checkpointer = MemoryCheckpointer(state_type=AgentState)
    await checkpointer.save({"messages": "not a list"}, "t")
    with pytest.raises(SerializationError, match="state_type=dict"):
        await checkpointer.load("t")


async def test_an_id_that_is_refused_is_named() -> None:
    checkpointer = MemoryCheckpointer()
    for call, name in (
        (checkpointer.save(STATE, ""), "thread_id"), (checkpointer.load("x" * 256), "255"),
        (checkpointer.save(STATE, "t", "a\0b"), "checkpoint_id.*NUL"),
        (checkpointer.delete(7), "thread_id must be a str, not int"),
        (checkpointer.save(STATE, "t", parent_checkpoint_id=""), "parent_checkpoint_id"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=name):
            await call


def test_no_error_is_hidden_by_a_loop_that_ended() -> None:
    async def failing() -> None:
        await sqlite_checkpointer("/proc/none/file.db").save(STATE, "t")

    for _ in range(2):
        with pytest.raises(ConnectionFailedError):
            asyncio.run(failing())
