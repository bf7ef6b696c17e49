from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from lazily import TESTS_RUN
from services import Service

from locus_store import SQLiteBackend, blocking

if TESTS_RUN:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

    from locus_store.service.access import TokenFile

if TYPE_CHECKING:
    import servers
    from test_cli import Run

run = test_cli.run

URL = "sqlite:///a.db"


@pytest.fixture(autouse=True)
def named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCUS_STORE_URL", URL)


def write_keys(name: str, key: ed25519.Ed25519PrivateKey | x25519.X25519PrivateKey) -> None:
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    form = private, serialization.NoEncryption()
    Path(f"{name}.pem").write_bytes(key.private_bytes(pem, *form))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    Path(f"{name}.pub").write_bytes(key.public_key().public_bytes(pem, public))


def save(thread_id: str, tenant: str = "default") -> None:
    with blocking.open_checkpointer(URL, audit="clerk", tenant=tenant) as checkpointer:
        checkpointer.save({"n": 1}, thread_id)


def change(statement: str) -> None:
    with closing(sqlite3.connect("a.db")) as connection, connection:
        connection.execute(statement)


def test_a_change_is_named_and_has_an_exit_code_of_its_own(run: Run) -> None:
    save("t")
    save("u", "acme")
    lines = [f"tenant {it!r}: 1 call in 1 seal, 0 not sealed yet\n" for it in ("acme", "default")]
    assert run("audit", "verify") == (0, "".join(lines), "")
    change("UPDATE locus_audit SET thread_id = 'x' WHERE tenant = 'acme'")
    code, out, errors = run("audit", "verify", "--json")
    problem = "entry 2 of seal 1 was changed: 'clerk' is said to have called 'commit'"
    assert (code, errors) == (3, "")
    assert [it["problem"] for it in json.loads(out)] == [problem, None]
    assert run("audit", "verify", "--tenant", "default")[0] == 0
    for command in (("verify",), ("anchor", "roots.jsonl")):
        assert "no call is recorded" in run("audit", *command, "--tenant", "nobody")[2]
    assert run("audit", "verify", "--tenant", "acme") == (3, "", f"tenant 'acme': {problem}\n")


def test_an_export_is_checked_by_its_signature_and_its_seals(run: Run) -> None:
    save("t")
    write_keys("key", ed25519.Ed25519PrivateKey.generate())
    write_keys("other", ed25519.Ed25519PrivateKey.generate())
    write_keys("wrong", x25519.X25519PrivateKey.generate())
    assert run("audit", "export", "calls.jsonl", "--key", "key.pem")[:2] == (0, "1 call exported\n")
    check = "audit", "verify", "calls.jsonl", "--public-key"
    assert run(*check, "key.pub")[1] == "tenant 'default': 1 call in 1 seal, 0 not sealed yet\n"
    assert "not an export that was signed with the key" in run(*check, "other.pub")[2]
    assert "another kind than Ed25519" in run(*check, "wrong.pub")[2]
    assert "has no such key" in run("audit", "export", "x", "--key", "key.pub")[2]
    assert "or neither" in run("audit", "verify", "calls.jsonl")[2]
    whole = Path("calls.jsonl").read_bytes()
    for harmed in (whole.replace(b"clerk", b"thief"), whole.splitlines()[-1], b"", whole[:-9]):
        Path("calls.jsonl").write_bytes(harmed)
        assert run(*check, "key.pub")[0] == 1
    change("UPDATE locus_audit SET who = 'thief'")
    run("audit", "export", "calls.jsonl", "--key", "key.pem")
    assert "entry 1 of seal 1 was changed" in run(*check, "key.pub")[2]


@pytest.mark.parametrize("target", ["roots.jsonl", "sqlite:///roots.db"])
def test_anchors_show_that_the_end_was_cut_off_and_are_not_done_without(
    run: Run, target: str
) -> None:
    save("t")
    command = "audit", "anchor", target, "--command", "cat >> command.jsonl"
    assert run(*command) == (0, "1 tenant anchored\n", "")
    save("u")
    assert run(*command)[0] == 0
    last = json.loads(Path("command.jsonl").read_text().splitlines()[-1])
    assert (last["tenant"], last["number"]) == ("default", 2)
    for anchors in (target, "command.jsonl"):
        assert run("audit", "verify", "--anchors", anchors)[0] == 0
    change("DELETE FROM locus_seals WHERE seal = 2")
    change("DELETE FROM locus_audit WHERE entry = 2")
    assert run("audit", "verify")[0] == 0
    for anchors in (target, "command.jsonl"):
        assert "cut off behind seal 1" in run("audit", "verify", "--anchors", anchors)[2]
    change("DELETE FROM locus_seals")
    change("DELETE FROM locus_audit")
    assert run("audit", "verify")[0] == 4
    assert run("audit", "verify", "--anchors", target)[0] == 3


def test_missing_anchors_are_an_error(run: Run) -> None:
    save("t")
    assert run("audit", "verify", "--anchors", "none.jsonl")[0] == 4
    Path("empty.jsonl").touch()
    assert "has no anchor of this database" in run("audit", "verify", "--anchors", "empty.jsonl")[2]
    Path("other.jsonl").write_text('{"store": 1}\n')
    assert "a line that is not an anchor" in run("audit", "verify", "--anchors", "other.jsonl")[2]
    assert "--command" in run("audit", "anchor")[2]
    assert "were not written" in run("audit", "anchor", "--command", "exit 3")[2]
    assert "were not written" in run("audit", "anchor", "missing/roots.jsonl")[2]


