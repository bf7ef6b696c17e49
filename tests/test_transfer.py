"""Threads from one backend to another, as JSON Lines, and the check of what is stored."""

from __future__ import annotations

import io
import sqlite3
from dataclasses import replace
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from tiers import ALL, first_of

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    InMemoryMessageLog,
    IntegrityError,
    MemoryBackend,
    NewMessage,
    NotFoundError,
    SchemaError,
    SQLiteBackend,
    postgresql_checkpointer,
)
from locus_store.testing import HOSTILE_IDS, NUMBERS, TEXTS
from locus_store.transfer.archive import (
    all_threads,
    export_threads,
    from_lines,
    import_threads,
    to_lines,
)
from locus_store.transfer.building import cut_thread
from locus_store.transfer.copying import copy
from locus_store.transfer.verifying import Checked, verify
from locus_store.types import ArchivedMessage, PendingWrite
from locus_store.types.messages import compute_checksum
from locus_store.values.encoding import MAX_STATE_BYTES, pack_frame
from locus_store.versions import segments
from locus_store.versions.archives import Problem, find_problems

if TYPE_CHECKING:
    from locus_store.backend import StorageBackend

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", *first_of("sqlite", "postgresql")])
async def target(request):
    if request.param == "memory":
        made = MemoryBackend()
    elif request.param == "sqlite":
        made = SQLiteBackend(request.getfixturevalue("database_file"))
    else:
        url = request.getfixturevalue("migrated_database")
        made = postgresql_checkpointer(url, pool_size=2).backend
    async with made:
        yield made


@pytest.fixture
async def source(tmp_path, migrated):
    """A few threads with all that a thread may have."""
    path = copyfile(migrated, tmp_path / "source.db")
    async with SQLiteBackend(path) as made:
        for at, thread_id in enumerate(HOSTILE_IDS[::9]):
            for n in range(5):
                state = {"said": [f"text {m}" for m in range(n + 1)], "numbers": list(NUMBERS)}
                await made.write_state(thread_id, state, checkpoint_id=f"v{n}", metadata={"n": n})
            await made.write_state(
                thread_id, {"texts": list(TEXTS)}, checkpoint_id="fork", parent_id="v1"
            )
            await made.write_state(thread_id, {"n": at}, namespace="sub")
            await made.put_writes(thread_id, "v4", [PendingWrite("a", 0, "c", "t", b"\0\xff")])
        thread = await made.read_thread("latest")
        message = ArchivedMessage(
            sequence=1,
            message_id="m1",
            role="user",
            metadata={"k": 1},
            created_at=thread.created_at,
            text="hi",
            payload=pack_frame(b'["hi"]'),
        )
        await made.delete("latest")
        await made.write_thread(
            replace(thread, user_id="u", name="n", metadata={"m": 1.0}, messages=[message])
        )
        yield made


async def same(one: StorageBackend, other: StorageBackend) -> int:
    """Return the number of threads, which both places share."""
    ids = [it async for it in all_threads(one)]
    assert ids == [it async for it in all_threads(other)]
    for thread_id in ids:
        assert await one.read_thread(thread_id) == await other.read_thread(thread_id)
    return len(ids)


async def found(backend: StorageBackend) -> list[Problem]:
    return [it async for it in verify(backend) if isinstance(it, Problem)]


async def exported(backend: StorageBackend) -> bytes:
    out = io.BytesIO()
    await export_threads(backend, all_threads(backend), out)
    return out.getvalue()


async def test_a_copy_has_everything_and_a_second_one_has_nothing_to_do(source, target) -> None:
    told: list[tuple[str, bool]] = []
    counts = await copy(source, target, progress=lambda *it: told.append(it))
    assert counts.same == 0
    assert counts.written == len(told) == await same(source, target)
    assert await found(target) == []
    counts = await copy(source, target)
    assert (counts.written, counts.same) == (0, len(told))


async def test_a_copy_goes_on_where_it_was_interrupted(source, target) -> None:
    def interrupt(thread_id: str, is_new: bool) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await copy(source, target, progress=interrupt)
    assert len(await target.scan()) == 1
    counts = await copy(source, target)
    assert counts.same == 1
    await same(source, target)


