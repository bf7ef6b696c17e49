"""A database without statistics, and plans that were made while it was empty."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from locus_store import NewMessage, PostgreSQLMessageLog, PostgreSQLStore, postgresql_checkpointer
from locus_store.backends.postgresql.contents import LONE_WRITES
from locus_store.types import PendingWrite
from locus_store.versions import segments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests import servers

pytestmark = pytest.mark.anyio

CALLS = 20
VERSIONS = 300

TABLES = ["checkpoints", "threads", "lines", "writes", "logs", "messages", "store"]
WHOLE = """
SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname <> 'locus_settings'
"""
READ = """
SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'locus_checkpoints')
  + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'locus_checkpoints')
"""


@pytest.fixture
def young(postgresql: servers.Server) -> Iterator[str]:
    """URL of a new database whose tables nobody analyzes.

    A database that another test has used may have been vacuumed while it was empty. PostgreSQL
    then takes the table for small until autovacuum counts it again.
    """
    name = postgresql.new_database(template=postgresql.migrated_template())
    for table in TABLES:
        off = f"ALTER TABLE locus_{table} SET (autovacuum_enabled = off)"
        postgresql.execute(off, database=name)
    yield postgresql.url(name)
    postgresql.drop_database(name)


async def entries_read(url: str, checkpointer: Any, query: str = READ) -> int:
    """The versions that the database has looked at."""
    home = checkpointer.backend._runner._pools._resources[asyncio.get_running_loop()]
    async with home.lease_driver() as connection:
        await connection.fetch("SELECT pg_stat_force_next_flush()")
    reader = await asyncpg.connect(url)
    try:
        return int(await reader.fetchval(query))
    finally:
        await reader.close()


def states(count: int) -> list[dict[str, Any]]:
    return [{"lines": [f"line {it}" for it in range(50)], "step": 0} for _ in range(count)]


@pytest.mark.parametrize(
    ("what", "most"),
    [("save", 2), ("saves in groups", 10), ("load", 6), ("load by id", 6), ("metadata", 4)],
)
async def test_a_call_reads_as_little_of_a_long_thread_as_of_a_short_one(
    what: str, most: int, young: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "is_time", lambda _: False)  # it reads the thread, as it should
    async with postgresql_checkpointer(young, state_type=dict, pool_size=1) as checkpointer:
        threads = states(4)
        steps = iter(range(10**6))

        async def save(number: int = 0) -> str:
            threads[number]["step"] = next(steps)
            state, thread = threads[number], f"t{number}"
            return await checkpointer.save(state, thread, on_conflict="overwrite")

        async def save_all() -> None:
            await asyncio.gather(*(save(it) for it in range(len(threads))))

        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "save": save,
            "saves in groups": save_all,
            "load": lambda: checkpointer.load("t0"),
            "load by id": lambda: checkpointer.load("t0", first),
            "metadata": lambda: checkpointer.get_metadata("t0"),
        }
        first = await save()
        await save_all()
        for _ in range(CALLS):  # the server keeps the plan that it has then
            await calls[what]()
        for _ in range(VERSIONS):
            await save()
        reads = []
        for _ in range(3):  # another session of the database may count between two readings
            before = await entries_read(young, checkpointer)
            for _ in range(CALLS):
                await calls[what]()
            reads.append(await entries_read(young, checkpointer) - before)
        assert min(reads) <= most * CALLS


async def test_logs_and_items_are_found_by_indexes(young: str) -> None:
    async with postgresql_checkpointer(young, state_type=dict, pool_size=1) as checkpointer:
        log = PostgreSQLMessageLog(backend=checkpointer.backend)
        store = PostgreSQLStore(backend=checkpointer.backend)
        message, history = NewMessage("a", message_id="m"), ("space",)

        async def calls() -> None:
            await log.append("t", [NewMessage("a")])
            await log.append("t", [message])
            await log.append("t", [message], also={"beside": [message], ("u", ""): [message]})
            await log.load("t", newest=2)
            await log.contents("t", newest=2)
            await log.info("t")
            await log.pop("t")
            await store.put(history, "k", {"n": 1})
            await store.get(history, "k")
            await asyncio.gather(*(store.get(history, f"k{it}") for it in range(3)))
            await store.delete(history, "k")

        for _ in range(CALLS):  # the server keeps the plans that it has then
            await calls()
        await log.append("t", [], also={(f"t{it}", ""): [message] for it in range(VERSIONS)})
        await asyncio.gather(*(store.put(history, f"k{it}", {"n": 1}) for it in range(VERSIONS)))
        before = await entries_read(young, checkpointer, WHOLE)
        for _ in range(CALLS):
            await calls()
        assert await entries_read(young, checkpointer, WHOLE) - before < VERSIONS


async def test_places_of_pending_writes_are_found_by_indexes(young: str) -> None:
    async with postgresql_checkpointer(young, state_type=dict, pool_size=1) as checkpointer:
        backend = checkpointer.backend
        ttl = iter(range(1_000, 10**9, 1_000))

        async def calls() -> None:
            writes = [PendingWrite("task", it, "channel", "type", b"value") for it in range(2)]
            seconds = next(ttl)  # later each time, so that the thread is renewed
            await backend.put_writes("t", "c", writes, ttl_seconds=seconds)
            await backend.put_writes("t", "c", writes, namespace="a", must_exist="thread")
            many = (backend.put_writes("t", "c", writes, namespace=f"n{it}") for it in range(4))
            await asyncio.gather(*many)

        await backend.write_state("t", {"n": 1}, checkpoint_id="c", ttl_seconds=next(ttl))
        for _ in range(CALLS):  # the server keeps the plans that it has then
            await calls()
        others = (backend.write_state(f"t{it}", {"n": 1}) for it in range(VERSIONS))
        await asyncio.gather(*others)
        before = await entries_read(young, checkpointer, WHOLE)
        for _ in range(CALLS):
            await calls()
        assert await entries_read(young, checkpointer, WHOLE) - before < VERSIONS


async def test_the_server_keeps_the_plans_of_frequent_statements(young: str) -> None:
    async with postgresql_checkpointer(young, state_type=dict, pool_size=1) as checkpointer:
        backend = checkpointer.backend
        for number in range(CALLS):
            thread = f"t{number}"
            await backend.write_state(thread, {"n": 1}, checkpoint_id="c")
            await backend.write_state(thread, {"n": 2}, on_conflict="overwrite")
            for length in (1, LONE_WRITES, LONE_WRITES + 1):
                made = [PendingWrite("task", it, "c", "type", b"value") for it in range(length)]
                await backend.put_writes(thread, "c", made)
            await backend.read_state(thread)
            await backend.remove(thread)
        home = backend._runner._pools._resources[asyncio.get_running_loop()]
        async with home.lease_driver() as connection:
            counts = await connection.fetch(
                "SELECT custom_plans FROM pg_prepared_statements "
                "WHERE custom_plans + generic_plans >= $1",
                CALLS,
            )
    assert [it[0] for it in counts] == [5] * len(counts)
    assert len(counts) >= 7
