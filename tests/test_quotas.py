"""Quotas of tenants: the rules of leases, all that counts, and what the other layers make of it."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from test_round_trips import sqlite_statements
from tiers import full

from locus_store import (
    InvalidArgumentError,
    NewMessage,
    Quota,
    QuotaError,
    SQLiteBackend,
    UnsupportedError,
    open_checkpointer,
    open_sharded,
    open_storage,
)
from locus_store.sql import quotas
from locus_store.types import PendingWrite
from locus_store.versions.quotas import (
    LEASE_SECONDS,
    SAVES,
    UNNOTICED_SECONDS,
    Count,
    LeaseRequest,
    Usage,
    load_usage,
    take_lease,
)
from locus_store.wire import failures

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

NOW = 1_000_000.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- the rules


def ask(usage: Usage, key: str, limits: dict[str, int] | None = None, **request: Any) -> Any:
    at = request.pop("at", NOW)
    request = {"need": {"threads": 1}, "spent": {}, **request}
    return take_lease(usage, limits or {"threads": 80}, LeaseRequest(key, **request), at)


def test_a_lease_is_an_eighth_of_the_rest() -> None:
    usage = Usage()
    assert ask(usage, "a").granted == {"threads": 10}
    assert ask(usage, "b").granted == {"threads": 8}
    assert ask(usage, "c", is_exact=True).granted == {"threads": 1}
    assert ask(usage, "d", need={"threads": 60}).granted == {"threads": 60}
    assert ask(usage, "e", need={"threads": 2}).refused == "threads"


def test_a_repeated_request_has_the_same_answer() -> None:
    usage = Usage()
    first = ask(usage, "a", {"threads": 80, SAVES: 80})
    assert ask(usage, "a", {"threads": 80, SAVES: 80}).granted == first.granted
    report = {"spent": {"a": {"threads": 3}}, "ended": frozenset("a")}
    assert [ask(usage, key, **report).used["threads"] for key in "bb"] == [3, 3 + 9]
    assert usage.spent["threads"] == 3


def test_a_lease_without_a_report_was_used() -> None:
    usage = Usage()
    ask(usage, "a")
    later = ask(usage, "b", at=NOW + LEASE_SECONDS)
    assert (later.used["threads"], usage.spent["threads"]) == (10, 10)
    late = {"spent": {"a": {"threads": 1}}, "ended": frozenset("a")}
    assert ask(usage, "c", at=NOW + LEASE_SECONDS, **late).spent["threads"] == 10


def test_a_clock_that_was_set_back_ends_leases_and_counts() -> None:
    usage = Usage(due_at=NOW + UNNOTICED_SECONDS)
    ask(usage, "a")
    later = ask(usage, "b", at=NOW - 3600)
    assert (later.wants_count, usage.spent["threads"]) == (True, 10)
    ask(usage, "c", at=NOW - 3600, recount=Count({"threads": 0}, later.spent, 0.0))
    assert usage.compute_used(NOW - 3600)["threads"] < 20


def test_saves_are_those_of_the_minute() -> None:
    usage, limits, need = Usage(), {SAVES: 8}, {SAVES: 8}
    assert ask(usage, "a", limits, need=need).granted == {SAVES: 8}
    refused = ask(usage, "b", limits, need={SAVES: 1})
    assert (refused.refused, refused.used[SAVES], refused.wants_count) == (SAVES, 8, False)
    assert ask(usage, "c", limits, need=need, at=NOW + refused.seconds_left).refused is None


def test_a_refusal_asks_for_a_count_which_rests_after_a_long_one() -> None:
    usage = Usage(counted={"threads": 80})
    assert ask(usage, "a").wants_count
    ask(usage, "a", recount=Count({"threads": 80}, {}, 1.1))
    assert [ask(usage, "a", at=NOW + it).wants_count for it in (19, 21)] == [False, True]
    assert ask(usage, "a", recount=Count({"threads": 70}, {}, 0.05)).granted == {"threads": 1}


def test_bytes_are_counted_again_after_an_eighth_of_the_limit() -> None:
    usage, limits, need = Usage(), {"bytes": 800}, {"bytes": 1}
    spent = [{"spent": {"a": {"bytes": it}}, "need": need} for it in (100, 101)]
    ask(usage, "a", limits, need={"bytes": 101})
    assert [ask(usage, "b", limits, **it).wants_count for it in spent] == [False, True]


def test_what_was_stored_before_a_quota_was_known_is_counted() -> None:
    usage = Usage(due_at=NOW + UNNOTICED_SECONDS)
    assert not ask(usage, "a").wants_count
    assert ask(usage, "b", at=usage.due_at).wants_count


def test_a_stored_usage_is_read_as_it_was() -> None:
    usage = Usage()
    ask(usage, "a")
    document = asdict(usage)
    found = load_usage(document)
    assert found == usage
    ask(found, "b")
    assert document == asdict(usage)


@pytest.mark.parametrize("seed", [*range(4), *full(*range(4, 20))])
def test_processes_never_store_more_than_the_limit(seed: int) -> None:
    """Random calls of three processes, whose answers are lost and which are killed at times."""
    choose, limit = random.Random(seed), 24
    usage, stored, now = Usage(), 0, NOW
    leases: list[dict[str, Any]] = []
    for step in range(600):
        now += choose.random()
        leases = [it for it in leases if it["ends"] > now or it["calls"]]
        live = [it for it in leases if it["left"] and it["ends"] > now + 15]
        match choose.randrange(6):
            case 0:
                spent = {it["key"]: {"threads": it["spent"]} for it in leases}
                ended = frozenset(it["key"] for it in leases if not it["left"] and not it["calls"])
                request = LeaseRequest(f"{step}", {"threads": 1}, spent, ended)
                answer = take_lease(usage, {"threads": limit}, request, now)
                if answer.wants_count:
                    count = Count({"threads": stored}, answer.spent, 0.01)
                    counted = request._replace(recount=count)
                    answer = take_lease(usage, {"threads": limit}, counted, now)
                leases = [it for it in leases if it["key"] not in ended]
                if answer.granted and choose.random() < 0.9:
                    made = {"left": answer.granted["threads"], "spent": 0, "calls": 0}
                    leases.append({**made, "key": request.key, "ends": now + LEASE_SECONDS})
            case 1 | 2 if live:
                lease = choose.choice(live)
                lease["left"] -= 1
                lease["calls"] += 1
            case 3 | 4 if busy := [it for it in leases if it["calls"]]:
                lease = choose.choice(busy)
                lease["calls"] -= 1
                is_done = choose.random() < 0.8
                stored += is_done
                lease["spent"] += is_done
                lease["left"] += not is_done
            case 5:
                stored -= choose.randrange(stored + 1) if choose.random() < 0.2 else 0
                if choose.random() < 0.05:
                    leases.clear()
        assert stored <= limit
        load_usage(asdict(usage))
    assert usage.counted_at > 0


# --- what counts


@pytest.fixture
async def storage(database_file: Path) -> AsyncIterator[Any]:
    async with open_storage(f"sqlite:///{database_file}", tenant="acme") as opened:
        yield opened


async def test_items_messages_and_facts_count(storage: Any) -> None:
    backend, store, log = storage.backend, storage.store(), storage.messages()
    large = os.urandom(6_000).hex()
    await backend.set_quota(Quota(bytes=5_000))
    for call in (
        store.put(("n",), "k", large),
        store.put_batch([(("n",), "a", 1), (("n",), "b", large)]),
        log.append("t", [NewMessage(large)]),
        backend.put_thread("t", user_id="u", metadata={"k": large}),
    ):
        with pytest.raises(QuotaError, match="bytes"):
            await call
    assert (await backend.get_quota()).bytes == 0
    await store.put(("n",), "k", large[:1_000])
    await log.append("t", [NewMessage(large[:1_000])])
    assert 1_700 < (await backend.get_quota()).bytes < 3_500
    assert await store.delete(("n",), "k")
    await log.clear("t")


async def test_threads_of_message_logs_and_facts_count(storage: Any) -> None:
    backend, log = storage.backend, storage.messages()
    await backend.set_quota(Quota(threads=2))
    await log.append("log", [NewMessage("a")])
    await backend.put_thread("named", user_id="u", name="n")
    for call in (log.append("more", [NewMessage("a")]), backend.put_thread("more", user_id="u")):
        with pytest.raises(QuotaError, match="threads"):
            await call
    await log.append("log", [NewMessage("b")])
    await backend.put_thread("named", user_id="u", name="m")
    await storage.checkpointer(state_type=dict).save({}, "log")
    assert (await backend.get_quota()).threads == 2


async def test_a_count_that_waited_for_its_connection_is_followed_by_no_pause(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a tenant below its quota would be refused for seconds after it has deleted something."""
    now, query = [0.0], SQLiteBackend._query

    async def query_late(*args: Any) -> Any:
        now[0] += 1  # for which others had the connection
        return await query(*args)

    monkeypatch.setattr(quotas, "monotonic", lambda: now[0])
    monkeypatch.setattr(SQLiteBackend, "_query", query_late)
    backend = storage.backend
    await backend.set_quota(Quota(threads=1))
    await backend.save("t", {})
    with pytest.raises(QuotaError, match="1 of 1 threads"):
        await backend.save("u", {})
    await backend.remove("t")
    await backend.save("u", {})


