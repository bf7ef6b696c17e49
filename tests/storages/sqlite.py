"""SQLite: on a file, in memory, over an engine, without a dialect's hooks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from locus_store import (
    SQLiteBackend,
    SQLiteMessageLog,
    SQLiteStore,
    StorageBackendAdapter,
    sqlite_checkpointer,
)
from locus_store.backends.sqlite.dialect import SQLiteDatabase
from locus_store.blocking import BlockingCheckpointer
from locus_store.sql.threads.repository import Repository
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames
from storages import Storage
from storages.blocking import Unblocked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
        for table in ("locus_checkpoints", "locus_segments"):
            own = f"SELECT rowid, payload FROM {table} WHERE payload IS NOT NULL"
            for key, payload in self._run(own):
                changed = change(payload)
                self._run(f"UPDATE {table} SET payload = ? WHERE rowid = ?", changed, key)

    def holds(self, text: str) -> bool:
        tables = ("locus_checkpoints", "locus_segments")
        rows = [row for table in tables for row in self._run(f"SELECT payload FROM {table}")]
        frames = [
            body for (payload,) in rows for body in unpack_frames(payload or b"", MAX_STATE_BYTES)
        ]
        files = [it.read_bytes() for it in self._path.parent.glob(f"{self._path.name}*")]
        assert files
        return any(text.encode() in it for it in frames + files)

    def rows(self) -> int:
        tables = ("threads", "lines", "checkpoints", "segments", "writes", "messages")
        return sum(self._run(f"SELECT count(*) FROM locus_{it}")[0][0] for it in tables)


class EngineProbe(FileProbe):
    """Below a file that its owner still has open: ``close()`` leaves its log, as it should."""

    def holds(self, text: str) -> bool:
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        return super().holds(text)


class OnFile(Storage):
    """A file, with a tenant of the test's own where that is enough."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.tenant = self.own_tenant()
        self.path: Path = self.fixture("shared_file" if self.tenant else "database_file")

    def checkpointer(self, **options: Any) -> Any:
        return self.new(sqlite_checkpointer, self.path, **options)

    def backend(self) -> Any:
        return self.new(SQLiteBackend, self.path)

    def store(self, **options: Any) -> Any:
        return self.new(SQLiteStore, self.path, **{"dimension": 3, **options})

    def log(self, **options: Any) -> Any:
        return self.new(SQLiteMessageLog, self.path, **options)

    def probe(self) -> FileProbe | None:
        return FileProbe(self.path)


class Audited(OnFile):
    """Each call is recorded, reads too."""

    def new(self, factory: Callable[..., Any], place: Any, **options: Any) -> Any:
        return super().new(factory, place, audit="tests", audit_reads=True, **options)


class Blocking(OnFile):
    def checkpointer(self, **options: Any) -> Any:
        return Unblocked(BlockingCheckpointer(super().checkpointer(**options)))


class Alone(OnFile):
    """A file of the test's own."""

    def own_tenant(self) -> dict[str, str]:
        return {}


class Indexed(Alone):
    """The full-text index gives the answers of the scan, whatever is deleted, replaced, copied."""

    async def open(self) -> None:
        async with SQLiteBackend(self.path) as backend:
            await backend.create_search_index()


class Joined(Alone):
    """Segments change no answer, and nothing that was deleted is left in them."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.fixture("segments_of_two")


class InMemory(Storage):
    persists = False

    def checkpointer(self, **options: Any) -> Any:
        return sqlite_checkpointer(":memory:", **options)


def set_up(connection: Any, _: Any) -> None:
    """The settings of an engine's owner, whose connections are not ours."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.close()


class OverAsyncEngine(Alone):
    async def open(self) -> None:
        # SQLAlchemy's async pool belongs to one loop; these tests use several at once.
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}", poolclass=NullPool)
        event.listen(self.engine.sync_engine, "connect", set_up)

    async def close(self) -> None:
        await self.engine.dispose()

    def checkpointer(self, **options: Any) -> Any:
        return sqlite_checkpointer(engine=self.engine, **options)

    def probe(self) -> EngineProbe:
        return EngineProbe(self.path)


class OverEngine(Alone):
    async def open(self) -> None:
        # Some tests open many objects.
        self.engine = create_engine(f"sqlite:///{self.path}", max_overflow=-1)
        event.listen(self.engine, "connect", set_up)

    async def close(self) -> None:
        self.engine.dispose()

    def checkpointer(self, **options: Any) -> Any:
        return sqlite_checkpointer(engine=self.engine, **options)

    def probe(self) -> EngineProbe:
        return EngineProbe(self.path)


class PortableDatabase(SQLiteDatabase):
    """The repository without a dialect's hooks, which Oracle inherits."""

    repository = Repository


class PortableBackend(SQLiteBackend):
    database = PortableDatabase


class Portable(Joined):
    def checkpointer(self, *, max_state_bytes: int = MAX_STATE_BYTES, **options: Any) -> Any:
        backend = PortableBackend(self.path, max_state_bytes=max_state_bytes)
        return StorageBackendAdapter(backend, **options)

    def backend(self) -> Any:
        return PortableBackend(self.path)
