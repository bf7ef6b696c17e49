"""SQLite files that are restored from a backup or removed beneath a live object."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import copyfile

import pytest
from storages.sqlite import FileProbe

from locus_store import ConflictError, ConnectionFailedError, sqlite_checkpointer
from locus_store.testing import Kit


class TestRestoredFile(Kit):
    """A backup that is restored beneath a live object, and a file that is gone."""

    @pytest.fixture
    def path(self, database_file):
        return database_file

    @pytest.fixture
    def reopen(self, path):
        return partial(sqlite_checkpointer, path)

    @pytest.fixture
    def checkpointer(self, reopen):
        return reopen()

    @pytest.fixture
    def storage(self, path):
        return FileProbe(path)

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
        assert await self.read_texts(checkpointer, "t") == ["a", "b"]
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
            assert await self.read_texts(other, "t") == ["a", "b", "x", "y"]
            assert await self.read_texts(other, "t", "v3") == ["a", "b", "x"]

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
            assert await self.read_texts(other, "t") == ["a", "b", "x", "y", "z"]
            assert None not in (await self.read_all_texts(other, "t")).values()

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
