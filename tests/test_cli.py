from __future__ import annotations

import io
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from locus_store import cli
from locus_store.sql import status

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str, str]]

ORACLE = pytest.param(
    "oracle",
    marks=pytest.mark.skipif(sa.__version__ < "2.1", reason="SQLAlchemy 2.0 lacks Oracle's JSON"),
)
COMMANDS = ("upgrade", "downgrade", "current", "check", "sql", "history")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Calls the entry point in an empty directory: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCUS_STORE_URL", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["locus-store", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, errors = capsys.readouterr()
        return code, out, errors

    return call


def script(path: str, text: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text)


def test_upgrade_makes_the_database_that_the_default_checkpointer_opens(run: Run) -> None:
    assert run("db", "upgrade") == (0, f"schema revision {status.HEAD}\n", "")
    assert Path("locus_checkpoints.db").exists()
    assert run("db", "current") == (0, f"{status.HEAD}\n", "")


def test_upgrade_twice_changes_nothing(run: Run) -> None:
    run("db", "upgrade")
    before = Path("locus_checkpoints.db").read_bytes()
    assert run("db", "upgrade")[0] == 0
    assert Path("locus_checkpoints.db").read_bytes() == before


def test_the_url_comes_from_the_environment_or_the_option(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCUS_STORE_URL", "sqlite+aiosqlite:///a.db")
    assert run("db", "upgrade")[0] == 0
    assert run("db", "upgrade", "--url", "sqlite:///b.db", "--prefix", "mine_")[0] == 0
    assert Path("a.db").exists()
    assert run("db", "check", "--url", "sqlite:///b.db", "--prefix", "mine_")[0] == 0
    assert not Path("locus_checkpoints.db").exists()


def test_check_is_content_with_what_is_in_order(run: Run) -> None:
    run("db", "upgrade")
    code, out, errors = run("db", "check")
    assert (code, errors) == (0, "")
    assert "up to date" in out


def test_check_tells_a_missing_schema_by_its_exit_code_and_makes_nothing(run: Run) -> None:
    code, out, errors = run("db", "check")
    assert (code, out) == (3, "")
    assert "locus-store db upgrade --url 'sqlite:///locus_checkpoints.db'" in errors
    assert not Path("locus_checkpoints.db").exists()


def test_check_tells_a_schema_that_is_behind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("db", "upgrade")
    monkeypatch.setattr(status, "REVISIONS", ("0001", "0002"))
    monkeypatch.setattr(status, "HEAD", "0002")
    code, _, errors = run("db", "check")
    assert code == 3
    assert "behind" in errors


def test_check_tells_a_foreign_table(run: Run) -> None:
    script("locus_checkpoints.db", "CREATE TABLE locus_checkpoints (thread_id TEXT)")
    code, _, errors = run("db", "check")
    assert code == 3
    assert "locus_checkpoints not made by locus-store" in errors


def test_check_tells_a_schema_that_is_too_new(run: Run) -> None:
    run("db", "upgrade")
    script(
        "locus_checkpoints.db",
        "UPDATE locus_version SET version_num = '0099';"
        "UPDATE locus_settings SET value = '0099' WHERE name = 'compatibility_floor'",
    )
    assert run("db", "check")[0] == 3


def test_current_is_none_where_there_is_nothing(run: Run) -> None:
    assert run("db", "current") == (0, "none\n", "")


def test_downgrade_asks_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, left in (("n\n", status.HEAD), ("", status.HEAD), ("y\n", "none")):
        run("db", "upgrade")
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert run("db", "downgrade", "base")[0] == (0 if left == "none" else 1)
        assert run("db", "current")[1] == f"{left}\n"


def test_downgrade_with_yes_does_not_ask(run: Run) -> None:
    run("db", "upgrade")
    assert run("db", "downgrade", "base", "--yes") == (0, "schema revision none\n", "")
    assert run("db", "check")[0] == 3


def test_downgrade_wants_to_be_told_how_far(run: Run) -> None:
    assert run("db", "downgrade", "--yes")[0] == 2


def test_history_lists_every_revision(run: Run) -> None:
    code, out, _ = run("db", "history")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(status.REVISIONS)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", ORACLE])
def test_sql_prints_statements_and_nothing_else(run: Run, dialect: str) -> None:
    code, out, errors = run("db", "sql", "--dialect", dialect, "--prefix", "mine_")
    assert (code, errors) == (0, "")
    assert "CREATE TABLE mine_checkpoints" in out
    assert list(Path().iterdir()) == []


def test_sql_for_sqlite_makes_a_database_that_check_accepts(run: Run) -> None:
    _, out, _ = run("db", "sql", "--dialect", "sqlite")
    script("locus_checkpoints.db", out)
    assert run("db", "check")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("upgrade", "--url", "nonsense"), "choose one of"),
        (("upgrade", "--url", "mysql://u:s3cret@h/d"), "dialect 'mysql'"),
        (("upgrade", "--url", "sqlite:////no/such/x.db"), "cannot be opened"),
        (("upgrade", "nonsense"), "nonsense"),
        (("check", "--prefix", "9"), "table prefix '9'"),
        (("sql", "--dialect", "mysql"), "sqlite, postgresql, oracle"),
        (("downgrade", "base", "--yes"), "no locus-store schema"),
    ],
)
def test_an_error_is_one_line_without_a_traceback(
    run: Run, arguments: tuple[str, ...], words: str
) -> None:
    code, out, errors = run("db", *arguments)
    assert (code, out) == (1, "")
    assert errors.startswith("Error: ")
    assert words in errors
    assert errors.count("\n") == 1
    assert "s3cret" not in errors


def test_square_brackets_in_a_message_are_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    _, _, errors = run("db", "check", "--url", "postgresql://u:s3cret@host/d")
    assert "locus-store[postgres]" in errors
    assert "s3cret" not in errors


@pytest.mark.parametrize("arguments", [("db", "nonsense"), ("db", "sql"), ("db", "check", "--no")])
def test_a_command_line_that_makes_no_sense_is_exit_code_two(
    run: Run, arguments: tuple[str, ...]
) -> None:
    assert run(*arguments)[0] == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_its_exit_codes(run: Run, command: str) -> None:
    code, out, _ = run("db", command, "--help")
    assert code == 0
    assert "Exit codes" in re.sub(r"\s+", " ", out)


def test_every_command_is_among_the_tested() -> None:
    assert {command.callback.__name__ for command in cli.db.registered_commands} >= set(COMMANDS)


def test_help_loads_no_database_library() -> None:
    code = (
        "import sys, locus_store.cli;"
        "assert not {'sqlalchemy', 'alembic', 'locus_store.sql'} & set(sys.modules)"
    )
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_the_module_runs_as_a_command() -> None:
    root = Path(__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-m", "locus_store", "db", "history"],
        cwd=root,
        text=True,
        capture_output=True,
        check=True,
    )
    assert ran.stdout.startswith("0001")
