"""``locus-store doctor``."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import servers
import test_cli
import test_cli_threads
from test_cli_threads import CHAT, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run
sql_url = test_cli_threads.each_sql_url  # the checks are the dialect's


def facts(run: Run, code: int = 0) -> dict[str, dict[str, str]]:
    found, out, errors = run("doctor", "--json")
    assert (found, errors) == (code, "")
    return {it["name"]: it for it in json.loads(out)["facts"]}


def test_doctor_tells_what_the_store_stands_on(run: Run, sql_url: str) -> None:
    save(sql_url, "t", *CHAT)
    found = facts(run)
    assert found["schema"]["verdict"] == "ok"
    assert found["clock"]["verdict"] == "ok"
    assert found["rows of locus_checkpoints"]["value"].startswith("2")
    assert found["longest threads, in saves"]["value"] == "'t': 2"
    assert {"Python", "locus-store", "server", "size", "bytes per version"} <= found.keys()
    assert "postgresql" in sql_url or found["journal mode"]["value"] == "WAL"
    code, out, _ = run("doctor")
    assert code == 0
    assert "locus_checkpoints" in out


def test_a_warning_says_what_to_do(run: Run, sql_url: str) -> None:
    save(sql_url, "t", CHAT[0], with_={"ttl_seconds": 0.001})
    servers.wait_until(lambda: facts(run)["expired threads"]["verdict"] == "warn", "it expires")
    assert "threads expire" in facts(run)["expired threads"]["remedy"]
    assert all(it["remedy"] for it in facts(run).values() if it["verdict"] in {"warn", "fail"})


def test_doctor_tells_an_index_that_was_made(run: Run, sql_url: str) -> None:
    assert facts(run)["full-text index"]["remedy"]
    assert run("db", "search-index", "--url", sql_url)[0] == 0
    assert facts(run)["full-text index"]["verdict"] == "ok"


def test_doctor_counts_what_keep_last_hides(run: Run, sql_url: str) -> None:
    save(
        sql_url,
        "t",
        *({"n": number} for number in range(5)),
        with_={"keep_last": 2, "checkpoint_id": None},
    )
    assert facts(run)["versions hidden by keep_last"]["value"].startswith("3,")


def test_doctor_finds_a_schema_that_is_missing_and_says_the_command(run: Run) -> None:
    found = facts(run, code=3)
    assert found["schema"]["verdict"] == "fail"
    assert "pass --url, set LOCUS_STORE_URL, or create" in found["schema"]["remedy"]
    assert "locus-store db upgrade" in found["schema"]["remedy"]


def test_doctor_finds_a_table_that_is_missing_as_db_check_does(
    run: Run, sql_url: str, postgresql: servers.Server
) -> None:
    save(sql_url, "t", *CHAT)
    drop = "DROP TABLE locus_turns"
    if "postgresql" in sql_url:
        postgresql.execute(drop, sql_url.partition("?")[0].rpartition("/")[2])
    else:
        with closing(sqlite3.connect(sql_url.removeprefix("sqlite:///"))) as database:
            database.execute(drop)
    schema = facts(run, code=3)["schema"]
    assert schema["verdict"] == "fail"
    assert "lacks locus_turns." in schema["value"]
    assert schema["remedy"] == "restore a backup"
    assert "lacks locus_turns." in run("db", "check", "--url", sql_url)[2]


@pytest.mark.parametrize("kind", ["foreign", "folder", "identity", "down", "file"])
def test_doctor_finds_a_store_that_cannot_be_read(run: Run, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    if kind == "identity":
        save(f"file:{other}", "t", *CHAT)
        (other / ".locus-store").write_bytes(b"damaged")
    elif kind == "folder":
        other.mkdir()
    else:
        other.write_text("something else, and long enough to be no SQLite database" * 100)
    url = {
        "down": f"postgresql://u@127.0.0.1:{servers.free_port()}/d",
        "identity": f"file:{other}",
        "file": f"file:{other}",
    }.get(kind, f"sqlite:///{other}")
    code, out, errors = run("doctor", "--json", "--url", url)
    assert (code, errors) == (3, "")
    found = json.loads(out)
    assert (found["ok"], found["facts"][-1]["verdict"]) == (False, "fail")
    assert found["facts"][-1]["remedy"]
    assert run("doctor", "--url", url)[0] == 3


def test_doctor_warns_of_a_clock_that_is_apart(
    run: Run, sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import UTC, datetime, timedelta

    from locus_store.sql.connections import diagnostics as module

    class Late(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(UTC) + timedelta(seconds=60)

    monkeypatch.setattr(module, "datetime", Late)
    assert facts(run)["clock"]["verdict"] == "warn"
    assert "behind" in facts(run)["clock"]["value"]


def test_doctor_warns_of_a_journal_that_blocks_readers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from locus_store.backends.sqlite.backend import SQLiteExamination

    monkeypatch.setattr(
        SQLiteExamination, "_read_pragma", lambda _, name: {"journal_mode": "delete"}.get(name, 1)
    )
    monkeypatch.setenv("LOCUS_STORE_URL", "sqlite:///a.db")
    run("db", "upgrade")
    assert facts(run)["journal mode"]["verdict"] == "warn"


def test_doctor_sees_a_pooler(run: Run, migrated_database: str, pgbouncer: Any) -> None:
    name = migrated_database.partition("?")[0].rpartition("/")[2]
    address = f"{pgbouncer.url(name)}?pgbouncer=true".replace("??", "?")
    code, out, _ = run("doctor", "--json", "--url", address)
    found = {it["name"]: it["value"] for it in json.loads(out)["facts"]}
    assert code == 0
    assert found["pooler"].startswith("yes")
    code, out, _ = run("doctor", "--json", "--url", migrated_database)
    found = {it["name"]: it["value"] for it in json.loads(out)["facts"]}
    assert found["pooler"].startswith("none")


def test_doctor_looks_at_the_tables_that_the_url_names(run: Run, database: str) -> None:
    address = f"{database}{'&' if '?' in database else '?'}schema=ours&prefix=my_"
    assert run("db", "upgrade", "--url", address)[0] == 0
    save(address, "t", *CHAT)
    code, out, _ = run("doctor", "--json", "--url", address)
    found = {it["name"]: it["value"] for it in json.loads(out)["facts"]}
    assert code == 0
    assert found["rows of my_checkpoints"].startswith("2, ")
    assert found["size"].endswith("kB")


def test_a_role_without_ddl_rights_can_look_and_remove(
    run: Run,
    migrated_database: str,
    postgresql: servers.Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = migrated_database.partition("?")[0].rpartition("/")[2]
    postgresql.execute("CREATE ROLE looker LOGIN")
    grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO looker"
    try:
        postgresql.execute(grant, name)
        address = postgresql.url(name, user="looker")
        save(address, "t", *CHAT)
        for command in ("doctor", "verify", "threads list", "threads delete t --yes"):
            assert run(*command.split(), "--url", address)[0] == 0
        monkeypatch.setenv("LOCUS_STORE_URL", address)
        assert facts(run)["rights"]["verdict"] == "ok"
        postgresql.execute("REVOKE INSERT ON locus_turns, locus_store FROM looker", name)
        lacking = {*facts(run)["rights"]["value"].removeprefix("no ").split(", ")}
        assert lacking == {"INSERT on locus_store", "INSERT on locus_turns"}
        assert facts(run)["rights"]["verdict"] == "warn"
    finally:
        postgresql.execute("DROP OWNED BY looker; DROP ROLE looker", name)


def test_doctor_warns_where_transactions_are_read_only(
    run: Run, migrated_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "?options=-c%20default_transaction_read_only%3Don"
    monkeypatch.setenv("LOCUS_STORE_URL", migrated_database + options)
    found = facts(run)["transactions"]
    assert (found["verdict"], "ALTER ROLE" in found["remedy"]) == ("warn", True)
    monkeypatch.setenv("LOCUS_STORE_URL", migrated_database)
    assert "transactions" not in facts(run)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_doctor_warns_of_a_file_that_is_read_only(
    run: Run, migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = shutil.copy(migrated, tmp_path / "here.db")
    monkeypatch.setenv("LOCUS_STORE_URL", f"sqlite:///{path}")
    assert "file" not in facts(run)
    # A fake: root may write everywhere, and mounts no read-only file system in a test.
    refused = str(path if kind == "file" else tmp_path)
    monkeypatch.setattr("os.access", lambda at, _: str(at) != refused)
    found = facts(run)["file"]
    assert (found["verdict"], "grant write permission" in found["remedy"]) == ("warn", True)


def test_doctor_of_a_store_without_a_database_tells_its_capabilities(run: Run) -> None:
    code, out, _ = run("doctor", "--json", "--url", "memory://")
    assert code == 0
    assert any(it["name"] == "capabilities" for it in json.loads(out)["facts"])


def test_doctor_shows_no_password(run: Run, migrated_database: str) -> None:
    address = migrated_database.replace("://", "://postgres:s3cret@").replace(
        "s3cret@postgres@", "s3cret@"
    )
    code, out, errors = run("doctor", "--url", address)
    assert code == 0
    assert "s3cret" not in out + errors


def test_doctor_says_the_command_where_the_schema_is_behind(
    run: Run, migrated_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from locus_store.sql.schema import status

    monkeypatch.setattr(status, "REVISIONS", (*status.REVISIONS, "0099"))
    monkeypatch.setattr(status, "HEAD", "0099")
    monkeypatch.setenv("LOCUS_STORE_URL", migrated_database)
    schema = facts(run, code=3)["schema"]
    assert schema["verdict"] == "fail"
    assert "behind this library's 0099" in schema["value"]
    assert "locus-store db upgrade" in schema["remedy"]


def test_doctor_says_what_to_install_where_the_schema_is_too_new(
    run: Run, migrated_database: str, postgresql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgresql.execute(
        "UPDATE locus_version SET version_num = '0099';"
        "UPDATE locus_settings SET value = '0099' WHERE name = 'compatibility_floor'",
        migrated_database.partition("?")[0].rpartition("/")[2],
    )
    monkeypatch.setenv("LOCUS_STORE_URL", migrated_database)
    schema = facts(run, code=3)["schema"]
    assert schema["verdict"] == "fail"
    assert "asks for a locus-store that knows 0099" in schema["value"]
    assert "pip install --upgrade" in schema["remedy"]


def test_doctor_tries_the_features_of_a_service(run: Run, database: str) -> None:
    code, out, errors = run("doctor", "--compatibility", database, "--json")
    document = json.loads(out)
    assert (code, document["ok"], errors) == (0, True, "")
    names = {"name", "needed_for", "is_required", "verdict", "answer"}
    assert all(it.keys() == names for it in document["trials"])
    code, out, _ = run("doctor", "--compatibility", f"{database}?schema=absent")
    assert code == 3
    assert "fail" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["sqlite:///a.db"], "this sqlite: URL names none"),
        (["cockroachdb://db.example.com/a"], "write postgresql://"),
        (["postgresql://db.example.com/a", "--sizes"], "leave --sizes"),
        (["postgresql://db.example.com/a", "--all-tenants"], "--all-tenants out"),
    ],
)
def test_compatibility_is_asked_of_a_service_only(
    run: Run, arguments: list[str], reason: str
) -> None:
    code, out, errors = run("doctor", "--compatibility", *arguments)
    assert (code, out) == (1, "")
    assert reason in errors
