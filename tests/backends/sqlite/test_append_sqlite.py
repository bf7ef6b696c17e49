"""Plain appends on SQLite: their statements, and that they are what the full rules would write."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from test_round_trips import sqlite_statements
from tiers import first_of

from locus_store import sqlite_checkpointer
from locus_store.backends.sqlite.backend import SQLiteBackend
from locus_store.backends.sqlite.dialect import SQLiteDatabase, SQLiteRepository
from locus_store.errors import BackendError, ConflictError, LocusStoreError
from locus_store.sql.threads.repository import Repository
from locus_store.types import Expected, PendingWrite
from locus_store.versions.sizes import StatusesWanted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

PLAIN = ["BEGIN IMMEDIATE", "SELECT", "INSERT", "UPDATE locus_lines", "COMMIT"]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SQLiteBackend]:
    made = SQLiteBackend(tmp_path / "x.db")
    yield made
    await made.close()


def kinds(sent: list[str]) -> list[str]:
    """First words; without the note of the minute, which a save may meet at its turn."""
    words = [
        it.replace('"', "").split() for it in sent if not it.startswith("UPDATE locus_threads")
    ]
    return [" ".join(it[: 2 if it[0] in {"BEGIN", "UPDATE"} else 1]) for it in words]


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return for each save whether it was an append at the head."""
    found: list[bool] = []
    append = SQLiteRepository._append_at_head

    def noted(self: SQLiteRepository, save: Any) -> Any:
        written = append(self, save)
        found.append(written is not None)
        return written

    monkeypatch.setattr(SQLiteRepository, "_append_at_head", noted)
    return found


async def test_a_plain_append_looks_inserts_and_moves(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 0}, "t")
    with sqlite_statements() as sent:
        async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
            state = await checkpointer.load("t")
            for number in range(1, 4):
                sent.clear()
                await checkpointer.save({**state, "n": number}, "t")
                assert kinds(sent) == PLAIN
            assert await checkpointer.load("t") == {"n": 3}


