from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from tiers import first_of

from locus_store import NewMessage, __main__ as program, __version__, blocking, open_checkpointer
from locus_store.errors import make_install_command
from locus_store.sql.schema import status

if TESTS_RUN:
    from typer.main import get_command_from_info, get_command_name

    from locus_store.cli import app, output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import typer

    from locus_store.types import PendingWrite

    Run = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")


class Terminal(io.StringIO):
    """A person at the keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Calls the entry point in an empty directory: exit code, output, errors."""
    from locus_store.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCUS_STORE_URL", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["locus-store", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, errors = capsys.readouterr()
        return code, out, errors

    return call


def script(path: str, text: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text)


def test_upgrade_makes_the_database_that_the_default_checkpointer_opens(run: Run) -> None:
    place = "sqlite:///locus_checkpoints.db"
    assert run("db", "upgrade") == (0, f"{place}: schema revision {status.HEAD}\n", "")
    assert Path("locus_checkpoints.db").exists()
    assert run("db", "current") == (0, f"{status.HEAD}\n", "")


@pytest.mark.parametrize(
    "command",
    [("threads", "list"), ("store", "list", "/"), ("verify",), ("tenants", "list")],
)
def test_a_command_without_a_storage_says_how_to_name_one(run: Run, command: Any) -> None:
    code, out, errors = run(*command)
    assert (code, out) == (1, "")
    assert "no storage is named" in errors
    assert "pass --url, set LOCUS_STORE_URL, or create the default" in errors
    run("db", "upgrade")
    code, _, errors = run(*command)
    assert code == 0
    assert "the storage is the default, sqlite:///locus_checkpoints.db" in errors


@pytest.mark.parametrize("value", ["", " "])
@pytest.mark.parametrize("command", [("db", "upgrade"), ("db", "check"), ("verify",)])
def test_an_empty_variable_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: Any, value: str
) -> None:
    monkeypatch.setenv("LOCUS_STORE_URL", value)
    code, out, errors = run(*command)
    assert (code, out, "LOCUS_STORE_URL is set, but empty" in errors) == (1, "", True)
    assert not list(Path().iterdir())
    monkeypatch.setenv("LOCUS_STORE_TOKEN_FILE", value)
    assert "TOKEN_FILE is set, but empty" in run("serve", "--url", "memory://")[2]
    assert run("db", "upgrade", "--url", "sqlite:///a.db")[0] == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_service_over_a_storage_that_cannot_be_opened_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setattr("locus_store.server.serving.log_to_stderr", lambda: None)  # it stays
    command = ("serve", "--port", "0", "--workers", workers, "--url")
    code, out, errors = run(*command, "sqlite:///no/such/folder.db")
    assert (code, out, errors.count("\n")) == (1, "", 1), errors
    assert "check that its directory exists" in errors


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
    assert errors.endswith(
        "check the URL, or create it: locus-store db upgrade --url 'sqlite:///locus_checkpoints.db'\n"
    )
    assert not Path("locus_checkpoints.db").exists()


@pytest.mark.parametrize("url", ["sqlite:///a.db", "postgresql://u@h/db", "oracle://u:p@h/db"])
@pytest.mark.parametrize("command", ["check", "upgrade"])
def test_a_misspelt_option_of_a_database_has_a_suggestion(run: Run, url: str, command: str) -> None:
    code, _, errors = run("db", command, "--url", f"{url}?keep_lats=3")
    assert (code, "(did you mean 'keep_last'?)" in errors) == (1, True)
    assert not Path("a.db").exists()


def test_a_schema_is_created_and_checked_with_every_option_of_the_url(run: Run) -> None:
    url = "sqlite:///a.db?encryption=keys.json&keep_last=3&ttl_seconds=60&busy_timeout_seconds=5"
    for command, code in (("check", 3), ("upgrade", 0), ("check", 0)):
        assert run("db", command, "--url", url)[0] == code


def test_check_tells_a_schema_that_is_behind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("db", "upgrade")
    monkeypatch.setattr(status, "REVISIONS", (*status.REVISIONS, "0099"))
    monkeypatch.setattr(status, "HEAD", "0099")
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
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        code, _, errors = run("db", "downgrade", "base")
        assert code == (0 if left == "none" else 1)
        assert "rows of locus_threads 0" in errors
        assert run("db", "current")[1] == f"{left}\n"


def test_downgrade_deletes_nothing_where_nobody_can_be_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("db", "upgrade")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, _, errors = run("db", "downgrade", "base")
    assert code == 2
    assert "rows of locus_threads 0" in errors
    assert "--yes" in errors
    assert run("db", "current")[1] == f"{status.HEAD}\n"