async def test_a_copy_writes_over_nothing(source, target) -> None:
    await target.save("latest", {"n": "mine"})
    with pytest.raises(ConflictError, match="'latest'"):
        await copy(source, target, ["latest"])
    assert await target.load("latest") == {"n": "mine"}
    with pytest.raises(NotFoundError, match="'unknown'"):
        await copy(source, target, ["unknown"])


async def test_a_damaged_thread_stops_no_other(source, tmp_path) -> None:
    with sqlite3.connect(tmp_path / "source.db") as database:
        database.execute(
            "UPDATE locus_checkpoints SET digest = zeroblob(16) WHERE sequence = 2 AND line ="
            " (SELECT min(line) FROM locus_lines)"
        )
    database.close()
    memory = MemoryBackend()
    with pytest.raises(IntegrityError, match="Of the others 5 were written"):
        await copy(source, memory)
    assert len(await memory.scan()) == len(await source.scan()) - 1


async def test_an_export_is_imported_as_it_was(source, target) -> None:
    lines = await exported(source)
    counts = await import_threads(target, io.BytesIO(lines))
    assert counts.written == await same(source, target)
    assert await exported(target) == lines
    counts = await import_threads(target, io.BytesIO(lines))
    assert counts.written == 0


async def test_an_export_reads_as_what_was_said_and_grows_with_it(database_file) -> None:
    async with SQLiteBackend(database_file) as backend:
        said = []
        for n in range(200):
            said.append(f"this was said in turn {n}, and only once, " + "at some length " * 20)
            await backend.save("t", {"said": said})
        lines = (await exported(backend)).splitlines()
    told = [it for it in lines if b"turn 150," in it]
    assert len(told) == 1
    assert orjson.loads(told[0])["operations"] == [["[", ["said"], 150, 0, [said[150]]]]
    assert sum(map(len, lines)) < 8 * len(orjson.dumps(said))


async def test_a_damaged_export_is_told_by_its_line_and_what_is_damaged_is_not_written(
    source,
) -> None:
    lines = (await exported(source)).splitlines(keepends=True)
    for at in range(0, len(lines), 3):
        cut, without = [*lines[:at], lines[at][:-9]], lines[:at] + lines[at + 1 :]
        for damaged in (cut, without):
            memory = MemoryBackend()
            with pytest.raises(IntegrityError, match=r"line \d+|is cut off"):
                await import_threads(memory, damaged)
            for thread_id in await memory.scan():
                assert await memory.read_thread(thread_id) == await source.read_thread(thread_id)


async def test_a_file_that_is_cut_anywhere_is_reported_and_its_threads_are_imported(source) -> None:
    lines = (await exported(source)).splitlines(keepends=True)
    ends = [at for at, it in enumerate(lines, 1) if it.startswith(b'{"kind":"end"')]
    for complete, end in enumerate([0, *ends]):
        memory = MemoryBackend()
        with pytest.raises(IntegrityError, match=r"^the file is cut off: its last line"):
            await import_threads(memory, lines[:end])
        assert len(await memory.scan()) == complete


async def test_a_file_that_is_cut_off_names_its_damaged_threads_too(source) -> None:
    lines = (await exported(source)).replace(b"text 3", b"text 4").splitlines()[:-1]
    told = r"^the file is cut off: .* export it again\. Besides, thread .* the state that was saved"
    with pytest.raises(IntegrityError, match=told):
        await import_threads(MemoryBackend(), lines)


async def test_a_file_without_one_of_its_threads_is_reported(source) -> None:
    lines = (await exported(source)).splitlines(keepends=True)
    begins = [at for at, it in enumerate(lines) if it.startswith(b'{"kind":"thread"')]
    memory, missing = MemoryBackend(), [*lines[: begins[1]], *lines[begins[2] :]]
    with pytest.raises(IntegrityError, match="cut off: 6 threads expected, 5 found"):
        await import_threads(memory, missing)
    assert len(await memory.scan()) == 5


