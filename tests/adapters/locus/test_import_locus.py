"""Imports from the Locus SDK's own checkpointers, with every version."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from lazily import TESTS_RUN
from servers import run
from tiers import first_of

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    MemoryBackend,
    NotFoundError,
    SchemaError,
    SerializationError,
    SQLiteBackend,
    StorageBackendAdapter as OurAdapter,
    open_checkpointer,
)
from locus_store.adapters.locus.import_threads import import_locus
from locus_store.transfer.counts import Counts
from locus_store.transfer.verifying import verify
from locus_store.versions.archives import Problem

if TESTS_RUN:
    import redis
    from locus import Agent, tool
    from locus.core.messages import Message
    from locus.core.state import AgentState
    from locus.memory.backends import (
        FileCheckpointer,
        PgCheckpointer,
        PostgreSQLBackend,
        RedisBackend,
        StorageBackendAdapter,
    )
    from locus.testing import FunctionModel, ScriptedModel, tool_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio

HOSTILE = [
    "a:b",
    "a",
    "a:b:c",
    "principal:thread",
    "latest",
    "_checkpoints",
    "%_'|",
    "Zoë 🦊",
    "x" * 255,
]
"""Thread ids that files and tables of keys must tell apart."""


class SQLiteOfMine:
    """A user's SQLite storage for the SDK's adapter: version 3.0.1 has none."""

    COLUMNS = "thread_id TEXT PRIMARY KEY, checkpoint_id TEXT, data TEXT, created_at TEXT,"

    def __init__(self, path: Path, table: str = "locus_checkpoints") -> None:
        self.path, self.table = path, table
        columns = f"{self.COLUMNS} updated_at TEXT, metadata TEXT"
        self.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")

    def execute(self, query: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as database, database:
            return database.execute(query, values).fetchall()

    async def save(
        self, thread_id: str, data: dict[str, Any], metadata: dict[str, Any] | None = None
    ) -> None:
        now = datetime.now(UTC).isoformat()
        values = (thread_id, "row", json.dumps(data), now, now, json.dumps(metadata or {}))
        self.execute(f"REPLACE INTO {self.table} VALUES (?, ?, ?, ?, ?, ?)", *values)

    async def load(self, thread_id: str) -> dict[str, Any] | None:
        query = f"SELECT data FROM {self.table} WHERE thread_id = ?"
        found = self.execute(query, thread_id)
        return json.loads(found[0][0]) if found else None

    async def exists(self, thread_id: str) -> bool:
        return await self.load(thread_id) is not None

    async def delete(self, thread_id: str) -> bool:
        query = f"DELETE FROM {self.table} WHERE thread_id = ? RETURNING 1"
        return bool(self.execute(query, thread_id))


if TESTS_RUN:

    class RedisOfTheirs(RedisBackend):
        async def close(self) -> None:
            """As the SDK's, which redis-py warns of."""
            if self._client:
                await self._client.aclose()
                self._client = None


class Place:
    """A storage of the SDK, and its name for an import."""

    def __init__(self, theirs: Any, source: str) -> None:
        self.theirs = theirs
        self.source = source


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind == "files":
        return Place(FileCheckpointer(tmp_path / "theirs"), str(tmp_path / "theirs"))
    if kind == "sqlite":
        path = tmp_path / "theirs.db"
        return Place(StorageBackendAdapter(SQLiteOfMine(path)), f"sqlite:///{path}")
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
        return Place(StorageBackendAdapter(RedisOfTheirs(url, prefix="locus:state:")), url)
    url = request.getfixturevalue("database")
    if kind == "postgresql":
        return Place(StorageBackendAdapter(PostgreSQLBackend(dsn=url)), url)
    return Place(PgCheckpointer(url), url)


@pytest.fixture(params=first_of("sqlite", "files", "postgresql", "tenants", "redis"))
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    made = place_of(request.param, request, tmp_path)
    yield made
    await made.theirs.close()


