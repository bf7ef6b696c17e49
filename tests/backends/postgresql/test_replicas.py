"""Reads from standbys: they see the object's own writes, however far the standby is behind."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import servers
import tiers
from sqlalchemy.ext.asyncio import create_async_engine

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    InvalidArgumentError,
    blocking,
    limit_staleness,
    postgresql_checkpointer,
)
from locus_store.backends.postgresql import replicas
from locus_store.backends.postgresql.store import PostgreSQLMessageLog, PostgreSQLStore
from locus_store.types import PendingWrite
from locus_store.types.messages import NewMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.anyio

DEADLINE_SECONDS = 60.0
HBA = f"{servers.TRUST}\nlocal replication postgres trust\n"
POSITION = "SELECT pg_current_wal_lsn()::text"
FLUSH = "SELECT pg_logical_emit_message(true, 'test', 'flush')"
IS_THERE = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn"
SESSIONS = 50
READS = 100_000 if tiers.LONG else 2_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Pair:
    """A primary and its standby."""

    def __init__(self) -> None:
        self.primary = servers.PostgreSQL(hba=HBA)
        try:
            self.standby = servers.Standby(self.primary)
        except BaseException:
            self.primary.stop()
            raise

    def stop(self) -> None:
        self.standby.stop()
        self.primary.stop()

    def catch_up(self) -> None:
        """Wait until the standby has replayed all."""
        self.primary.execute(FLUSH)  # else records without a commit are sent some time later
        position = self.primary.value(POSITION)
        servers.wait_until(lambda: self.standby.value(IS_THERE, position), "the standby")

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the standby from replaying anything."""
        self.catch_up()
        self.standby.execute("SELECT pg_wal_replay_pause()")
        is_paused = "SELECT pg_get_wal_replay_pause_state() = 'paused'"
        servers.wait_until(lambda: self.standby.value(is_paused), "the pause")
        try:
            yield
        finally:
            self.standby.execute("SELECT pg_wal_replay_resume()")

    def delay(self, milliseconds: int) -> None:
        """Let the standby replay each commit so much later."""
        self.standby.execute(f"ALTER SYSTEM SET recovery_min_apply_delay TO {milliseconds}")
        self.standby.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Shared, and as it was after each test."""
    with servers.started(Pair) as pair:
        yield pair


@pytest.fixture
def own_pair() -> Iterator[Pair]:
    """For a test that destroys it."""
    with servers.started(Pair) as pair:
        yield pair


def opened(pair: Pair, database: str, port: int | None = None, **options: Any) -> Any:
    place = f"{servers.LOOPBACK}:{port or pair.standby.port}"
    url = pair.primary.url(database)
    return postgresql_checkpointer(url, replicas=place, state_type=dict, **options)


def plain(pair: Pair, database: str) -> Any:
    return postgresql_checkpointer(pair.primary.url(database), state_type=dict)


async def eventually(condition: Callable[[], Awaitable[Any]]) -> None:
    limit = time.monotonic() + DEADLINE_SECONDS
    while not await condition():
        assert time.monotonic() < limit, "it never came true"
        await asyncio.sleep(0.005)


async def warm(checkpointer: Any) -> None:
    """Read until the primary's position is known."""
    runner = checkpointer.backend._runner

    async def is_known() -> bool:
        await checkpointer.load("warm")
        states = runner.positions._states
        return bool(states) and states[-1].writes == runner.positions._writes

    await eventually(is_known)


async def test_reads_go_to_a_standby_and_own_writes_are_seen_at_once(pair: Pair) -> None:
    with pair.primary.migrated_database() as name:
        async with opened(pair, name) as mine, plain(pair, name) as other:
            await other.save({"n": 1}, "theirs")
            await other.save({"n": 1}, "mine")
            pair.catch_up()
            await warm(mine)
            with pair.pause():
                await other.save({"n": 2}, "theirs")
                for number in range(2, 12):
                    await mine.save({"n": number}, "mine")
                    assert await mine.load("mine") == {"n": number}
                assert await mine.load("theirs") == {"n": 1}, "of the standby"
                assert len(await mine.list_checkpoints("mine", limit=100)) == 11
                assert await mine.delete("mine")
                assert await mine.load("mine") is None


