"""Every backend and every way to one is held to the contracts of ``locus_store.testing``."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any, ClassVar

import anyio.to_thread
import pytest
from document_probe import DocumentsProbe
from locus.core.messages import Message as LocusMessage
from locus.core.state import AgentState as LocusState
from pydantic import BaseModel
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from locus_store import (
    BaseCheckpointer,
    ConflictError,
    ConnectionFailedError,
    MemoryBackend,
    MemoryCheckpointer,
    SQLiteBackend,
    StorageBackend,
    StorageBackendAdapter,
    sqlite_checkpointer,
)
from locus_store.backends.sqlite.dialect import SQLiteDatabase
from locus_store.blocking import BlockingCheckpointer
from locus_store.sql.repository import Repository
from locus_store.testing import (
    CheckpointerContract,
    MinimalCheckpointerContract,
    StorageBackendContract,
)
from locus_store.types import Vacuumed
from locus_store.values.encoding import MAX_STATE_BYTES, unpack_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from locus_store.versions.threads import Row

# --- memory


class MemoryProbe(DocumentsProbe):
    """Below a ``MemoryBackend``."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend._documents)


class TestMemory(CheckpointerContract):
    @pytest.fixture
    def checkpointer(self):
        return MemoryCheckpointer(state_type=self.state_type)

    @pytest.fixture
    def storage(self, checkpointer):
        return MemoryProbe(checkpointer.backend)


# --- SQLite


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
        for key, payload in self._run("SELECT rowid, payload FROM locus_checkpoints"):
            changed = change(payload)
            self._run("UPDATE locus_checkpoints SET payload = ? WHERE rowid = ?", changed, key)

    def holds(self, text: str) -> bool:
        rows = self._run("SELECT payload FROM locus_checkpoints")
        frames = [body for (payload,) in rows for body in unpack_frames(payload, MAX_STATE_BYTES)]
        files = [it.read_bytes() for it in self._path.parent.glob(f"{self._path.name}*")]
        assert files
        return any(text.encode() in it for it in frames + files)

    def rows(self) -> int:
        tables = ("threads", "lines", "checkpoints", "writes", "messages")
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
class TestSQLiteInMemory(CheckpointerContract):
    @pytest.fixture
    def checkpointer(self):
        return sqlite_checkpointer(":memory:", state_type=self.state_type)


def set_up(connection, _) -> None:
    """What the owner of an engine sets: its connections are not ours."""
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
        engine = create_engine(f"sqlite:///{path}")
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


class TestPortable(OnFile):
    @pytest.fixture
    def reopen(self, path):
        def portable(**options):
            limits = {it: options.pop(it) for it in ["max_state_bytes"] if it in options}
            return StorageBackendAdapter(
                PortableBackend(path, **limits), **{"state_type": self.state_type, **options}
            )

        return portable


# --- the blocking facade


class Unblocked(BaseCheckpointer):
    """A blocking checkpointer behind ``await`` again, each call from a thread."""

    def __init__(self, blocking: BlockingCheckpointer) -> None:
        self.blocking = blocking

    capabilities = property(lambda self: self.blocking.capabilities)
    deletes_single_checkpoints = True

    def for_tenant(self, tenant: str) -> Unblocked:
        return Unblocked(self.blocking.for_tenant(tenant))


def _in_a_thread(name: str):
    async def call(self, *args: Any, **kwargs: Any) -> Any:
        method = partial(getattr(self.blocking, name), *args, **kwargs)
        return await anyio.to_thread.run_sync(method)

    return call


for _name in (
    "save", "load", "list_checkpoints", "delete", "exists", "open", "close", "search",
    "query_by_metadata", "get_metadata", "vacuum", "expire", "copy_thread", "list_threads",
    "list_with_metadata", "tenants",
):  # fmt: skip
    setattr(Unblocked, _name, _in_a_thread(_name))
Unblocked.__abstractmethods__ = frozenset()


class TestBlockingFacade(OnFile):
    @pytest.fixture
    def reopen(self, path):
        make = partial(sqlite_checkpointer, path, state_type=self.state_type)
        return lambda **options: Unblocked(BlockingCheckpointer(make(**options)))


# --- a user's own


class UsersCheckpointer(BaseCheckpointer):
    """As the guide to custom checkpointers has it: three methods, nothing declared."""

    def __init__(self, rows: dict[str, dict[str, Any]], state_type: type[Any]) -> None:
        self._rows = rows
        self._state_type = state_type

    async def save(self, state, thread_id, checkpoint_id=None, metadata=None) -> str:
        from copy import deepcopy
        from uuid import uuid4

        cp_id = checkpoint_id or uuid4().hex
        self._rows.setdefault(thread_id, {})[cp_id] = deepcopy(state.to_checkpoint())
        return cp_id

    async def load(self, thread_id, checkpoint_id=None):
        from copy import deepcopy

        rows = self._rows.get(thread_id, {})
        data = rows.get(checkpoint_id or next(reversed(rows), None))
        return None if data is None else self._state_type.from_checkpoint(deepcopy(data))

    async def list_checkpoints(self, thread_id, limit=10) -> list[str]:
        return list(reversed(self._rows.get(thread_id, {})))[:limit]


