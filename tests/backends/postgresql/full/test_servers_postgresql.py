"""The servers of the tests do what tests rely on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
import servers

TESTS = Path(__file__).parents[3]


def ask(url: str, query: str = "SELECT 1", **options: object) -> object:
    async def asked() -> object:
        connection = await asyncpg.connect(url, timeout=30, **options)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(asked())


@pytest.fixture
def own() -> servers.PostgreSQL:
    """A server that may be killed."""
    try:
        server = servers.PostgreSQL()
    except servers.UnavailableError as error:
        servers.missing(error)
    yield server
    server.stop()


def test_a_killed_server_comes_back_with_what_was_committed(own: servers.PostgreSQL) -> None:
    own.execute("CREATE TABLE t AS SELECT 7 AS n")
    port = own.port
    own.kill()
    with pytest.raises(OSError):  # noqa: PT011 - whatever a closed port gives
        ask(own.url())
    own.start()
    assert own.port == port
    assert ask(own.url(), "SELECT n FROM t") == 7


def test_a_killed_backend_ends_all_connections_and_the_server_goes_on(
    own: servers.PostgreSQL,
) -> None:
    async def use() -> None:
        first, second = [await asyncpg.connect(own.url()) for _ in range(2)]
        own.kill_backend(first.get_server_pid())
        for connection in (first, second):
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await connection.fetchval("SELECT pg_sleep(30)")
            connection.terminate()

    asyncio.run(use())

    def answers() -> object:
        try:
            return ask(own.url())
        except (asyncpg.PostgresError, OSError):
            return None

    assert servers.wait_until(answers, "the server to recover") == 1


def test_a_server_does_not_outlive_tests_that_were_killed(tmp_path: Path) -> None:
    script = "import servers, sys; s = servers.PostgreSQL(); print(s.process.pid, s.directory);"
    script += "sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        pid, directory = tests.stdout.readline().split()
        assert not servers.is_gone(int(pid))
        tests.kill()
    servers.wait_until(lambda: servers.is_gone(int(pid)), "the server to end")
    servers.wait_until(lambda: not os.path.exists(directory), "its files to go")


def test_every_database_of_a_test_is_its_own(postgresql: servers.Server) -> None:
    first, second = postgresql.new_database(), postgresql.new_database()
    postgresql.execute("CREATE TABLE t (n int)", first)
    assert postgresql.value("SELECT to_regclass('t') IS NULL", database=second)
    for name in (first, second):
        postgresql.drop_database(name)


def test_the_older_server_is_the_older_version(postgresql_16: servers.PostgreSQL) -> None:
    assert postgresql_16.version == 16
    assert str(ask(postgresql_16.url(), "SHOW server_version")).startswith("16.")


def test_a_server_with_tls_is_verified_by_its_authority(
    postgresql_tls: servers.PostgreSQL,
) -> None:
    tls = postgresql_tls.tls
    url = postgresql_tls.url(
        sslmode="verify-full",
        sslrootcert=tls.ca,
        sslcert=tls.client_certificate,
        sslkey=tls.client_key,
    )
    query = "SELECT client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl"
    assert ask(url, query) == "/CN=postgres"
    other = postgresql_tls.url(sslmode="verify-full", sslrootcert=tls.other_ca)
    with pytest.raises(OSError, match="certificate verify failed"):
        ask(other)


def test_a_pooled_connection_changes_its_backend_between_transactions(
    pgbouncer: servers.PgBouncer,
) -> None:
    async def use() -> set[int]:
        connections = [
            await asyncpg.connect(pgbouncer.url(), statement_cache_size=0) for _ in range(3)
        ]
        first = connections[0]
        async with first.transaction():  # keeps one, so that the pool has to open the other
            await asyncio.gather(*(it.fetchval("SELECT 1") for it in connections))
        found = {await first.fetchval("SELECT pg_backend_pid()") for _ in range(4)}
        for it in connections:
            await it.close()
        return found

    assert len(asyncio.run(use())) == 2


def test_a_proxy_passes_holds_swallows_and_resets(postgresql: servers.Server) -> None:
    proxy = servers.Proxy(postgresql.port, postgresql.host)
    name = postgresql.new_database()

    async def use() -> None:
        connection = await asyncpg.connect(proxy.url(postgresql, name))
        await connection.execute("CREATE TABLE t (n int)")

        proxy.hold()
        asked = asyncio.ensure_future(connection.fetchval("SELECT 1"))
        assert not (await asyncio.wait([asked], timeout=0.05))[0]
        proxy.release()
        assert await asked == 1

        proxy.swallow_replies()
        lost = asyncio.ensure_future(connection.execute("INSERT INTO t VALUES (1)"))
        while not await asyncio.to_thread(postgresql.value, "SELECT n FROM t", database=name):
            assert not lost.done()
        proxy.drop()
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await lost
        proxy.release()
        assert await ask_again(proxy.url(postgresql, name)) == 1

    async def ask_again(url: str) -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval("SELECT count(*) FROM t")
        finally:
            await connection.close()

    try:
        asyncio.run(use())
    finally:
        proxy.close()
        postgresql.drop_database(name)
    assert proxy.accepted == 2
