"""Sync calls on SQLite: the threads that run their transactions, and commits that they share."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from locus_store import BackendError, SQLiteBackend, blocking, open_checkpointer
from locus_store.backends.sqlite import writer as sqlite_writer
from locus_store.backends.sqlite.dialect import SQLiteDatabase
from locus_store.runtime import observe
from locus_store.sql.connections.database import iterate_causes
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from locus_store.blocking import BlockingCheckpointer

WAIT = 60


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


@pytest.fixture
def checkpointer(url: str) -> Iterator[BlockingCheckpointer[Any]]:
    with blocking.open_checkpointer(url, state_type=dict, busy_timeout_seconds=WAIT) as opened:
        opened.open()
        yield opened


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that began a transaction, in their order."""
    seen: list[int] = []

    def noting(begin: Callable[..., None]) -> Callable[..., None]:
        def begun(self: SQLiteDatabase, *args: Any) -> None:
            seen.append(threading.get_ident())
            begin(self, *args)

        return begun

    for name in ("begin_read", "begin_write"):
        monkeypatch.setattr(SQLiteDatabase, name, noting(getattr(SQLiteDatabase, name)))
    return seen


@pytest.mark.anyio
async def test_a_known_head_is_confirmed_in_the_thread_of_the_event_loop(
    url: str, threads: list[int]
) -> None:
    here = threading.get_ident()
    async with (
        open_checkpointer(url, state_type=dict) as one,
        open_checkpointer(url, state_type=dict) as other,
    ):
        await one.save({"n": 1}, "t", checkpoint_id="v1")
        await one.load("t")  # the first read looks whether the database is the one that was opened
        threads.clear()
        assert await one.load("t") == {"n": 1}
        assert threads == [here]
        await one.backend.put_writes("t", "v1", [PendingWrite("task", 0, "c", "json", b"1")])
        threads.clear()
        assert await one.backend.read_kept("t", with_writes=True)
        assert threads == [here]
        large = PendingWrite("task", 1, "c", "json", b'"%b"' % (b"x" * 2**17))
        await one.backend.put_writes("t", "v1", [large])
        threads.clear()
        found = await one.backend.read_kept("t", with_writes=True)
        assert found is not None
        assert len(found.writes or []) == 2
        assert threads[0] == here != threads[1]  # too much for this thread
        state = await other.load("t")
        state["n"] = 2
        await other.save(state, "t")
        threads.clear()
        assert await one.load("t") == {"n": 2}
        assert threads[0] == here != threads[1]
        calls = (one.load("t"), *(asyncio.to_thread(asyncio.run, one.load("t")) for _ in range(4)))
        assert await asyncio.gather(*calls) == [{"n": 2}] * 5


