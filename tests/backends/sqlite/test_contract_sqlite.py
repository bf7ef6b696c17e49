"""The contracts on SQLite: on a file, in memory, over an engine, without a dialect's hooks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from locus_store import (
    ConflictError,
    ConnectionFailedError,
    SQLiteBackend,
    StorageBackendAdapter,
    sqlite_checkpointer,
)
from locus_store.backends.sqlite.dialect import SQLiteDatabase
from locus_store.sql.repository import Repository
from locus_store.testing import (
    CheckpointerContract,
    StorageBackendContract,
)
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames

if TYPE_CHECKING:
    from collections.abc import Callable


class FileProbe:
    """Below an SQLite file, by another connection."""

    def __init__(self, path) -> None:
        self._path = path

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("PRAGMA secure_delete=ON")
            return connection.execute(statement, values).fetchall()

    def age(self, seconds: float) -> None:
        microseconds = int(seconds * 1_000_000)
        self._run("UPDATE locus_checkpoints SET created_at = created_at - ?", microseconds)

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        for table in ("locus_checkpoints", "locus_packs"):
            for key, payload in self._run(f"SELECT rowid, payload FROM {table}"):
                changed = change(payload or b"")
                self._run(f"UPDATE {table} SET payload = ? WHERE rowid = ?", changed, key)

    def holds(self, text: str) -> bool:
        tables = ("locus_checkpoints", "locus_packs")
        rows = [row for table in tables for row in self._run(f"SELECT payload FROM {table}")]
        frames = [
            body for (payload,) in rows for body in unpack_frames(payload or b"", MAX_STATE_BYTES)
        ]
        files = [it.read_bytes() for it in self._path.parent.glob(f"{self._path.name}*")]
        assert files
        return any(text.encode() in it for it in frames + files)

    def rows(self) -> int:
        tables = ("threads", "lines", "checkpoints", "packs", "writes", "messages")
        return sum(self._run(f"SELECT count(*) FROM locus_{it}")[0][0] for it in tables)


class EngineProbe(FileProbe):
    """Below a file that its owner still has open: ``close()`` leaves its log, as it should."""

    def holds(self, text: str) -> bool:
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        return super().holds(text)


class OnFile(CheckpointerContract):
    """A file in a directory of the test's own."""

    @pytest.fixture
    def path(self, tmp_path, migrated):
        return Path(copyfile(migrated, tmp_path / "checkpoints.db"))

    @pytest.fixture
    def reopen(self, path):
        return partial(sqlite_checkpointer, path, state_type=self.state_type)

    @pytest.fixture
    def checkpointer(self, reopen):
        return reopen()

    @pytest.fixture
    def storage(self, path):
        return FileProbe(path)


class TestSQLiteFile(OnFile):
    """With what only a file can suffer: a backup restored beneath a live object."""

    async def overtaken(self, checkpointer, path, tmp_path):
        """Versions a, ab, abc; a backup of the first two; a state of the third, still held."""
        await self.grow(checkpointer, "t", "a")
        await checkpointer.save(self.said(await checkpointer.load("t"), "b"), "t", "v2")
        await checkpointer.close()
        backup = tmp_path / "backup.db"
        copyfile(path, backup)
        await checkpointer.save(self.said(await checkpointer.load("t"), "c"), "t", "v3")
        held = await checkpointer.load("t")
        assert self.texts(held) == ["a", "b", "c"]
        return backup, held

    def restored_in_place(self, backup, path):
        with closing(sqlite3.connect(backup)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)

    def restored_by_replacing(self, backup, path):
        for log in ("-wal", "-shm"):
            Path(f"{path}{log}").unlink(missing_ok=True)
        backup.replace(path)

    @pytest.mark.parametrize("way", ["restored_in_place", "restored_by_replacing"])
    async def test_a_restored_backup_is_what_is_read(self, checkpointer, path, tmp_path, way):
        backup, _ = await self.overtaken(checkpointer, path, tmp_path)
        getattr(self, way)(backup, path)
        assert await self.said_in(checkpointer, "t") == ["a", "b"]
        assert await checkpointer.load("t", "v3") is None

    @pytest.mark.parametrize("way", ["restored_in_place", "restored_by_replacing"])
    async def test_a_state_that_a_restored_backup_does_not_have_conflicts(
        self, checkpointer, path, tmp_path, way
    ):
        backup, held = await self.overtaken(checkpointer, path, tmp_path)
        getattr(self, way)(backup, path)
        with pytest.raises(ConflictError) as told:
            await checkpointer.save(self.said(held, "d"), "t")
        assert told.value.head_id == "v2"

    @pytest.mark.parametrize("way", ["restored_in_place", "restored_by_replacing"])
    async def test_a_sequence_counted_again_is_another_version(
        self, checkpointer, reopen, path, tmp_path, way
    ):
        backup, held = await self.overtaken(checkpointer, path, tmp_path)
        getattr(self, way)(backup, path)
        async with reopen() as other:  # makes the third version anew
            await other.save(self.said(await other.load("t"), "x"), "t", "v3")
        with pytest.raises(ConflictError):
            await checkpointer.save(self.said(held, "d"), "t")
        state = await checkpointer.load("t")
        await checkpointer.save(self.said(state, "y"), "t", "v4")
        async with reopen() as other:
            assert await self.said_in(other, "t") == ["a", "b", "x", "y"]
            assert await self.said_in(other, "t", "v3") == ["a", "b", "x"]

    @pytest.mark.parametrize("way", ["restored_in_place", "restored_by_replacing"])
    async def test_saves_after_a_restore_are_exact(self, checkpointer, reopen, path, tmp_path, way):
        backup, _ = await self.overtaken(checkpointer, path, tmp_path)
        getattr(self, way)(backup, path)
        await checkpointer.save(self.new("unloaded"), "u")
        for text in "xyz":
            state = self.said(await checkpointer.load("t"), text)
            await checkpointer.save(state, "t")
        await checkpointer.close()
        async with reopen() as other:
            assert await self.said_in(other, "t") == ["a", "b", "x", "y", "z"]
            assert None not in (await self.told(other, "t")).values()

    async def test_a_file_that_is_gone_is_an_error_not_an_empty_thread(self, checkpointer, path):
        await self.grow(checkpointer, "t", "a")
        path.unlink()
        with pytest.raises(ConnectionFailedError, match="gone"):
            await checkpointer.load("t")
        with pytest.raises(ConnectionFailedError, match="gone"):
            await checkpointer.save(self.new("b"), "t")
        assert not path.exists()

    async def test_vacuum_looks_at_the_servers_clock(self, checkpointer, storage):
        """Rows that an older clock wrote, by SQL: they go, whatever our clock says."""
        await self.grow(checkpointer, "t", "a")
        storage.age(31 * 86_400)
        assert await checkpointer.vacuum() == 1