async def test_files_may_be_joined_and_without_threads(source) -> None:
    empty = await exported(MemoryBackend())
    assert (await import_threads(MemoryBackend(), [empty])).written == 0
    lines = [*(await exported(source)).splitlines(), empty, *(await exported(source)).splitlines()]
    counts = await import_threads(MemoryBackend(), lines)
    assert (counts.written, counts.same) == (6, 6)


async def test_no_changed_character_of_a_states_text_gets_in(source) -> None:
    lines = await exported(source)
    changed = lines.replace(b"text 3", b"text 4")
    with pytest.raises(IntegrityError, match="do not give the state"):
        await import_threads(MemoryBackend(), io.BytesIO(changed))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b'"text":"hi"', b'"text":"ho"', "message 'm1'"),
        (b'"role":"user"', b'"role":"used"', "message 'm1'"),
        (b'"metadata":{"k":1}', b'"metadata":{"k":3}', "message 'm1'"),
        (b'"payload":"AP8="', b'"payload":"AP4="', "a pending write of checkpoint 'v4'"),
        (b'"task_id":"a"', b'"task_id":"c"', "a pending write of checkpoint 'v4'"),
    ],
)
async def test_a_thread_with_a_changed_message_or_write_is_refused_and_no_other(
    source, target, old: bytes, new: bytes, told: str
) -> None:
    lines = (await exported(source)).splitlines(keepends=True)
    begins = next(at for at, it in enumerate(lines) if b'"thread_id":"latest"' in it)
    lines[begins:] = [it.replace(old, new) for it in lines[begins:]]
    with pytest.raises(IntegrityError, match=f"^thread 'latest': {told} is not what was exported"):
        await import_threads(target, lines)
    assert sorted([*await target.scan(), "latest"]) == sorted(await source.scan())


async def test_a_thread_is_cut_at_any_version_with_what_it_was_made_from(database_file) -> None:
    async with SQLiteBackend(database_file) as backend:
        states = {}
        for n in range(12):
            states[f"v{n}"] = {"said": [f"{m} and some more" for m in range(n + 1)]}
            await backend.save("t", states[f"v{n}"], checkpoint_id=f"v{n}")
        states["fork"] = {"said": ["0 and some more"], "n": 1}
        await backend.write_state("t", states["fork"], checkpoint_id="fork", parent_id="v4")
        await backend.put_writes("t", "v3", [PendingWrite("a", 0, "c", "t", b"1")])
        await backend.remove("t", ["v2", "v6"])
        thread = await backend.read_thread("t")
        for name, kept in (("v8", "8 7 5 4 3 1 0"), ("fork", "4 3 1 0"), ("v0", "")):
            memory = MemoryBackend()
            await memory.write_thread(
                await cut_thread(thread, name, max_state_bytes=MAX_STATE_BYTES)
            )
            ids = [it.checkpoint_id for it in await memory.history("t", limit=99)]
            ancestors = [f"v{n}" for n in kept.split()]
            assert ids == (ancestors if name in ancestors else [name, *ancestors])
            for it in ids:
                assert await memory.load("t", it) == states[it]
            times = {it.checkpoint_id: it.created_at for it in await backend.history("t", limit=99)}
            for it in await memory.history("t", limit=99):
                assert it.created_at == times[it.checkpoint_id]
            assert len(await memory.get_writes("t", "v3")) == ("v3" in ids)
        assert await cut_thread(thread, "v2", max_state_bytes=MAX_STATE_BYTES) is None
        assert (
            await cut_thread(thread, "v1", namespace="other", max_state_bytes=MAX_STATE_BYTES)
            is None
        )


async def test_a_cut_thread_shows_nothing_that_was_hidden() -> None:
    backend = MemoryBackend()
    for n in range(6):
        await backend.write_state("t", {"n": n}, checkpoint_id=f"v{n}", keep_last=3)
    thread = await backend.read_thread("t")
    assert await cut_thread(thread, "v1", max_state_bytes=MAX_STATE_BYTES) is None
    cut = await cut_thread(thread, "v4", max_state_bytes=MAX_STATE_BYTES)
    assert [it.checkpoint_id for it in cut.lines[0].records] == ["v3", "v4"]


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{}",
        b'"thread"',
        b'{"kind":"line"}',
        b'{"kind":"thread","format":1,"tenant":""}',
        b"\xff",
        b"not JSON",
        b'{"kind":"thread","format":1,"thread_id":1}',
    ],
)
async def test_what_is_no_export_is_told(line: bytes) -> None:
    with pytest.raises(IntegrityError, match="line 1"):
        [it async for it in from_lines([line])]


