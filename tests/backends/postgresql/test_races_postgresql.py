"""Races that an adversary found; each lost data, or showed deleted data."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import UTC, datetime
from urllib.parse import urlsplit

import asyncpg
import pytest
from servers import DEADLINE_SECONDS, wait_until
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from tiers import ALL

from locus_store import (
    CheckpointSaver,
    ConflictError,
    NewMessage,
    PostgreSQLBackend,
    PostgreSQLMessageLog,
    PostgreSQLStore,
    TurnError,
    postgresql_checkpointer,
)
from locus_store.checkpointer import StorageBackendAdapter
from locus_store.sql import archives, backend as sql_backend, message_log
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.server_repository import LockingRepository
from locus_store.testing.turns import run_outside
from locus_store.types import Expected, PendingWrite
from locus_store.types.thread_info import claim_of

pytestmark = pytest.mark.anyio

ROUNDS = 30


@pytest.fixture
async def backend(migrated_database):
    async with PostgreSQLBackend(migrated_database, pool_size=6) as made:
        yield made


async def jitter(work, rng):
    await asyncio.sleep(rng.random() * 0.004)
    return await work


async def count(url, what):
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(f"SELECT count(*) FROM {what}")
    finally:
        await connection.close()


@pytest.mark.parametrize("stays", [True, False])
async def test_namespaces_of_a_thread_that_are_emptied_at_once_meet_no_deadlock(
    backend, caplog, stays
):
    """Each deletion waited for the other's line: every pair did, for a second."""
    names = [f"node{number}" for number in range(4)]
    for namespace in [*names, *(["kept"] if stays else [])]:
        await backend.write_state("t", {"n": 1}, namespace=namespace, checkpoint_id="c")
    gone = (backend.remove("t", ["c"], namespace=namespace) for namespace in names)
    assert await asyncio.gather(*gone) == [1] * 4
    assert await backend.has_thread("t") is stays
    assert caplog.messages == []


async def test_a_first_save_survives_the_deletion_of_another_namespace(backend):
    rng = random.Random(1)
    for round_ in range(ROUNDS):
        thread = f"t{round_}"
        await backend.write_state(thread, {"n": 1}, namespace="X", checkpoint_id="c")
        _, written = await asyncio.gather(
            jitter(backend.remove(thread, ["c"], namespace="X"), rng),
            jitter(backend.write_state(thread, {"n": 2}, namespace="Y"), rng),
        )
        assert written.outcome == "head"
        assert (await backend.read_state(thread, namespace="Y")).state == {"n": 2}


async def test_nothing_is_left_of_a_thread_that_was_deleted_while_it_was_saved(
    backend, migrated_database
):
    rng = random.Random(2)
    for round_ in range(ROUNDS):
        thread = f"t{round_}"
        await backend.write_state(thread, {"n": 1}, namespace="X")
        await asyncio.gather(
            jitter(backend.remove(thread), rng),
            jitter(backend.write_state(thread, {"n": 2}, on_conflict="overwrite"), rng),
        )
        await backend.write_state(thread, {"n": 3})
        assert (await backend.read_state(thread)).state == {"n": 3}
    lines = "(SELECT line FROM locus_lines)"
    assert await count(migrated_database, f"locus_checkpoints WHERE line NOT IN {lines}") == 0
    threads = "(SELECT tenant, thread_id FROM locus_threads)"
    orphans = f"locus_lines WHERE (tenant, thread_id) NOT IN {threads}"
    assert await count(migrated_database, orphans) == 0


async def test_a_save_that_waits_while_the_index_is_made_is_found(backend, migrated_database):
    first = await backend.write_state("t", {"said": "giraffe"})
    holder = await asyncpg.connect(migrated_database)
    async with holder.transaction():
        await holder.execute("SELECT 1 FROM locus_lines FOR UPDATE")
        save = asyncio.ensure_future(
            backend.write_state("t", {"said": "zebra"}, parent_id=first.checkpoint_id)
        )
        await waits_for_a_lock(migrated_database)
        index = asyncio.ensure_future(backend.create_search_index())
        await asyncio.sleep(0.1)
    await asyncio.gather(save, index)
    await holder.close()
    assert await backend.search("zebra") == ["t"]