def test_sync_reads_share_a_connection_that_stays_open_unless_it_is_in_use(
    checkpointer: BlockingCheckpointer[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    begin = SQLiteDatabase.begin_read
    meeting = threading.Barrier(2)

    def note(self: SQLiteDatabase, connection: Any, *driver: Any) -> None:
        begin(self, connection, *driver)
        seen.append(connection)
        if threading.current_thread() is not threading.main_thread():
            meeting.wait(WAIT)

    checkpointer.save({"n": 1}, "t")
    checkpointer.load("t")
    monkeypatch.setattr(SQLiteDatabase, "begin_read", note)
    assert [checkpointer.load("t") for _ in range(3)] == [{"n": 1}] * 3
    assert checkpointer.load("none") is None
    assert len({*map(id, seen)}) == 1
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(checkpointer.load, "tt")] == [{"n": 1}] * 2
    assert len({*map(id, seen[-2:])}) == 2


def test_a_handler_of_all_engines_begins_each_read_that_stays_open(url: str) -> None:
    begun: list[Any] = []

    def begin(connection: sa.Connection) -> None:
        begun.append(connection.exec_driver_sql("BEGIN"))

    sa.event.listen(sa.Engine, "begin", begin)
    try:
        with blocking.open_checkpointer(url, state_type=dict) as opened:
            opened.save({"n": 1}, "t")
            opened.load("t")
            begun.clear()
            assert [opened.load("t") for _ in range(3)] == [{"n": 1}] * 3
            assert opened.list_threads() == ["t"]
    finally:
        sa.event.remove(sa.Engine, "begin", begin)
    assert len(begun) == 4


@pytest.mark.anyio
async def test_a_read_that_the_loops_connection_cannot_begin_is_handed_over(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, begin, failed = threading.get_ident(), SQLiteDatabase.begin_read, []

    def fail_here(self: SQLiteDatabase, connection: Any, *driver: Any) -> None:
        begin(self, connection, *driver)
        if threading.get_ident() == here:
            failed.append(connection)
            raise sqlite3.OperationalError("database is locked")

    async with open_checkpointer(url, state_type=dict) as opened:
        await opened.save({"n": 1}, "t")
        await opened.load("t")
        monkeypatch.setattr(SQLiteDatabase, "begin_read", fail_here)
        assert [await opened.load("t") for _ in range(2)] == [{"n": 1}] * 2
    assert len({id(it) for it in failed}) == 2
    assert all(it.closed for it in failed)


def waiting(checkpointer: BlockingCheckpointer[Any]) -> int:
    """Return how many saves wait for another thread's commit."""
    return len(checkpointer._async.backend._runner._open.writer._jobs)


def test_a_lone_caller_runs_its_transactions_itself(
    checkpointer: BlockingCheckpointer[Any], threads: list[int]
) -> None:
    checkpointer.save({"n": 0}, "t")
    checkpointer.list_checkpoints("t")
    assert len(threads) >= 2
    assert set(threads) == {threading.get_ident()}


def test_a_transaction_never_runs_in_the_thread_of_an_async_caller(
    url: str, threads: list[int]
) -> None:
    async def use() -> None:
        async with open_checkpointer(url, state_type=dict) as checkpointer:
            await checkpointer.save({"n": 0}, "t")
            await checkpointer.list_checkpoints("t")

    asyncio.run(use())
    assert len(threads) >= 2
    assert threading.get_ident() not in threads


def test_64_threads_that_save_at_once_share_a_commit(
    checkpointer: BlockingCheckpointer[Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []
    monkeypatch.setattr(observe, "record_commit", lambda _, writes: commits.append(writes))
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as lock, ThreadPoolExecutor(64) as at:
        lock.execute("BEGIN IMMEDIATE")
        saves = [at.submit(checkpointer.save, {"n": n}, f"t{n}") for n in range(64)]
        while waiting(checkpointer) < 63:
            assert not any(it.done() for it in saves)
        lock.execute("ROLLBACK")
        assert len({it.result(WAIT) for it in saves}) == 64
    assert sorted(commits) == [1, 63]
    assert len(checkpointer.list_threads()) == 64


@pytest.mark.anyio
async def test_no_save_waits_longer_than_the_busy_timeout_behind_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, took, saves, begun = [0.0], dict[int, float](), list[Any](), list[float]()
    monkeypatch.setattr(sqlite_writer, "monotonic", lambda: clock[0], raising=False)
    async with open_checkpointer(url, busy_timeout_seconds=WAIT, state_type=dict) as opened:
        await opened.save({"n": 0}, "t")
        writer, loop = opened.backend._runner._open.writer, asyncio.get_running_loop()

        async def save(number: int) -> None:
            since = clock[0]
            with pytest.raises(BackendError, match="held the write lock"):
                await opened.save({"n": 1}, f"t{number}")
            took[number] = clock[0] - since

        def wait_in_vain(_: object, __: object, driver: sqlite3.Connection) -> None:
            while len(took) < len(begun):  # the clock stands until the last one has its answer
                pass
            begun.append(clock[0])
            end = clock[0] + driver.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
            while len(saves) < 3:  # others come while the first one waits
                clock[0] += WAIT / 10
                saves.append(asyncio.run_coroutine_threadsafe(save(len(saves)), loop))
                while len(writer._jobs) < len(saves):
                    pass
            clock[0] = end
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(SQLiteDatabase, "begin_write", wait_in_vain)
            await save(3)
            await asyncio.gather(*map(asyncio.wrap_future, saves))
        assert took == dict.fromkeys(range(4), pytest.approx(WAIT, abs=0.1))
        await opened.save({"n": 1}, "t")
        assert writer._driver.execute("PRAGMA busy_timeout").fetchone() == (WAIT * 1000,)


@pytest.mark.anyio
async def test_saves_on_an_engine_of_the_callers_wait_for_the_lock_together(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waited for the whole busy timeout after the one before it."""
    path, attempts, begin_write = url.removeprefix("sqlite:///"), [0], SQLiteDatabase.begin_write
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 0.1})

    def count_attempt(*args: Any) -> None:
        attempts[0] += 1
        begin_write(*args)

    monkeypatch.setattr(SQLiteDatabase, "begin_write", count_attempt)
    async with SQLiteBackend(engine=engine) as backend:
        await backend.save("t", {"n": 0})
        with closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            attempts[0] = 0
            saves = [backend.save(f"t{n}", {"n": n}) for n in range(9)]
            found = await asyncio.gather(*saves, return_exceptions=True)
            assert "held the write lock" in " ".join({str(it) for it in found})
            assert {*map(type, found)} == {BackendError}
            assert attempts[0] <= 2  # the others may have come after the first one began to wait
        await backend.save("t9", {"n": 9})
        assert len(await backend.heads()) == 2
    await engine.dispose()


def test_others_read_while_a_caller_waits_for_the_lock(
    checkpointer: BlockingCheckpointer[Any], url: str
) -> None:
    checkpointer.save({"n": 0}, "t")
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as lock, ThreadPoolExecutor(8) as at:
        lock.execute("BEGIN IMMEDIATE")
        save = at.submit(checkpointer.save, {"n": 1}, "t", on_conflict="overwrite")
        reads = [at.submit(checkpointer.load, "t") for _ in range(16)]
        assert [it.result(WAIT) for it in reads] == [{"n": 0}] * 16
        assert not save.done()
        lock.execute("ROLLBACK")
        assert save.result(WAIT)


def test_a_busy_sync_caller_lets_others_save(url: str) -> None:
    is_over = threading.Event()

    def hammer() -> None:
        number = 0
        while not is_over.is_set():
            shared.save({"n": number}, "t", on_conflict="overwrite")
            number += 1

    async def use() -> None:
        for number in range(10):
            await asyncio.wait_for(checkpointer.save({"n": number}, f"u{number}"), WAIT)
        await checkpointer.close()

    checkpointer = open_checkpointer(url, state_type=dict)
    shared = blocking.BlockingCheckpointer(checkpointer)
    with shared, ThreadPoolExecutor(1) as at:
        hammering = at.submit(hammer)
        try:
            asyncio.run(use())
        finally:
            is_over.set()
        hammering.result(WAIT)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_the_transactions_of_callers(
    checkpointer: BlockingCheckpointer[Any],
) -> None:
    is_over = threading.Event()
    saved: list[str] = []

    def save() -> None:
        while not is_over.is_set():
            saved.append(checkpointer.save({"n": len(saved)}, "t", on_conflict="overwrite"))
            checkpointer.load("t", saved[-1])

    with ThreadPoolExecutor(2) as at:
        saving = at.submit(save)
        try:
            children = [_forked(checkpointer, number) for number in range(5)]
        finally:
            is_over.set()
        saving.result(WAIT)
    assert children == [0] * 5
    assert checkpointer.list_checkpoints("t", limit=100_000) == saved[::-1]
    assert {f"child{it}" for it in range(5)} <= set(checkpointer.list_threads())


def _forked(checkpointer: BlockingCheckpointer[Any], number: int) -> int:
    child = os.fork()
    if not child:
        is_right = False
        try:
            checkpointer.save({"n": number}, f"child{number}")
            is_right = checkpointer.load(f"child{number}") == {"n": number}
            checkpointer.close()
        finally:
            os._exit(0 if is_right else 1)
    return os.waitpid(child, 0)[1]


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Let no file of this process grow: SQLite ends a transaction whose statement fails so."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.posix
@pytest.mark.anyio
async def test_a_full_disk_is_the_error_of_each_save_of_a_group(database_file: Path) -> None:
    async with SQLiteBackend(database_file) as backend:
        await backend.write_state("t", {"n": 0})
        log = database_file.with_name(f"{database_file.name}-wal")
        text = token_hex(3_000_000)  # SQLite writes it before the commit: it exceeds its cache
        saves = [backend.write_state(f"t{it}", {"text": text}) for it in range(4)]
        with full_disk(log):
            done = await asyncio.gather(*saves, return_exceptions=True)
        assert {type(it) for it in done} == {BackendError}
        assert all(re.search("SQLITE_(IOERR|FULL)", str(it)) for it in done), done
        assert await backend.list_threads() == ["t"]
        await backend.write_state("t", {"n": 1})
        assert await backend.load("t") == {"n": 1}


@pytest.mark.anyio
async def test_an_error_holds_no_statement_of_its_connection(database_file: Path) -> None:
    """Python 3.11 waits for the connection where the last reference to an open cursor ends."""
    async with SQLiteBackend(database_file) as backend:
        await backend.write_state("t", {"n": 0}, checkpoint_id="v")
        with closing(sqlite3.connect(database_file)) as other, other:
            other.execute("DROP TABLE locus_checkpoints")
        saves = [backend.write_state("t", {"n": it}) for it in range(1, 4)]
        reads = [backend.load("t", "v"), backend.history("t")]
        done = await asyncio.gather(*saves, *reads, return_exceptions=True)
        errors = [it for it in done if isinstance(it, Exception)]
        assert len(errors) == len(done)
        assert list(find_open_cursors(errors)) == []


def find_open_cursors(errors: list[Exception]) -> Iterator[sqlite3.Cursor]:
    """Yield the cursors in the frames of errors that were not closed."""
    causes = [it for error in errors for it in iterate_causes(error)]
    for error in causes:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for value in frame.f_locals.values():
                if isinstance(value, sqlite3.Cursor) and is_open(value):
                    yield value


def is_open(cursor: sqlite3.Cursor) -> bool:
    with suppress(sqlite3.ProgrammingError):
        cursor.fetchone()
        return True
    return False
