"""The record of calls: what has a row, and which changes of rows a check finds."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from test_round_trips import statements

import locus_store.versions.audit
from locus_store import (
    ConflictError,
    Encryption,
    InMemoryStore,
    IntegrityError,
    InvalidArgumentError,
    LocalKeyRing,
    NewMessage,
    Storage,
    acting_as,
    open_checkpointer,
)
from locus_store.blocking import BlockingCheckpointer
from locus_store.sql import audit
from locus_store.versions.audit import Verified, compute_tree_root, verify
from locus_store.wire.calls import CALLS, list_calls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = ("sqlite", "postgresql")


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path')}/audit.db"
    return str(request.getfixturevalue("database"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


@asynccontextmanager
async def audited(url: str, **options: Any) -> AsyncIterator[Any]:
    """A checkpointer of an audited storage; nothing is sealed beside the calls."""
    options = {"audit": "worker", "state_type": dict, **options}
    async with open_checkpointer(url, **options) as checkpointer:
        checkpointer.backend.shared.database.audit.next_seals["default"] = float("inf")
        yield checkpointer


async def rows(log: Any) -> list[tuple[Any, ...]]:
    found = await log.list_entries(0, 2**63 - 1, 1000)
    return [(it.who, it.method, it.thread_id, it.result) for it in found]


async def details(log: Any) -> list[Any]:
    return [json.loads(it.detail) for it in await log.list_entries(0, 2**63 - 1, 1000)]


# --- what has a row


async def test_each_call_that_writes_is_recorded_by_the_one_who_acts(url: str) -> None:
    async with audited(url) as checkpointer:
        with acting_as("alex"):
            await checkpointer.save({"n": 1}, "t", "v1")
        await checkpointer.save({"n": 2}, "t", "v2", metadata={"user_id": "zoë"})
        await checkpointer.load("t")
        await asyncio.gather(*(checkpointer.save({}, f"group {it}") for it in range(9)))
        store = Storage(checkpointer.backend).store()
        with acting_as("alex"):
            await store.put(("a", "b"), "k", {"secret": "words"})
            await store.delete(("a", "b"), "k")
        log = Storage(checkpointer.backend).messages()
        await log.append("t", [NewMessage({"text": "words"}, "user")])
        await checkpointer.delete("nothing")
        await checkpointer.copy_thread("t", "copy")
        await checkpointer.backend.forget_user("zoë")
        found = await rows(checkpointer.backend)
        assert found[:2] == [("alex", "commit", "t", "done"), ("worker", "commit", "t", "done")]
        group = {("worker", "commit", f"group {it}", "done") for it in range(9)}
        assert set(found[2:11]) == group
        assert found[11:] == [
            ("alex", "apply", None, "done"),
            ("alex", "apply", None, "done"),
            ("worker", "change", "t", "done"),
            ("worker", "copy_thread", "copy", "done"),
            ("worker", "forget_user", "copy", "done"),
            ("worker", "forget_user", "t", "done"),
        ]
        told = await details(checkpointer.backend)
        assert told[0] == {"checkpoint_id": "v1"}
        assert told[11] == {"items": [["a", "b", "k"]], "versions": [1]}
        assert not any(it in json.dumps(told) for it in ("words", "zoë"))


async def test_a_refused_call_has_one_row_and_has_written_nothing_else(url: str) -> None:
    async with audited(url) as checkpointer:
        await checkpointer.save({"n": 1}, "t", "v1")
        mine, theirs = await checkpointer.load("t"), await checkpointer.load("t")
        mine["n"], theirs["n"] = 2, 3
        await checkpointer.save(mine, "t")
        with pytest.raises(ConflictError), acting_as("late"):
            await checkpointer.save(theirs, "t")
        await checkpointer.save(theirs, "t", on_conflict="branch")
        with pytest.raises(ConflictError):
            await Storage(checkpointer.backend).store().put(("a",), "k", {}, expected_version=7)
        found = [it[0::3] for it in await rows(checkpointer.backend)]
    assert found == [
        ("worker", "done"),
        ("worker", "done"),
        ("late", "ConflictError"),
        ("worker", "side"),
        ("worker", "ConflictError"),
    ]


async def test_a_renewal_is_recorded_by_the_one_who_reads(url: str) -> None:
    async with audited(url, ttl_seconds=100) as checkpointer:
        for name in ("a", "b"):
            await checkpointer.save({}, name)
        options: Any = {"state_type": dict, "ttl_seconds": 1000, "refresh_on_read": True}
        renewing = Storage(checkpointer.backend).checkpointer(**options)
        blocking = BlockingCheckpointer(renewing)
        with acting_as("ann"):
            await renewing.load("a")
        await renewing.renewals()
        with acting_as("ben"):
            await asyncio.to_thread(blocking.load, "b")
        await asyncio.to_thread(blocking.renewals)
        found = (await rows(checkpointer.backend))[2:]
    assert found == [("ann", "renew", "a", "done"), ("ben", "renew", "b", "done")]


async def test_a_copy_names_its_source_also_if_it_is_sealed_again(file: Path) -> None:
    encryption = Encryption(LocalKeyRing({"k": bytes(32)}, "k"), InMemoryStore())
    async with audited(f"sqlite:///{file}", encryption=encryption) as checkpointer:
        await checkpointer.save({"n": 1}, "t", "v1")
        assert await checkpointer.copy_thread("t", "copy")
        assert (await rows(checkpointer.backend))[1:] == [("worker", "copy_thread", "copy", "done")]
        assert (await details(checkpointer.backend))[1:] == [{"source_thread_id": "t"}]


async def test_a_deletion_of_pending_writes_and_a_rewritten_thread_have_a_row(url: str) -> None:
    async with audited(url) as checkpointer:
        backend = checkpointer.backend
        await checkpointer.effect("t", "pay", lambda key: 7)
        assert not await checkpointer.delete("t")
        assert not await checkpointer.delete("t")
        await checkpointer.save({}, "t")
        assert await backend.rewrite_thread("t", lambda it: it)
        found = [it[1:] for it in await rows(backend)]
    assert found == [
        *[("store_writes", "t", "done")] * 2,
        ("remove_thread", "t", "done"),
        ("commit", "t", "done"),
        ("rewrite_thread", "t", "done"),
    ]


async def test_changes_of_items_at_once_have_a_row_each(url: str) -> None:
    async with audited(url) as checkpointer:
        store = Storage(checkpointer.backend).store()
        await store.put(("a",), "old", {})
        await asyncio.gather(
            *(store.put(("a",), f"zoë ':n' \"{it}\"", {"n": it}) for it in range(5)),
            store.put(("a",), "old", {}),
            store.delete(("a",), "none"),
            store.put(("a",), "new", {}, expected_version=7),
            return_exceptions=True,
        )
        done = (await checkpointer.backend.list_entries(0, 99, 99))[1:]
        found = {json.loads(it.detail)["items"][0][1]: it for it in done}
    assert len(done) == len(found) == 8
    results = {key: json.loads(it.detail).get("versions") for key, it in found.items()}
    new = {f"zoë ':n' \"{it}\"": [1] for it in range(5)}
    assert results == {**new, "old": [2], "none": [0], "new": None}
    assert [it.result for it in found.values() if it.result != "done"] == ["ConflictError"]


async def test_a_change_of_an_item_is_one_statement_with_its_row(database: str) -> None:
    async with audited(database) as checkpointer:
        store = Storage(checkpointer.backend).store()
        await store.put(("a",), "k", {})
        with statements() as sent:
            await store.put(("a",), "k", {})
        assert len(sent) == 1
        assert len(await checkpointer.backend.list_entries(0, 99, 99)) == 2


async def test_a_row_shares_the_transaction_of_its_call(url: str) -> None:
    scheme, _, rest = url.partition("://")
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}[scheme]
    async with audited(url) as checkpointer:
        await checkpointer.save({}, "t")
        engine = create_async_engine(f"{driver}://{rest}")
        async with engine.connect() as connection:
            await connection.begin()
            await checkpointer.save({"n": 1}, "joined", connection=connection)
            await connection.rollback()
        await engine.dispose()
        assert [it[2] for it in await rows(checkpointer.backend)] == ["t"]


async def test_reads_have_rows_if_they_are_asked_for(url: str) -> None:
    async with audited(url, audit_reads=True) as checkpointer:
        await checkpointer.save({}, "t")
        await checkpointer.load("t")
        await checkpointer.list_threads()
        await Storage(checkpointer.backend).store().get(("a",), "k")
        found = await rows(checkpointer.backend)
    calls = [(it[1].removesuffix("_head"), it[2]) for it in found]
    assert calls == [("commit", "t"), ("fetch", "t"), ("recent", None), ("read", None)]


def test_every_call_of_the_wire_is_one_that_is_recorded() -> None:
    parts = {
        "threads": (audit.OF_THREADS, audit.READS_OF_THREADS),
        "store": (audit.OF_STORE, audit.READS_OF_STORE),
        "messages": (audit.OF_MESSAGES, audit.READS_OF_MESSAGES),
    }
    for part, (writes, reads) in parts.items():
        known = {it.name: it.right == "read" for it in list_calls(part)}
        left_out = {"damage", "step_turn", "end_turn"}
        left_out |= {it.name for it in CALLS if it.right == "audit"}
        assert {it for it in known if not known[it]} - left_out <= set(writes)
        assert {it for it in known if known[it]} <= set(reads)
    assert CALLS


async def test_hostile_names_are_recorded_exactly_or_refused(url: str) -> None:
    name = "zoë'\"\n%_:/|\x1b[0m𝄞" * 9
    with pytest.raises(InvalidArgumentError), acting_as("x" * 1_000_000):
        pass
    async with audited(url) as checkpointer:
        with acting_as(name):
            await checkpointer.save({}, name, "v\n")
        with pytest.raises(InvalidArgumentError):
            await checkpointer.backend.remove_thread("y" * 1_000_000)
        assert await rows(checkpointer.backend) == [
            (name, "commit", name, "done"),
            ("worker", "remove_thread", None, "InvalidArgumentError"),
        ]
        await checkpointer.backend.seal_entries()
        assert (await verify(checkpointer.backend, {})).entries == 2


def test_the_options_are_refused_where_there_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="SQLite, PostgreSQL and Oracle record calls"):
        open_checkpointer(f"file://{tmp_path}?audit=me")
    with pytest.raises(TypeError, match="SQLite, PostgreSQL and Oracle record calls"):
        open_checkpointer("memory://", audit="me")
    with pytest.raises(InvalidArgumentError, match="audit_reads needs audit="):
        open_checkpointer("sqlite:///:memory:", audit_reads=True)
    with pytest.raises(InvalidArgumentError, match="audit must have 1 to 255 characters"):
        open_checkpointer("sqlite:///:memory:", audit="")


# --- seals


def test_the_tree_is_that_of_rfc_9162() -> None:
    """Over the vectors of Certificate Transparency's own tests."""
    from hashlib import sha256

    inputs = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"]
    leaves = [sha256(b"\0" + bytes.fromhex(it)).digest() for it in inputs]
    wanted = {
        0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    }
    assert {it: compute_tree_root(leaves[:it]).hex() for it in wanted} == wanted


