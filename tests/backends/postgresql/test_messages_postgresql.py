"""The message log in PostgreSQL: its contract, round trips and races."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import asyncpg
import pytest
from servers import wait_until
from test_round_trips import statements
from tiers import first_of

from locus_store import IntegrityError, NewMessage, PostgreSQLMessageLog


@pytest.mark.anyio
@pytest.mark.parametrize("count", [1, 200])
async def test_an_append_is_one_statement_and_one_round_trip(migrated_database, count) -> None:
    """One prepared statement in autocommit, without ``BEGIN`` and ``COMMIT``."""
    async with PostgreSQLMessageLog(migrated_database, pool_size=1) as log:
        await log.append("first", [("the driver asks for types once",)])
        for expected, thread in ((None, "t"), (None, "t"), (None, "u"), (0, "v")):
            ids = [f"m{n}" if n % 2 else None for n in range(count)]
            batch = [NewMessage(n, message_id=name) for n, name in enumerate(ids)]
            with statements() as sent, queries_of(log) as others:
                await log.append(thread, batch, expected_revision=expected)
            assert (len(sent), others) == (1, [])


@contextmanager
def queries_of(log):
    """Collects the queries of open connections within the block that are not prepared."""
    sent: list[str] = []

    def note(it) -> None:
        sent.append(it.query)

    home = log.backend._runner._pools._resources[asyncio.get_running_loop()]
    connections = [*home._connections]
    for it in connections:
        it.add_query_logger(note)
    try:
        yield sent
    finally:
        for it in connections:
            it.remove_query_logger(note)


UPDATES = """
SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE relname IN ('locus_threads', 'locus_lines', 'locus_logs')
"""


@pytest.mark.parametrize("ttl_seconds", first_of(3600.0, None))
def test_saves_and_appends_of_a_thread_are_hot_updates(
    postgresql, migrated_database, ttl_seconds
) -> None:
    """No index grows: of the thread's row, which a minute changes, of its line, of its log."""
    database, rounds = migrated_database.rpartition("/")[2], 200
    before = {name: told for name, *told in postgresql.fetch(UPDATES, database=database)}

    async def work() -> None:
        async with PostgreSQLMessageLog(
            migrated_database, pool_size=2, ttl_seconds=ttl_seconds
        ) as log:
            for n in range(1 + rounds):
                await log.append("t", [(f"message {n}", "user", f"m{n}")])
                await log.backend.write_state("t", {"n": n}, ttl_seconds=ttl_seconds)
            lists = [(await log.backend.recent(1))[0].thread_id]
            await log.append("u", [("newer",)])
            lists.append((await log.backend.recent(1))[0].thread_id)
            await log.append("t", [("newest",)])
            lists.append((await log.backend.recent(1))[0].thread_id)
            assert lists == ["t", "u", "t"]

    asyncio.run(work())

    def counted():  # each connection tells when it ends
        found = {
            name: [now - then for now, then in zip(told, before[name], strict=True)]
            for name, *told in postgresql.fetch(UPDATES, database=database)
        }
        is_told = min(found["locus_lines"][0], found["locus_logs"][0]) >= rounds
        return found if is_told else None

    found = wait_until(counted, "the statistics of the updates")
    for name in ("locus_lines", "locus_logs"):
        updates, hot = found[name]
        assert hot >= 0.99 * updates, found
    assert found["locus_threads"][0] <= 2, found  # a minute may end meanwhile


@pytest.mark.anyio
async def test_a_number_that_is_not_one_is_damage(migrated_database) -> None:
    async with PostgreSQLMessageLog(migrated_database) as log:
        await log.append("t", [NewMessage("a", metadata={"k": 1})])
        connection = await asyncpg.connect(migrated_database)
        await connection.execute("""UPDATE locus_messages SET metadata = '{"k": 1e400}'""")
        await connection.close()
        for call in (log.load("t"), log.contents("t")):
            with pytest.raises(IntegrityError):
                await call
