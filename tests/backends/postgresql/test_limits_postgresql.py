"""The settings by which a server ends a session or a statement, named by our errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
import sqlalchemy as sa
from servers import wait_until

from locus_store import ConnectionFailedError, PostgreSQLBackend
from locus_store.backends.postgresql.dialect import PostgreSQLDatabase
from locus_store.sql.schema.tables import make_tables

if TYPE_CHECKING:
    import servers

SESSION = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1"


@pytest.mark.parametrize(
    ("state", "setting"),
    [
        ("25P03", "idle_in_transaction_session_timeout"),
        ("25P04", "transaction_timeout"),
        ("57P05", "idle_session_timeout"),
        ("55P03", "lock_timeout"),
    ],
)
def test_the_error_names_the_limit(state: str, setting: str) -> None:
    database = PostgreSQLDatabase("url", make_tables(), tenant="default", auto_migrate=False)
    error = asyncpg.PostgresError.new({"C": state, "M": "the server's words"})
    told = str(database.translate_error(error))
    assert state in told
    assert setting in told


@pytest.mark.anyio
async def test_the_error_names_the_limit_of_an_idle_transaction(
    postgresql: servers.Server, migrated_database: str
) -> None:
    admin = await asyncpg.connect(migrated_database)
    name = await admin.fetchval("SELECT current_database()")
    await admin.execute(f'ALTER DATABASE "{name}" SET idle_in_transaction_session_timeout = 50')
    await admin.close()

    def idles(it: Any) -> None:
        pid = it.connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        wait_until(lambda: not postgresql.value(SESSION, pid), "the server to end the session")
        it.connection.execute(sa.text("SELECT 1"))

    async with PostgreSQLBackend(migrated_database) as backend:
        with pytest.raises(ConnectionFailedError, match="idle_in_transaction_session_timeout"):
            await backend._write(idles)