async def test_a_thread_of_pending_writes_only_counts_no_thread(storage: Any) -> None:
    backend = storage.backend
    await backend.set_quota(Quota(threads=2))
    for number in range(4):
        write = PendingWrite("task", 0, "channel", "bytes", b"w")
        await backend.put_writes(f"w{number}", "v", [write])
    assert (await backend.get_quota()).threads == 0
    for thread_id in ("w0", "w1"):
        await backend.save(thread_id, {})
    with pytest.raises(QuotaError, match="threads"):
        await backend.save("w2", {})
    assert (await backend.get_quota()).threads == 2


@pytest.fixture(params=["database_file", *full("migrated_database")])
async def either(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """SQLite or PostgreSQL, with a quota of one thread; a slow machine may count again at once."""
    monkeypatch.setattr("locus_store.versions.quotas.PAUSE_PART", 0)
    place = str(request.getfixturevalue(request.param))
    url = place if place.startswith("postgresql") else f"sqlite:///{place}"
    async with open_storage(url, tenant="acme") as opened:
        await opened.backend.set_quota(Quota(threads=1))
        yield opened


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "expired"])
async def test_a_known_thread_that_is_gone_counts_again(either: Any, *, is_deleted: bool) -> None:
    checkpointer = either.checkpointer(state_type=dict)
    await checkpointer.save({"n": 1}, "t", ttl_seconds=None if is_deleted else 1e-6)
    if is_deleted:
        await either.backend.remove("t")  # what the object knows of the thread stays
    await checkpointer.save({"n": 1}, "other")
    with pytest.raises(QuotaError, match="1 of 1 threads"):
        await checkpointer.save({"n": 2}, "t")
    assert (await either.backend.get_quota()).threads == 1
    await checkpointer.delete("other")
    await checkpointer.save({"n": 2}, "t")
    assert (await either.backend.get_quota()).threads == 1