@pytest.fixture(params=first_of("sqlite", "postgresql", "redis"))
async def keys(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A table of ``thread:checkpoint`` keys."""
    made = place_of(request.param, request, tmp_path)
    yield made
    await made.theirs.close()


@pytest.fixture
def files(tmp_path: Path) -> Place:
    made = Place(FileCheckpointer(tmp_path / "theirs"), str(tmp_path / "theirs"))
    made.theirs.base_dir.mkdir()
    return made


def state(*said: str, **fields: Any) -> AgentState:
    return AgentState(
        run_id="r", agent_id="concierge", messages=tuple(map(Message.user, said)), **fields
    )


def ours(backend: Any) -> OurAdapter:
    return OurAdapter(backend, state_type=AgentState)


def said(found: Any) -> list[str]:
    return [it.content for it in found.messages]


async def all_of(checkpointer: Any, thread_id: str) -> list[tuple[str, Any]]:
    """Ids and states, newest first."""
    ids = await checkpointer.list_checkpoints(thread_id, limit=2000)
    return [(it, unmarked(await checkpointer.load(thread_id, it))) for it in ids]


def unmarked(loaded: AgentState) -> AgentState:
    """Without the version that a state of ours was loaded from."""
    kept = {name: it for name, it in loaded.metadata.items() if name != "_locus_store_mark"}
    return loaded.model_copy(update={"metadata": kept})


# --- a real agent's threads


if TESTS_RUN:

    @tool
    def add(left: int, right: int) -> str:
        """Add two numbers."""
        return str(left + right)


def agent_of(checkpointer: Any, *turns: Any, model: Any = None) -> Agent:
    return Agent(
        agent_id="concierge",
        model=model or ScriptedModel([*turns]),
        tools=[add],
        context_window=100_000,
        checkpointer=checkpointer,
    )


async def test_an_agents_threads_come_back_as_the_sdk_had_them(place: Place) -> None:
    call = tool_call("add", left=1, right=2, call_id="1")
    await agent_of(place.theirs, call, "Three.").arun("What is 1 + 2?", thread_id="t1")
    await agent_of(place.theirs, "Hello.").arun("I'm Alex.", thread_id="p:t2")
    await agent_of(place.theirs, "Again.").arun("Hi.", thread_id="p:t2")
    backend = MemoryBackend()
    assert await import_locus(backend, place.source) == Counts(2, 0)
    for thread_id in ("t1", "p:t2"):
        theirs = await all_of(place.theirs, thread_id)
        assert theirs
        assert await all_of(ours(backend), thread_id) == theirs
        head = await ours(backend).load(thread_id)
        assert unmarked(head) == await place.theirs.load(thread_id)
    assert len(await backend.query("agent_id", "concierge")) == 3


async def test_an_agent_goes_on_where_it_was(place: Place) -> None:
    def who_am_i(messages: list[Message], tools: list[dict[str, Any]]) -> str:
        names = [it.content[4:] for it in messages if (it.content or "").startswith("I'm ")]
        return f"You are {names[-1]}" if names else "I do not know."

    await agent_of(place.theirs, "Hello.").arun("I'm Alex.", thread_id="t1")
    backend = MemoryBackend()
    await import_locus(backend, place.source)
    agent = agent_of(ours(backend), model=FunctionModel(who_am_i))
    assert (await agent.arun("Who am I?", thread_id="t1")).text == "You are Alex."


async def test_hostile_ids_name_the_same_threads_and_checkpoints(
    place: Place, tmp_path: Path
) -> None:
    threads = [
        it for it in HOSTILE if len(it) < 255 or not isinstance(place.theirs, FileCheckpointer)
    ]
    for thread_id in threads:
        for checkpoint_id in ("c1", "é-2", "b:d"):
            wanted = state(thread_id, checkpoint_id)
            await place.theirs.save(wanted, thread_id, checkpoint_id, {"of": thread_id})
    backend = SQLiteBackend(tmp_path / "ours.db")
    assert await import_locus(backend, place.source) == Counts(len(threads), 0)
    for thread_id in threads:
        found = await all_of(ours(backend), thread_id)
        assert [(it, said(loaded)) for it, loaded in found] == [
            (it, [thread_id, it]) for it in ("b:d", "é-2", "c1")
        ]
        assert [it.metadata for it in await backend.history(thread_id)] == [{"of": thread_id}] * 3
    assert [it async for it in verify(backend) if isinstance(it, Problem)] == []
    await backend.close()


async def test_times_are_kept(place: Place) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    for checkpoint_id in ("c1", "c2", "c3"):
        await place.theirs.save(state(checkpoint_id), "t1", checkpoint_id)
    until = datetime.now(UTC) + timedelta(seconds=1)
    backend = MemoryBackend()
    await import_locus(backend, place.source)
    times = [it.created_at for it in await backend.history("t1")]
    assert times == sorted(times, reverse=True)
    assert before < times[-1] < times[0] < until
    thread = await backend.read_thread("t1")
    assert thread is not None
    assert thread.created_at == times[-1]


@pytest.mark.full
async def test_a_thousand_checkpoints_are_taken_over_in_their_order(
    place: Place, tmp_path: Path
) -> None:
    growing = state()
    for turn in range(1000):
        kept = growing.with_message(Message.user(f"turn {turn}")).messages[-40:]
        growing = growing.model_copy(update={"messages": kept, "iteration": turn})
        if turn < 990:  # the rest by the SDK, which writes a list of all ids each time
            await quickly(place, growing, f"c{turn:03}", turn)
        else:
            await place.theirs.save(growing, "t1", f"c{turn:03}")
    backend = SQLiteBackend(tmp_path / "ours.db")
    await import_locus(backend, place.source)
    ids = [it.checkpoint_id for it in await backend.history("t1", limit=2000)]
    assert ids == [f"c{it:03}" for it in reversed(range(1000))]
    for turn in (0, 20, 500, 999):
        found = await ours(backend).load("t1", f"c{turn:03}")
        assert unmarked(found) == await place.theirs.load("t1", f"c{turn:03}")
        assert said(found) == [f"turn {it}" for it in range(max(0, turn - 39), turn + 1)]
    await backend.close()


async def quickly(place: Place, what: AgentState, checkpoint_id: str, turn: int) -> None:
    """Save as the SDK does, but for the list of ids."""
    if not isinstance(place.theirs, StorageBackendAdapter):
        await place.theirs.save(what, "t1", checkpoint_id)
        return
    moment = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=turn)
    added = {"_checkpoint_id": checkpoint_id, "_checkpoint_timestamp": moment.isoformat()}
    data = {**what.to_checkpoint(), **added, "_metadata": {}}
    await place.theirs._backend.save(f"t1:{checkpoint_id}", data)


# --- again


async def test_what_is_there_already_is_left_as_it_is(place: Place) -> None:
    for thread_id in ("t1", "t2"):
        await place.theirs.save(state("one"), thread_id)
    backend = MemoryBackend()
    told: list[tuple[str, bool]] = []

    def tell(thread_id: str, is_new: bool) -> None:
        told.append((thread_id, is_new))

    assert await import_locus(backend, place.source, thread_ids=["t2"]) == Counts(1, 0)
    assert await import_locus(backend, place.source, progress=tell) == Counts(1, 1)
    assert told == [("t1", True), ("t2", False)]


async def test_a_thread_that_went_on_here_is_not_overwritten_and_stops_no_other(
    place: Place,
) -> None:
    for thread_id in ("t1", "t2", "t3"):
        await place.theirs.save(state("one"), thread_id)
    backend = MemoryBackend()
    await import_locus(backend, place.source, thread_ids=["t2"])
    await backend.save("t2", {"said": ["here"]})
    with pytest.raises(ConflictError, match=r"thread 't2'.*2 were written, 0 were there"):
        await import_locus(backend, place.source)
    assert await backend.load("t2") == {"said": ["here"]}
    assert await backend.scan() == ["t1", "t2", "t3"]


async def test_a_thread_that_went_on_there_is_told_and_taken_over_afresh(place: Place) -> None:
    await place.theirs.save(state("one"), "t1", "c1")
    backend = MemoryBackend()
    await import_locus(backend, place.source)
    await place.theirs.save(state("two"), "t1", "c2")
    with pytest.raises(ConflictError, match="nothing was written"):
        await import_locus(backend, place.source)
    assert await ours(backend).list_checkpoints("t1") == ["c1"]
    await backend.delete("t1")
    assert await import_locus(backend, place.source) == Counts(1, 0)


KILLED = """
    import asyncio, os, signal, sys
    from locus_store import SQLiteBackend
    from locus_store.adapters.locus.import_threads import import_locus

    def kill(thread_id, is_new):
        if thread_id == "t3":
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(import_locus(SQLiteBackend(sys.argv[2]), sys.argv[1], progress=kill))
"""


def killed(source: str, path: Path) -> int:
    """Return the exit status of a process that imported three threads."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED), source, path]
    return subprocess.run(command, check=False, env=os.environ).returncode


async def test_an_import_that_was_killed_goes_on_when_it_is_run_again(
    place: Place, tmp_path: Path
) -> None:
    for thread_id in ("t1", "t2", "t3", "t4", "t5"):
        await place.theirs.save(state(thread_id), thread_id)
    assert killed(place.source, tmp_path / "ours.db") == -signal.SIGKILL
    async with SQLiteBackend(tmp_path / "ours.db") as backend:
        assert await import_locus(backend, place.source) == Counts(2, 3)
        assert said(await ours(backend).load("t5")) == ["t5"]


# --- what the SDK left undone


async def test_the_head_is_what_the_sdk_loads(keys: Place) -> None:
    for checkpoint_id in ("c1", "c2"):
        await keys.theirs.save(state(checkpoint_id), "t1", checkpoint_id)
    await keys.theirs.delete("t1", "c2")  # its load gives it all the same
    backend = MemoryBackend()
    await import_locus(backend, keys.source)
    assert said(await ours(backend).load("t1")) == said(await keys.theirs.load("t1")) == ["c2"]
    assert await ours(backend).list_checkpoints("t1") == ["latest", "c1"]


async def test_a_head_that_is_older_than_another_stays_the_head(keys: Place) -> None:
    for checkpoint_id in ("c1", "c2"):
        await keys.theirs.save(state(checkpoint_id), "t1", checkpoint_id)
    store = keys.theirs._backend
    await store.save("t1:latest", await store.load("t1:c1"))  # two processes at once
    backend = MemoryBackend()
    await import_locus(backend, keys.source)
    assert await ours(backend).list_checkpoints("t1") == ["c1", "c2"]


async def test_checkpoints_that_the_sdk_lost_from_its_list_are_taken_over(keys: Place) -> None:
    for checkpoint_id in ("c1", "c2", "c3"):
        await keys.theirs.save(state(checkpoint_id), "t1", checkpoint_id)
    await keys.theirs._backend.save("t1:_checkpoints", {"checkpoints": []})
    backend = MemoryBackend()
    await import_locus(backend, keys.source)
    assert await ours(backend).list_checkpoints("t1") == ["c3", "c2", "c1"]


@pytest.mark.parametrize("checkpoint_id", ["latest", "_checkpoints"])
async def test_a_checkpoint_with_a_name_of_the_sdks_own_keys_is_not_lost(
    keys: Place, checkpoint_id: str
) -> None:
    await keys.theirs.save(state("first"), "t1", "c1")
    await keys.theirs.save(state("mine"), "t1", checkpoint_id)
    backend = MemoryBackend()
    await import_locus(backend, keys.source)
    assert [said(it) for _, it in await all_of(ours(backend), "t1")] == [["mine"], ["first"]]


async def test_what_is_left_of_a_deleted_thread_does_not_come_back(
    keys: Place, caplog: pytest.LogCaptureFixture
) -> None:
    for checkpoint_id in ("c1", "c2"):
        await keys.theirs.save(state("secret"), "t1", checkpoint_id)
    await keys.theirs._backend.save("t1:_checkpoints", {"checkpoints": []})
    await keys.theirs.delete("t1")
    assert not await keys.theirs.exists("t1")
    backend = MemoryBackend()
    assert await import_locus(backend, keys.source) == Counts(0, 0)
    assert "2 rows of 1 deleted threads" in caplog.text


async def test_plain_dicts_of_a_backend_without_the_adapter_are_taken_over(keys: Place) -> None:
    store = keys.theirs._backend
    metadata = {} if isinstance(store, RedisBackend) else {"metadata": {"kind": "plain"}}
    await store.save("a:b", {"said": ["hello"], "at": 1.5}, **metadata)
    backend = MemoryBackend()
    assert await import_locus(backend, keys.source) == Counts(1, 0)
    assert await backend.load("a:b") == {"said": ["hello"], "at": 1.5}
    assert (await backend.history("a:b"))[0].metadata == metadata.get("metadata", {})


async def test_threads_that_share_a_directory_are_told_apart(files: Place) -> None:
    for thread_id in ("acme/42", "acme_42"):
        await files.theirs.save(state(thread_id), thread_id)
    assert [it.name for it in files.theirs.base_dir.iterdir()] == ["acme_42"]
    backend = MemoryBackend()
    assert await import_locus(backend, f"file:{quote(files.source)}") == Counts(2, 0)
    for thread_id in ("acme/42", "acme_42"):
        assert said(await ours(backend).load(thread_id)) == [thread_id]


# --- PostgreSQL


async def test_of_several_tenants_only_the_chosen_ones_threads_come(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = PgCheckpointer(database, table="threads")
    for tenant in ("default", "acme"):
        with theirs.tenant_scope(tenant):
            await theirs.save(state(tenant), "t1")
    await theirs.close()
    for tenant, source in ((None, database), ("acme", database), (None, f"{database}?tenant=acme")):
        backend = MemoryBackend()
        table = {"table_name": "threads", "tenant": tenant}
        assert await import_locus(backend, source, **table) == Counts(1, 0)
        wanted = "default" if source == database and not tenant else "acme"
        assert said(await ours(backend).load("t1")) == [wanted]
    assert "not imported: 'acme'" in caplog.text
    with pytest.raises(InvalidArgumentError, match=r"of 'acme', 'default'; choose by tenant="):
        await import_locus(MemoryBackend(), database, table_name="threads", tenant="nobody")


async def test_a_role_that_row_level_security_holds_reads_its_tenant(
    database: str, postgresql: Any
) -> None:
    theirs = PgCheckpointer(database, tenant="acme")
    await theirs.save(state("hello"), "t1")
    await theirs.close()
    name = database.partition("?")[0].rpartition("/")[2]
    role = f"reader_{name}"
    postgresql.execute(f"CREATE ROLE {role} LOGIN", name)
    try:
        postgresql.execute(f"GRANT SELECT ON locus_checkpoints TO {role}", name)
        source = postgresql.url(name, user=role)
        backend = MemoryBackend()
        assert await import_locus(backend, source, tenant="acme") == Counts(1, 0)
        postgresql.execute(f"REVOKE SELECT ON locus_checkpoints FROM {role}", name)
        with pytest.raises(BackendError, match="permission denied"):
            await import_locus(backend, source, tenant="acme")
    finally:
        postgresql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}", name)


async def test_a_table_in_another_schema_is_named_with_it(database: str) -> None:
    theirs = StorageBackendAdapter(
        PostgreSQLBackend(dsn=database, schema_name="App", table_name="Mine")
    )
    await theirs.save(state("hello"), "t1")
    await theirs.close()
    backend = MemoryBackend()
    assert await import_locus(backend, f"{database}?table_name=App.Mine") == Counts(1, 0)
    assert await import_locus(backend, database, table_name="app.mine") == Counts(0, 1)


async def test_floats_that_jsonb_writes_with_all_digits_come_back(database: str) -> None:
    theirs = PgCheckpointer(database)
    await theirs.save(state("one", metadata={"big": 1e22, "small": 1e-7}), "t1")
    await theirs.close()
    backend = MemoryBackend()
    await import_locus(backend, database)
    found = await ours(backend).load("t1")
    assert (found.metadata["big"], found.metadata["small"]) == (1e22, 1e-7)


async def test_two_tables_of_the_sdk_must_be_chosen_from(database: str) -> None:
    for theirs in (
        PgCheckpointer(database),
        StorageBackendAdapter(PostgreSQLBackend(dsn=database)),
    ):
        await theirs.save(state("one"), "t1")
        await theirs.close()
    with pytest.raises(InvalidArgumentError, match="locus_checkpoints and checkpoints; choose by"):
        await import_locus(MemoryBackend(), database)
    for table in ("checkpoints", "locus_checkpoints"):
        backend = MemoryBackend()
        assert await import_locus(backend, database, table_name=table) == Counts(1, 0)


# --- the SDK's table in the database that is to be ours


def rows_of(place: Place, database: Any) -> list[Any]:
    """All that the SDK's table holds."""
    if place.source.startswith("sqlite"):
        return place.theirs._backend.execute("SELECT * FROM locus_checkpoints ORDER BY 1")
    return run(fetched(place.source))


async def fetched(url: str) -> list[Any]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT * FROM locus_checkpoints ORDER BY thread_id, seq")
    finally:
        await connection.close()
    return [tuple(it) for it in rows]


@pytest.mark.parametrize("kind", ["sqlite", "tenants"])
async def test_the_sdks_table_may_stand_in_our_database_and_is_not_touched(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = place_of(kind, request, tmp_path)
    for checkpoint_id in ("c1", "c2"):
        await place.theirs.save(state(checkpoint_id), "t1", checkpoint_id)
    await place.theirs.close()
    before = rows_of(place, request)
    async with open_checkpointer(place.source, state_type=AgentState) as blocked:
        with pytest.raises(SchemaError, match=r"locus_checkpoints not made by.*prefix"):
            await import_locus(blocked.backend, place.source)
    mine = open_checkpointer(place.source, state_type=AgentState, prefix="mine_")
    async with mine:
        assert await import_locus(mine.backend, place.source) == Counts(1, 0)
        assert await mine.list_checkpoints("t1") == ["c2", "c1"]
        await mine.save(state("c3"), "t1")
    assert rows_of(place, request) == before


async def test_our_own_table_is_not_taken_for_the_sdks(
    migrated_database: str, migrated: Path
) -> None:
    for source in (migrated_database, f"sqlite:///{migrated}"):
        with pytest.raises(SchemaError, match="locus_checkpoints is not one of the Locus SDK's"):
            await import_locus(MemoryBackend(), source)


# --- what is damaged, or not the SDK's


def edit(change: Callable[[dict[str, Any]], None] | None, text: str = "") -> Any:
    """Change what is stored of checkpoint ``c2`` of thread ``bad``."""

    def done(place: Place) -> None:
        if isinstance(place.theirs, FileCheckpointer):
            path = place.theirs.base_dir / "bad" / "c2.json"
            data = json.loads(path.read_text())
            if change:
                change(data["state"])
            path.write_text(json.dumps(data) if change else text)
            return
        store = place.theirs._backend
        if isinstance(store, RedisBackend):
            with redis.Redis.from_url(place.source) as client:
                data = json.loads(client.get("locus:state:bad:c2"))
                if change:
                    change(data)
                client.set("locus:state:bad:c2", json.dumps(data) if change else text)
            return
        query = f"SELECT data FROM {store.table} WHERE thread_id = 'bad:c2'"
        data = json.loads(store.execute(query)[0][0])
        if change:
            change(data)
        query = f"UPDATE {store.table} SET data = ? WHERE thread_id = 'bad:c2'"
        store.execute(query, json.dumps(data) if change else text)

    return done


BROKEN = {
    "truncated": (edit(None, '{"checkpoint_id": "c2", "th'), IntegrityError),
    "empty": (edit(None, ""), IntegrityError),
    "a list": (edit(None, "[1]"), IntegrityError),
    "too deep": (edit(None, "[" * 100_000), IntegrityError),
    "NaN": (edit(lambda it: it.update(confidence=float("nan"))), SerializationError),
    "a huge integer": (edit(lambda it: it.update(iteration=2**70 + 1)), SerializationError),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("kind", ["files", "sqlite", "redis"])
async def test_what_is_damaged_is_named_and_nothing_of_its_thread_is_written(
    kind: str, broken: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = place_of(kind, request, tmp_path)
    for thread_id in ("a", "bad", "z"):
        for checkpoint_id in ("c1", "c2", "c3"):
            await place.theirs.save(state(checkpoint_id), thread_id, checkpoint_id)
    damage, error = BROKEN[broken]
    damage(place)
    backend = MemoryBackend()
    named = r"theirs, thread 'bad': file bad/c2.json" if kind == "files" else "row 'bad:c2'"
    with pytest.raises(error, match=rf"thread 'bad': .*{named.rpartition(': ')[2]}"):
        await import_locus(backend, place.source)
    assert await backend.scan() == ["a", "z"]
    with pytest.raises(error, match="0 were written, 2 were there"):
        await import_locus(backend, place.source)
    await place.theirs.close()


@pytest.mark.parametrize("kind", ["files", "sqlite", "redis"])
async def test_half_a_character_is_imported_exactly(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = place_of(kind, request, tmp_path)
    cut: dict[str, Any] = {"a\ud83e": ["\udd8a"]}
    for checkpoint_id in ("c1", "c2", "c3"):
        await place.theirs.save(state(checkpoint_id), "bad", checkpoint_id, cut)
    edit(lambda it: it.update(agent_id="\ud83e", metadata=cut))(place)
    await place.theirs.close()
    backend = MemoryBackend()
    assert await import_locus(backend, place.source) == Counts(1, 0)
    assert await import_locus(backend, place.source) == Counts(0, 1)
    read = OurAdapter(backend, state_type=dict)
    found = await read.load("bad", "c2") or {}
    assert (found["agent_id"], found["metadata"] | cut) == ("\ud83e", found["metadata"])
    assert await read.get_metadata("bad", "c2") == cut


async def test_a_damaged_checkpoint_whose_id_has_a_colon_stops_its_thread(tmp_path: Path) -> None:
    place = Place(
        StorageBackendAdapter(SQLiteOfMine(tmp_path / "t.db")), f"sqlite:///{tmp_path}/t.db"
    )
    for checkpoint_id in ("x:y", "c2"):
        await place.theirs.save(state("one"), "p:t", checkpoint_id)
    place.theirs._backend.execute(
        "UPDATE locus_checkpoints SET data = '{' WHERE thread_id = 'p:t:x:y'"
    )
    backend = MemoryBackend()
    with pytest.raises(IntegrityError, match=r"thread 'p:t': row 'p:t:x:y' is not JSON"):
        await import_locus(backend, place.source)
    assert await backend.scan() == []


async def test_a_row_of_somebody_else_is_named(keys: Place) -> None:
    await keys.theirs.save(state("one"), "t1")
    await keys.theirs._backend.save("other", {"_checkpoint_id": "c9"})
    backend = MemoryBackend()
    with pytest.raises(IntegrityError, match=r"row 'other' says that it is checkpoint 'c9'"):
        await import_locus(backend, keys.source)
    assert await backend.scan() == ["t1"]


async def test_a_row_of_the_thread_itself_beside_its_checkpoints_is_named(keys: Place) -> None:
    await keys.theirs.save(state("one"), "t1")
    await keys.theirs._backend.save("t1", {"said": []})
    with pytest.raises(IntegrityError, match=r"row 't1' was not written by the adapter"):
        await import_locus(MemoryBackend(), keys.source)


async def test_a_file_of_somebody_else_is_named(files: Place) -> None:
    await files.theirs.save(state("one"), "t1")
    (files.theirs.base_dir / "package.json").write_text('{"name": "x"}')
    backend = MemoryBackend()
    with pytest.raises(IntegrityError, match=r"file package.json is not a checkpoint"):
        await import_locus(backend, files.source)
    assert await backend.scan() == ["t1"]


async def test_a_copied_file_is_no_second_checkpoint(files: Place) -> None:
    await files.theirs.save(state("one"), "t1", "c1")
    folder = files.theirs.base_dir / "t1"
    (folder / "c1 (copy).json").write_bytes((folder / "c1.json").read_bytes())
    with pytest.raises(IntegrityError, match=r"c1 \(copy\).json and file t1/c1.json are both"):
        await import_locus(MemoryBackend(), files.source)


async def test_an_id_that_we_cannot_have_is_named(files: Place) -> None:
    await files.theirs.save(state("one"), "", "c1")
    await files.theirs.save(state("one"), "t1", "y" * 240)
    with pytest.raises(InvalidArgumentError, match=r"thread '': .*c1.json: thread_id must have 1"):
        await import_locus(MemoryBackend(), files.source)


async def test_a_file_that_changes_meanwhile_is_told(files: Place) -> None:
    for thread_id in ("t1", "t2"):
        await files.theirs.save(state("one"), thread_id, "c1")

    def meanwhile(thread_id: str, is_new: bool) -> None:
        run(files.theirs.save(state("two"), "t2", "c1"))

    backend = MemoryBackend()
    with pytest.raises(IntegrityError, match=r"file t2/c1.json changed meanwhile; stop the agents"):
        await import_locus(backend, files.source, progress=meanwhile)
    assert await import_locus(backend, files.source) == Counts(1, 1)


async def test_two_prefixes_of_the_sdk_must_be_chosen_from(redis_url: str) -> None:
    for prefix in ("locus:state:", "locus:checkpoint:", "a*[b]:"):
        theirs = StorageBackendAdapter(RedisOfTheirs(redis_url, prefix=prefix))
        await theirs.save(state(prefix), "t1", "c1")
        await theirs.close()
    with pytest.raises(InvalidArgumentError, match=r"choose by \?prefix="):
        await import_locus(MemoryBackend(), redis_url)
    for prefix in ("locus:checkpoint:", "a*[b]:"):
        backend = MemoryBackend()
        source = f"{redis_url}?prefix={quote(prefix)}&socket_timeout=5"
        assert await import_locus(backend, source) == Counts(1, 0)
        assert said(await ours(backend).load("t1")) == [prefix]


async def test_a_key_that_changes_meanwhile_is_told(redis_url: str) -> None:
    theirs = StorageBackendAdapter(RedisOfTheirs(redis_url, prefix="locus:state:"))
    for thread_id in ("t1", "t2"):
        await theirs.save(state("one"), thread_id, "c1")
    await theirs.close()

    def meanwhile(thread_id: str, is_new: bool) -> None:
        with redis.Redis.from_url(redis_url) as client:
            client.set("locus:state:t2:c1", "{}")

    with pytest.raises(IntegrityError, match=r"row 't2:c1' changed meanwhile; stop the agents"):
        await import_locus(MemoryBackend(), redis_url, progress=meanwhile)


async def test_threads_come_from_keys_beside_ours(redis_url: str) -> None:
    theirs = StorageBackendAdapter(RedisOfTheirs(redis_url, prefix="locus:state:"))
    await theirs.save(state("one"), "t1", "c1")
    await theirs.close()
    async with open_checkpointer(redis_url, state_type=AgentState) as checkpointer:
        for call in (checkpointer.load, checkpointer.exists, checkpointer.list_checkpoints):
            with pytest.raises(SchemaError, match="locus-store import locus"):
                await call("t1")
        with pytest.raises(SchemaError, match="locus-store import locus"):
            await checkpointer.save(state("two"), "t1")
        assert await import_locus(checkpointer.backend, redis_url) == Counts(1, 0)
        assert said(await checkpointer.load("t1")) == ["one"]
        assert await import_locus(checkpointer.backend, redis_url) == Counts(0, 1)


@pytest.mark.parametrize("keys", ["sqlite", "postgresql"], indirect=True)
async def test_what_is_saved_meanwhile_does_not_mix_with_what_is_read(keys: Place) -> None:
    for thread_id in ("t1", "t2"):
        await keys.theirs.save(state("one"), thread_id, "c1")
    await keys.theirs.close()

    def meanwhile(thread_id: str, is_new: bool) -> None:
        if isinstance(keys.theirs._backend, PostgreSQLBackend):
            run(_saved(keys.source))

    async def _saved(source: str) -> None:
        theirs = StorageBackendAdapter(PostgreSQLBackend(dsn=source))
        await theirs.save(state("two"), "t2", "c1")
        await theirs.close()

    backend = MemoryBackend()
    assert await import_locus(backend, keys.source, progress=meanwhile) == Counts(2, 0)
    assert said(await ours(backend).load("t2")) == ["one"]


async def test_what_was_not_kept_as_it_is_in_the_source_is_told(files: Place) -> None:
    class Forgetful(MemoryBackend):
        async def write_thread(self, thread: Any) -> bool:
            line = thread.lines[0]
            line.records[0].metadata.clear()
            return await super().write_thread(thread)

    await files.theirs.save(state("one"), "t1", "c1", {"kind": "x"})
    with pytest.raises(IntegrityError, match=r"what was stored of file t1/c1.json differs"):
        await import_locus(Forgetful(), files.source)


async def test_a_state_that_we_had_loaded_leaves_its_mark_behind(files: Place) -> None:
    backend = MemoryBackend()
    await ours(backend).save(state("one"), "here")
    await files.theirs.save(await ours(backend).load("here"), "t1")
    await import_locus(backend, files.source)
    assert (await backend.load("t1"))["metadata"] == {}
    assert unmarked(await ours(backend).load("t1")) == unmarked(await ours(backend).load("here"))


# --- arguments


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        ("oracle://localhost", {}, InvalidArgumentError),
        ("nowhere", {}, ConnectionFailedError),
        ("sqlite:///nowhere.db", {}, ConnectionFailedError),
        ("file:.", {"table_name": "t"}, InvalidArgumentError),
        ("file:.", {"tenant": "t"}, InvalidArgumentError),
        ("file://host/x", {}, InvalidArgumentError),
        ("sqlite:///x.db?tenant=t", {}, InvalidArgumentError),
        ("sqlite:///x.db", {"table_name": 'x"; DROP'}, InvalidArgumentError),
        ("sqlite:///x.db?table_name=a-b", {}, InvalidArgumentError),
        ("sqlite:///x.db", {"table_name": "locus_checkpoints"}, SchemaError),
    ],
)
async def test_a_source_that_makes_no_sense_is_refused(
    source: str,
    options: dict[str, str],
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sqlite3.connect("x.db").close()
    with pytest.raises(error):
        await import_locus(MemoryBackend(), source, **options)
    assert not (tmp_path / "nowhere.db").exists()


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    path.write_text("not a database " * 100)
    with pytest.raises(ConnectionFailedError, match="not a database"):
        await import_locus(MemoryBackend(), f"sqlite:///{path}")
    with pytest.raises(ConnectionFailedError, match=r"sqlite:///file\.db"):
        await import_locus(MemoryBackend(), str(path))


async def test_a_thread_that_is_not_there_is_told_before_anything_is_written(files: Place) -> None:
    await files.theirs.save(state("one"), "t1")
    backend = MemoryBackend()
    with pytest.raises(NotFoundError, match="no thread 't2'"):
        await import_locus(backend, files.source, thread_ids=["t1", "t2"])
    assert await backend.scan() == []