def test_the_version_can_be_asked_for(run: Run) -> None:
    assert run("--version") == (0, f"locus-store {__version__}\n", "")


def test_the_program_handles_ctrl_c_as_it_found_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["locus-store", "--version"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert (ended.value.code, signal.getsignal(signal.SIGINT)) == (0, handler)
    assert capsys.readouterr().out == f"locus-store {__version__}\n"


def test_a_schema_is_refused_where_the_database_has_none(run: Run) -> None:
    for command in (["upgrade"], ["check"], ["downgrade", "base", "--yes"], ["current"]):
        code, out, errors = run("db", *command, "--schema", "x")
        assert (code, out) == (1, "")
        assert "SQLite has no schemas" in errors
        assert "--prefix" in errors
    assert run("db", "upgrade", "--url", "sqlite:///a.db?schema=x")[0] == 1
    assert run("db", "sql", "--dialect", "sqlite", "--schema", "x")[0] == 1
    assert not list(Path().iterdir())


def test_downgrade_with_yes_does_not_ask(run: Run) -> None:
    run("db", "upgrade")
    assert run("db", "downgrade", "base", "--yes") == (
        0,
        "sqlite:///locus_checkpoints.db: schema revision none\n",
        "",
    )
    assert run("db", "check")[0] == 3


def test_a_relative_downgrade_names_what_it_deletes(run: Run) -> None:
    run("db", "upgrade")
    code, _, errors = run("db", "downgrade", "--", "-1")
    assert code == 2
    assert "rows of locus_threads 0" in errors


@pytest.mark.parametrize("command", ["upgrade", "downgrade"])
def test_an_unknown_revision_is_named_with_the_remedy(run: Run, command: str) -> None:
    run("db", "upgrade")
    code, _, errors = run("db", command, "9999")
    assert code == 1
    assert "'9999'; name a revision of 'locus-store db history'" in errors


def test_downgrade_wants_to_be_told_how_far(run: Run) -> None:
    assert run("db", "downgrade", "--yes")[0] == 2


def test_history_lists_every_revision(run: Run) -> None:
    code, out, _ = run("db", "history")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(status.REVISIONS)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "oracle"])
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
        (("upgrade", "--url", "sqlite:////no/such/x.db"), "check that its directory exists"),
        (("upgrade", "nonsense"), "nonsense"),
        (("check", "--prefix", "9"), "prefix='9' must be"),
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
    assert make_install_command("postgres") in errors
    assert "s3cret" not in errors


@pytest.mark.parametrize("arguments", [("db", "nonsense"), ("db", "sql"), ("db", "check", "--no")])
def test_a_command_line_that_makes_no_sense_is_exit_code_two(
    run: Run, arguments: tuple[str, ...]
) -> None:
    assert run(*arguments)[0] == 2


def named(group: typer.Typer, *above: str) -> Iterator[tuple[str, Any]]:
    """Yield every command, before it is built, with its name."""
    for it in group.registered_commands:
        yield " ".join((*above, it.name or get_command_name(it.callback.__name__))), it
    for it in group.registered_groups:
        yield from named(it.typer_instance, *above, it.name)


@pytest.mark.parametrize("command", re.findall(r"^## locus-store (.+)", PAGE, re.MULTILINE))
def test_every_command_explains_itself_and_its_options(run: Run, command: str) -> None:
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert "Exit codes" not in out
    assert "<bool>" not in out
    how: Any = {"pretty_exceptions_short": True, "rich_markup_mode": None}
    built = get_command_from_info(dict(named(app))[command], **how)
    assert built.help
    assert all("\n" not in it for it in built.help.split("\n\n"))
    assert [it.name for it in built.params if not it.help] == []


def test_the_exit_codes_are_one_line_of_the_first_help_page(run: Run) -> None:
    out = run("--help")[1]
    (line,) = [it for it in out.splitlines() if "Exit codes" in it]
    assert all(f"{code} " in line for code in range(6))
    assert len(line.strip()) <= 80


def test_an_index_is_answered_in_words(run: Run) -> None:
    run("db", "upgrade")
    place = "sqlite:///locus_checkpoints.db: "
    assert run("db", "search-index")[1] == f"{place}created the full-text index\n"
    assert run("db", "search-index")[1] == (
        f"{place}the full-text index exists already; nothing was changed\n"
    )


@pytest.mark.parametrize("command", [("verify",), ("store", "list", "/"), ("db", "check")])
def test_a_path_in_place_of_a_url_is_answered_by_the_url(
    run: Run, command: tuple[str, ...]
) -> None:
    code, out, errors = run(*command, "--url", "x.db")
    assert (code, out) == (1, "")
    assert errors == "Error: 'x.db' is not a URL; did you mean sqlite:///x.db?\n"
    assert not Path("x.db").exists()