async def test_a_save_of_a_stale_state_conflicts_and_the_next_load_is_the_newest(
    pair: Pair,
) -> None:
    with pair.primary.migrated_database() as name:
        async with opened(pair, name) as mine, plain(pair, name) as other:
            await other.save({"n": 1}, "t")
            pair.catch_up()
            await warm(mine)
            with pair.pause():
                await other.save({"n": 2}, "t")
                state = await mine.load("t")
                assert state == {"n": 1}
                with pytest.raises(ConflictError):
                    await mine.save({**state, "n": 3}, "t")
                state = await mine.load("t")
                assert state == {"n": 2}
                state["n"] = 3
                await mine.save(state, "t")
                assert await other.load("t") == {"n": 3}
            assert len(await other.list_checkpoints("t")) == 3


async def test_a_server_of_another_database_is_refused_before_anything_is_written(
    pair: Pair, postgresql: servers.Server
) -> None:
    async with opened(pair, "postgres", postgresql.port) as mine:
        with pytest.raises(InvalidArgumentError, match="not a replica of the primary"):
            await mine.save({"n": 1}, "t")
    tables = "SELECT count(*) FROM pg_class WHERE relname LIKE 'locus%'"
    assert pair.primary.value(tables) == 0


async def test_a_token_of_another_process_and_a_limit_choose_the_server_of_a_call(
    pair: Pair,
) -> None:
    with pair.primary.migrated_database() as name:
        async with opened(pair, name) as mine, plain(pair, name) as other:
            await other.save({"n": 1}, "t")
            pair.catch_up()
            await warm(mine)
            with pair.pause():
                before = await other.backend.read_token()
                await other.save({"n": 2}, "t")
                await mine.save({"n": 1}, "mine")
                after = await other.backend.read_token()
                await warm(mine)
                with limit_staleness(at_least=before):
                    assert await mine.load("t") == {"n": 1}, "of the standby"
                with limit_staleness(at_least=after):
                    assert await mine.load("t") == {"n": 2}
                assert await mine.list_threads() == ["mine", "t"]
                with limit_staleness(10):
                    assert await mine.list_threads() == ["t"], "of the standby"
                    assert await mine.load("mine") == {"n": 1}
                await eventually(lambda: is_current(mine, 0.2))


async def is_current(mine: Any, seconds: float) -> bool:
    """Return whether a read of a limited age sees what a paused standby lacks."""
    with limit_staleness(seconds):
        return bool(await mine.load("t") == {"n": 2})


@pytest.mark.parametrize("seconds", [0, -1, True, "1", float("nan")])
def test_a_limit_that_is_not_a_time_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="number above 0"), limit_staleness(seconds):
        pass


@pytest.mark.parametrize("token", ["x", "1-2", "1-2-x", 7])
def test_what_is_not_a_token_is_refused(token: Any) -> None:
    with (
        pytest.raises(InvalidArgumentError, match="read_token"),
        limit_staleness(at_least=token),
    ):
        pass


@pytest.mark.full
async def test_what_a_standby_lacks_is_asked_of_the_primary(pair: Pair) -> None:
    with pair.primary.migrated_database() as name:
        async with opened(pair, name) as mine, plain(pair, name) as other:
            await other.save({"n": 1}, "t", "v1")
            pair.catch_up()
            await warm(mine)
            with pair.pause():
                await other.save({"n": 2}, "t", "v2")
                await other.save({"n": 1}, "new")
                assert await mine.load("t") == {"n": 1}
                assert await mine.load("t", "v2") == {"n": 2}
                assert await mine.load("new") == {"n": 1}
                assert await mine.exists("new")
                assert await mine.list_checkpoints("t", after="v2") == ["v1"]
                assert await mine.backend.namespaces("new") == [""]


