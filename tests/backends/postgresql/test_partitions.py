"""Hash partitions by line: moves beside writers, killed moves, and what is refused."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from lazily import TESTS_RUN
from tiers import ALL, full

from locus_store import (
    BackendError,
    InvalidArgumentError,
    PostgreSQLBackend,
    SchemaError,
    UnsupportedError,
    open_checkpointer,
    postgresql_checkpointer,
)
from locus_store.backends.postgresql import partitions
from locus_store.backends.postgresql.partitions import partition
from locus_store.sql import migrate
from locus_store.sql.schema.tables import make_tables
from locus_store.types import PendingWrite

if TESTS_RUN:
    import asyncpg
    import sqlalchemy as sa
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

pytestmark = [pytest.mark.anyio, pytest.mark.posix]

WORKER = Path(__file__).parents[2] / "workers" / "on_partitions.py"
TRIALS = 40 if ALL else 1
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
UNINDEXED = """
SELECT count(*) FROM locus_checkpoints c LEFT JOIN locus_search s USING (line, sequence)
WHERE c.text IS NULL OR s.line IS NULL
"""
DIVIDED = ("checkpoints", "segments", "writes", "search")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def database(postgresql):
    name = postgresql.new_database(template=postgresql.migrated_template())
    yield name
    postgresql.drop_database(name)


@pytest.fixture
def url(postgresql, database) -> str:
    return f"{postgresql.url(database)}"


@pytest.fixture
async def connection(url):
    made = await asyncpg.connect(url)
    yield made
    await made.close(timeout=5)


async def divide(url: str, count: int, **options: Any) -> float | None:
    return await asyncio.to_thread(partition, url, count, **options)


async def count_partitions(connection: Any) -> list[int]:
    query = "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass($1)"
    return [await connection.fetchval(query, f"locus_{it}") for it in DIVIDED]


class Writer:
    """Saves, loads and deletes threads, and knows what was acknowledged."""

    def __init__(self, checkpointer: Any, number: int) -> None:
        self._checkpointer = checkpointer
        self._number = number
        self.versions: dict[str, dict[str, int]] = {}
        self.is_over = False

    async def run(self) -> None:
        dice = random.Random(self._number)
        while not self.is_over:
            thread_id = f"t{self._number}-{dice.randrange(5)}"
            versions = self.versions.setdefault(thread_id, {})
            if dice.random() < 0.05:
                del self.versions[thread_id]
                await self._checkpointer.delete(thread_id)
                continue
            state = await self._checkpointer.load(thread_id) or {"n": 0}
            assert state["n"] == max(versions.values(), default=0), thread_id
            state["n"] += 1
            version = await self._checkpointer.save(state, thread_id, metadata={"n": state["n"]})
            versions[version] = state["n"]


async def check(url: str, writers: list[Writer]) -> None:
    """Each thread has each version that was acknowledged, and no other."""
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        threads = {thread: it for one in writers for thread, it in one.versions.items() if it}
        assert sorted(await checkpointer.list_threads(limit=10_000)) == sorted(threads)
        for thread_id, versions in threads.items():
            assert set(await checkpointer.list_checkpoints(thread_id, limit=10_000)) == {*versions}
            for version, number in list(versions.items())[-3:]:
                assert (await checkpointer.load(thread_id, version))["n"] == number
        assert await checkpointer.backend.damage() == []


# --- what is moved


async def test_threads_are_the_same_in_partitions(url, connection):
    async with PostgreSQLBackend(url) as backend:
        checkpointer = postgresql_checkpointer(url, state_type=dict)
        await backend.create_search_index()
        for number in range(70):  # enough for segments
            state = {"n": number, "text": f"Lisbon {number}"}
            await checkpointer.save(state, "long", checkpoint_id=f"v{number}", metadata=state)
        write = PendingWrite(task_id="t", idx=0, channel="c", type="json", payload=b"1")
        await backend.put_writes("long", "v69", [write])
        await checkpointer.close()
    for count in (4, 1, 8) if ALL else (4,):
        assert await divide(url, count) is not None
        assert await count_partitions(connection) == [0 if count == 1 else count] * 4
        assert await divide(url, count) is None
        async with postgresql_checkpointer(url, state_type=dict) as checkpointer:
            backend = checkpointer.backend
            assert await checkpointer.load("long", "v30") == {"n": 30, "text": "Lisbon 30"}
            assert await checkpointer.load("none") is None
            assert len(await checkpointer.list_checkpoints("long", limit=100)) == 70
            assert (await checkpointer.search("lisbon"))[0]["thread_id"] == "long"
            assert len(await checkpointer.query_by_metadata("n", 33)) == 1
            assert (await backend.fetch("long", with_writes=True)).writes == [write]
            assert await checkpointer.copy_thread("long", "copied")
            await checkpointer.save({"n": 71}, "copied")
            assert await checkpointer.delete("copied")
            assert await backend.damage() == []
    assert migrate.check(url).message.endswith(f"up to date, {count} partitions by line")


@pytest.mark.full
async def test_an_index_that_is_created_later_has_partitions(url, connection):
    await divide(url, 4)
    async with PostgreSQLBackend(url) as backend:
        assert await backend.create_search_index()
    assert await count_partitions(connection) == [4, 4, 4, 4]


@pytest.mark.full
@pytest.mark.parametrize("schema", [None, 'we"ird'])
async def test_another_schema_and_prefix_are_moved(url, schema):
    names = {"prefix": "app_", "schema": schema}
    await asyncio.to_thread(migrate.upgrade, url, **names)
    options = {"prefix": "app_", **({"schema": schema} if schema else {})}
    async with postgresql_checkpointer(url, state_type=dict, **options) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        await divide(url, 2, **names)
        await checkpointer.save({"n": 2}, "t")
        assert await checkpointer.load("t") == {"n": 2}
    assert await divide(url, 2, **names) is None
    assert await divide(url, 2) is not None


@pytest.mark.full
async def test_rights_and_options_of_a_table_stay(url, connection, monkeypatch):
    roles = ("locus_p_owner", "locus_p_app", "locus_p_reports")
    tables = sorted(make_tables().names)
    await connection.execute(
        "; ".join(f"DROP ROLE IF EXISTS {it}; CREATE ROLE {it} LOGIN" for it in roles)
        + """;
        ALTER TABLE locus_checkpoints SET (autovacuum_enabled = false, fillfactor = 90);
        COMMENT ON TABLE locus_checkpoints IS 'it''s ours';
        CREATE INDEX mine ON locus_checkpoints (created_at);
        GRANT SELECT, INSERT, UPDATE, DELETE ON locus_checkpoints TO locus_p_app;
        GRANT SELECT (line), UPDATE (text) ON locus_checkpoints TO PUBLIC;
        GRANT SELECT ON locus_heads TO locus_p_reports WITH GRANT OPTION;
        ALTER DEFAULT PRIVILEGES FOR ROLE locus_p_owner
          GRANT ALL ON TABLES TO locus_p_reports;
        GRANT CREATE ON SCHEMA public TO locus_p_owner;
        """
        + "; ".join(f"ALTER TABLE {it} OWNER TO locus_p_owner" for it in tables)
    )
    query = """SELECT relname, relowner::regrole::text, obj_description(oid),
        (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(relacl) a),
        (SELECT array_agg(attname || attacl::text ORDER BY attname) FROM pg_attribute
         WHERE attrelid = c.oid AND attacl IS NOT NULL)
      FROM pg_class c WHERE relname IN ('locus_checkpoints', 'locus_heads', 'mine') ORDER BY 1"""
    before = await connection.fetch(query)
    async with PostgreSQLBackend(url) as backend:
        await backend.save("t", {"n": 1})
    for phase in ("_join", "_switch"):  # the triggers' log and copy are the owner's
        with monkeypatch.context() as patched:
            patched.setattr(partitions._Move, phase, lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await divide(url, 2)
        async with connection.transaction():
            await connection.execute("SET LOCAL ROLE locus_p_app")
            assert await connection.execute("UPDATE locus_checkpoints SET codec = 0") == "UPDATE 1"
    await divide(url, 2)
    assert await connection.fetch(query) == before
    part = "SELECT reloptions::text, relacl::text FROM pg_class WHERE relname = $1"
    found = await connection.fetchrow(part, "locus_checkpoints_p2_0")
    assert found[0] == "{autovacuum_enabled=false,fillfactor=90}"
    assert "locus_p_reports" not in found[1]
    await divide(url, 1)
    assert await connection.fetch(query) == before
    assert (await connection.fetchrow(part, "locus_checkpoints"))[0] == found[0]
    await connection.execute("REASSIGN OWNED BY locus_p_owner TO CURRENT_USER")
    for it in reversed(roles):
        await connection.execute(f"DROP OWNED BY {it}; DROP ROLE {it}")


@pytest.mark.full
async def test_the_alembic_of_a_project_says_nothing_of_partitions(url, connection):
    await divide(url, 4)
    await connection.execute("CREATE TABLE locus_checkpoints_new (); CREATE TABLE locus_mine ()")

    def compare() -> list[Any]:
        hooks = {"include_object": migrate.include_object, "include_name": migrate.include_name}
        place = url.replace("postgresql://", "postgresql+psycopg://")
        engine = sa.create_engine(place, poolclass=sa.NullPool)
        with engine.connect() as it:
            return compare_metadata(MigrationContext.configure(it, opts=hooks), sa.MetaData())

    pytest.importorskip("psycopg")
    [(what, table)] = await asyncio.to_thread(compare)
    assert (what, table.name) == ("remove_table", "locus_mine")
    assert await asyncio.to_thread(migrate.upgrade, url) == migrate.check(url).revision
    await asyncio.to_thread(migrate.downgrade, url)
    left = "SELECT relname FROM pg_class WHERE relname LIKE 'locus\\_%\\_p4\\_%'"
    assert await connection.fetch(left) == []


# --- what is refused


@pytest.mark.parametrize("count", [0, -2, 3, 48, 512, True])
async def test_a_count_that_is_no_power_of_two_is_refused(count):
    with pytest.raises(InvalidArgumentError, match="power of two from 1 to 256"):
        partition("postgresql://localhost:1/none", count)


async def test_other_databases_and_long_prefixes_are_refused(tmp_path, url):
    with pytest.raises(UnsupportedError, match="only tables of PostgreSQL"):
        partition(f"sqlite:///{tmp_path / 'a.db'}", 2)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidArgumentError, match="at most 43 characters"):
        await divide(url, 2, prefix="p" * 44)
    with pytest.raises(SchemaError, match="no locus-store schema"):
        await divide(url, 2, prefix="other_")


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE VIEW mine AS SELECT line FROM locus_segments", "view public.mine"),
        *full(
            ("CREATE POLICY mine ON locus_writes USING (true)", "policy mine"),
            ("ALTER TABLE locus_writes ENABLE ROW LEVEL SECURITY", "row level security"),
            ("CREATE PUBLICATION mine FOR TABLE locus_checkpoints", "publication mine"),
            ("CREATE UNIQUE INDEX mine ON locus_checkpoints (digest)", "unique index public.mine"),
            (
                "ALTER TABLE locus_segments ADD FOREIGN KEY (line) REFERENCES locus_lines",
                "foreign key locus_segments_line_fkey",
            ),
        ),
    ],
)
async def test_what_a_move_would_lose_is_refused(url, connection, statement, named):
    await connection.execute(statement)
    with pytest.raises(SchemaError, match=f"has {named}, which a move to partitions would lose"):
        await divide(url, 2)
    assert await connection.fetchval("SELECT count(*) FROM locus_settings WHERE name ~ 'part'") == 0
    assert await connection.fetchval("SELECT count(*) FROM pg_class WHERE relname ~ '_new'") == 0


# --- beside others


async def test_a_move_waits_for_older_snapshots_and_is_continued(url, connection, monkeypatch):
    async with postgresql_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t", checkpoint_id="v1")
        monkeypatch.setattr(partitions, "_PATIENCE_SECONDS", 0.0)
        rows = "SELECT checkpoint_id FROM locus_checkpoints"
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetch("SELECT 1")  # the snapshot
            with pytest.raises(BackendError, match="run the command again, which continues"):
                await divide(url, 4)
            with pytest.raises(asyncpg.SerializationError, match="run it again"):
                async with connection.transaction():
                    await connection.execute("DELETE FROM locus_checkpoints")
            assert len(await connection.fetch(rows)) == 1
            await checkpointer.save({"n": 2}, "t", checkpoint_id="v2")
        with pytest.raises(SchemaError, match="db partition --by-line 4"):
            await asyncio.to_thread(migrate.downgrade, url)
        assert "db partition --by-line 4" in migrate.check(url).message
        assert await divide(url, 4) is not None
        assert len(await connection.fetch(rows)) == 2
        assert await checkpointer.load("t", "v1") == {"n": 1}


@pytest.mark.full
async def test_another_count_begins_again_and_the_present_one_undoes(url, connection, monkeypatch):
    step = partitions._Move._join
    monkeypatch.setattr(partitions._Move, "_join", lambda _: 1 / 0)
    for count in (4, 8):
        with pytest.raises(ZeroDivisionError):
            await divide(url, count)
        part = (
            "SELECT count(*) FROM pg_inherits WHERE inhparent = 'locus_checkpoints_new'::regclass"
        )
        assert await connection.fetchval(part) == count
    with pytest.raises(asyncpg.RaiseError, match="finish locus-store db partition"):
        await connection.execute("TRUNCATE locus_checkpoints")
    assert await divide(url, 1) is not None
    assert await connection.fetchval("SELECT count(*) FROM pg_class WHERE relname ~ '_new'") == 0
    assert await connection.fetchval("SELECT count(*) FROM pg_proc WHERE proname ~ 'locus'") == 0
    assert await divide(url, 1) is None
    monkeypatch.setattr(partitions._Move, "_join", step)
    assert await divide(url, 2) is not None


@pytest.mark.full
async def test_two_runs_at_once_make_the_same_partitions(url, connection):
    await asyncio.gather(divide(url, 4), divide(url, 4))
    assert await count_partitions(connection) == [4, 4, 4, 0]
    assert await divide(url, 4) is None


@pytest.mark.full
async def test_two_writers_lose_no_words_while_tables_are_divided_and_indexed(url, connection):
    """The index is created within the first move, and the later ones move it."""
    said: dict[str, str] = {}
    is_over = asyncio.Event()

    async def write(checkpointer: Any, name: str) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            word, thread_id = f"{name}word{number}", f"{name}{number % 7}"
            await checkpointer.save({"said": word}, thread_id)
            said[word] = thread_id

    async with (
        open_checkpointer(url, state_type=dict) as one,
        open_checkpointer(url, state_type=dict) as other,
        PostgreSQLBackend(url) as backend,
    ):
        writers = [asyncio.create_task(write(it, name)) for it, name in ((one, "a"), (other, "b"))]
        await asyncio.gather(divide(url, 4), backend.create_search_index())
        assert await count_partitions(connection) == [4, 4, 4, 4]
        for size in (1, 2):
            await divide(url, size)
        is_over.set()
        await asyncio.gather(*writers)
        some = [*said][:: max(1, len(said) // 50)]
        for word in some:
            assert [it["thread_id"] for it in await one.search(word)] == [said[word]], word
        assert await connection.fetchval(UNINDEXED) == 0
        assert await backend.damage() == []
    assert await count_partitions(connection) == [2, 2, 2, 2]


@pytest.mark.full
@pytest.mark.parametrize("way", ["postgresql_16", "pgbouncer"])
async def test_an_older_server_and_a_pooler_do_as_well(request, database, way):
    server, name = request.getfixturevalue(way), database
    if way == "postgresql_16":
        name = server.new_database(template=server.migrated_template())
    url = server.url(name)
    async with open_checkpointer(f"{url}?pgbouncer=true", state_type=dict) as checkpointer:
        writers = [Writer(checkpointer, it) for it in range(2)]
        writing = [asyncio.create_task(it.run()) for it in writers]
        for count in (4, 2):
            await divide(url, count)
        for it in writers:
            it.is_over = True
        await asyncio.gather(*writing)
    await check(f"{url}?pgbouncer=true", writers)


async def test_a_killed_move_loses_no_save(url, connection):
    dice, kills, number = random.Random(7), 0, 0
    async with open_checkpointer(url, state_type=dict, pool_size=4) as checkpointer:
        writers = [Writer(checkpointer, it) for it in range(4)]
        writing = [asyncio.create_task(it.run()) for it in writers]
        with subprocess.Popen([sys.executable, str(WORKER)], **PIPES) as worker:  # noqa: ASYNC220
            while kills < TRIALS:
                count = (4, 1, 2)[number % 3]
                number += 1
                while await was_killed(worker, url, count, dice.randrange(1, 400)):
                    kills += 1
                    if kills % 5 == 0 or kills >= TRIALS:
                        break
            assert worker.stdin
            worker.stdin.close()
        await divide(url, 4)
        for it in writers:
            it.is_over = True
        await asyncio.gather(*writing)
    assert await count_partitions(connection) == [4, 4, 4, 0]
    await check(url, writers)
    print(f"{kills} kills in {number} moves, {sum(len(it.versions) for it in writers)} threads")


async def was_killed(worker: Any, url: str, count: int, steps: int) -> bool:
    """Start a move and kill it after so many statements; ``False``: it was over before."""
    print(url, count, file=worker.stdin, flush=True)
    pid = int((await asyncio.to_thread(worker.stdout.readline)).split()[1])
    for _ in range(steps):
        if await asyncio.to_thread(worker.stdout.readline) != "step\n":
            return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while await asyncio.to_thread(worker.stdout.readline) == "step\n":
        pass
    return True


@pytest.mark.full
@pytest.mark.parametrize("lock", ["ROW", "ACCESS"])
async def test_a_move_that_is_stopped_within_a_lock_ends(url, connection, lock):
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        await checkpointer.save({"n": 1}, "t")
        with subprocess.Popen([sys.executable, str(WORKER)], **PIPES) as worker:  # noqa: ASYNC220
            print(url, 4, lock, file=worker.stdin, flush=True)
            pid = int((await asyncio.to_thread(worker.stdout.readline)).split()[1])
            while await asyncio.to_thread(worker.stdout.readline) != "stopped\n":
                pass
            await checkpointer.save({"n": 2}, "t")  # the server ends the transaction
            os.kill(pid, signal.SIGKILL)
        await divide(url, 4)
        assert await checkpointer.load("t") == {"n": 2}
    assert await count_partitions(connection) == [4, 4, 4, 0]
