"""The message log in PostgreSQL: its contract, round trips and races."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest
from test_round_trips import statements

from locus_store import NewMessage, PostgreSQLMessageLog
from locus_store.testing import MessageLogContract


class TestPostgreSQL(MessageLogContract):
    @pytest.fixture
    def reopen(self, migrated_database):
        return lambda **options: PostgreSQLMessageLog(
            migrated_database, **{"pool_size": 4, **options}
        )


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

    home = log.backend._runner._homes._homes[asyncio.get_running_loop()]
    connections = [*home._connections]
    for it in connections:
        it.add_query_logger(note)
    try:
        yield sent
    finally:
        for it in connections:
            it.remove_query_logger(note)
