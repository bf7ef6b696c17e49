"""A name that moves to the new primary, and leaves the connections of now on the old one."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import servers

from locus_store import BackendError, ConnectionFailedError, open_storage, postgresql_checkpointer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60.0
THREADS = 8
HBA = f"{servers.TRUST}\nlocal replication postgres trust\n"
FENCED = "ALTER SYSTEM SET default_transaction_read_only TO on"
POSITION = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
IS_THERE = "SELECT pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0') >= $1"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def pair() -> Iterator[tuple[servers.PostgreSQL, servers.Standby]]:
    """A primary, and a standby that follows it."""
    try:
        primary = servers.PostgreSQL(hba=HBA)
    except servers.UnavailableError as exc:
        servers.missing(exc)
    try:
        standby = servers.Standby(primary)
        try:
            yield primary, standby
        finally:
            standby.stop()
    finally:
        primary.stop()


class Load:
    """Threads that save one version after another, and know which of them were acknowledged."""

    def __init__(self, checkpointer: Any) -> None:
        self.checkpointer = checkpointer
        self.acknowledged = dict.fromkeys(map(str, range(THREADS)), 0)
        self.saved = asyncio.Event()
        self.is_over = False

    async def saves(self, thread_id: str) -> None:
        while not self.is_over:
            number = self.acknowledged[thread_id] + 1
            try:
                await self.checkpointer.save({"n": number}, thread_id)
            except (BackendError, ConnectionFailedError):
                await asyncio.sleep(0.01)
            else:
                self.acknowledged[thread_id] = number
                self.saved.set()

    async def goes_on(self) -> None:
        """Wait until every thread has saved three more versions."""
        wanted = {it: number + 3 for it, number in self.acknowledged.items()}
        async with asyncio.timeout(DEADLINE_SECONDS):
            while any(self.acknowledged[it] < number for it, number in wanted.items()):
                await self.saved.wait()
                self.saved.clear()


async def switched(
    primary: servers.PostgreSQL, standby: servers.Standby, proxy: servers.Proxy
) -> None:
    """Fail over as managed services do: fence, let the standby catch up, move the name, promote."""
    ask = asyncio.to_thread
    await ask(primary.execute, FENCED)
    await ask(primary.execute, "SELECT pg_reload_conf()")
    await asyncio.sleep(0.1)  # statements that were let in before
    position = await ask(primary.value, POSITION)
    await ask(
        servers.wait_until, lambda: standby.value(IS_THERE, position), "the standby to catch up"
    )
    proxy.switch(standby.port)
    await ask(standby.value, "SELECT pg_promote()")


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pgbouncer"])
async def test_saves_go_on_after_a_fail_over(
    pair: tuple[servers.PostgreSQL, servers.Standby], pooled: bool
) -> None:
    primary, standby = pair
    with closing(servers.Proxy(primary.port)) as proxy:
        way: Any = proxy
        bouncer = None
        if pooled:
            upstream: Any = SimpleNamespace(
                user=primary.user, socket_directory=servers.LOOPBACK, port=proxy.port
            )
            bouncer = servers.PgBouncer(upstream)
        try:
            url = bouncer.url() if bouncer else way.url(primary)
            async with postgresql_checkpointer(url, pgbouncer=pooled) as checkpointer:
                load = Load(checkpointer)
                running = [asyncio.create_task(load.saves(it)) for it in load.acknowledged]
                await load.goes_on()
                await switched(primary, standby, proxy)
                await load.goes_on()
                load.is_over = True
                await asyncio.gather(*running)
                for thread_id, number in load.acknowledged.items():
                    found = await checkpointer.load(thread_id)
                    assert found["n"] in {number, number + 1}  # or one whose answer was lost
        finally:
            if bouncer:
                bouncer.stop()
        assert not standby.value("SELECT pg_is_in_recovery()")


async def until(server: servers.Server, condition: str) -> None:
    await asyncio.to_thread(servers.wait_until, lambda: server.value(condition), condition)


@asynccontextmanager
async def silent_standby(
    primary: servers.PostgreSQL, standby: servers.Standby
) -> AsyncIterator[None]:
    """Stop a synchronous standby meanwhile: commits wait for it."""

    def send(number: signal.Signals) -> None:
        assert standby.process is not None
        for pid in (standby.process.pid, *servers.children(standby.process.pid)):
            os.kill(pid, number)

    await asyncio.to_thread(primary.execute, "ALTER SYSTEM SET synchronous_standby_names TO '*'")
    await asyncio.to_thread(primary.execute, "SELECT pg_reload_conf()")
    await until(primary, "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


async def test_a_repeated_save_waits_for_the_synchronous_standby_too(
    pair: tuple[servers.PostgreSQL, servers.Standby],
) -> None:
    """After a crash the primary has the first save, which the standby never got."""
    primary, standby = pair
    async with postgresql_checkpointer(primary.url()) as checkpointer:
        await checkpointer.save({"n": 1}, "t", "v1")
        async with silent_standby(primary, standby):
            first = asyncio.create_task(checkpointer.save({"n": 2}, "t", "v2"))
            await until(primary, WAITS)
            await asyncio.to_thread(primary.kill)
            with pytest.raises(ConnectionFailedError):
                await first
            await asyncio.to_thread(primary.start)
            assert await checkpointer.exists("t", "v2")
            second = asyncio.create_task(checkpointer.save({"n": 2}, "t", "v2"))
            await until(primary, WAITS)
            assert not second.done()
        assert await second == "v2"


@pytest.mark.parametrize(("call", "waits"), [("save", 3), ("put", 1)])
async def test_a_write_whose_wait_for_the_standby_is_cancelled_is_not_acknowledged(
    pair: tuple[servers.PostgreSQL, servers.Standby], call: str, waits: int
) -> None:
    """The server reports a success with a warning; a save is sent twice more, and waits again."""
    primary, standby = pair

    async def write(opened: Any) -> object:
        if call == "put":
            return await opened.store().put(("a",), "key", {"n": 2})
        return await opened.checkpointer().save({"n": 2}, "t", "v2")

    async with open_storage(primary.url()) as opened:
        await opened.checkpointer().save({"n": 1}, "t", "v1")
        async with silent_standby(primary, standby):
            writing = asyncio.create_task(write(opened))
            for _ in range(waits):
                await until(primary, WAITS)
                assert not writing.done()
                await asyncio.to_thread(primary.execute, CANCEL)
            with pytest.raises(ConnectionFailedError, match="wait for the synchronous standby"):
                await writing
        assert await opened.checkpointer().exists("t", "v2") == (call == "save")


async def test_a_database_that_is_read_only_by_default_is_told_at_once(
    postgresql: servers.Server,
) -> None:
    with postgresql.migrated_database() as name, closing(servers.Proxy(postgresql.port)) as proxy:
        url = proxy.url(postgresql, name)
        async with postgresql_checkpointer(url) as checkpointer:
            await checkpointer.save({"n": 1}, "t")
            quoted = f'"{name}"'
            postgresql.execute(f"ALTER DATABASE {quoted} SET default_transaction_read_only TO on")
        try:
            async with postgresql_checkpointer(url, pool_size=1) as checkpointer:
                assert (await checkpointer.load("t"))["n"] == 1
                before = proxy.accepted
                with pytest.raises(BackendError, match=r"25006.*target_session_attrs=read-write"):
                    await checkpointer.save({"n": 2}, "t")
                assert proxy.accepted == before
        finally:
            postgresql.execute(f"ALTER DATABASE {quoted} RESET default_transaction_read_only")