@pytest.mark.parametrize("target", ["roots.jsonl", "sqlite:///roots.db"])
def test_an_anchor_added_for_another_record_does_not_hide_the_first(run: Run, target: str) -> None:
    for who in ("clerk", "thief"):
        with blocking.open_checkpointer(URL, audit=who) as checkpointer:
            checkpointer.save({"n": 1}, "t")
        assert run("audit", "anchor", target)[0] == 0
        if who == "clerk":
            change("DELETE FROM locus_audit")
            change("DELETE FROM locus_seals")
    assert "anchors with different roots" in run("audit", "verify", "--anchors", target)[2]


def test_a_record_is_exported_and_then_pruned(run: Run) -> None:
    save("t")
    save("u")
    write_keys("key", ed25519.Ed25519PrivateKey.generate())
    prune = "audit", "prune", "old.jsonl", "--key", "key.pem", "--before"
    assert run("audit", "anchor", "roots.jsonl")[0] == 0
    assert run(*prune, "2020-01-01") == (0, "0 calls pruned\n", "")
    assert not Path("old.jsonl").exists()
    assert run(*prune, "2100-01-01") == (0, "2 calls pruned\n", "")
    told = "tenant 'default': 1 call in 3 seals, 0 not sealed yet, 2 pruned\n"
    assert run("audit", "verify", "--anchors", "roots.jsonl")[1] == told
    exported = run("audit", "verify", "old.jsonl", "--public-key", "key.pub")[1]
    assert "2 calls in 2 seals" in exported
    run("audit", "export", "new.jsonl", "--key", "key.pem")
    assert run("audit", "verify", "new.jsonl", "--public-key", "key.pub")[1] == told
    change("UPDATE locus_audit SET who = 'thief'")
    code, _, errors = run(*prune, "2100-01-01")
    assert (code, "nothing was pruned: entry 3 of seal 3 was changed" in errors) == (1, True)


def test_a_storage_without_a_record_is_told(run: Run) -> None:
    code, _, errors = run("audit", "verify", "--url", "memory://")
    assert code == 1
    assert "SQLite, PostgreSQL and Oracle do" in errors


def test_an_auditor_reads_the_record_and_nothing_else(
    run: Run, migrated_database: str, postgresql: servers.Server
) -> None:
    name = migrated_database.partition("?")[0].rpartition("/")[2]
    with blocking.open_checkpointer(migrated_database, audit="clerk") as checkpointer:
        checkpointer.save({"user_id": "ann"}, "t")
    role = 'audi"tor'
    postgresql.execute('CREATE ROLE "audi""tor" LOGIN')
    try:
        postgresql.execute(run("audit", "grant", role)[1], name)
        address = postgresql.url(name, user=role)
        assert "1 call in 1 seal" in run("audit", "verify", "--url", address)[1]
        write_keys("key", ed25519.Ed25519PrivateKey.generate())
        export = "audit", "export", "calls.jsonl", "--key", "key.pem", "--url", address
        assert run(*export)[1] == "1 call exported\n"
        for command in ("threads list", "audit anchor roots.jsonl"):
            assert "the role may not do this" in run(*command.split(), "--url", address)[2]
    finally:
        postgresql.execute('DROP OWNED BY "audi""tor"; DROP ROLE "audi""tor"', name)


def test_an_auditor_of_a_service_reads_the_record_of_one_tenant_and_nothing_else(run: Run) -> None:
    for tenant in ("acme", "globex"):
        save(f"secret of {tenant}", tenant)
    run("audit", "anchor", "roots.jsonl")
    file = Path("tokens.json")
    tokens = TokenFile(file)
    secrets = {it: tokens.add(it, "acme", [it]) for it in ("audit", "read")}
    backend = SQLiteBackend("a.db", audit="service")
    service = Service(backend, token_file=file)
    urls = {it: f"{service.url}?token={secret}" for it, secret in secrets.items()}

    def call(command: str, name: str = "audit") -> tuple[int, str, str]:
        return run(*command.split(), "--url", urls[name])

    try:
        whole = "tenant 'acme': 1 call in 1 seal, 0 not sealed yet\n"
        assert call("audit verify --anchors roots.jsonl") == (0, whole, "")
        write_keys("key", ed25519.Ed25519PrivateKey.generate())
        assert call("audit export calls.jsonl --key key.pem")[1] == "1 call exported\n"
        exported = Path("calls.jsonl").read_text()
        assert "secret of acme" in exported
        assert "globex" not in exported
        assert call("audit anchor own.jsonl")[1] == "1 tenant anchored\n"
        for command in ("threads list", "verify", "export --all"):
            assert "does not have the right" in call(command)[2]
        assert "does not have the right 'audit'" in call("audit verify", "read")[2]
        assert "does not prune" in call("audit prune x --key key.pem --before 2026-01-01")[2]
        change("UPDATE locus_audit SET thread_id = 'x' WHERE tenant = 'acme' AND result = 'done'")
        assert call("audit verify")[0] == 3
    finally:
        service.stop()
    found = run("audit", "verify", "--tenant", "globex")
    assert found[0] == 0


@pytest.mark.full
def test_a_bucket_of_anchors_shows_a_database_that_was_put_back(run: Run, s3_place: Any) -> None:
    target, database = s3_place.url(), Path("a.db")
    save("t")
    assert run("audit", "anchor", target) == (0, "1 tenant anchored\n", "")
    older = database.read_bytes()
    save("u")
    assert run("audit", "anchor", target)[0] == 0
    verify = "audit", "verify", "--anchors", target
    assert run(*verify) == (0, "tenant 'default': 2 calls in 2 seals, 0 not sealed yet\n", "")
    database.write_bytes(older)
    assert run("audit", "verify")[0] == 0
    assert "cut off behind seal 1" in run(*verify)[2]
    save("v")
    assert run("audit", "anchor", "other.jsonl")[0] == 0
    assert "seal 2 is another one than its anchor" in run(*verify)[2]