@pytest.mark.parametrize("form", first_of(2, 0))
async def test_an_export_of_another_format_is_refused(source, target, form: int) -> None:
    thread = await source.read_thread((await source.scan())[0])
    head, *rest = to_lines(thread, MAX_STATE_BYTES)
    lines = [head.replace(b'"format":1', b'"format":%d' % form), *rest]
    with pytest.raises(IntegrityError, match=f"format {form}; import it with the release that"):
        await import_threads(target, lines)
    assert await target.scan() == []


async def test_all_is_well_with_what_was_saved(source, target) -> None:
    await copy(source, target)
    answers = [it async for it in verify(target)]
    assert all(isinstance(it, Checked) for it in answers)
    assert {it.thread_id for it in answers} == set(await source.scan())
    assert {it.versions for it in answers} == {7}


@pytest.mark.parametrize("error", [SchemaError, ConnectionFailedError])
async def test_a_thread_that_cannot_be_opened_stops_no_other_check(error) -> None:
    backend = MemoryBackend()
    for thread_id in "ab":
        await backend.save(thread_id, {"n": 1})
    read = backend.read_thread

    async def reading(thread_id: str) -> Any:
        if thread_id == "a":
            raise error("not this one")
        return await read(thread_id)

    backend.read_thread = reading
    told = [it async for it in verify(backend)]
    assert [(type(it), it.thread_id) for it in told] == [(Problem, "a"), (Checked, "b")]


@pytest.mark.parametrize("error", [SchemaError, ConnectionFailedError])
async def test_a_storage_that_is_gone_in_the_middle_of_a_check_is_no_damage(error) -> None:
    backend = MemoryBackend()
    await backend.save("a", {"n": 1})

    async def gone(*_: Any, **__: Any) -> Any:
        raise error("gone")

    async def reading(thread_id: str) -> Any:
        backend.scan = gone
        await gone()

    backend.read_thread = reading
    with pytest.raises(error, match="gone"):
        await found(backend)


async def test_writes_that_were_exchanged_are_found(database_file) -> None:
    async with SQLiteBackend(database_file) as backend:
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        for task in "ab":
            await backend.put_writes("t", "v", [PendingWrite(task, 0, "c", "t", task.encode())])
        with sqlite3.connect(database_file) as database:
            database.execute("UPDATE locus_writes SET task_id = 'c' WHERE task_id = 'a'")
        database.close()
        assert "pending write" in " ".join(map(str, await found(backend)))


EVERY = 1 if ALL else 5
"""Bytes from one that is flipped to the next."""

COLUMNS = ["checkpoints.payload", "checkpoints.digest", "writes.payload"]


