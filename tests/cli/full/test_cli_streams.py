"""The command as a process: streams that are closed, full or narrow, and Ctrl-C before it began."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_cli_threads import save

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]
COMMAND = f"{sys.executable} -m locus_store"
FULL = "/dev/full"
NEEDS_FULL = pytest.mark.skipif(not os.path.exists(FULL), reason="Linux has /dev/full")
ODD = "é 日 \U0001f600"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """URL of a directory with one thread, named and filled with what ASCII lacks."""
    url = f"file://{tmp_path / 'store'}"
    save(url, ODD, {"said": ODD}, with_={"metadata": {"k": ODD}})
    return url


def shell(
    line: str, store: str = "memory://", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Return the arguments that a shell makes of ``$C …``."""
    variables = {**os.environ, "LOCUS_STORE_URL": store, "C": COMMAND, **environment}
    return subprocess.run(
        ["sh", "-c", line], cwd=ROOT, env=variables, capture_output=True, check=False
    )


def is_one_error(text: bytes) -> bool:
    return text.startswith(b"Error: ") and text.count(b"\n") == 1


# --- characters


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "arguments", ["threads list", "doctor", "export --all", "verify", "--help"]
)
def test_a_terminal_without_unicode_gets_escapes(
    store: str, arguments: str, environment: Mapping[str, str]
) -> None:
    done = shell(f"$C {arguments}", store, **environment)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert done.stdout


def test_json_is_exact_on_a_terminal_without_unicode(store: str) -> None:
    done = shell("$C threads list --json", store, PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)[0]["thread_id"] == ODD
    assert done.stdout.isascii()


@pytest.mark.parametrize("command", ["show", "diff", "history"])
def test_a_state_with_any_character_is_shown_without_unicode(store: str, command: str) -> None:
    done = shell(f"$C threads {command} '{ODD}'", store, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


def test_an_error_with_any_character_is_told_without_unicode(store: str) -> None:
    done = shell("$C threads show 日", store, PYTHONIOENCODING="ascii")
    assert (done.returncode, is_one_error(done.stderr)) == (4, True)


@pytest.mark.parametrize(
    "arguments",
    [
        "verify -- '\udcff'",
        "verify --json -- '\udcff'",
        "threads list --after '\udcff'",
        "threads show '\udcff'",
        "export '\udcff'",
        "db check --schema '\udcff' --url sqlite://",
    ],
)
def test_an_argument_that_is_no_text_is_one_error(store: str, arguments: str) -> None:
    done = shell(f"$C {arguments}", store)
    assert (done.returncode, done.stdout, is_one_error(done.stderr)) == (1, b"", True)


def test_a_file_whose_name_is_no_text_is_a_problem_in_valid_json(
    store: str, tmp_path: Path
) -> None:
    (tmp_path / "store" / "\udcff.json").write_text("{}")
    for option in ("", "--json"):
        done = shell(f"$C verify {option}", store)
        assert (done.returncode, b"Traceback" in done.stderr) == (3, False)
        assert b"xff.json" in done.stdout
    assert [json.loads(it) for it in done.stdout.splitlines()][-1]["problems"] > 0


# --- output


@NEEDS_FULL
@pytest.mark.parametrize(
    "arguments",
    [
        *("threads list", "threads list --json", "verify", "export --all", "db history", "--help"),
        *("db sql --dialect sqlite", "doctor --json"),
    ],
)
def test_a_full_disk_behind_standard_output_is_one_error(store: str, arguments: str) -> None:
    done = shell(f"$C {arguments} >{FULL}", store)
    assert (done.returncode, done.stderr) == (
        1,
        b"Error: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("arguments", ["threads list", "threads list --json", "export --all"])
def test_a_closed_standard_output_is_one_error(store: str, arguments: str) -> None:
    done = shell(f"$C {arguments} >&-", store)
    assert (done.returncode, is_one_error(done.stderr)) == (1, True)
    assert b"standard output" in done.stderr


@pytest.mark.parametrize("redirection", ["2>&-", pytest.param(f"2>{FULL}", marks=NEEDS_FULL)])
def test_what_nobody_can_be_told_changes_no_exit_code(store: str, redirection: str) -> None:
    assert shell(f"$C threads show no {redirection}", store).returncode == 4
    done = shell(f"$C export --all {redirection}", store)
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 5)


def test_no_stream_at_all_is_no_traceback(store: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = shell(f"$C export --all -o '{out}' <&- >&- 2>&-", store)
    assert (done.returncode, out.read_bytes().count(b"\n")) == (0, 5)


@pytest.mark.parametrize(
    "arguments",
    [
        *("db sql --dialect sqlite", "db history", "db history --json", "threads list"),
        *("threads list --json", "verify", "verify --json", "export --all", "--help"),
    ],
)
def test_a_reader_that_goes_away_is_exit_code_141_and_nothing_is_said(
    store: str, arguments: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "locus_store", *arguments.split()],
            cwd=ROOT,
            env={**os.environ, "LOCUS_STORE_URL": store},
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, [it for it in done.stderr.splitlines() if b"export" not in it]) == (
        141,
        [],
    )


# --- input


def test_a_closed_standard_input_deletes_nothing(store: str) -> None:
    done = shell(f"$C threads delete '{ODD}' <&-", store)
    told, error = done.stderr.splitlines(keepends=True)
    assert (done.returncode, b"1 version" in told, is_one_error(error)) == (2, True, True)
    assert shell(f"$C verify '{ODD}'", store).returncode == 0
    assert shell(f"$C threads delete '{ODD}' --yes <&-", store).returncode == 0


def test_a_closed_standard_input_is_no_empty_import(store: str) -> None:
    done = shell("$C import file - <&-", store)
    assert (done.returncode, is_one_error(done.stderr)) == (1, True)
    assert b"standard input" in done.stderr


# --- Ctrl-C

INTERRUPTED_AT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["locus-store", "db", "history"]
"""
MODULE = "import runpy; runpy.run_module('locus_store', run_name='__main__', alter_sys=False)"
SCRIPT = "from {0} import {1}; sys.exit({1}())".format(
    *tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"][
        "locus-store"
    ].split(":")
)


def interrupted(name: str, start: str, *, ignored: bool = False) -> tuple[int, str, str]:
    code = INTERRUPTED_AT.format(name=name, ignored=ignored) + start
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("start", [MODULE, SCRIPT], ids=["module", "script"])
@pytest.mark.parametrize("name", ["locus_store.cli", "typer", "rich", "orjson", "asyncio"])
def test_ctrl_c_while_it_is_loaded_is_exit_code_130_and_nothing_is_said(
    name: str, start: str
) -> None:
    assert interrupted(name, start) == (130, "", "")


def test_who_ignores_ctrl_c_goes_on() -> None:
    code, out, errors = interrupted("typer", SCRIPT, ignored=True)
    assert (code, out[:4], errors) == (0, "0001", "")


def test_before_ctrl_c_is_seen_to_little_is_loaded() -> None:
    code = "import sys, locus_store.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"pydantic", "typer", "rich", "asyncio", "orjson"} & set(done.stdout.split())


def test_the_entry_point_is_there() -> None:
    scripts: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    module, _, name = scripts["project"]["scripts"]["locus-store"].partition(":")
    assert callable(getattr(import_module(module), name))