async def test_nothing_is_left_of_a_namespace_that_was_created_while_a_deletion_waited(
    backend, migrated_database
):
    await backend.write_state("t", {"n": 1}, namespace="X")
    first, second = [await asyncpg.connect(migrated_database) for _ in range(2)]
    async with second.transaction():
        async with first.transaction():
            await first.execute("SELECT 1 FROM locus_lines FOR UPDATE")
            deletion = asyncio.ensure_future(backend.remove("t"))
            await waits_for_a_lock(migrated_database)
            line = (await backend.write_state("t", {"n": 2}, namespace="Y")).mark.line
            await second.execute("UPDATE locus_lines SET last_sequence = 2 WHERE line = $1", line)
            await second.execute(
                "INSERT INTO locus_checkpoints (line, sequence, chain, checkpoint_id, digest, "
                "created_at) SELECT line, 2, 2, 'later', digest, created_at FROM locus_checkpoints "
                "WHERE line = $1",
                line,
            )
        await waits_for_a_lock(migrated_database)
    assert await deletion == 3
    for table in ("locus_threads", "locus_lines", "locus_checkpoints"):
        assert await count(migrated_database, table) == 0
    await asyncio.gather(first.close(), second.close())


async def test_a_deletion_that_waits_while_the_index_is_made_removes_its_words(
    backend, migrated_database
):
    await backend.write_state("t", {"said": "giraffe"})
    holder = await asyncpg.connect(migrated_database)
    async with holder.transaction():
        await holder.execute("SELECT 1 FROM locus_lines FOR UPDATE")
        deletion = asyncio.ensure_future(backend.remove("t"))
        await waits_for_a_lock(migrated_database)
        index = asyncio.ensure_future(backend.create_search_index())
        assert await index
    assert await deletion == 1
    await holder.close()
    assert await count(migrated_database, "locus_search") == 0


