"""Row security, briefly; ``full/test_row_security.py`` has all of it."""

from __future__ import annotations

import asyncio

import pytest
from lazily import TESTS_RUN

from locus_store import NewMessage, PostgreSQLMessageLog, PostgreSQLStore, postgresql_checkpointer

if TESTS_RUN:
    import asyncpg
    from storages.postgresql import secure

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_server_keeps_tenants_apart(migrated_database: str) -> None:
    url = await asyncio.to_thread(secure, migrated_database)
    async with postgresql_checkpointer(url, state_type=dict, pool_size=1) as root:
        for tenant in ("acme", "globex"):
            of_tenant = root.for_tenant(tenant)
            for number in range(2):
                state = {"of": [tenant] * number}
                await of_tenant.save(state, "t")
            await PostgreSQLStore(backend=of_tenant.backend).put(("x",), "k", tenant)
            await PostgreSQLMessageLog(backend=of_tenant.backend).append("t", [NewMessage(tenant)])
        assert [await root.for_tenant(it).load("t") for it in ("acme", "globex")] == [
            {"of": ["acme"]},
            {"of": ["globex"]},
        ]
    async with postgresql_checkpointer(url, state_type=dict, tenant="acme") as fresh:
        assert await fresh.load("t") == {"of": ["acme"]}  # its first call
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("SET LOCAL locus.tenant = 'acme'")
        for table, rows in (("threads", 1), ("checkpoints", 2), ("messages", 1), ("store", 1)):
            assert await connection.fetchval(f"SELECT count(*) FROM locus_{table}") == rows
    with pytest.raises(asyncpg.UndefinedObjectError, match="tenant_is_unset"):
        await connection.fetch("SELECT * FROM locus_checkpoints")
    await connection.close()