@pytest.mark.variant
class TestSQLiteFileWithAnIndex(OnFile):
    """The full-text index gives the answers of the scan, whatever is deleted, replaced, copied."""

    @pytest.fixture
    async def checkpointer(self, reopen):
        made = reopen()
        await made.backend.create_search_index()
        return made


@pytest.mark.variant
@pytest.mark.usefixtures("packs_of_two")
class TestSQLiteFileWithPacks(OnFile):
    """Packs change no answer, and nothing that was deleted is left in them."""


@pytest.mark.variant
class TestSQLiteInMemory(CheckpointerContract):
    @pytest.fixture
    def checkpointer(self):
        return sqlite_checkpointer(":memory:", state_type=self.state_type)


def set_up(connection, _) -> None:
    """The settings of an engine's owner, whose connections are not ours."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.close()


class OnEngine(OnFile):
    @pytest.fixture
    def storage(self, path):
        return EngineProbe(path)


@pytest.mark.variant
class TestSQLiteOverAnAsyncEngine(OnEngine):
    @pytest.fixture
    async def reopen(self, path):
        # SQLAlchemy's async pool belongs to one loop; these tests use several at once.
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
        event.listen(engine.sync_engine, "connect", set_up)
        yield lambda **options: sqlite_checkpointer(
            engine=engine, **{"state_type": self.state_type, **options}
        )
        await engine.dispose()

    @pytest.fixture
    def checkpointer(self, reopen):
        return reopen()


@pytest.mark.variant
class TestSQLiteOverAnEngine(OnEngine):
    @pytest.fixture
    def reopen(self, path):
        engine = create_engine(f"sqlite:///{path}", max_overflow=-1)  # some tests open many objects
        event.listen(engine, "connect", set_up)
        yield lambda **options: sqlite_checkpointer(
            engine=engine, **{"state_type": self.state_type, **options}
        )
        engine.dispose()

    @pytest.fixture
    def checkpointer(self, reopen):
        return reopen()


class PortableDatabase(SQLiteDatabase):
    """The repository without a dialect's hooks, which Oracle inherits."""

    repository = Repository


class PortableBackend(SQLiteBackend):
    database = PortableDatabase


@pytest.mark.variant
@pytest.mark.usefixtures("packs_of_two")
class TestPortable(OnFile):
    @pytest.fixture
    def reopen(self, path):
        def portable(**options):
            limits = {it: options.pop(it) for it in ["max_state_bytes"] if it in options}
            return StorageBackendAdapter(
                PortableBackend(path, **limits), **{"state_type": self.state_type, **options}
            )

        return portable


class TestSQLiteBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, tmp_path, migrated):
        return SQLiteBackend(copyfile(migrated, tmp_path / "checkpoints.db"))


@pytest.mark.variant
class TestPortableBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, tmp_path, migrated):
        return PortableBackend(copyfile(migrated, tmp_path / "checkpoints.db"))
