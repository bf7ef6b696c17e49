"""``locus-store db row-security``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import test_cli
from lazily import TESTS_RUN

from locus_store.blocking import open_checkpointer

if TESTS_RUN:
    from storages.postgresql import secure as secure_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run


@pytest.fixture
def role(postgresql):
    postgresql.execute("DROP ROLE IF EXISTS locus_customer; CREATE ROLE locus_customer LOGIN")
    yield "locus_customer"
    postgresql.execute("DROP ROLE locus_customer")


def test_row_security_is_enabled_shown_and_removed(run: Run, database: str, role: str) -> None:
    def call(*words: str) -> tuple[int, str, str]:
        return run("db", *words, "--url", database)

    def secure(*words: str) -> tuple[int, str, str]:
        return call("row-security", *words)

    assert call("upgrade")[0] == 0
    place = call("check")[1].partition(": schema revision")[0]
    assert secure("enable") == (0, f"{place}: row security is enabled\n", "")
    assert secure("enable") == (0, f"{place}: nothing was changed\n", "")
    code, out, _ = secure("add-role", "acme", role)
    assert (code, out) == (0, f"{place}: role locus_customer sees tenant 'acme' only\n")
    assert secure("status") == (
        0,
        "row security is enabled\nrole locus_customer: tenant 'acme'\n",
        "",
    )
    found = json.loads(secure("status", "--json")[1])
    assert found == {"enabled": True, "problems": [], "roles": {role: "acme"}}
    code, _, errors = secure("disable")
    assert (code, "remove-role" in errors) == (1, True)
    removed = f"{place}: role locus_customer sees no rows any more\n"
    assert secure("remove-role", role)[1] == removed
    assert secure("disable") == (0, f"{place}: row security is disabled\n", "")
    assert secure("status")[1] == "row security is disabled\n"


def test_all_tenants_need_a_role_that_sees_them(run: Run, database: str, tmp_path: Path) -> None:
    assert run("db", "upgrade", "--url", database)[0] == 0
    application = secure_database(database)
    for tenant in ("acme", "globex"):
        with open_checkpointer(application, state_type=dict, tenant=tenant) as checkpointer:
            checkpointer.save({"of": tenant}, "t")
    target = f"sqlite:///{tmp_path / 'copy.db'}"
    code, out, errors = run("copy", "--from", application, "--to", target, "--all-tenants")
    assert (code, out) == (1, "")
    assert "row security hides other tenants" in errors
    code, out, _ = run("copy", "--from", database, "--to", target, "--all-tenants")
    assert (code, "2 tenants: 2 threads copied" in out) == (0, True)


@pytest.mark.parametrize(
    "words", [("enable",), ("disable",), ("add-role", "acme", "r"), ("remove-role", "r")]
)
def test_the_sql_needs_no_database(run: Run, words: tuple[str, ...]) -> None:
    code, out, errors = run("db", "row-security", *words, "--sql", "--schema", "my x")
    assert (code, errors) == (0, "")
    assert out.startswith("BEGIN;\n")
    assert out.endswith("COMMIT;\n\n")
    assert '"my x".locus_' in out