READERS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "load": lambda it: it.load("t"),
    "list_checkpoints": lambda it: it.list_checkpoints("t"),
    "list_threads": lambda it: it.list_threads(),
    "list_with_metadata": lambda it: it.list_with_metadata(),
    "query_by_metadata": lambda it: it.query_by_metadata("of", "all"),
    "search": lambda it: it.search("lisbon"),
    "get_metadata": lambda it: it.get_metadata("t"),
    "writes": lambda it: it.backend.get_writes("t", "v1"),
    "store": lambda it: PostgreSQLStore(backend=it.backend).list(("a",)),
    "messages": lambda it: PostgreSQLMessageLog(backend=it.backend).load("t"),
    "message logs": lambda it: PostgreSQLMessageLog(backend=it.backend).logs(),
}


async def write_all(it: Any, number: int) -> None:
    await it.save({"say": f"lisbon {number}"}, "t", f"v{number}", {"of": "all", "n": number})
    await it.save({"say": f"lisbon {number}"}, f"t{number}", metadata={"of": "all"})
    write = PendingWrite("task", number, "channel", "json", b"1")
    await it.backend.put_writes("t", "v1", [write])
    await PostgreSQLStore(backend=it.backend).put(("a",), f"k{number}", {"n": number})
    await PostgreSQLMessageLog(backend=it.backend).append("t", [NewMessage({"n": number})])


@pytest.mark.full
@pytest.mark.parametrize("reader", READERS)
async def test_each_read_goes_to_a_standby_until_this_object_writes(
    pair: Pair, reader: str
) -> None:
    read = READERS[reader]
    with pair.primary.migrated_database() as name:
        overwriting = opened(pair, name, on_conflict="overwrite")
        async with overwriting as mine, plain(pair, name) as other:
            await write_all(other, 1)
            pair.catch_up()
            await warm(mine)
            old = await read(mine)
            with pair.pause():
                await write_all(other, 2)
                new = await read(other)
                assert new != old
                assert await read(mine) == old
                await write_all(mine, 3)
                for _ in range(20):
                    assert await read(mine) == await read(other) != new
                    await asyncio.sleep(0.005)


@pytest.mark.full
async def test_a_save_in_the_callers_transaction_is_seen_when_that_has_ended(pair: Pair) -> None:
    with pair.primary.migrated_database() as name:
        engine = create_async_engine(
            pair.primary.url(name).replace("postgresql://", "postgresql+asyncpg://")
        )
        async with opened(pair, name) as mine:
            await mine.save({"n": 1}, "t")
            await mine.save({"n": 1}, "other")
            pair.catch_up()
            await warm(mine)
            with pair.pause():
                async with engine.connect() as connection:
                    state = await mine.load("t")
                    await mine.save({**state, "n": 2}, "t", connection=connection)
                    for _ in range(10):  # before the end, the positions say nothing of it
                        await warm(mine)
                        assert await mine.load("t") == {"n": 1}
                    await connection.commit()
                for _ in range(10):
                    assert await mine.load("t") == {"n": 2}
                    await warm(mine)
        await engine.dispose()


@pytest.mark.full
async def test_lists_may_lack_own_writes_if_that_is_asked_for(pair: Pair) -> None:
    with pair.primary.migrated_database() as name:
        async with opened(pair, name, max_staleness_seconds=30.0) as mine:
            await mine.save({"say": "lisbon"}, "old")
            pair.catch_up()
            await warm(mine)
            with pair.pause():
                await mine.save({"say": "lisbon"}, "new")
                assert await mine.list_threads() == ["old"]
                assert [it["thread_id"] for it in await mine.search("lisbon")] == ["old"]
                assert await mine.load("new") == {"say": "lisbon"}
                log = PostgreSQLMessageLog(backend=mine.backend)
                await log.append("new", [NewMessage("hello")])
                assert await log.contents("new") == ["hello"]