def test_the_commands_are_those_of_the_issue() -> None:
    names = {it for it, _ in named(app)}
    threads = ["list", "show", "history", "diff", "fork", "search", "messages", "delete", "vacuum"]
    threads += ["prune", "expire"]
    threads += ["blame", "bisect", "watch", "rewind", "report"]
    threads += ["turns", "release", "effects", "resolve"]
    db = ["upgrade", "downgrade", "current", "check", "sql", "search-index", "vector-index"]
    db += ["user-ids", "history", "partition"]
    secure = ["enable", "disable", "add-role", "remove-role", "status"]
    db += [f"row-security {it}" for it in secure]
    db += [f"keys {it}" for it in ("status", "rotate", "destroy")]
    others = {
        "audit anchor",
        "audit export",
        "audit grant",
        "audit prune",
        "audit verify",
        "bench",
        "doctor",
        "verify",
        "backup",
        "copy",
        "export",
        "forget",
        "tenants list",
        "tenants quota",
        "oci lifecycle",
        "inspect",
        "serve",
        "shards rebalance",
        "tokens add",
        "tokens list",
        "tokens revoke",
    }
    store = ["list", "get", "put", "delete", "search", "namespaces", "expire"]
    assert names == others | {f"threads {it}" for it in threads} | {f"db {it}" for it in db} | {
        f"store {it}" for it in store
    } | {
        f"import {it}"
        for it in ("adk", "file", "locus", "langgraph", "langgraph-store", "openai-agents")
    }


def cli_docs(*options: str) -> str:
    command = [sys.executable, ".ci/cli-docs", *options]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout


def test_the_page_of_the_command_line_is_what_the_code_gives() -> None:
    plain = re.sub(r"\n```console\n\$ .*?\n```\n", "", PAGE, flags=re.DOTALL)
    assert cli_docs("--without-examples") == plain, "run: python .ci/cli-docs > docs/cli.md"


@pytest.mark.full
def test_every_command_has_an_example_with_the_output_of_a_run() -> None:
    commands = re.findall(r"^## locus-store (.+)", PAGE, re.MULTILINE)
    examples = re.findall(r"^```console\n\$ locus-store (.*)$", PAGE, re.MULTILINE)
    assert len(examples) == len(commands)
    assert all(map(str.startswith, examples, commands))
    assert cli_docs() == PAGE, "run: python .ci/cli-docs > docs/cli.md"


def test_json_of_the_schema_is_one_document(run: Run) -> None:
    run("db", "upgrade")
    assert json.loads(run("db", "current", "--json")[1]) == {"revision": status.HEAD}
    assert json.loads(run("db", "history", "--json")[1])[0]["revision"] == "0001"
    assert json.loads(run("db", "check", "--json")[1])["usable"] is True


def test_check_prints_its_json_also_where_something_is_wrong(run: Run) -> None:
    code, out, errors = run("db", "check", "--json")
    assert (code, errors) == (3, "")
    assert json.loads(out)["state"] == "missing"


def test_an_option_that_the_url_does_not_take_is_told(run: Run) -> None:
    code, _, errors = run("db", "search-index", "--schema", "s")
    assert code == 1
    assert "schema" in errors
    assert run("db", "search-index", "--url", "memory://")[0] == 1