async def test_a_close_that_is_cancelled_leaves_no_connection(migrated_database):
    name = urlsplit(migrated_database).path.removeprefix("/")
    clients = f"pg_stat_activity WHERE datname = '{name}' AND backend_type = 'client backend'"
    for steps in range(1, 30, 1 if ALL else 4):
        backend = PostgreSQLBackend(migrated_database, pool_size=4)
        await asyncio.gather(*(backend.save(f"t{it}", {"n": 1}) for it in range(4)))
        closing = asyncio.create_task(backend.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
    async with asyncio.timeout(30):
        while await count(migrated_database, clients) > 1:  # noqa: ASYNC110  (its own; another session tells nobody)
            await asyncio.sleep(0.01)


WAITING = "pg_stat_activity WHERE wait_event_type = 'Lock'"


async def waits_for_a_lock(url):
    name = urlsplit(url).path.removeprefix("/")
    async with asyncio.timeout(30):
        while not await count(url, f"{WAITING} AND datname = '{name}'"):  # noqa: ASYNC110  (another session tells nobody)
            await asyncio.sleep(0.01)


async def test_parallel_namespaces_of_a_thread_do_not_wait_for_each_other(
    migrated_database: str,
) -> None:
    """As LangGraph's parallel subgraphs do; 31 of 80 saves failed, after up to 36 s."""
    backends = [postgresql_checkpointer(migrated_database, pool_size=4).backend for _ in range(4)]
    await backends[0].write_state("t", {"n": 0})

    async def run(number: int) -> None:
        backend = backends[number % len(backends)]
        for step in range(8):
            for namespace in (f"node{number}", f"node{number}:{step}"):
                write = PendingWrite("task", step, "channel", "type", b"value")
                await backend.put_writes("t", "c", [write], namespace=namespace)
                await backend.write_state("t", {"n": step}, namespace=namespace)

    await asyncio.gather(*(run(number) for number in range(8)))
    thread = await backends[0].read_thread("t")
    assert len(thread.lines) == 1 + 8 + 64
    assert sum(len(it.writes) for it in thread.lines) == 128
    for backend in backends:
        await backend.close()


async def test_a_pop_locks_a_thread_that_was_created_while_it_looked_for_it(
    postgresql, migrated_database, monkeypatch
):
    read, store = Repository.read_row, message_log._Log._store
    appends = [append_elsewhere(migrated_database, number) for number in range(2)]

    def create_and_read(repo, thread_id):
        if appends[0].ident is None:
            appends[0].start()
            appends[0].join()
        return read(repo, thread_id)

    def append_and_store(log):
        appends[1].start()
        waits = f"SELECT count(*) FROM {WAITING}"
        wait_until(lambda: not appends[1].is_alive() or postgresql.value(waits), "the append")
        store(log)

    monkeypatch.setattr(Repository, "read_row", create_and_read)
    monkeypatch.setattr(message_log._Log, "_store", append_and_store)
    async with PostgreSQLMessageLog(migrated_database) as log:
        assert (await log.pop("t")).message.content == 0
        appends[1].join()
        found = await log.read("t")
        assert ([it.content for it in found.messages], found.info.count) == ([1], 1)


def append_elsewhere(url, number):
    """Return a thread in which another client appends a number to a log."""

    async def append():
        async with PostgreSQLMessageLog(url) as log:
            await log.append("t", [NewMessage(number)])

    return threading.Thread(target=lambda: asyncio.run(append()))


async def test_a_write_of_no_turn_does_not_wait_for_the_turn_that_refuses_it(migrated_database):
    """The holder's transaction, which has locked the turn, may wait for the thread."""
    async with PostgreSQLMessageLog(migrated_database) as log:
        await log.append("t", [NewMessage(1)])
        checkpointer = StorageBackendAdapter(log.backend)
        async with checkpointer.turn("t"):
            holder = await asyncpg.connect(migrated_database)
            async with holder.transaction():
                await holder.execute("SELECT 1 FROM locus_turns FOR UPDATE")
                with pytest.raises(TurnError, match="belongs to no turn"):
                    await asyncio.wait_for(run_outside(log.pop("t")), DEADLINE_SECONDS)
            await holder.close()
            assert (await log.pop("t")).message.content == 1


async def test_a_first_save_that_another_one_overtakes_is_a_conflict(
    backend, migrated_database, monkeypatch
):
    """It became a root above the other one, whose state was lost without a word.

    The thread was claimed, so both saves are transactions.
    """
    create, none = Repository.create, Expected(made_from=None, head=None)

    async def save_elsewhere() -> None:
        async with PostgreSQLBackend(migrated_database) as other:
            await other.write_state("t", {"n": 1}, expected=none, claim=claim_of("t", "alice"))

    def create_late(repo, save):
        if save.writer == "late":
            faster = threading.Thread(target=lambda: asyncio.run(save_elsewhere()))
            faster.start()
            faster.join()
        return create(repo, save)

    await backend.claim_thread("t", "alice")
    monkeypatch.setattr(Repository, "create", create_late)
    claim = claim_of("t", "alice")
    with pytest.raises(ConflictError):
        await backend.write_state("t", {"n": 2}, expected=none, writer="late", claim=claim)
    assert await backend.load("t") == {"n": 1}
    assert len(await backend.history("t")) == 1


PUT = PendingWrite("task", 0, "channel", "type", b"value")


async def read_seconds_left(backend):
    return ((await backend.read_thread("t")).expires_at - datetime.now(UTC)).total_seconds()


async def test_writes_renew_a_thread_that_another_transaction_has_locked(
    backend, migrated_database
):
    """They were stored, and expired with the thread a minute later."""
    await backend.write_state("t", {"n": 1}, ttl_seconds=60)
    holder = await asyncpg.connect(migrated_database)
    async with holder.transaction():
        await holder.execute("SELECT 1 FROM locus_threads FOR UPDATE")
        put = asyncio.ensure_future(backend.put_writes("t", "c", [PUT], ttl_seconds=3_600))
        await waits_for_a_lock(migrated_database)
    assert await put
    await holder.close()
    assert await read_seconds_left(backend) > 3_000


@pytest.mark.parametrize("others", [None, 120])
@pytest.mark.parametrize("kind", ["save", "put"])
async def test_calls_that_share_a_statement_renew_a_thread_for_the_longest_time(
    backend, migrated_database, kind, others
):
    """That of any one of them was taken."""
    names = [f"n{number}" for number in range(5)]
    for name in names:
        await backend.write_state("t", {"n": 1}, namespace=name, ttl_seconds=60)
    connection = await asyncpg.connect(migrated_database)
    for longest in names:
        await connection.execute(
            "UPDATE locus_threads SET active_at = active_at - interval '1 hour', "
            "expires_at = now() + interval '1 minute'"
        )
        seconds = {name: 3_600 if name == longest else others for name in names}
        if kind == "save":
            calls = (
                backend.write_state("t", {"n": 2}, namespace=it, ttl_seconds=seconds[it])
                for it in names
            )
        else:
            calls = (
                backend.put_writes("t", longest, [PUT], namespace=it, ttl_seconds=seconds[it])
                for it in names
            )
        await asyncio.gather(*calls)
        assert await read_seconds_left(backend) > 3_000
    await connection.close()


async def test_a_copy_whose_source_is_forgotten_meanwhile_is_not_made(
    backend, migrated_database, monkeypatch
):
    """The copy of what was forgotten stayed, and no call said so."""
    await backend.claim_thread("t", "alice")
    await backend.write_state("t", {"n": 1})
    run = sql_backend._Copy.run

    async def forget() -> None:
        async with PostgreSQLBackend(migrated_database) as other:
            await other.forget_user("alice")

    def forget_and_copy(copy):
        monkeypatch.setattr(sql_backend._Copy, "run", run)
        faster = threading.Thread(target=lambda: asyncio.run(forget()))
        faster.start()
        faster.join()
        run(copy)

    monkeypatch.setattr(sql_backend._Copy, "run", forget_and_copy)
    assert await backend.copy_thread("t", "copy") is False
    assert await backend.scan() == []


async def test_an_item_that_is_replaced_while_items_are_forgotten_stays(
    backend, migrated_database, monkeypatch
):
    """Its number was found by its former metadata, and the new value was deleted."""

    async def replace_elsewhere() -> None:
        async with PostgreSQLStore(migrated_database) as other:
            await other.put(("m",), "k", "new", {"user": "bob"})

    def has_value_late(*args):
        elsewhere.start()
        elsewhere.join(1)  # or it waits for the lock of the item
        return has_value(*args)

    elsewhere = threading.Thread(target=lambda: asyncio.run(replace_elsewhere()))
    has_value = archives.has_value
    monkeypatch.setattr(archives, "has_value", has_value_late)
    async with PostgreSQLStore(migrated_database) as store:
        await store.put(("m",), "k", "old", {"user": "alice"})
        await backend.forget_where("user", "alice")
        elsewhere.join()
        assert await store.get(("m",), "k") == "new"


async def test_a_thread_that_is_created_behind_the_lock_is_not_rewritten(
    backend, migrated_database, monkeypatch
):
    """Its messages were replaced by those that were read, whatever another client put."""
    lock, rewritten = LockingRepository.lock, list[object]()

    async def append_elsewhere() -> None:
        async with PostgreSQLMessageLog(migrated_database) as other:
            await other.append("t", [NewMessage("new", message_id="a")])

    def lock_early(repo, *which, **more):
        is_locked = lock(repo, *which, **more)
        faster = threading.Thread(target=lambda: asyncio.run(append_elsewhere()))
        faster.start()
        faster.join()
        return is_locked

    monkeypatch.setattr(LockingRepository, "lock", lock_early)
    assert not await backend.rewrite_thread("t", lambda it: rewritten.append(it) or it)
    assert rewritten == []


async def test_writes_that_wait_for_their_turn_find_the_version_that_was_removed(
    backend, migrated_database
):
    """They were stored with a version that their statement alone saw, and stayed in the table."""
    async with StorageBackendAdapter(backend).turn("t"):
        for name in ("gone", "kept"):
            await backend.write_state("t", {"n": 1}, checkpoint_id=name)
        holder = await asyncpg.connect(migrated_database)
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM locus_turns FOR UPDATE")
            put = asyncio.ensure_future(
                backend.put_writes("t", "gone", [PUT], must_exist="checkpoint")
            )
            await waits_for_a_lock(migrated_database)
            assert await backend.remove("t", ["gone"]) == 1
        with pytest.raises(ConflictError, match="'gone' is gone"):
            await put
        await holder.close()
    assert await count(migrated_database, "locus_writes") == 0


async def test_writes_that_wait_for_their_turn_find_the_version_that_was_replaced(
    backend, migrated_database
):
    """They were stored as a change of the old version, and no load returned them."""
    words = [f"word {number}" for number in range(100)]
    saver = CheckpointSaver(backend)
    state = {"channel_values": {"m": words}}
    step = {"thread_id": "t", "checkpoint_id": "c"}
    engine = create_async_engine(migrated_database.replace(":", "+asyncpg:", 1))
    async with StorageBackendAdapter(backend).turn("t"):
        await saver.put(**step, checkpoint_data=state)
        async with engine.begin() as connection:
            replacing = {"checkpoint_id": "c", "is_root": True, "connection": connection}
            await backend.write_state("t", {"channel_values": {"m": ["other"]}}, **replacing)
            put = saver.put_writes(**step, task_id="task", writes=[("m", [*words, "more"])])
            task = asyncio.ensure_future(put)
            await waits_for_a_lock(migrated_database)
        await task
    await engine.dispose()
    assert [it["value"] for it in await saver.get_writes(**step)] == [[*words, "more"]]


async def test_a_copy_of_a_thread_that_is_always_renewed_is_made(
    backend, migrated_database, monkeypatch
):
    run = sql_backend._Copy.run

    def renew_and_copy(copy):
        renewing = threading.Thread(target=lambda: asyncio.run(renew()))
        renewing.start()
        renewing.join()
        run(copy)

    async def renew() -> None:
        connection = await asyncpg.connect(migrated_database)
        await connection.execute("UPDATE locus_threads SET active_at = active_at + interval '1 s'")
        await connection.close()

    await backend.write_state("t", {"n": 1})
    monkeypatch.setattr(sql_backend._Copy, "run", renew_and_copy)
    assert await backend.copy_thread("t", "copy") is True


async def test_a_save_that_waits_for_its_turn_keeps_no_more_than_asked(backend, migrated_database):
    """It counted the versions that it saw before it waited, and kept one more."""
    engine = create_async_engine(migrated_database.replace(":", "+asyncpg:", 1))
    async with StorageBackendAdapter(backend).turn("t"):
        for number in range(2):
            await backend.write_state("t", {"n": f"{number}" * 500}, keep_last=2)
        async with engine.begin() as connection:
            await connection.execute(text("SELECT 1 FROM locus_turns FOR UPDATE"))
            await backend.write_state("t", {"n": "2" * 500}, keep_last=2, connection=connection)
            save = asyncio.ensure_future(backend.write_state("t", {"n": "3" * 500}, keep_last=2))
            await waits_for_a_lock(migrated_database)
        await save
    await engine.dispose()
    assert len(await backend.history("t")) == 2