@pytest.mark.full
async def test_a_standby_that_is_too_far_behind_is_not_read(pair: Pair) -> None:
    with pair.primary.migrated_database() as name:
        seconds = 0.5
        async with (
            opened(pair, name, max_staleness_seconds=seconds) as mine,
            plain(pair, name) as other,
        ):
            await other.save({"n": 1}, "t")
            pair.catch_up()
            await warm(mine)
            with pair.pause():
                for number in range(2, 5):
                    await other.save({"n": number}, "t")
                    saved_at = time.monotonic()
                    while time.monotonic() < saved_at + 2 * seconds:
                        began = time.monotonic()
                        found = await mine.load("t")
                        assert found == {"n": number} or began < saved_at + seconds
                        await asyncio.sleep(0.01)


@pytest.mark.full
async def test_errors_of_a_standby_do_not_reach_the_caller(pair: Pair) -> None:
    signals = ("pg_cancel_backend(pid)", "pg_terminate_backend(pid)")
    with pair.primary.migrated_database() as name:
        async with opened(pair, name) as mine:
            await mine.save({"say": "lisbon " * 1_000}, "t")
            pair.catch_up()
            await warm(mine)
            facts = {it.name: it.value for it in await mine.backend.facts()}
            assert facts[f"replica {servers.LOOPBACK}:{pair.standby.port}"] == "is read"
            query = "SELECT {} FROM pg_stat_activity WHERE datname = $1"

            async def read() -> None:
                for _ in range(40):
                    assert len(await mine.search("lisbon")) == 1
                    assert await mine.load("t") is not None

            reading = [asyncio.create_task(read()) for _ in range(4)]
            while not all(it.done() for it in reading):
                for signal in signals:
                    await asyncio.to_thread(pair.standby.fetch, query.format(signal), name)
            await asyncio.gather(*reading)


async def sees_newest(mine: Any, other: Any, number: int) -> bool:
    """Return whether a read goes to the primary, while the standby cannot have this."""
    await other.save({"n": number}, "t")
    return bool(await mine.load("t") == {"n": number})


@pytest.mark.full
async def test_a_standby_that_is_away_is_replaced_and_used_again(
    own_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "RETRY_SECONDS", 0.05)
    pair = own_pair
    with pair.primary.migrated_database() as name:
        async with opened(pair, name) as mine, plain(pair, name) as other:
            await other.save({"n": 0}, "t")
            pair.catch_up()
            await warm(mine)
            for number in range(1, 100):
                if number == 20:
                    pair.standby.kill()
                await other.save({"n": number}, "t")
                found = await mine.load("t")
                assert number < 20 or found == {"n": number}
            pair.standby.start()
            pair.catch_up()
            (replica,) = mine.backend._runner.replicas

            async def is_used() -> bool:
                await mine.load("t")
                return bool(replica.is_usable)

            await eventually(is_used)
            await warm(mine)
            with pair.pause():
                await other.save({"n": 100}, "t")
                assert await mine.load("t") == {"n": 99}
        pair.standby.kill()
        async with opened(pair, name) as mine:  # without it from the beginning
            assert await mine.load("t") == {"n": 100}
        pair.standby.start()


@pytest.mark.full
async def test_a_standby_that_does_not_answer_does_not_hold_up_a_read_for_long(
    pair: Pair,
) -> None:
    with (
        pair.primary.migrated_database() as name,
        closing(servers.Proxy(pair.standby.port)) as proxy,
    ):
        async with opened(pair, name, proxy.port) as mine, plain(pair, name) as other:
            await other.save({"n": 0}, "t")
            pair.catch_up()
            await warm(mine)
            assert await mine.load("t") == {"n": 0}
            proxy.hold()
            began = time.monotonic()
            for number in range(1, 20):
                await other.save({"n": number}, "t")
                await asyncio.gather(*(mine.load("t") for _ in range(20)))
            assert await mine.load("t") == {"n": 19}
            assert time.monotonic() - began < DEADLINE_SECONDS / 3
            proxy.release()


@pytest.mark.full
async def test_a_promoted_standby_is_noticed(own_pair: Pair) -> None:
    pair = own_pair
    with pair.primary.migrated_database() as name:
        async with opened(pair, name) as mine, plain(pair, name) as other:
            await other.save({"n": 0}, "t")
            pair.catch_up()
            await warm(mine)
            pair.standby.execute("SELECT pg_promote()")
            url = pair.standby.url(name)
            async with postgresql_checkpointer(url, state_type=dict) as split:
                await split.save({"n": "of another history"}, "t")
            await asyncio.sleep(replicas.TRUSTED_SECONDS)
            for number in range(1, 50):
                assert await sees_newest(mine, other, number)
            (replica,) = mine.backend._runner.replicas
            assert not replica.is_usable