async def test_processes_that_seal_at_once_make_one_chain(url: str) -> None:
    async with audited(url) as first, audited(url) as second:
        await first.save({}, "t")
        for _ in range(5):
            saves = [it.save({}, f"{n}") for n in range(4) for it in (first, second)]
            seals = [it.backend.seal_entries() for it in (first, second)]
            await asyncio.gather(*saves, *seals, return_exceptions=True)
        await second.backend.seal_entries()
        count = len(await rows(first.backend))
        checked = await verify(first.backend, {})
        assert (checked.entries, checked.unsealed) == (count, 0)


async def test_calls_are_sealed_beside_them(url: str) -> None:
    async with open_checkpointer(url, audit="worker", state_type=dict) as checkpointer:
        await checkpointer.save({}, "t")
    async with audited(url) as checkpointer:
        assert await verify(checkpointer.backend, {}) == Verified(
            1, 1, 0, 0, (await checkpointer.backend.read_last_seal()).root.hex()
        )


async def test_a_transaction_that_commits_late_is_in_a_later_seal(database: str) -> None:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    async with audited(database) as checkpointer:
        backend = checkpointer.backend
        await checkpointer.save({}, "first")
        async with engine.connect() as connection:
            await connection.begin()
            await checkpointer.save({}, "late", connection=connection)
            for number in range(3):
                await checkpointer.save({}, f"after {number}")
                await backend.seal_entries()
            assert (await verify(backend, {})).entries == 4
            await connection.commit()
        assert (await verify(backend, {})).unsealed == 1
        assert await backend.seal_entries() == 1
        await checkpointer.save({}, "last")
        assert await backend.seal_entries() == 1
        checked = await verify(backend, {})
        assert (checked.entries, checked.unsealed) == (6, 0)
    await engine.dispose()