async def test_each_thread_of_a_change_of_logs_counts(either: Any) -> None:
    log, message = either.messages(), NewMessage("a", message_id="m")
    also = {("other", "n"): [message], ("third", "n"): [message]}
    with pytest.raises(QuotaError, match="this call needs 3"):
        await log.append("log", [message], also=also)
    assert (await either.backend.get_quota()).threads == 0
    await either.backend.set_quota(Quota(threads=3))
    for _ in range(3):
        await log.append("log", [message], also=also)
    assert (await either.backend.get_quota()).threads == 3
    with pytest.raises(QuotaError, match="this call needs 1"):
        await log.append("log", [message], also={("fourth", "n"): [message]})


async def test_a_thread_that_is_imported_counts(storage: Any) -> None:
    checkpointer = storage.checkpointer(state_type=dict)
    await checkpointer.save({"large": os.urandom(3_000).hex()}, "t")
    thread = await storage.backend.read_thread("t")
    await checkpointer.delete("t")
    await storage.backend.set_quota(Quota(bytes=2_000))
    with pytest.raises(QuotaError):
        await storage.backend.restore(thread)
    assert await storage.backend.scan() == []


async def test_a_thread_that_a_client_replaces_counts_by_its_growth(storage: Any) -> None:
    backend = storage.backend
    await backend.put_writes("t", "v", [PendingWrite("task", 0, "c", "bytes", b"w")])
    old = await backend.read_thread("t")
    (line,) = old.lines
    (write,) = line.writes
    made = replace(write, write=replace(write.write, payload=os.urandom(2_000)))
    grown = replace(old, lines=[replace(line, writes=[made])])
    await backend.set_quota(Quota(bytes=1_000))
    with pytest.raises(QuotaError, match="bytes"):
        await backend.replace_thread(old, grown)
    await backend.replace_thread(old, old)
    assert await backend.read_thread("t") == old