class TestUsersSubclass(MinimalCheckpointerContract):
    @pytest.fixture
    def reopen(self):
        return partial(UsersCheckpointer, {}, self.state_type)

    @pytest.fixture
    def checkpointer(self, reopen):
        return reopen()


class BareBackend(StorageBackend):
    """Only what a backend must implement."""

    def __init__(self) -> None:
        super().__init__()
        inner = MemoryBackend()
        self.commit, self.fetch = inner.commit, inner.fetch
        self.history, self.remove = inner.history, inner.remove

    commit: ClassVar[Any]
    fetch: ClassVar[Any]
    history: ClassVar[Any]
    remove: ClassVar[Any]


BareBackend.__abstractmethods__ = frozenset()


class TestBareBackend(CheckpointerContract):
    """Nothing optional is declared, everything else holds."""

    @pytest.fixture
    def checkpointer(self):
        return StorageBackendAdapter(BareBackend(), state_type=self.state_type)


# --- states of other types


@pytest.mark.variant
class TestDictState(TestMemory):
    state_type = dict

    def new(self, *texts):
        return {"messages": list(texts)}

    def said(self, state, text):
        state = state.copy()
        state["messages"] = [*state["messages"], text]
        return state

    def texts(self, state):
        return state["messages"]

    def holding(self, value):
        return {"value": value}

    def held(self, state):
        return state["value"]


class LocusStates:
    """The real ``AgentState`` of the Locus SDK."""

    state_type = LocusState

    def new(self, *texts):
        return LocusState(messages=tuple(map(LocusMessage.user, texts)))

    def said(self, state, text):
        return state.with_message(LocusMessage.user(text))

    def texts(self, state):
        return [it.content for it in state.messages]

    def holding(self, value):
        return LocusState(metadata={"value": value})

    def held(self, state):
        return state.metadata["value"]


@pytest.mark.variant
class TestLocusState(LocusStates, OnFile):
    pass


class Note(BaseModel):
    """A pydantic model with no room for a mark."""

    texts: list[str] = []
    value: Any = None


@pytest.mark.variant
class TestPydanticState(TestMemory):
    state_type = Note
    carries_marks = False

    def new(self, *texts):
        return Note(texts=list(texts))

    def said(self, state, text):
        return Note(texts=[*state.texts, text])

    def texts(self, state):
        return state.texts

    def holding(self, value):
        return Note(value=value)

    def held(self, state):
        return state.value


class Plain:
    """A class with the two methods and no room for a mark."""

    def __init__(self, texts: list[str], value: Any = None) -> None:
        self.texts = texts
        self.value = value

    def to_checkpoint(self) -> dict[str, Any]:
        return {"texts": self.texts, "value": self.value}

    @classmethod
    def from_checkpoint(cls, data: dict[str, Any]) -> Plain:
        return cls(data["texts"], data["value"])


@pytest.mark.variant
class TestPlainState(TestMemory):
    state_type = Plain
    carries_marks = False

    def new(self, *texts):
        return Plain(list(texts))

    def said(self, state, text):
        return Plain([*state.texts, text])

    def texts(self, state):
        return state.texts

    def holding(self, value):
        return Plain([], value)

    def held(self, state):
        return state.value


# --- backends


class TestMemoryBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self):
        return MemoryBackend()


def spoil(row: Row) -> None:
    """Operations that cannot be done, in a document that is as it was written."""
    row._held = False, b'[["-",["no such key"]]]'


@pytest.mark.anyio
async def test_a_damaged_chain_fails_neither_a_sweep_nor_a_vacuum() -> None:
    backend = MemoryBackend()
    below = MemoryProbe(backend)
    for n in range(80):
        await backend.write_state("t", {"body": "b" * 1000, "n": n})
        if n == 0:
            below.age(40 * 86_400)
    below.change_rows(spoil)
    await backend.write_state("t", {"n": 80}, keep_last=10)
    assert await backend.load("t") == {"n": 80}
    assert await backend.vacuum_report(30) == Vacuumed(removed=0, skipped=0, unreadable=1)
    assert await backend.prune("t") == 80  # what goes whole is not read


class TestSQLiteBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, tmp_path, migrated):
        return SQLiteBackend(copyfile(migrated, tmp_path / "checkpoints.db"))


class TestPortableBackend(StorageBackendContract):
    @pytest.fixture
    def backend(self, tmp_path, migrated):
        return PortableBackend(copyfile(migrated, tmp_path / "checkpoints.db"))