@pytest.mark.full
async def test_reads_through_pgbouncer_see_own_writes(pair: Pair) -> None:
    try:
        before, behind = servers.PgBouncer(pair.primary), servers.PgBouncer(pair.standby)
    except servers.UnavailableError as exc:
        servers.missing(exc)
    try:
        with pair.primary.migrated_database() as name:
            url, place = before.url(name), f"{servers.LOOPBACK}:{behind.port}"
            async with (
                postgresql_checkpointer(
                    url, replicas=place, pgbouncer=True, state_type=dict
                ) as mine,
                plain(pair, name) as other,
            ):
                await other.save({"n": 1}, "theirs")
                pair.catch_up()
                await warm(mine)
                with pair.pause():
                    await other.save({"n": 2}, "theirs")
                    for number in range(10):
                        await mine.save({"n": number}, "mine")
                        assert await mine.load("mine") == {"n": number}
                    assert await mine.load("theirs") == {"n": 1}
    finally:
        before.stop()
        behind.stop()


@pytest.mark.full
@pytest.mark.parametrize("milliseconds", [0, 200])
async def test_no_read_is_older_than_the_sessions_own_save(pair: Pair, milliseconds: int) -> None:
    with pair.primary.migrated_database() as name:
        pair.catch_up()
        pair.delay(milliseconds)
        try:
            async with opened(pair, name) as mine:
                older = await asyncio.gather(*(session(mine, f"t{it}") for it in range(SESSIONS)))
            assert sum(older) == 0
        finally:
            pair.delay(0)