@pytest.mark.parametrize("shell", first_of("bash", "zsh", "fish"))
def test_the_completion_of_a_shell_can_be_had(shell: str) -> None:
    code = "from locus_store.cli import app; app(prog_name='locus-store')"
    ran = subprocess.run(
        [sys.executable, "-c", code, "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert "_LOCUS_STORE_COMPLETE" in ran.stdout


def test_ctrl_c_is_exit_code_130_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://u:s3cret@127.0.0.1:{silent.getsockname()[1]}/d"
        with subprocess.Popen(
            [sys.executable, "-m", "locus_store", "threads", "list"],
            cwd=ROOT,
            env={**os.environ, "LOCUS_STORE_URL": address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            silent.settimeout(30)
            connection, _ = silent.accept()  # now it waits for an answer
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=30)
            connection.close()
    assert (process.returncode, out, errors) == (130, "", "")


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C; once more where the first came in the moment before it began to read."""
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            return
    process.kill()
    raise AssertionError("it does not hear Ctrl-C")


@pytest.mark.full
@pytest.mark.posix
def test_ctrl_c_at_a_question_deletes_nothing(tmp_path: Path) -> None:
    store = {"LOCUS_STORE_URL": f"sqlite:///{tmp_path / 'store.db'}"}
    command = [sys.executable, "-m", "locus_store", "db"]
    options: Any = {"cwd": ROOT, "env": {**os.environ, **store}}
    subprocess.run([*command, "upgrade"], check=True, capture_output=True, **options)
    import pty

    keyboard, terminal = pty.openpty()
    with subprocess.Popen(
        [*command, "downgrade", "base"], stdin=terminal, stderr=subprocess.PIPE, **options
    ) as process:
        assert process.stderr is not None
        text = b""
        while not text.endswith(b"[y/N] "):
            text += process.stderr.read(1)
        interrupt(process)
        rest = process.stderr.read()
    os.close(keyboard)
    os.close(terminal)
    assert (process.returncode, rest) == (130, b"")
    found = subprocess.run([*command, "current"], check=True, capture_output=True, **options)
    assert found.stdout.decode().strip() == status.HEAD


@pytest.mark.parametrize(
    "command", first_of("db sql --dialect sqlite", "db history", "db history --json")
)
def test_a_reader_that_goes_away_is_no_error(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        ran = subprocess.run(
            [sys.executable, "-m", "locus_store", *command.split()],
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.stderr == ""


def test_what_could_act_on_a_terminal_is_escaped() -> None:
    assert output.escape("\x1b[31m[red]\n\u202e :smile: é 日") == (
        "\\x1b[31m[red]\\n\\u202e :smile: é 日"
    )


def test_json_is_exact_and_holds_no_control_character() -> None:
    value = {"k": "\x00\x1b\x7f\x9b\u2028\u202e\U000e0001 é 日 \U0001f600"}
    text = output.render_json(value)
    assert json.loads(text) == value
    assert text.isprintable()


def test_what_is_no_terminal_gets_no_colours_and_no_bar(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCUS_STORE_URL", "sqlite:///a.db")
    run("db", "upgrade")
    for options in ({}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}):
        for name, value in options.items():
            monkeypatch.setenv(name, value)
        code, out, errors = run("verify")
        assert (code, errors) == (0, "")
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out)


def test_what_is_no_terminal_gets_no_bar_and_whole_lines_where_colours_are_forced(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCUS_STORE_URL", "sqlite:///a.db")
    run("db", "upgrade")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    code, out, errors = run("verify")
    assert (code, errors) == (0, "")
    assert out == "tenant 'default': 0 threads, 0 versions, 0 problems\n"
    _, out, errors = run("doctor")
    assert errors == ""
    assert "no: a search reads everything" in out


@pytest.mark.parametrize("columns", ["0", "20", "no number"])
def test_no_width_of_a_terminal_hides_a_message(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, _, errors = run("threads", "show", "t")
    assert code == 1
    assert "locus-store db upgrade" in errors
    assert len(run("--help")[1]) > 1000


def test_help_loads_no_database_library() -> None:
    code = (
        "import sys, locus_store.cli;"
        "assert not {'sqlalchemy', 'alembic', 'locus_store.sql'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.full  # Ctrl-C strikes such a process, too
def test_the_module_runs_as_a_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "locus_store", "db", "history"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    assert ran.stdout.startswith("0001")


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    first_of(
        ("inspect", "starlette", "inspector"),
        ("inspect", "jinja2", "inspector"),
        ("serve", "starlette", "service"),
        ("serve", "prometheus_client", "service"),
    ),
)
def test_a_server_without_its_extra_names_the_extra(command: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom locus_store.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert make_install_command(extra) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("later_release")
def test_a_downgrade_names_only_what_it_deletes(run: Run) -> None:
    run("db", "upgrade")
    code, _, errors = run("db", "downgrade", "0001")
    assert code == 2
    assert "This goes down to 0001 and deletes nothing that is stored." in errors
    with blocking.open_message_log("sqlite:///locus_checkpoints.db") as log:
        log.append("t", [NewMessage("Hi.")])
    assert "deletes nothing that is stored" in run("db", "downgrade", "0002")[2]
    assert "down to 0001 and deletes the titles of threads." in run("db", "downgrade", "0001")[2]
    assert "rows of locus_threads 1" in run("db", "downgrade", "base")[2]


def waits(url: str, thread: str, write: PendingWrite) -> None:
    """Store a pending write at the head of a thread."""

    async def put() -> None:
        async with open_checkpointer(url) as checkpointer:
            head = await checkpointer.backend.version(thread)
            assert head is not None
            await checkpointer.backend.put_writes(thread, head.checkpoint_id, [write])

    asyncio.run(put())