async def test_an_append_with_an_index_adds_one_statement(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
        await checkpointer.save({"said": "tea"}, "t")
        await checkpointer.backend.create_search_index()
    with sqlite_statements() as sent:
        async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
            state = await checkpointer.load("t")
            sent.clear()
            await checkpointer.save({**state, "more": "milk"}, "t")
            ours = [it for it in sent if "'main'" not in it]  # the others are FTS5's
            assert kinds(ours) == [*PLAIN[:2], "INSERT", *PLAIN[2:]]
            assert [it["thread_id"] for it in await checkpointer.search("milk")] == ["t"]


async def test_a_list_with_a_text_outlives_a_dropped_index(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with sqlite_checkpointer(path, state_type=dict) as checkpointer:
        backend = checkpointer.backend
        await checkpointer.save({"said": "tea"}, "t")
        await backend.create_search_index()
        for _ in range(2):
            found = await backend.find_statuses(StatusesWanted(limit=9, text="tea"))
            assert [it.thread_id for it in found] == ["t"]
            with closing(sqlite3.connect(path)) as other, other:
                other.execute("DROP TABLE IF EXISTS locus_search")
                other.execute("DELETE FROM locus_settings WHERE name = 'full_text_index'")


async def test_pending_writes_take_a_look_and_one_insert_each(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    backend = SQLiteBackend(path)
    await backend.write_state("t", {"n": 0}, checkpoint_id="v")
    await backend.close()
    with sqlite_statements() as sent:
        backend = SQLiteBackend(path)
        await backend.open()
        for task, places in (("a", [0, 1, 2]), ("b", [-4]), ("b", [-4])):
            writes = [PendingWrite(task, it, "c", "t", b"1") for it in places]
            sent.clear()
            await backend.put_writes("t", "v", writes)
            each = ["DELETE", "INSERT"] if places[0] < 0 else ["INSERT"] * len(places)
            looks = ["SELECT"] if task == "a" else ["SELECT", "SELECT"]  # others are there
            assert kinds(sent) == ["BEGIN IMMEDIATE", *looks, *each, "COMMIT"]
        assert [it.idx for it in await backend.get_writes("t", "v")] == [0, 1, 2, -4]
        await backend.close()


# --- what is not an append at the head


async def test_a_first_save_is_decided_by_the_rules(
    backend: SQLiteBackend, appended: list[bool]
) -> None:
    first = await backend.write_state("t", {"n": 0})
    assert first.outcome == "head"
    await backend.write_state("t", {"n": 1})
    assert appended == [False, True]


async def test_a_stale_head_is_decided_by_the_rules(
    backend: SQLiteBackend, appended: list[bool]
) -> None:
    first = await backend.write_state("t", {"n": 0})
    await backend.write_state("t", {"n": 1})
    stale = Expected(made_from=first.mark, head=first.mark)
    with pytest.raises(ConflictError):
        await backend.write_state("t", {"n": 2}, expected=stale, writer="late")
    beside = await backend.write_state("t", {"n": 2}, expected=stale, on_conflict="branch")
    assert beside.outcome == "side"
    assert appended[2:] == [False, False]


async def test_an_id_in_use_is_decided_by_the_rules(
    backend: SQLiteBackend, appended: list[bool]
) -> None:
    await backend.write_state("t", {"n": 0})
    await backend.write_state("t", {"n": 1}, checkpoint_id="mine")
    assert (await backend.write_state("t", {"n": 1}, checkpoint_id="mine")).outcome == "same"
    await backend.write_state("t", {"n": 2}, checkpoint_id="mine")
    assert appended == [False, True, False, False]
    assert [it.checkpoint_id for it in await backend.history("t")].count("mine") == 1


async def test_a_fork_is_decided_by_the_rules(backend: SQLiteBackend, appended: list[bool]) -> None:
    first = await backend.write_state("t", {"n": 0})
    await backend.write_state("t", {"n": 1})
    await backend.write_state("t", {"n": 2}, parent_id=first.checkpoint_id)
    assert appended[2:] == [False]
    assert (await backend.history("t"))[0].parent_id == first.checkpoint_id


async def test_an_expired_thread_is_decided_by_the_rules(
    backend: SQLiteBackend, appended: list[bool], tmp_path: Path
) -> None:
    await backend.write_state("t", {"n": 0}, ttl_seconds=60)
    await backend.write_state("t", {"n": 1}, ttl_seconds=60)
    with sqlite3.connect(tmp_path / "x.db") as other:
        other.execute("UPDATE locus_threads SET expires_at = 1")
    other.close()
    await backend.write_state("t", {"n": 2}, ttl_seconds=60)
    assert appended == [False, True, False]
    assert len(await backend.history("t")) == 1


async def test_another_tenants_line_is_not_appended_to(
    backend: SQLiteBackend, appended: list[bool]
) -> None:
    mark = (await backend.write_state("t", {"n": 0})).mark
    other = backend.for_tenant("other")
    with pytest.raises(ConflictError):
        await other.write_state("t", {"n": 1}, expected=Expected(made_from=mark, head=mark))
    await other.write_state("t", {"n": 1})
    assert appended == [False, False, False]
    assert await backend.load("t") == {"n": 0}


async def test_an_append_renews_the_time_to_live(
    backend: SQLiteBackend, appended: list[bool], tmp_path: Path
) -> None:
    await backend.write_state("t", {"n": 0}, ttl_seconds=60)
    await backend.write_state("t", {"n": 1}, ttl_seconds=6000)
    assert appended == [False, True]
    with sqlite3.connect(tmp_path / "x.db") as other:
        found = other.execute(
            "SELECT (expires_at - created_at) / 1000000 FROM locus_threads"
        ).fetchone()
    other.close()
    assert found[0] >= 5999


# --- groups, and other processes


async def test_a_save_that_fails_leaves_the_appends_of_its_group(
    backend: SQLiteBackend, appended: list[bool]
) -> None:
    first = await backend.write_state("lost", {"n": 0})
    await backend.write_state("lost", {"n": 1})
    for number in range(20):
        await backend.write_state(f"t{number}", {"n": 0})
    appended.clear()
    saves = [backend.write_state(f"t{number}", {"n": 1}) for number in range(20)]
    stale = Expected(made_from=first.mark, head=first.mark)
    saves.insert(10, backend.write_state("lost", {"n": 2}, expected=stale, writer="late"))
    done = await asyncio.gather(*saves, return_exceptions=True)
    assert [type(it) for it in done if isinstance(it, LocusStoreError)] == [ConflictError]
    assert sorted(appended) == [False, *[True] * 20]
    assert [await backend.load(f"t{it}") for it in range(20)] == [{"n": 1}] * 20


async def test_an_append_that_gets_no_lock_in_time_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    backend = SQLiteBackend(path, busy_timeout_seconds=0.05)
    await backend.write_state("t", {"n": 0})
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BackendError, match="SQLITE_BUSY"):
            await backend.write_state("t", {"n": 1})
        other.execute("ROLLBACK")
    other.close()
    assert await backend.load("t") == {"n": 0}
    await backend.write_state("t", {"n": 2})
    assert await backend.load("t") == {"n": 2}
    await backend.close()


async def test_an_append_sees_what_another_object_has_appended(
    backend: SQLiteBackend, tmp_path: Path, appended: list[bool]
) -> None:
    mark = (await backend.write_state("t", {"n": 0})).mark
    other = SQLiteBackend(tmp_path / "x.db")
    await other.write_state("t", {"n": 1}, expected=Expected(made_from=mark, head=mark))
    with pytest.raises(ConflictError):
        await backend.write_state("t", {"n": 2}, expected=Expected(made_from=mark, head=mark))
    assert appended == [False, True, False]
    await other.close()


# --- the same rows as by the full rules


class ByTheRules(SQLiteDatabase):
    repository = Repository


class BackendByTheRules(SQLiteBackend):
    database = ByTheRules


ROWS = (
    "SELECT tenant, thread_id, expires_at IS NULL FROM locus_threads ORDER BY 1, 2",
    """SELECT line, thread_id, namespace, head, open_chain, open_bytes, floor, last_sequence,
    writer, run FROM locus_lines ORDER BY line""",
    """SELECT line, sequence, chain, parent, checkpoint_id, digest, codec, metadata, labels, payload
    FROM locus_checkpoints ORDER BY line, sequence""",
)


def rows(path: Path) -> list[list[tuple[Any, ...]]]:
    connection = sqlite3.connect(path)
    found = [connection.execute(query).fetchall() for query in ROWS]
    connection.close()
    return found


def options(random: Random, marks: list[Any], number: int) -> dict[str, Any]:
    """Those of a save; marks are named by their place."""
    found: dict[str, Any] = {
        "checkpoint_id": f"/c{random.randrange(number + 1) if random.random() < 0.1 else number}",
        "on_conflict": random.choice(["raise", "branch", "overwrite"]),
        "writer": random.choice([None, None, "w1", "/w2"]),
        "run": random.choice([None, "/", "é"]),
        "keep_last": random.choice([None, None, None, 3]),
        "ttl_seconds": random.choice([None, None, 600]),
        "metadata": random.choice([{}, {"step": number, "z\0": "\0\1é"}]),
        "labels": random.choice([{}, {"tags": ["a\0"], "agent_id": "/"}]),
    }
    if marks and random.random() < 0.7:
        newest = len(marks) - 1
        found["expected"] = newest if random.random() < 0.8 else random.randrange(len(marks))
    elif random.random() < 0.1:
        found |= {"is_root": True}
    return found


async def outcome(backend: SQLiteBackend, marks: list[Any], state: Any, given: Any) -> Any:
    """Return a save's answer in a form that is equal on every database."""
    given = dict(given)
    if "expected" in given:
        mark = marks[given["expected"]]
        given["expected"] = Expected(made_from=mark, head=mark)
    try:
        done = await backend.write_state("t", state, **given)
    except LocusStoreError as exc:
        return type(exc)
    marks.append(done.mark)
    return done.outcome, done.mark.sequence, done.mark.digest


@pytest.mark.parametrize("seed", first_of(*range(4)))
async def test_the_rows_are_those_of_the_full_rules(
    seed: int, tmp_path: Path, appended: list[bool]
) -> None:
    random = Random(seed)
    paths = [tmp_path / "plain.db", tmp_path / "rules.db"]
    backends = [SQLiteBackend(paths[0]), BackendByTheRules(paths[1])]
    marks: list[list[Any]] = [[], []]
    said = ["word " * 30]
    for number in range(150):
        said = [*said[-12:], f"{number} " * random.choice([1, 40])]
        given = options(random, marks[0], number)
        both = [
            await outcome(backend, known, {"said": said}, given)
            for backend, known in zip(backends, marks, strict=True)
        ]
        assert both[0] == both[1], given
    for backend in backends:
        await backend.close()
    assert rows(paths[0]) == rows(paths[1])
    assert appended.count(True) > 20
    assert appended.count(False) > 20