async def session(mine: Any, thread_id: str) -> int:
    """Save and read a thread in turn, after pauses of all lengths; return the stale reads."""
    older, number = 0, 0
    for turn in range(READS // SESSIONS):
        if turn % 3 == 0:
            number += 1
            await mine.save({"n": number}, thread_id, f"v{number}")
        if turn % 2:  # a load compares the head with the one that it knows, too
            found = await mine.load(thread_id)
            older += found != {"n": number}
        else:
            older += await mine.list_checkpoints(thread_id, limit=1) != [f"v{number}"]
        await asyncio.sleep((hash((thread_id, turn)) % 20) / 1_000)
    return older


async def count_up(checkpointer: Any, times: int) -> None:
    """Add 1 so often, and repeat each conflict."""
    for _ in range(times):
        while True:
            state = await checkpointer.load("t") or {"n": 0}
            state["n"] += 1
            try:
                await checkpointer.save(state, "t")
            except ConflictError:
                continue
            break


@pytest.mark.full
@pytest.mark.parametrize("milliseconds", [0, 50])
async def test_writers_that_read_from_a_standby_lose_no_update(
    pair: Pair, milliseconds: int
) -> None:
    with pair.primary.migrated_database() as name:
        async with opened(pair, name) as one, opened(pair, name) as two, plain(pair, name) as other:
            await other.save({"n": 0}, "t")
            pair.catch_up()
            pair.delay(milliseconds)
            try:
                for it in (one, two):
                    await warm(it)
                await asyncio.gather(*(count_up(it, 25) for it in (one, two)))
            finally:
                pair.delay(0)
            assert await other.load("t") == {"n": 50}


@pytest.mark.full
async def test_other_loops_and_threads_see_the_writes_of_an_object(pair: Pair) -> None:
    with pair.primary.migrated_database() as name:
        place = f"{servers.LOOPBACK}:{pair.standby.port}"
        url = pair.primary.url(name, replicas=place)
        with blocking.open_checkpointer(url, state_type=dict) as mine:

            def work(thread_id: str) -> None:
                for number in range(20):
                    mine.save({"n": number}, thread_id)
                    assert mine.load(thread_id) == {"n": number}
                    assert thread_id in mine.list_threads()

            with pair.pause():
                await asyncio.gather(*(asyncio.to_thread(work, f"t{it}") for it in range(4)))
                assert mine.load("t0") == {"n": 19}
        async with opened(pair, name) as mine:
            pair.catch_up()
            await warm(mine)
            with pair.pause():
                await asyncio.to_thread(lambda: asyncio.run(mine.save({"n": 20}, "t0")))
                assert await mine.load("t0") == {"n": 20}


@pytest.mark.full
async def test_after_a_fail_over_own_writes_are_seen_on_the_new_primary(own_pair: Pair) -> None:
    pair = own_pair
    with pair.primary.migrated_database() as name:
        ports = (pair.primary.port, pair.standby.port)
        hosts = ",".join(f"{servers.LOOPBACK}:{it}" for it in ports)
        url = f"postgresql://postgres@{hosts}/{name}?target_session_attrs=read-write"
        async with postgresql_checkpointer(url, replicas=hosts, state_type=dict) as mine:
            await mine.save({"n": 0}, "t")
            pair.catch_up()
            await warm(mine)
            pair.primary.kill()
            pair.standby.execute("SELECT pg_promote()")
            number = 1
            while number < 30:
                try:
                    await mine.save({"n": number}, "t", on_conflict="overwrite")
                except (BackendError, ConnectionFailedError):
                    await asyncio.sleep(0.05)
                    continue
                assert await mine.load("t") == {"n": number}
                number += 1
        pair.primary.start()


@pytest.mark.full
async def test_a_standby_of_an_old_primary_is_not_read_however_far_it_is(own_pair: Pair) -> None:
    pair = own_pair
    with (
        servers.started(servers.Standby, pair.primary) as left_behind,
        pair.primary.migrated_database() as name,
    ):
        ports = (pair.primary.port, pair.standby.port)
        hosts = ",".join(f"{servers.LOOPBACK}:{it}" for it in ports)
        url = f"postgresql://postgres@{hosts}/{name}?target_session_attrs=read-write"
        place = f"{servers.LOOPBACK}:{left_behind.port}"
        async with postgresql_checkpointer(url, replicas=place, state_type=dict) as mine:
            await mine.save({"n": 0}, "t", "v0")
            pair.catch_up()
            pair.standby.execute("SELECT pg_promote()")
            pair.primary.execute("CREATE TABLE noise AS SELECT generate_series(1, 300000) AS n")
            position = pair.primary.value(POSITION)
            servers.wait_until(lambda: left_behind.value(IS_THERE, position), "the standby")
            pair.primary.kill()
            await eventually(lambda: saved(mine, "v1"))
            for _ in range(20):
                assert await mine.list_checkpoints("t") == ["v1", "v0"]
                await asyncio.sleep(0.01)
        pair.primary.start()


async def saved(mine: Any, checkpoint_id: str) -> bool:
    with suppress(BackendError, ConnectionFailedError):
        await mine.save({"n": 1}, "t", checkpoint_id, on_conflict="overwrite")
        return True
    return False


@pytest.mark.full
async def test_an_object_that_is_dropped_leaves_no_session_on_a_standby(pair: Pair) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1"
    with pair.primary.migrated_database() as name:
        pair.catch_up()
        mine = opened(pair, name)
        await warm(mine)
        assert pair.standby.value(query, name) > 0
        del mine

        async def is_gone() -> bool:
            return bool(await asyncio.to_thread(pair.standby.value, query, name) == 0)

        await eventually(is_gone)


async def test_the_tenth_timeline_is_the_same_on_both_servers() -> None:
    class Server:
        """A double of a connection."""

        def __init__(self, timeline: str, *, is_replica: bool) -> None:
            self.row = {"timeline": timeline, "is_replica": is_replica, "position": "0/1A"}

        async def fetchrow(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {**self.row, "system_identifier": 1, "database": "agents"}

    primary = await replicas.ask(Server("0000000A0000000000000001", is_replica=False))
    assert (await replicas.ask(Server("0000000a", is_replica=True))).is_replica_of(primary)