async def test_the_result_of_a_call_that_was_made_may_exceed_the_quota_once(storage: Any) -> None:
    checkpointer, made, receipt = storage.checkpointer(), [], os.urandom(2_000).hex()

    async def pay(key: str) -> str:
        made.append(key)
        if len(made) == 1:
            await checkpointer.effect("t", "inner", pay)
        return receipt

    await storage.backend.set_quota(Quota(bytes=1_000))
    for name in ("outer", "later"):
        with pytest.raises(QuotaError, match="bytes"):
            await checkpointer.effect("t", name, pay)
        assert await checkpointer.effect("t", "inner", pay) == receipt
    assert len(made) == 2


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_save_in_a_transaction_of_the_callers_counts_as_the_transaction_ends(
    database_file: Path, is_kept: bool
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{database_file}")
    async with open_checkpointer(f"sqlite:///{database_file}", state_type=dict) as checkpointer:
        await checkpointer.set_quota(Quota(threads=1))
        async with engine.connect() as connection:
            transaction = await connection.begin()
            await checkpointer.save({}, "a", connection=connection)
            with pytest.raises(QuotaError):
                await checkpointer.save({}, "b", connection=connection)
            await (transaction.commit() if is_kept else transaction.rollback())
        if is_kept:
            with pytest.raises(QuotaError):
                await checkpointer.save({}, "b")
        else:
            await checkpointer.save({}, "b")
        assert await checkpointer.list_threads() == ["a" if is_kept else "b"]
    await engine.dispose()


# --- who knows of a quota, and what it costs


async def test_a_save_within_a_lease_sends_the_statements_of_one_without_a_quota(
    database_file: Path,
) -> None:
    sent_by = {}
    with sqlite_statements() as sent:
        async with open_checkpointer(f"sqlite:///{database_file}", state_type=dict) as opened:
            for name in ("before", "limited", "free"):
                tenant = opened.for_tenant(name)
                if name == "limited":
                    await tenant.set_quota(Quota(threads=800, bytes=10**9, saves_per_minute=10**6))
                for number in range(3):
                    await tenant.save({"n": number}, "t")
                sent.clear()
                for number in range(20):
                    await tenant.save({"n": number}, "t")
                sent_by[name] = [it.split(" ")[0] for it in sent]
    assert sent_by["before"] == sent_by["limited"] == sent_by["free"]


async def test_a_process_learns_of_the_first_quota(
    database_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{database_file}"
    monkeypatch.setattr(quotas, "LOOK_SECONDS", 0.0)
    async with (
        open_checkpointer(url, state_type=dict) as mine,
        open_checkpointer(url, state_type=dict) as theirs,
    ):
        await mine.save({}, "a")
        await theirs.set_quota(Quota(threads=1))
        await mine.save({}, "b")  # the look is beside it
        await mine.backend._background.get().finish()
        with pytest.raises(QuotaError):
            await mine.save({}, "c")


async def test_a_lowered_quota_is_known_when_the_lease_ends(
    database_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{database_file}"
    async with (
        open_checkpointer(url, state_type=dict) as mine,
        open_checkpointer(url, state_type=dict) as theirs,
    ):
        await theirs.set_quota(Quota(threads=80))
        await mine.save({}, "a")
        await theirs.set_quota(Quota(threads=1))
        await mine.save({}, "b")
        lease = mine.backend._database.opened.quotas.get_tenant("default")._lease
        monkeypatch.setattr(lease, "ends", 0.0)
        with pytest.raises(QuotaError, match="of 1 threads"):
            await mine.save({}, "c")


async def test_a_refusal_is_recorded_and_leases_are_not(database_file: Path) -> None:
    url = f"sqlite:///{database_file}"
    async with open_checkpointer(url, state_type=dict, audit="w", audit_reads=True) as checkpointer:
        await checkpointer.set_quota(Quota(threads=1))
        await checkpointer.save({}, "a")
        with pytest.raises(QuotaError):
            await checkpointer.save({}, "b")
    with closing(sqlite3.connect(database_file)) as connection:
        rows = connection.execute("SELECT method, result FROM locus_audit").fetchall()
    assert rows == [("commit", "done"), ("commit", "QuotaError")]


async def test_what_is_no_quota_is_refused() -> None:
    checkpointer = open_checkpointer("sqlite://")
    with pytest.raises(InvalidArgumentError, match="quota must be a Quota, not dict"):
        await checkpointer.set_quota({"threads": 1})  # type: ignore[arg-type]


async def test_a_set_of_shards_has_no_quotas(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    async with open_sharded(urls).checkpointer() as checkpointer:
        with pytest.raises(UnsupportedError, match="SQLite, PostgreSQL or Oracle, without shards"):
            await checkpointer.set_quota(Quota(threads=1))


def test_a_quota_error_crosses_the_wire() -> None:
    fields = {"tenant": "acme", "quota": "threads", "limit": 2, "used": 2}
    status, value = failures.encode_error(QuotaError("full", **fields))
    found = failures.decode_error(value)
    assert (status, type(found), vars(found)) == (
        *(403, QuotaError),
        {**fields, "retry_after_seconds": None},
    )
    late = QuotaError("late", retry_after_seconds=7)
    assert (failures.encode_error(late)[0], failures.get_retry_after(late)) == (429, 7)