@pytest.mark.parametrize("place", COLUMNS)
@pytest.mark.full
async def test_every_flipped_byte_is_found(database_file, place: str) -> None:
    table, column = place.split(".")
    async with SQLiteBackend(database_file) as backend:
        await backend.save("t", {"said": ["hello " * 60]})
        await backend.save("t", {"said": ["hello " * 60, "and again"]}, checkpoint_id="v")
        await backend.put_writes("t", "v", [PendingWrite("a", 0, "c", "t", b"written")])
        database = sqlite3.connect(database_file, isolation_level=None)
        rows = database.execute(f"SELECT rowid, {column} FROM locus_{table}").fetchall()
        missed = []
        for rowid, stored in rows:
            for at in range(0, len(stored), EVERY):
                damaged = bytearray(stored)
                damaged[at] ^= 1 << at % 8
                update = f"UPDATE locus_{table} SET {column} = ? WHERE rowid = ?"
                database.execute(update, (bytes(damaged), rowid))
                if not await found(backend):
                    missed.append(at)
                database.execute(update, (stored, rowid))
        database.close()
        assert missed == []
        assert await found(backend) == []


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DELETE FROM locus_checkpoints WHERE sequence = 2", "parent"),
        ("DELETE FROM locus_checkpoints WHERE sequence = 3", "head is version 3"),
        ("DELETE FROM locus_checkpoints WHERE sequence = 1", "parent"),
        ("DELETE FROM locus_lines", "belong to no line"),
        ("DELETE FROM locus_threads", "lines belong to no thread"),
        ("UPDATE locus_checkpoints SET parent = 77 WHERE sequence = 2", "version 77"),
        ("UPDATE locus_checkpoints SET parent = 3 WHERE sequence = 2", "not older"),
        ("UPDATE locus_lines SET last_sequence = 1", "newer than its last"),
        ("UPDATE locus_lines SET floor = 1000", "make no sense"),
        ("UPDATE locus_lines SET open_chain = 2", "not their head's"),
        ("UPDATE locus_checkpoints SET sequence = 'x' WHERE sequence = 2", "not integer"),
        (
            "UPDATE locus_checkpoints SET checkpoint_id = CAST(x'ff' AS TEXT) WHERE sequence = 1",
            "UTF-8",
        ),
        ("UPDATE locus_checkpoints SET chain = 3 WHERE sequence = 3", "stored frame"),
    ],
)
async def test_what_is_missing_or_misplaced_is_found(
    database_file, statement: str, told: str
) -> None:
    async with SQLiteBackend(database_file) as backend:
        for n in range(3):
            await backend.save("t", {"said": [f"{m} and some more" * 60 for m in range(n + 1)]})
        with sqlite3.connect(database_file) as database:
            database.execute(statement)
        database.close()
        assert told in " ".join(map(str, await found(backend)))


async def test_the_database_is_checked_by_its_own_means(database_file) -> None:
    path = database_file
    async with SQLiteBackend(str(path)) as backend:
        for n in range(50):
            await backend.save("t", {"said": "text " * 400, "n": n}, checkpoint_id=f"v{n}")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name LIKE 'sqlite_autoindex_locus_checkp%'"
            " OR (type = 'index' AND tbl_name = 'locus_checkpoints') ORDER BY rootpage DESC"
        ).fetchone()[0]
        size = database.execute("PRAGMA page_size").fetchone()[0]
    database.close()
    data = bytearray(path.read_bytes())
    data[root * size - 200 : root * size - 190] = b"\0" * 10
    path.write_bytes(data)
    async with SQLiteBackend(str(path)) as backend:
        assert await found(backend) != []


ANOTHER = {
    **dict.fromkeys(("INTEGER", "BIGINT", "DOUBLE"), ""),
    **dict.fromkeys(("VARCHAR", "TEXT"), b"\0"),
    "SMALLINT": 1.5,
    "BLOB": 7,
}
"""A value of another type, by how a column is declared."""


