"""Prefixes of ids, misspelt names, and ``--url`` and profiles before a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import test_cli
from test_cli_threads import CHAT, parsed, save

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str, str]]

run = test_cli.run


@pytest.fixture
def url(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A database with threads ``order-1`` of three versions, ``order-[2]`` and ``visit``."""
    found = f"sqlite:///{tmp_path / 'here.db'}"
    monkeypatch.setenv("LOCUS_STORE_URL", found)
    for name in ("aa1", "aa2", "b1"):
        save(found, "order-1", {"name": name}, name=name)
    save(found, "order-[2]", CHAT[0])
    save(found, "visit", CHAT[0])
    return found


def test_the_beginning_of_ids_is_enough_where_it_is_unique(run: Run, url: str) -> None:
    found = parsed(run, "threads", "show", "order-1", "--checkpoint", "b")
    assert found["checkpoint_id"] == "b1"
    assert parsed(run, "threads", "show", "vis")["thread_id"] == "visit"
    assert parsed(run, "threads", "show", "order-[")["thread_id"] == "order-[2]"
    for command in (("history",), ("diff",), ("blame",), ("report",), ("fork", "copy")):
        name, *more = command
        assert run("threads", name, "vis", *more)[0] == 0, command
    assert parsed(run, "threads", "diff", "order-1", "aa1", "b")["to"] == "b1"
    assert parsed(run, "threads", "rewind", "order-1", "aa2")["from"] == "aa2"


def test_the_beginning_of_several_ids_is_an_error_that_names_them(run: Run, url: str) -> None:
    code, _, errors = run("threads", "show", "order")
    assert (code, errors.startswith("Error: several threads begin with 'order': ")) == (4, True)
    assert "'order-1'" in errors
    assert "'order-[2]'" in errors
    code, _, errors = run("threads", "show", "order-1", "--checkpoint", "aa")
    assert (code, errors) == (4, "Error: several versions begin with 'aa': 'aa2', 'aa1'\n")


def test_a_misspelt_thread_is_suggested(run: Run, url: str) -> None:
    for command in ("show", "history", "messages", "watch", "delete"):
        code, _, errors = run("threads", command, "vsiit")
        assert (code, errors) == (4, "Error: there is no thread 'vsiit' (did you mean 'visit'?)\n")


def test_the_beginning_of_an_id_deletes_no_thread(run: Run, url: str) -> None:
    code, _, errors = run("threads", "delete", "vis", "--yes")
    assert (code, "did you mean 'visit'?" in errors) == (4, True)
    assert run("threads", "show", "visit")[0] == 0


def test_a_misspelt_scheme_or_option_is_suggested(run: Run) -> None:
    for wrong, right in (
        ("sqlit:///a.db", "sqlite"),
        ("postgresq://a", "postgresql"),
        ("sqlite:///a.db?prefx=a", "prefix"),
    ):
        for command in (["doctor"], ["db", "upgrade"], ["db", "check"]):
            code, _, errors = run(*command, "--url", wrong)
            assert (code, f"(did you mean '{right}'?)" in errors) == (1, True)


@pytest.mark.parametrize("url", ["memory://", "file:a", "s3://a/b", "http://h"])
def test_a_url_without_a_schema_needs_no_upgrade(run: Run, url: str) -> None:
    code, _, errors = run("db", "upgrade", "--url", url)
    assert (code, "has no schema; nothing to make" in errors) == (1, True)


def test_the_url_may_precede_the_command(run: Run, url: str) -> None:
    assert run("--url", url, "threads", "show", "visit")[0] == 0
    code, _, errors = run("--url", "sqlite:///no.db", "threads", "show", "visit")
    assert (code, "no.db" in errors) == (1, True)
    assert run("--url", "sqlite:///no.db", "threads", "show", "visit", "--url", url)[0] == 0
    code, _, errors = run("--url", url, "db", "history")
    assert (code, "takes no --url" in errors) == (1, True)