async def test_late_transactions_that_fill_more_than_a_seal_are_sealed_whole(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (audit, locus_store.versions.audit):
        monkeypatch.setattr(module, "MOST_SEALED", 3)
    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    async with audited(database) as checkpointer:
        backend = checkpointer.backend
        await checkpointer.save({}, "first")
        async with engine.connect() as connection:
            await connection.begin()
            for number in range(8):
                await checkpointer.save({}, f"late {number}", connection=connection)
            await checkpointer.save({}, "beside them")
            await backend.seal_entries()
            await connection.commit()
        assert await backend.seal_entries() == 8
        await checkpointer.save({}, "last")
        await backend.seal_entries()
        checked = await verify(backend, {})
        assert (checked.entries, checked.unsealed) == (11, 0)
    await engine.dispose()


async def test_a_row_that_an_administrator_adds_in_a_gap_is_found(database: str) -> None:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    async with audited(database) as checkpointer:
        backend = checkpointer.backend
        await checkpointer.save({}, "first")
        async with engine.connect() as connection:
            await connection.begin()
            await checkpointer.save({}, "undone", connection=connection)
            await connection.rollback()
        await checkpointer.save({}, "last")
        await backend.seal_entries()
        await checkpointer.save({}, "later")
        await backend.seal_entries()
        assert (await verify(backend, {})).entries == 3
        for own in ("", "transaction_id, ", "1, "):
            names = "tenant, recorded_at, who, method, thread_id, detail, result"
            given = names if not own else f"transaction_id, {names}"
            theirs = await asyncpg.connect(database)
            await theirs.execute(
                f"INSERT INTO locus_audit (entry, {given})"
                f" SELECT 2, {own}{names} FROM locus_audit WHERE entry = 1"
            )
            with pytest.raises(IntegrityError, match="entry 2 was inserted after seal 1"):
                await verify(backend, {})
            await backend.seal_entries()
            with pytest.raises(IntegrityError, match="entry 2 was inserted after seal 1"):
                await verify(backend, {})
            await theirs.execute("DELETE FROM locus_audit WHERE entry = 2")
            await theirs.execute("DELETE FROM locus_seals WHERE seal > 2")
            await theirs.close()
    await engine.dispose()


BREAKS = {
    "UPDATE locus_audit SET who = 'me' WHERE entry = 4": "entry 4 of seal 2 was changed",
    "UPDATE locus_audit SET recorded_at = recorded_at - 1 WHERE entry = 1": "entry 1 .*changed",
    "UPDATE locus_audit SET thread_id = NULL WHERE entry = 4": "entry 4 of seal 2 was changed",
    "UPDATE locus_audit SET entry = -9 WHERE entry = 9": "entry -9 was inserted",
    "DELETE FROM locus_audit WHERE entry = 5": "entry 5 of seal 2 was deleted",
    "UPDATE locus_audit SET tenant = '/b' WHERE entry = 6": "entry 6 of seal 2 was deleted",
    "UPDATE locus_audit SET entry = 20 WHERE entry = 3": "entry 3 of seal 1 was deleted",
    "DELETE FROM locus_seals WHERE seal = 1": "seal 1 was deleted: the next one is 2",
    "UPDATE locus_seals SET sealed_at = 1 WHERE seal = 1": "seal 1 was changed",
    "UPDATE locus_seals SET leaves = x'00' WHERE seal = 2": "seal 2 was changed",
    "UPDATE locus_seals SET root = zeroblob(32) WHERE seal = 2": "seal 2 was changed",
    "UPDATE locus_seals SET highest = 99 WHERE seal = 2": "seal 2 was changed",
    "UPDATE locus_seals SET tenant = '/b' WHERE seal = 1": "seal 1 was deleted",
}


@pytest.mark.parametrize("statement", BREAKS)
async def test_the_first_break_is_named(file: Path, statement: str) -> None:
    async with audited(f"sqlite:///{file}") as checkpointer:
        for number in range(9):
            await checkpointer.save({}, f"{number}")
            if number % 3 == 2:
                await checkpointer.backend.seal_entries()
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(statement)
        with pytest.raises(IntegrityError, match=BREAKS[statement]):
            await verify(checkpointer.backend, {})


async def test_only_an_anchor_shows_that_the_end_was_cut_off(file: Path) -> None:
    async with audited(f"sqlite:///{file}") as checkpointer:
        backend = checkpointer.backend
        for number in range(3):
            await checkpointer.save({}, f"{number}")
            await backend.seal_entries()
        anchors = {2: (await backend.list_seals(1, 1))[0].root.hex()}
        assert (await verify(backend, anchors)).entries == 3
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("DELETE FROM locus_audit WHERE entry > 1")
            connection.execute("DELETE FROM locus_seals WHERE seal > 1")
        assert (await verify(backend, {})).entries == 1
        with pytest.raises(IntegrityError, match="cut off behind seal 1"):
            await verify(backend, anchors)
        await checkpointer.save({}, "another one")
        await backend.seal_entries()
        with pytest.raises(IntegrityError, match="seal 2 is another one than its anchor"):
            await verify(backend, anchors)


# --- pruning


async def test_a_pruned_record_is_verified_as_far_as_it_remains(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_SEALED", 3)
    async with audited(url) as checkpointer:
        backend = checkpointer.backend
        for number in range(8):
            await checkpointer.save({}, f"{number}")
            if number % 4 == 3:
                await backend.seal_entries()
        assert await backend.find_prunable(EPOCH) == 0
        for _ in range(2):
            upto = await backend.find_prunable(datetime.now(UTC) + timedelta(1))
            await backend.prune_entries(upto)
            await checkpointer.save({}, "later")
            await backend.seal_entries()
            checked = await verify(backend, {})
            assert checked.pruned > 0
            assert (checked.entries + checked.pruned, checked.unsealed) == (upto + 2, 0)
        assert (await rows(backend))[-2:] == [
            ("worker", "prune_entries", None, "done"),
            ("worker", "commit", "later", "done"),
        ]


async def test_only_entries_that_the_record_calls_pruned_may_be_missing(file: Path) -> None:
    async with audited(f"sqlite:///{file}") as checkpointer:
        backend = checkpointer.backend
        for number in range(4):
            await checkpointer.save({}, f"{number}")
        await backend.seal_entries()
        assert await backend.prune_entries(2) == 2
        assert (await verify(backend, {})).pruned == 2
        kept = await backend.list_entries(0, 9, 9)
        for statement, told in {
            "DELETE FROM locus_audit WHERE entry = 3": "entry 3 of seal 1 was deleted",
            "DELETE FROM locus_audit WHERE method = 'prune_entries'": "entry 1 .* was deleted",
            "UPDATE locus_audit SET detail = '{\"upto\":4}' WHERE entry = 5": "entry 5 .* changed",
            "UPDATE locus_audit SET detail = '{\"upto\":[]}' WHERE entry = 5": "but not which",
        }.items():
            with closing(sqlite3.connect(file)) as connection, connection:
                connection.execute("CREATE TABLE kept AS SELECT * FROM locus_audit")
                connection.execute(statement)
            with pytest.raises(IntegrityError, match=told):
                await verify(backend, {})
            with closing(sqlite3.connect(file)) as connection, connection:
                connection.execute("DELETE FROM locus_audit")
                connection.execute("INSERT INTO locus_audit SELECT * FROM kept")
                connection.execute("DROP TABLE kept")
        assert await backend.list_entries(0, 9, 9) == kept
