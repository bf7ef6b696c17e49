"""``locus-store db keys``, and the receipts of ``locus-store forget``."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import test_cli

from locus_store import open_storage
from locus_store.encryption import keys

if TYPE_CHECKING:
    from test_cli import Run

run = test_cli.run

URL = "sqlite:///locus_checkpoints.db?encryption=keys.json"


def write_ring(*names: str, **more: Any) -> None:
    """Store a ring whose last key is the current one; their values are those of their names."""
    ring = {it: base64.b64encode(it.encode() * 32).decode() for it in names}
    fields = {"keys": ring, "current": names[-1], "data_keys": "sqlite:///keys.db", **more}
    Path("keys.json").write_text(json.dumps(fields))


def fill(url: str = URL) -> None:
    async def work() -> None:
        async with open_storage(url) as storage:
            await storage.backend.save("t", {"n": 1}, metadata={"user_id": "zoe"})
            await storage.backend.save("u", {"n": 2}, metadata={"user_id": "max"})
            await storage.store().put(("m", "zoe"), "k", {"n": 3})

    asyncio.run(work())


def load(thread_id: str) -> Any:
    async def work() -> Any:
        async with open_storage(URL) as storage:
            return await storage.backend.load(thread_id)

    return asyncio.run(work())


def status(run: Run) -> dict[str, Any]:
    code, out, errors = run("db", "keys", "status", "--url", URL, "--json")
    assert (code, errors) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_verify_without_the_keys_advises_no_deletion(run: Run) -> None:
    write_ring("a")
    fill()
    code, out, errors = run("verify", "--url", "sqlite:///./locus_checkpoints.db")
    assert (code, out.count("open the storage with the encryption= that")) == (3, 2)
    assert errors == "Nothing that could be read is damaged.\n"


def test_a_key_of_the_ring_is_replaced(run: Run) -> None:
    write_ring("a")
    fill()
    [before] = status(run)["keys"]
    write_ring("a", "b")
    assert run("db", "keys", "rotate", "--url", URL) == (0, "wrapped 1 data key again\n", "")
    assert status(run)["keys"] == [{**before, "wrapped_by": "b"}]
    write_ring("b")
    assert run("db", "keys", "rotate", "--url", URL)[1] == "wrapped 0 data keys again\n"
    assert load("t") == {"n": 1}
    write_ring("a")
    assert "does not have" in run("threads", "show", "t", "--url", URL)[2]


def test_a_storage_without_data_is_rotated(run: Run) -> None:
    write_ring("a")
    assert run("db", "upgrade")[0] == 0
    code, out, errors = run("db", "keys", "rotate", "--data", "--url", URL)
    assert (code, errors) == (0, "")
    assert out.endswith("removed 0 data keys that seal nothing\n")


def test_a_data_key_is_replaced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ring("a")
    fill()
    [old] = status(run)["keys"]
    assert status(run)["values"] == {old["key_id"]: 5}
    out = run("db", "keys", "rotate", "--new-key", "--data", "--url", URL)[1].splitlines()
    assert out[2:] == ["sealed 2 threads and 1 item again", "removed 0 data keys that seal nothing"]
    found = status(run)
    assert [it["number"] for it in found["keys"]] == [1, 2]
    assert found["values"] == {found["keys"][1]["key_id"]: 5}
    monkeypatch.setattr(keys, "REFRESH_SECONDS", 0.0)
    out = run("db", "keys", "rotate", "--data", "--url", URL)[1].splitlines()
    assert out[1:] == ["sealed 0 threads and 0 items again", "removed 1 data key that seal nothing"]
    assert status(run)["keys"] == found["keys"][1:]
    assert load("u") == {"n": 2}


def test_a_clock_that_is_set_back_shows_nothing_whose_data_key_was_removed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ring("a")
    fill()

    def set_expiry(expires_at: str) -> None:
        with closing(sqlite3.connect("locus_checkpoints.db")) as connection:
            for rows in ("threads SET {} WHERE thread_id = 't'", "store SET {}"):
                value = f"expires_at = {expires_at}"
                connection.execute(f"UPDATE locus_{rows.format(value)}")
            connection.commit()

    set_expiry("1")
    monkeypatch.setattr(keys, "REFRESH_SECONDS", 0.0)
    out = run("db", "keys", "rotate", "--new-key", "--data", "--url", URL)[1].splitlines()
    assert out[2:] == ["sealed 1 thread and 0 items again", "removed 1 data key that seal nothing"]
    set_expiry("NULL")
    assert load("t") is None
    assert list(status(run)["values"]) == [it["key_id"] for it in status(run)["keys"]]


def test_values_in_clear_are_counted_and_encrypted(run: Run) -> None:
    fill("sqlite:///locus_checkpoints.db")
    write_ring("a", required=False)
    assert status(run)["values"] == {"clear": 3}
    table = run("db", "keys", "status", "--url", URL)[1].splitlines()
    assert table[-1].split() == ["clear", "3"]
    run("db", "keys", "rotate", "--data", "--url", URL)
    assert "clear" not in status(run)["values"]


def test_a_tenant_is_destroyed_with_a_receipt(run: Run) -> None:
    write_ring("a")
    fill()
    [key] = status(run)["keys"]
    assert "pass --yes" in run("db", "keys", "destroy", "--url", URL)[2]
    code, out, _ = run("db", "keys", "destroy", "--yes", "--url", URL)
    assert code == 0
    assert out.startswith(f"tenant 'default': destroyed keys {key['key_id']} at 20")
    assert "destroyed" in run("threads", "show", "t", "--url", URL)[2]


def test_what_destroyed_keys_have_sealed_is_named_and_removed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCUS_STORE_URL", URL)
    write_ring("a", clear=["user_id"])
    fill()
    run("db", "keys", "destroy", "--yes")
    named = "the data keys of tenant 'default' were destroyed by `db keys destroy` at 20"
    for command in ("threads list", "threads history t", "threads show t", "store list m/zoe"):
        code, _, errors = run(*command.split())
        assert (code, named in errors) == (1, True), (command, errors)
    code, out, errors = run("verify")
    assert (code, "No backup brings destroyed keys back" in errors) == (3, True)
    code, out, _ = run("doctor", "--json")
    found = {it["name"]: it for it in json.loads(out)["facts"]}["reading"]
    assert (code, found["verdict"], named in found["remedy"]) == (3, "fail", True)
    assert run("threads", "vacuum", "--older-than", "0", "--yes")[0] == 0
    assert run("store", "delete", "/", "--all", "--recursive", "--yes")[0] == 0
    assert (run("verify")[0], run("doctor")[0], run("store", "list", "m")[0]) == (0, 0, 0)
    assert status(run)["values"] == {}


@pytest.mark.parametrize("names", ["user", "namespace"])
def test_forget_prints_a_receipt(run: Run, names: str) -> None:
    write_ring("a")
    fill()
    named = ("--namespace", "m/zoe") if names == "namespace" else ()
    found = run("forget", "--user", "zoe", *named, "--yes", "--url", URL, "--json")[1]
    receipts = json.loads(found)["receipts"]
    assert [len(it["key_ids"]) for it in receipts] == [1] * (1 + len(named) // 2)
    [key] = status(run)["keys"]
    assert all(it["key_ids"][0].startswith(key["key_id"]) for it in receipts)
    out = run("forget", "--where", "user_id=max", "--yes", "--url", URL)[1].splitlines()
    assert out[-1].startswith("receipt: tenant 'default': destroyed keys ")
    assert run("forget", "--user", "max", "--yes", "--url", URL)[0] == 4


def test_a_storage_without_encryption_has_no_keys(run: Run) -> None:
    fill("sqlite:///locus_checkpoints.db")
    for command in ("status", "rotate", "destroy"):
        code, _, errors = run("db", "keys", command, "--url", "sqlite:///locus_checkpoints.db")
        assert code
        assert "encryption=FILE" in errors
