"""The settings by which real servers end a statement or a session, named by our errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from locus_store import LocusStoreError, postgresql_checkpointer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import servers

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["postgresql", "postgresql_16"])
def server(request: Any) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def url(server: servers.Server) -> Iterator[str]:
    with server.migrated_database() as name:
        yield server.url(name)


async def refused(url: str, setting: str, **options: Any) -> str:
    """Return the error of a save that waits for tables which another session has locked."""
    holder = await asyncpg.connect(url)
    limited = url + ("&" if "?" in url else "?") + f"options=-c%20{setting}%3D300ms"
    try:
        async with postgresql_checkpointer(limited, state_type=dict, **options) as checkpointer:
            await checkpointer.save({"n": 1}, "t")
            async with holder.transaction():
                await holder.execute("LOCK TABLE locus_threads, locus_lines")
                with pytest.raises(LocusStoreError) as raised:
                    await checkpointer.save({"n": 2}, "t")
            await checkpointer.save({"n": 3}, "t")
            assert (await checkpointer.load("t"))["n"] == 3
        return str(raised.value)
    finally:
        await holder.close()


@pytest.mark.parametrize(
    ("setting", "state"),
    [("lock_timeout", "55P03"), ("statement_timeout", "Time"), ("transaction_timeout", "25P04")],
)
async def test_the_error_of_a_server_names_the_limit(
    server: servers.Server, url: str, setting: str, state: str
) -> None:
    if setting == "transaction_timeout" and server.value("SHOW server_version_num") < "17":
        pytest.skip("PostgreSQL 17 has it first")
    options = {"statement_timeout_seconds": 0.3} if setting == "statement_timeout" else {}
    told = await refused(url, setting, **options)
    assert state in told
    assert setting in told