def test_a_profile_names_a_url(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCUS_STORE_CONFIG", "profiles.toml")
    monkeypatch.setenv("LOCUS_STORE_URL", "sqlite:///other.db")
    code, _, errors = run("--profile", "staging", "doctor")
    assert (code, "profiles.toml does not exist" in errors) == (1, True)
    Path("profiles.toml").write_text(f"[profiles.staging]\nurl = '{url}'\n", encoding="utf-8")
    assert run("--profile", "staging", "threads", "show", "visit")[0] == 0
    code, _, errors = run("--profile", "stagin", "doctor")
    assert (code, "(did you mean 'staging'?); it has: staging" in errors) == (1, True)
    code, _, errors = run("--profile", "staging", "--url", url, "doctor")
    assert (code, "not both" in errors) == (1, True)
    others = f"[profiles.staging]\nurl = '{url}'\n[profiles.bad]\nur = 'x'\n"
    Path("profiles.toml").write_text(others, encoding="utf-8")
    assert run("--profile", "staging", "threads", "show", "visit")[0] == 0
    assert "'url' is missing" in run("--profile", "bad", "doctor")[2]
    for text in ("x", "profiles = 1", "[profiles]\na = 1", "[profiles.a]\n"):
        Path("profiles.toml").write_text(text, encoding="utf-8")
        code, _, errors = run("--profile", "a", "doctor")
        assert (code, "is not a file of [profiles.NAME] tables" in errors) == (1, True), text


def test_interrupted_threads_and_logs_are_marked_in_the_list(run: Run, url: str) -> None:
    from locus_store import NewMessage, blocking
    from locus_store.types import PendingWrite

    with blocking.open_message_log(url) as log:
        log.append("chat", [NewMessage("Hi."), NewMessage("Hello.")])
    test_cli.waits(url, "visit", PendingWrite("task", -3, "__interrupt__", "json", b"1"))
    found = {it["thread_id"]: it for it in parsed(run, "threads", "list")}
    assert {name: (it["interrupted"], it["messages"]) for name, it in found.items()} == {
        "chat": (False, 2),
        "order-1": (False, None),
        "order-[2]": (False, None),
        "visit": (True, None),
    }
    out = run("threads", "list")[1]
    assert "2 messages" in out
    assert out.count("interrupted") == 1


def test_prune_keeps_the_newest_versions_and_the_head(run: Run, url: str) -> None:
    prune = ("threads", "prune", "--keep-last", "1")
    assert run(*prune, "--dry-run")[1] == (
        "This would delete 2 versions of 1 thread of tenant 'default', and keeps 1 of each.\n"
    )
    assert run(*prune)[0] == 2
    assert parsed(run, *prune, "visit", "--yes")["removed"] == 0
    counts = {"removed": 2, "threads": 1, "skipped": 0, "tenant": "default"}
    assert parsed(run, *prune, "--dry-run") == counts
    assert parsed(run, *prune, "--yes") == counts
    assert [it["checkpoint_id"] for it in parsed(run, "threads", "history", "order-1")] == ["b1"]
    assert run("verify")[0] == 0
    assert run(*prune, "order-9", "--yes")[0] == 4


def test_a_backup_is_a_database_of_its_own(run: Run, url: str) -> None:
    code, out, _ = run("backup", "copy.db")
    assert (code, out.startswith("copy.db: ")) == (0, True)
    assert run("--url", "sqlite:///copy.db", "threads", "show", "visit")[0] == 0
    assert run("--url", "sqlite:///copy.db", "verify")[0] == 0
    code, _, errors = run("backup", "copy.db")
    assert (code, "already exists" in errors) == (1, True)
    assert list(Path().glob(".backup-*")) == []


def test_a_backup_of_another_storage_names_its_tool(run: Run) -> None:
    Path("files").mkdir()
    code, _, errors = run("--url", "file:files", "backup", "copy")
    assert (code, "a copy of the directory, or 'locus-store export" in errors) == (1, True)
    *_, command = errors.split("'")[:-1]
    assert run("--url", "file:files", *command.split()[1:])[0] == 0


def test_doctor_shows_bytes_by_tenant_user_and_thread(run: Run, url: str) -> None:
    save(url, "large", {"text": "x" * 300}, with_={"metadata": {"user_id": "u"}})
    out = run("doctor", "--sizes", "--json")[1]
    facts = {it["name"]: it["value"] for it in json.loads(out)["facts"]}
    assert facts["bytes of tenants"].startswith("'default': ")
    assert facts["bytes of users"].startswith("no user: ")
    assert all(f"'{it}'" in facts["bytes of threads"] for it in ("large", "visit", "order-1"))
    assert "free space in the file" in facts