@pytest.mark.full
async def test_a_value_of_another_type_is_found_in_any_column(database_file, monkeypatch) -> None:
    monkeypatch.setattr(segments, "RECORDS", 1)
    async with SQLiteBackend(database_file) as backend:
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        await backend._join("t", "")
        await backend.put_writes("t", "v", [PendingWrite("a", 0, "c", "t", b"1")])
        database = sqlite3.connect(database_file, isolation_level=None)
        sealed = compute_checksum("", "m", "user", {}, None, None).hex()
        database.executescript(
            "INSERT INTO locus_messages"
            " (thread, namespace, sequence, message_id, role, created_at, digest)"
            f" VALUES (1, '', 1, 'm', 'user', 0, x'{sealed}');"
            "INSERT INTO locus_logs VALUES (1, '', 1, 1, 1, 0);"
            "INSERT INTO locus_store (tenant, namespace, key, created_at, updated_at)"
            " VALUES ('default', 'n', 'k', 0, 0);"
            "INSERT INTO locus_audit VALUES (1, 1, '', 0, 'w', 'm', 't', '{}', 'done');"
            "INSERT INTO locus_seals VALUES ('', 1, 0, 1, 1, 1, x'00', x'00');"
            "INSERT INTO locus_quotas VALUES ('', '{}', '{}', 1);"
            "INSERT INTO locus_turns VALUES ('', 't', 1, 0, 1, '[]');"
        )
        columns = database.execute(
            "SELECT t.name, c.name, c.type FROM sqlite_master t, pragma_table_info(t.name) c"
            " WHERE t.type = 'table' AND t.name LIKE 'locus%' AND t.name <> 'locus_version'"
            " AND c.type <> 'INTEGER'"  # SQLite's own keys, which it keeps numbers itself
            " UNION SELECT 'locus_writes', 'idx', 'INTEGER'"
        ).fetchall()
        for table, column, declared in columns:
            rowid, kept = database.execute(f"SELECT max(rowid), {column} FROM {table}").fetchone()
            update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
            database.execute(update, (ANOTHER[declared.partition("(")[0]], rowid))
            assert f"1 values of {table}.{column} are not" in " ".join(await backend.damage())
            database.execute(update, (kept, rowid))
        database.close()
        assert len(columns) > 40
        assert await found(backend) == []


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("lines", "open_bytes", ""),
        ("lines", "open_bytes", b"1"),
        ("lines", "floor", 1.5),
        ("lines", "writer", b"w"),
        ("checkpoints", "digest", 10**14),
        ("checkpoints", "metadata", "[]"),
        ("checkpoints", "payload", 10**14),
    ],
)
async def test_a_row_with_a_value_of_another_type_is_told_by_thread_and_column(
    database_file, table: str, column: str, value: Any
) -> None:
    async with SQLiteBackend(database_file) as backend:
        await backend.save("t", {"n": 1})
    with sqlite3.connect(database_file) as database:
        database.execute(f"UPDATE locus_{table} SET {column} = ?", (value,))
    database.close()
    async with SQLiteBackend(database_file) as backend:
        if table == "lines":  # a load reads nothing of it
            assert await backend.load("t") == {"n": 1}
            with pytest.raises(IntegrityError, match=f"'t'.*locus_lines.{column}"):
                await backend.save("t", {"n": 2})
        else:
            with pytest.raises(IntegrityError, match=f"locus_{table}.{column}"):
                await backend.load("t")
        assert "'t'" in " ".join(map(str, await found(backend)))


async def test_a_pending_write_that_is_a_number_is_damage(database_file) -> None:
    async with SQLiteBackend(database_file) as backend:
        await backend.put_writes("t", "v", [PendingWrite("a", 0, "c", "t", b"1")])
        with sqlite3.connect(database_file) as database:
            database.execute("UPDATE locus_writes SET payload = 99999999999999")
        database.close()
        with pytest.raises(IntegrityError, match="bytes"):
            await backend.get_writes("t", "v")


async def test_a_forgotten_user_is_in_no_table(database_file) -> None:
    async with SQLiteBackend(database_file) as backend:
        for user in ("alice", "bob"):
            metadata = {"user_id": user}
            await backend.save(user, {"text": f"said by {user}"}, metadata=metadata)
            await backend.put_writes(user, "v", [PendingWrite("a", 0, "c", "t", user.encode())])
            with sqlite3.connect(database_file) as database:
                database.execute(
                    "INSERT INTO locus_store (tenant, namespace, key, metadata, created_at,"
                    " updated_at, value) VALUES ('default', 'n', ?, ?, 0, 0, ?)",
                    (user, orjson.dumps(metadata).decode(), f"fact of {user}".encode()),
                )
            database.close()
        counts = await backend.forget_user("alice")
        assert counts == {"threads": 1, "checkpoints": 1, "writes": 1, "messages": 0, "store": 1}
    stored = database_file.read_bytes()
    assert b"alice" not in stored
    assert b"bob" in stored


async def test_a_message_above_max_state_bytes_is_not_imported_and_is_a_problem() -> None:
    large, file = InMemoryMessageLog(), io.BytesIO()
    await large.append("t", [NewMessage({"content": "x" * 5_000})])
    await export_threads(large.backend, ["t"], file)
    small = MemoryBackend(max_state_bytes=1_000)
    with pytest.raises(IntegrityError, match="max_state_bytes=1000"):
        await import_threads(small, file.getvalue().splitlines())
    assert await small.scan() == []
    [problem] = find_problems(await large.backend.read_thread("t"), 1_000)
    assert "max_state_bytes=1000" in problem.what
