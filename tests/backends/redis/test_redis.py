"""Behaviour of Redis and Valkey: prefixes, expiry, rights, memory, replicas, lost servers."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import redis_clusters
import redis_servers
import servers
from lazily import TESTS_RUN, Later
from tiers import first_of

from locus_store import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    InvalidArgumentError,
    SchemaError,
    open_checkpointer,
    open_saver,
)
from locus_store.errors import make_install_command
from locus_store.sql import migrate
from locus_store.types import PendingWrite, VersionsWanted

if TESTS_RUN:
    import redis

    from locus_store import RedisBackend, RedisCheckpointSaver, redis_checkpointer
    from locus_store.backends.documents import packed
    from locus_store.backends.redis import addresses, documents, failures, scripts
    from locus_store.backends.redis.keys import RedisKeys, compute_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.anyio

RIGHTS = (
    "~locus:state:* -@all +eval +evalsha +script|load +time +type +exists +hmget +hsetnx +lindex"
    " +lrange +lset +rpush +zadd +zrem +zscore +zrangebyscore +zrangebylex"
    " +zrevrangebyscore +del +persist +pexpireat +info +select"
)
"""The least that a user needs; docs/redis.md shows it, as the following."""

CLUSTER_RIGHTS = " +command +cluster|slots +cluster|shards +asking +ping"
"""And on a cluster."""

OPERATOR_RIGHTS = "~locus:store:* +smembers +zcard +zcount +zlexcount +zrevrange +hget +hdel"
"""And for commands that look at all tenants, or remove items."""

LONG = 3_600.0
LINGER_MS = 60_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def started(make: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Any]:
    try:
        server = make(*args, **options)
    except servers.UnavailableError as error:
        servers.missing(error)
    yield server
    server.stop()


async def everything(backend: RedisBackend, thread_id: str = "t") -> None:
    """All that a backend does with a thread."""
    for n in range(3):
        await backend.save(thread_id, {"said": ["word"] * n}, checkpoint_id=f"v{n}")
    await backend.write_state(thread_id, {"n": 1}, namespace="sub", checkpoint_id="s0")
    await backend.put_writes(thread_id, "v2", [PendingWrite("a", 0, "c", "t", b"1")])
    assert len(await backend.get_writes(thread_id, "v2")) == 1
    for n in range(33):  # a block of the log, which is parted
        said = {"said": ["word"] * 500 + ["more"] * n}
        await backend.write_state(thread_id, said, namespace="sub", checkpoint_id=f"s{n}")
    assert await backend.remove(thread_id, ["s7"], namespace="sub") == 1
    assert await backend.load(thread_id) == {"said": ["word"] * 2}
    assert await backend.exists(thread_id)
    assert await backend.namespaces(thread_id) == ["", "sub"]
    assert await backend.list_threads() == await backend.scan() == [thread_id]
    assert [it.thread_id for it in await backend.heads()] == [thread_id]
    assert await backend.search("word") == [thread_id]
    assert await backend.query("k", 1) == await backend.tagged("k", 1) == []
    assert await backend.delete(thread_id, "v1")
    assert await backend.copy_thread(thread_id, "copy")
    assert await backend.prune("copy") == 1 + 31
    assert await backend.write_thread(await backend.read_thread(thread_id)) is False
    await backend.write_state(thread_id, {"n": 2}, keep_last=1, ttl_seconds=LONG)
    assert await backend.vacuum() == await backend.expire() == 0
    assert {it.name for it in await backend.facts()} >= {"server", "maxmemory policy"}
    assert await backend.delete("copy")
    assert await backend.delete(thread_id)


# --- time


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_of_this_host_that_is_set_ends_no_turn(
    redis_url: str, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = timedelta(hours=hours)

    class SetDatetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + moved

    clock = SimpleNamespace(
        monotonic=time.monotonic, time=lambda: time.time() + moved.total_seconds()
    )
    async with (
        redis_checkpointer(redis_url, state_type=dict) as checkpointer,
        checkpointer.turn("t", lease_seconds=60) as turn,
    ):
        monkeypatch.setattr(documents, "time", clock)
        monkeypatch.setattr(documents, "datetime", SetDatetime)
        found = await checkpointer.busy("t")
        assert found.number == turn.number
        assert 0 < found.seconds_left <= 60


async def test_a_slow_answer_does_not_tell_the_time_of_the_server(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call was retried, or this host was suspended while it waited."""
    ago = [timedelta(minutes=20)]

    class SlowDatetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - (ago.pop() if ago else timedelta(0))

    async with RedisBackend(redis_url) as one, RedisBackend(redis_url) as other:
        await one.write_state("t", {"n": 1}, ttl_seconds=300)
        monkeypatch.setattr(documents, "datetime", SlowDatetime)
        await other.write_state("t", {"n": 2})
        assert not ago
        assert len(await one.history("t")) == 2


# --- keys


@pytest.mark.parametrize("prefix", ["", "a:", "%|*[x]?", "ä/'\""])
async def test_any_prefix_keeps_its_threads_to_itself(redis_url: str, prefix: str) -> None:
    async with RedisBackend(redis_url, prefix) as one, RedisBackend(redis_url, "other:") as other:
        await everything(one)
        await one.save("t", {"n": 1})
        assert await other.load("t") is None
        assert await other.list_threads() == []
    with redis.Redis.from_url(redis_url) as client:
        assert all(it.startswith((prefix.encode(), b"other:")) for it in client.scan_iter())


@pytest.mark.parametrize("prefix", ["{x}:", "a{", "}", "\0", "x" * 201, None])
def test_a_prefix_that_makes_no_sense_is_refused(prefix: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="prefix"):
        RedisBackend(prefix=prefix)


async def test_a_thread_of_the_sdk_is_refused_with_the_way_out(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("locus:state:t", "{}")
        client.set("locus:state:u:latest", "{}")
        async with RedisBackend(redis_url) as backend:
            for thread_id in ("t", "u"):
                for call in (
                    backend.load(thread_id),
                    backend.load(thread_id, "v"),
                    backend.exists(thread_id),
                    backend.exists(thread_id, "v"),
                    backend.history(thread_id),
                    backend.save(thread_id, {"n": 1}),
                    backend.put_writes(thread_id, "v", [PendingWrite("a", 0, "c", "t", b"1")]),
                    backend.delete(thread_id),
                    backend.delete(thread_id, "v"),
                    backend.copy_thread(thread_id, "copy"),
                ):
                    with pytest.raises(SchemaError, match=r"locus-store import locus.*prefix="):
                        await call
            await backend.save("v", {"n": 1})
            copy = await backend.read_thread("v")
            assert copy is not None
            for thread_id in ("t", "u"):
                for into in (
                    backend.copy_thread("v", thread_id),
                    backend.write_thread(replace(copy, thread_id=thread_id)),
                ):
                    with pytest.raises(SchemaError, match=r"locus-store import locus.*prefix="):
                        await into
            assert await backend.list_threads() == ["v"]
        assert client.get("locus:state:t") == client.get("locus:state:u:latest") == b"{}"


@pytest.mark.parametrize("kind", ["thread|t", "active"])
async def test_a_key_of_our_name_that_is_not_ours_is_told(redis_url: str, kind: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await backend.save("t", {"n": 1})
        with redis.Redis.from_url(redis_url) as client:
            (name,) = (it for it in client.scan_iter() if it.endswith(f"}}:{kind}".encode()))
            client.delete(name)
            client.set(name, "x")
        call = backend.list_threads() if kind == "active" else backend.save("t", {"n": 2})
        with pytest.raises(SchemaError, match="not ours; use another prefix="):
            await call


@pytest.mark.parametrize("layout", ["3", "5"])
async def test_threads_of_another_layout_are_refused(redis_url: str, layout: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await backend.save("t", {"n": 1})
        copy = await backend.read_thread("t")
        assert copy is not None
    with redis.Redis.from_url(redis_url) as client:
        client.hset("locus:state:{meta}", "layout", layout)
        there = {name: client.dump(name) for name in client.scan_iter()}
        for call in (
            lambda it: it.open(),
            lambda it: it.load("t"),
            lambda it: it.exists("t"),
            lambda it: it.history("t"),
            lambda it: it.list_threads(),
            lambda it: it.scan(),
            lambda it: it.newest(VersionsWanted(), 1),
            lambda it: it.read_thread("t"),
            lambda it: it.save("t", {"n": 2}),
            lambda it: it.put_writes("t", "v", [PendingWrite("a", 0, "c", "t", b"1")]),
            lambda it: it.write_thread(replace(copy, thread_id="u")),
            lambda it: it.copy_thread("t", "u"),
            lambda it: it.delete("t"),
            lambda it: it.remove("t", ["v"]),
            lambda it: it.prune("t"),
            lambda it: it.renew("t", LONG),
            lambda it: it.vacuum(0),
            lambda it: it.expire(),
        ):
            backend = RedisBackend(redis_url)
            with pytest.raises(SchemaError, match=f"layout {layout}.*use the release that created"):
                await call(backend)
            await backend.close()
        assert {name: client.dump(name) for name in client.scan_iter()} == there


@pytest.mark.parametrize("is_old_writer_first", [True, False])
async def test_a_conflict_is_told_though_the_servers_identity_was_lost(
    redis_url: str, *, is_old_writer_first: bool
) -> None:
    async with redis_checkpointer(redis_url, state_type=dict) as old:
        await old.save({"n": [1]}, "t")
        with redis.Redis.from_url(redis_url) as client:
            client.delete("locus:state:{meta}")  # as by a failover that came too early
        async with redis_checkpointer(redis_url, state_type=dict) as new:
            await new.save({"n": [0]}, "another")
            first, second = (old, new) if is_old_writer_first else (new, old)
            mine, theirs = await first.load("t"), await second.load("t")
            await first.save({**mine, "n": [1, 2]}, "t")
            with pytest.raises(ConflictError):
                await second.save({**theirs, "n": [1, 3]}, "t")
            assert await new.load("t") == await old.load("t") == {"n": [1, 2]}


async def test_a_thread_that_the_server_evicted_is_as_one_that_was_deleted(redis_url: str) -> None:
    async with redis_checkpointer(redis_url, state_type=dict) as checkpointer:
        await checkpointer.save({"n": [1]}, "t")
        state = await checkpointer.load("t")
        await checkpointer.save({"n": [1]}, "u")
        with redis.Redis.from_url(redis_url) as client:
            assert client.delete(*map(RedisKeys("locus:state:").get_document, ("t", "u"))) == 2
        with pytest.raises(ConflictError):
            await checkpointer.save({**state, "n": [1, 2]}, "t")
        assert await checkpointer.load("t") is None
        await checkpointer.save({"n": [3]}, "t")
        assert await checkpointer.load("t") == {"n": [3]}
        await checkpointer.vacuum()
        assert await checkpointer.list_threads() == await checkpointer.backend.scan() == ["t"]


@pytest.mark.parametrize("size", [10, 300_000])
async def test_what_takes_long_is_worked_on_beside_the_event_loop(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    seen: list[int] = []
    parse = packed._apply

    def noted(*args: Any) -> Any:
        seen.append(threading.get_ident())
        return parse(*args)

    monkeypatch.setattr(packed, "_apply", noted)
    async with RedisBackend(redis_url) as backend:
        for n in range(3):
            noise = random.Random(n).randbytes(size).hex()
            await backend.save("t", {"word": [n], "text": f"word {noise}"})
        assert seen == []
    for call in ("search", "read_thread", "history"):
        async with RedisBackend(redis_url) as backend:
            assert await getattr(backend, call)("word" if call == "search" else "t")
    is_beside = {it != threading.get_ident() for it in seen}
    assert is_beside == {size > 1000}


async def test_a_restore_whose_answer_was_lost_is_done(
    redis_server: redis_servers.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = servers.Proxy(redis_server.port)
    try:
        async with RedisBackend(redis_url) as direct:
            await direct.save("t", {"n": 1})
            archived = await direct.read_thread("t")
            assert archived is not None
            by_proxy = redis_url.replace(str(redis_server.port), str(proxy.port))
            async with RedisBackend(by_proxy) as backend:
                await backend.restore(replace(archived, thread_id="first"))
                refuse = backend._documents._refuse_foreign

                def and_then_nothing_is_answered(*args: Any) -> None:
                    refuse(*args)
                    proxy.swallow_replies()

                monkeypatch.setattr(
                    backend._documents, "_refuse_foreign", and_then_nothing_is_answered
                )
                copy = replace(archived, thread_id="copy")
                under_way = asyncio.ensure_future(backend.restore(copy))
                with redis.Redis.from_url(redis_url) as client:
                    key = RedisKeys("locus:state:").get_document("copy")
                    await asyncio.to_thread(
                        servers.wait_until, lambda: bool(client.exists(key)), "it to arrive"
                    )
                monkeypatch.undo()
                proxy.drop()
                proxy.release()
                await under_way
                with pytest.raises(ConflictError, match="already exists"):
                    await backend.restore(copy)
    finally:
        proxy.close()


# --- expiry


def ends(client: Any) -> dict[str, int]:
    """Return the time at which each key expires, in milliseconds; -1: never."""
    names = [it for it in client.scan_iter() if not it.endswith(b"{meta}")]
    return {it.decode(): client.pexpiretime(it) for it in names}


async def test_the_server_deletes_a_thread_a_minute_after_its_time(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await backend.write_state("t", {"n": 1}, ttl_seconds=LONG)
        await backend.write_state("t", {"n": 1}, namespace="sub")
        with redis.Redis.from_url(redis_url) as client:
            for seconds in (LONG, 2 * LONG):
                await backend.write_state("t", {"n": 2}, ttl_seconds=seconds)
                thread = await backend.read_thread("t")
                assert thread is not None
                assert thread.expires_at is not None
                expires_ms = round(thread.expires_at.timestamp() * 1000)
                of_thread = {at for name, at in ends(client).items() if "|" in name}
                assert abs(of_thread.pop() - expires_ms - LINGER_MS) <= 1
            await backend.restore(replace(thread, thread_id="u", expires_at=None))
            assert ends(client)[RedisKeys("locus:state:").get_document("u")] == -1


async def test_an_old_thread_of_messages_only_is_vacuumed(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await backend.save("t", {"n": 1})
        thread = await backend.read_thread("t")
        assert thread is not None
        old = thread.active_at - timedelta(days=90)
        times = {"created_at": old, "active_at": old}
        await backend.restore(replace(thread, thread_id="u", lines=[], **times))
        assert await backend.scan() == ["t", "u"]
        await backend.vacuum(30)
        assert await backend.scan() == ["t"]


async def test_a_thread_that_expired_leaves_nothing(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        for thread_id in ("t", "u"):
            for namespace in ("", "sub"):
                await backend.write_state(
                    thread_id, {"n": 1}, namespace=namespace, ttl_seconds=0.001
                )
        with redis.Redis.from_url(redis_url) as client:
            servers.wait_until(lambda: all(it < now(client) for it in over(client)), "they expire")
            assert await backend.expire() == 2
            assert ends(client) == {}
        assert await backend.expire() == 0


def over(client: Any) -> list[int]:
    """The millisecond at which the time of each thread ends."""
    return [at - LINGER_MS for name, at in ends(client).items() if "|" in name]


def now(client: Any) -> int:
    """The millisecond by the server."""
    seconds, fraction = client.time()
    return int(1000 * seconds + fraction // 1000)


async def test_a_save_takes_threads_out_that_the_server_has_deleted(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        one, other = names_of_a_bucket(2)
        await backend.write_state(one, {"n": 1}, ttl_seconds=LONG)
        with redis.Redis.from_url(redis_url) as client:
            client.delete(RedisKeys("locus:state:").get_document(one))
            client.zadd("locus:state:{7}:expiry", {one: now(client) - LINGER_MS - 1})
            await backend.write_state(other, {"n": 1}, ttl_seconds=LONG)
            assert client.zrange("locus:state:{7}:ids", 0, -1) == [other.encode()]


def names_of_a_bucket(count: int) -> list[str]:
    """Threads whose indexes are the same keys."""
    return [name for n in range(10_000) if compute_bucket(name := f"t{n}") == 7][:count]


# --- lists


@pytest.mark.full
async def test_pages_of_10_000_threads_of_one_minute_are_the_whole_list(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await backend.save("t0", {"n": 1})
        with redis.Redis.from_url(redis_url) as client, client.pipeline(transaction=False) as pipe:
            for n in range(10_000):
                active, ids, _ = RedisKeys("locus:state:").list_indexes(compute_bucket(f"t{n}"))
                pipe.zadd(active, {f"t{n}": 1_700_000_000_000_000})
                pipe.zadd(ids, {f"t{n}": 0})
                pipe.copy(RedisKeys("locus:state:").get_document("t0"), f"of {n}")
                pipe.rename(f"of {n}", RedisKeys("locus:state:").get_document(f"t{n}"))
            pipe.execute()
        expected = [f"t{n}" for n in range(10_000)]
        assert await backend.list_threads(20_000) == sorted(expected, reverse=True)
        assert await backend.scan(20_000) == sorted(expected)
        found: list[str] = []
        while page := await backend.list_threads(777, after=found[-1] if found else None):
            found += page
        assert found == sorted(expected, reverse=True)
        assert len(await backend.list_threads(50, "*7")) == 50


async def test_threads_of_any_age_are_listed_by_their_names(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await backend.save("t", {"n": 1})
        thread = await backend.read_thread("t")
        assert thread is not None
        for year in (1, 1969, 4254, 9999):
            at = datetime(year, 6, 1, tzinfo=UTC)
            old = replace(thread, thread_id=f"y{year}", created_at=at, active_at=at)
            await backend.restore(old)
            assert await backend.read_thread(f"y{year}") == old
        found = await backend.list_threads()
        assert sorted(found) == ["t", "y1", "y1969", "y4254", "y9999"]
        for name in found:
            assert await backend.list_threads(after=name) == found[found.index(name) + 1 :]
        await backend.save("y1", {"n": 2})
        assert set((await backend.list_threads())[:4]) >= {"y1"}
        assert await backend.delete("y9999")
        assert "y9999" not in await backend.list_threads()


@pytest.mark.parametrize("ttl", [0, -1, 1e12, 1e300, float("inf"), float("nan")])
async def test_a_time_to_live_that_no_server_takes_is_refused(redis_url: str, ttl: float) -> None:
    async with RedisBackend(redis_url) as backend:
        with pytest.raises(InvalidArgumentError, match="ttl_seconds"):
            await backend.write_state("t", {"n": 1}, ttl_seconds=ttl)
        assert await backend.load("t") is None


# --- servers as they are


@pytest.fixture(scope="module")
def guarded() -> Iterator[redis_servers.Redis]:
    """With users of its ACL."""
    users = {
        "app": RIGHTS,
        "other": RIGHTS.replace("state", "other"),
        "reader": RIGHTS.replace("+hsetnx", ""),
        "setter": RIGHTS.replace("+rpush ", " "),
    }
    yield from started(redis_servers.Redis, has_password=True, users=users)


async def test_a_user_with_the_least_rights_can_do_everything(
    guarded: redis_servers.Redis,
) -> None:
    guarded.flush()
    guarded.ask("ACL", "LOG", "RESET")
    guarded.ask("SCRIPT", "FLUSH")
    async with RedisBackend(guarded.url("app").replace("/0", "/1")) as backend:
        await everything(backend)
    refused = {it["object"] for it in guarded.ask("ACL", "LOG")}
    assert refused <= {"client|setinfo"}  # redis-py tells its name where it may
    with guarded.client() as client:
        used = set(client.info("commandstats"))
    assert used >= {f"cmdstat_{it}" for it in re.findall(r"\+(\S+)", RIGHTS)}


async def test_an_idle_connection_whose_user_may_not_ping_is_used(
    guarded: redis_servers.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "IDLE_SECONDS", 0.000_001)
    async with RedisBackend(guarded.url("app")) as backend:
        for _ in range(3):
            assert await backend.load("idle") is None


@pytest.mark.full
async def test_a_user_with_the_least_rights_can_do_everything_on_a_cluster() -> None:
    users = {"app": RIGHTS + CLUSTER_RIGHTS + " +wait"}
    for cluster in started(redis_clusters.Cluster, users=users):
        async with RedisBackend(cluster.url("app"), wait_replicas=1) as backend:
            await everything(backend)
            await asyncio.gather(*(backend.save(f"t{n}", {"n": n}) for n in range(20)))
            slot = redis.crc.key_slot(str(compute_bucket("t7")).encode())
            source = cluster.master_of(slot)
            to = next(it for it in cluster.masters() if it is not source)
            await asyncio.to_thread(cluster.migrate, slot, to)
            await backend.save("t7", {"n": -7})
            assert len(await backend.list_threads()) == 20
        for node in cluster.masters():
            assert {it["object"] for it in node.ask("ACL", "LOG")} <= {"client|setinfo"}


@pytest.mark.full
async def test_a_cluster_with_tls_is_a_cluster() -> None:
    for cluster in started(redis_clusters.Cluster, "redis", tls=True):
        ca = cluster.nodes[0].tls.ca
        async with RedisBackend(cluster.url(ssl_ca_certs=ca)) as backend:
            await everything(backend)
        async with RedisBackend(cluster.url()) as backend:
            assert "TLS: " in await told(backend.load("t"))


def test_the_page_shows_the_rights_as_they_are_tested() -> None:
    page = (Path(__file__).parents[3] / "docs" / "redis.md").read_text("utf-8")
    lines = [it for it in page.splitlines() if it.startswith("ACL SETUSER app ")]
    assert lines == [
        f"ACL SETUSER app on >secret {RIGHTS}",
        f"ACL SETUSER app{CLUSTER_RIGHTS}",
        f"ACL SETUSER app {OPERATOR_RIGHTS}",
    ]


@pytest.mark.parametrize("user", ["other", "reader", "setter"])
async def test_a_user_without_a_right_is_told(guarded: redis_servers.Redis, user: str) -> None:
    async with RedisBackend(guarded.url(user)) as backend:
        with pytest.raises(BackendError, match=r"may not do this; docs/redis\.md") as told:
            await backend.save("t", {"n": 1})
    assert "ACL LOG" in str(told.value)
    assert {"other": "key", "reader": "hsetnx", "setter": "rpush"}[user] in str(told.value)
    _has_no_secret(told.value)


@pytest.mark.parametrize("user", ["app:wrong@", ":wrong@", "nobody:wrong@", ""])
async def test_a_wrong_password_is_told_without_it(guarded: redis_servers.Redis, user: str) -> None:
    url = f"redis://{user}{servers.LOOPBACK}:{guarded.port}"
    async with RedisBackend(url) as backend:
        with pytest.raises(ConnectionFailedError, match="refuses the user or password") as told:
            await backend.load("t")
        assert "wrong" not in f"{told.value}{backend!r}"


def _has_no_secret(error: BaseException) -> None:
    assert redis_servers.PASSWORD not in str(error)


@pytest.fixture(scope="module")
def encrypted() -> Iterator[redis_servers.Redis]:
    yield from started(redis_servers.Redis, "redis", tls=True)


async def test_tls_is_checked_unless_it_is_switched_off(encrypted: redis_servers.Redis) -> None:
    assert encrypted.tls is not None
    async with RedisBackend(encrypted.url(ssl_ca_certs=encrypted.tls.ca)) as backend:
        await everything(backend)
    async with RedisBackend(encrypted.url(ssl_cert_reqs="none")) as backend:
        assert await backend.load("t") is None
    for query in ({}, {"ssl_ca_certs": encrypted.tls.other_ca}):
        async with RedisBackend(encrypted.url(**query)) as backend:
            with pytest.raises(ConnectionFailedError, match=r"TLS: .*certificate"):
                await backend.load("t")


async def test_a_server_that_speaks_no_tls_is_told(redis_url: str) -> None:
    url = redis_url.replace("redis://", "rediss://")
    async with RedisBackend(url, connect_timeout_seconds=0.5) as backend:
        with pytest.raises(ConnectionFailedError):
            await backend.load("t")


async def test_a_server_without_memory_refuses_and_writes_nothing(
    redis_server: redis_servers.Server, redis_url: str
) -> None:
    async with RedisBackend(redis_url) as backend:
        await backend.save("t", {"n": 1}, checkpoint_id="v")
        redis_server.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            for call in (
                lambda: backend.save("t", {"n": 2}),
                lambda: backend.save("new", {"n": 2}),
                lambda: backend.put_writes("t", "v", [PendingWrite("a", 0, "c", "t", b"1")]),
                lambda: backend.put_writes("new", "v", [PendingWrite("a", 0, "c", "t", b"1")]),
                lambda: backend.save("t", {"n": 2}, checkpoint_id="v"),
                lambda: backend.copy_thread("t", "u"),
            ):
                with pytest.raises(BackendError, match="no memory left, and nothing was written"):
                    await call()
            assert await backend.load("t") == {"n": 1}
            assert await backend.list_threads() == ["t"]
            assert await backend.get_writes("t", "v") == []
            assert await backend.delete("t") is True  # that is how one gets out of it
        finally:
            redis_server.ask("CONFIG", "SET", "maxmemory", "0")
        await everything(backend)


async def test_a_server_that_cannot_write_its_files_is_told() -> None:
    with servers.started(redis_servers.Redis, settings={"save": "3600 1"}) as server:
        (server.directory / "dump.rdb").mkdir()

        def has_failed() -> bool:
            with server.client() as client:
                return client.info("persistence")["rdb_last_bgsave_status"] == "err"

        async with RedisBackend(server.url()) as backend:
            await backend.save("t", {"n": 1})
            server.ask("BGSAVE")
            await asyncio.to_thread(servers.wait_until, has_failed, "the snapshot to fail")
            for call in (lambda: backend.save("t", {"n": 2}), lambda: backend.delete("t")):
                with pytest.raises(BackendError, match="write its files, and nothing was written"):
                    await call()
            assert await backend.load("t") == {"n": 1}


async def test_a_server_that_loads_its_data_is_waited_for() -> None:
    settings = {"appendonly": "yes", "appendfsync": "always"}
    for server in started(redis_servers.Redis, settings=settings):
        async with RedisBackend(server.url(), retry_seconds=30) as backend:
            for n in range(60):
                await backend.save("t", {"n": n})
            server.kill()
            with (server.directory / "conf").open("a") as conf:
                conf.write("key-load-delay 5000\n")  # in microseconds
            server.start(is_loaded=False)
            assert await backend.load("t") == {"n": 59}
            await backend.save("t", {"n": 60})


async def test_a_server_that_was_restarted_is_found_again(tmp_path: Any) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always"}
    for server in started(redis_servers.Redis, settings=settings):
        async with RedisBackend(server.url()) as backend:
            await asyncio.gather(*(backend.save(f"t{n}", {"n": n}) for n in range(20)))
            server.restart()
            assert await backend.load("t7") == {"n": 7}
            server.restart()
            await asyncio.gather(*(backend.save(f"t{n}", {"n": -n}) for n in range(20)))
            assert await backend.load("t7") == {"n": -7}
            server.kill()
        async with RedisBackend(server.url(), retry_seconds=0) as backend:
            with pytest.raises(ConnectionFailedError, match="cannot reach Redis"):
                await backend.load("t7")


async def test_scripts_that_the_server_forgot_are_sent_again(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        async with RedisBackend(redis_url) as backend:
            await backend.save("t", {"n": 1}, checkpoint_id="v1")
            calls: list[Callable[[], Any]] = [
                lambda: backend.save("t", {"n": 2}),
                lambda: backend.load("t"),
                lambda: backend.history("t"),
                backend.list_threads,
                backend.heads,
                lambda: backend.put_writes("t", "v1", [PendingWrite("a", 0, "c", "t", b"1")]),
                lambda: backend.get_writes("t", "v1"),
                lambda: backend.read_thread("t"),
                lambda: backend.delete("t", "v1"),
                backend.expire,
                lambda: backend.delete("t"),
            ]
            for call in calls:
                client.script_flush()
                assert await call() or call == backend.expire
            assert await backend.load("t") is None


def test_every_script_is_known_by_its_text(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for it in (*scripts.DOCUMENTS.values(), *scripts.ITEMS.values(), *scripts.CACHE.values()):
            assert client.script_load(it.source) == it.sha


# --- replicas


@pytest.mark.full
async def test_a_write_waits_for_the_replicas_that_were_asked_for(
    redis_cluster: redis_clusters.Cluster,
) -> None:
    redis_cluster.flush()
    async with RedisBackend(redis_cluster.url(), wait_replicas=1) as backend:
        await everything(backend)
    async with RedisBackend(
        redis_cluster.url(), wait_replicas=2, wait_timeout_seconds=0.05
    ) as backend:
        with pytest.raises(BackendError, match="only 1 of 2 replicas"):
            await backend.save("t", {"n": 1})
        assert await backend.load("t") == {"n": 1}


async def test_a_write_that_no_replica_has_is_told_and_done(redis_url: str) -> None:
    write = PendingWrite("task", 0, "channel", "json", b"1")
    async with RedisBackend(redis_url, wait_replicas=1, wait_timeout_seconds=0.01) as backend:
        for call, found in (
            (lambda: backend.save("t", {"n": 1}, checkpoint_id="v"), {"n": 1}),
            (lambda: backend.put_writes("t", "v", [write]), {"n": 1}),
            (lambda: backend.delete("t"), None),
        ):
            for _ in range(2):  # a repeat finds it done, and no replica has it still
                with pytest.raises(BackendError, match=r"only 0 of 1 replicas.*may lose it"):
                    await call()
                assert await backend.load("t") == found


async def test_a_write_waits_once_though_the_server_forgot_the_scripts(
    redis_server: redis_servers.Redis, redis_url: str
) -> None:
    async with RedisBackend(redis_url, wait_replicas=1, wait_timeout_seconds=0.01) as backend:
        await backend.exists("t")
        for n in range(2):
            redis_server.ask("SCRIPT", "FLUSH")
            redis_server.ask("CONFIG", "RESETSTAT")
            with pytest.raises(BackendError, match=r"only 0 of 1 replicas"):
                await backend.save("t", {"n": n})
            with redis_server.client() as client:
                stats: Any = client.info("commandstats")
            assert stats["cmdstat_wait"]["calls"] == 1


# --- what went wrong, in words


async def told(call: Any) -> str:
    """Return the error of one attempt, without a retry."""
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionFailedError) as error:
            await call
    _has_no_secret(error.value)
    return str(error.value)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_a_server_that_cannot_be_reached_is_told_with_the_reason(scheme: str) -> None:
    port = servers.free_port()
    secret = f"u:{quote(redis_servers.PASSWORD, safe='')}@"
    for place, reason in (
        (f"{servers.LOOPBACK}:{port}", "Connection refused"),
        (f"localhost:{port}", "Connection refused"),
        ("nowhere.invalid", "the name is not resolved"),
    ):
        async with RedisBackend(f"{scheme}://{secret}{place}") as backend:
            text = await told(backend.save("t", {"n": 1}))
        assert f"{reason}" in text
        assert "nothing was done" in text
        assert "may have been done" not in text


async def test_a_call_whose_answer_was_lost_does_not_say_that_nothing_was_done(
    redis_server: redis_servers.Redis, redis_url: str
) -> None:
    proxy = servers.Proxy(redis_server.port)
    try:
        url = redis_url.replace(str(redis_server.port), str(proxy.port))
        async with RedisBackend(url, retry_seconds=0) as backend:
            await backend.save("t", {"n": 1})
            proxy.swallow_replies()
            under_way = asyncio.ensure_future(told(backend.save("t", {"n": 2})))
            async with RedisBackend(redis_url) as direct:
                while await direct.load("t") != {"n": 2}:
                    pass
            proxy.drop()
            assert "may have been done or not" in await under_way
    finally:
        proxy.close()


async def test_a_call_waits_for_others_no_longer_than_for_an_answer(redis_url: str) -> None:
    options: dict[str, Any] = {"pool_size": 2, "timeout_seconds": 0.05, "retry_seconds": 0}
    async with RedisBackend(redis_url, **options) as backend:
        await backend.save("t", {"n": 1})
        client = await backend._documents._connections.get()
        async with client._places, client._places:  # calls that a silent server does not answer
            assert "waiting for answers); nothing was done" in await told(backend.load("t"))
            assert "waiting for answers); nothing was" in await told(backend.save("t", {"n": 2}))
        assert await backend.load("t") == {"n": 1}


def test_a_lost_connection_is_told_in_words() -> None:
    for error, reason in (
        (failures.SilentError("no answer"), "no answer"),
        (redis.TimeoutError("Timeout reading from h:1"), "no answer"),
        (redis.ConnectionError("Connection closed by server."), "the connection was closed"),
    ):
        told = failures.translate_error(error, "h:1", is_unsure=True)
        assert f"cannot reach Redis h:1 ({reason}); what was under way may have" in str(told)


async def test_a_cluster_and_a_single_server_are_told_from_each_other(
    redis_url: str, redis_cluster: redis_clusters.Cluster
) -> None:
    redis_cluster.flush()
    async with RedisBackend(redis_cluster.url().replace("+cluster", "")) as backend:
        for n in range(5):  # a node of three has the slots of some
            with pytest.raises(ConnectionFailedError, match=r"is a cluster: use redis\+cluster://"):
                await asyncio.gather(*(backend.save(f"t{n}{m}", {"n": 1}) for m in range(9)))
        assert "is a cluster: use redis+cluster://" in await told(backend.list_threads())
    async with RedisBackend(redis_url.replace("redis", "redis+cluster", 1)) as backend:
        assert "is not a cluster: use redis://" in await told(backend.save("t", {"n": 1}))


async def test_a_replica_is_told(redis_cluster: redis_clusters.Cluster) -> None:
    for master in started(redis_servers.Redis):
        for replica in started(
            redis_servers.Redis, settings={"replicaof": f"{servers.LOOPBACK} {master.port}"}
        ):
            async with RedisBackend(replica.url(), retry_seconds=0) as backend:
                assert "is a replica: name the master" in await told(backend.save("t", {"n": 1}))


async def test_a_database_that_is_not_there_is_told(redis_url: str) -> None:
    async with RedisBackend(redis_url.removesuffix("/0"), db=99) as backend:
        assert "DB index is out of range" in await told(backend.load("t"))


async def test_a_server_that_is_not_redis_is_told_as_one() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with RedisBackend(f"redis://127.0.0.1:{port}", retry_seconds=0) as backend:
            assert "(no answer to PING; is it Redis?)" in await told(backend.load("t"))


@pytest.mark.parametrize(
    "url",
    ["redis://h", "rediss+cluster://u:p@h", "redis+sentinel://h/x", "valkey://h", "unix:///x"],
)
def test_commands_of_a_schema_say_that_there_is_none(url: str) -> None:
    for call in (migrate.upgrade, migrate.read_revision):
        with pytest.raises(InvalidArgumentError, match="has no schema; nothing to make"):
            call(url)


# --- urls and options


SECRET = "s3cr3t"  # noqa: S105


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cr3t@h/x", "redis://u:a/s3cr3t@h/0", "redis://u:a#s3cr3t@h", "redis://h:s3cr3t",
        "redis://u:a?s3cr3t@h/0", "redis://u:s3cr3t@h?nonsense=1", "redis://u:s3cr3t@h:99999",
        "redis+cluster://u:s3cr3t@h?nonsense=1", "redis+cluster://u:s3cr3t@h/1",
        "redis://u:s3cr3t@h?socket_timeout=x", "redis://u:s3cr3t@h?decode_responses=true",
        "redis://u:s3cr3t@h/1?db=2", "redis://u:s3cr3t@h?client=1", "redis://u:s3cr3t@h?cluster=9",
        "redis://u:s3cr3t@h?ttl_seconds=x", "unix://s3cr3t/x", "unix:///x?cluster=1",
        "redis+sentinel://u:s3cr3t@h", "redis+sentinel://u:s3cr3t@h/x/y", "redis://u:s3cr3t@h,i",
        "redis+sentinel://u:s3cr3t@h/x?sentinel_nonsense=1", "redis+sentinel://h/x/1?db=2&k=s3cr3t",
        "redis+sentinel://u:s3cr3t@h/x?cluster=1", "redis+sentinel://u:s3cr3t@h,:1/x",
        "redis:s3cr3t", "redis://u:s3cr3t@h?pool_size=0", "redis://u:s3cr3t@h?wait_replicas=-1",
    ],
)  # fmt: skip
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidArgumentError) as told:
        open_checkpointer(url)
    assert SECRET not in f"{told.value}{told.value.__cause__}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:s3cr3t@h:1/2", "h:1/2"),
        ("rediss://:s3cr3t@[::1]:6379", "[::1]:6379"),
        ("valkeys+cluster://u:s3%2F%40cr3t@h", "h"),
        ("unix://:s3cr3t@/run/x.sock?db=1", "/run/x.sock"),
        ("rediss+sentinel://u:s3cr3t@a,[::1]:5/x/2?sentinel_password=s3cr3t", "a,[::1]:5/x/2"),
        ("redis://h?password=s3cr3t&socket_keepalive=true&keep_last=3&cluster=true", "h"),
    ],
)
def test_a_url_has_our_options_and_redis_pys(url: str, shown: str) -> None:
    assert repr(open_checkpointer(url).backend) == f"RedisBackend({shown!r}, prefix='locus:state:')"


async def test_every_scheme_opens_the_same_threads(
    redis_url: str, redis_cluster: redis_clusters.Cluster
) -> None:
    places = [redis_url, redis_url.replace("redis", "valkey", 1)]
    async with open_checkpointer(f"{redis_url}?ttl_seconds=60", state_type=dict) as first:
        await first.save({"n": 1}, "t")
    for place in places:
        async with open_checkpointer(place, state_type=dict) as checkpointer:
            assert await checkpointer.load("t") == {"n": 1}
    url = redis_cluster.url()
    redis_cluster.flush()
    others = [url.replace("redis", "valkey", 1), url.replace("+cluster", "") + "?cluster=true"]
    async with RedisCheckpointSaver(url) as saver:
        await saver.backend.save("t", {"n": 2})
    for place in others:
        async with open_saver(place) as found:
            assert await found.backend.load("t") == {"n": 2}


async def test_a_database_is_named_in_the_url_or_beside_it(redis_url: str) -> None:
    place = redis_url.removesuffix("/0")
    async with RedisBackend(f"{place}/3") as one, RedisBackend(place, db=3) as other:
        await one.save("t", {"n": 1})
        assert await other.load("t") == {"n": 1}
    async with RedisBackend(redis_url) as backend:
        assert await backend.load("t") is None


async def test_a_socket_of_the_file_system_is_a_server(tmp_path: Any) -> None:
    for server in started(redis_servers.Redis):
        path = server.directory / "socket"
        with (server.directory / "conf").open("a") as conf:
            conf.write(f"unixsocket {path}\nunixsocketperm 777\n")
        server.restart()
        async with RedisBackend(f"unix://{path}?db=1") as backend:
            await everything(backend)


@pytest.mark.parametrize(
    "options",
    [
        {"url": "redis://h", "client": True}, {"db": 1, "client": True},
        {"timeout_seconds": 1, "client": True},
        {"client": object()},
        Later(lambda: {"client": redis.Redis()}),
        Later(lambda: {"client": redis.asyncio.Redis(decode_responses=True)}),
        {"db": -1}, {"db": True}, {"cluster": 1}, {"pool_size": 0}, {"wait_replicas": True},
        {"retry_seconds": -1}, {"timeout_seconds": 0}, {"wait_timeout_seconds": "1"}, {"url": None},
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    if options.get("client") is True:
        options = options | {"client": redis.asyncio.Redis()}
    with pytest.raises(InvalidArgumentError):
        RedisBackend(**options)


def test_loops_that_ended_well_leave_no_garbage_to_collect(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection of all garbage takes long in a large program, and there may be many loops."""
    collected: list[None] = []
    monkeypatch.setattr("locus_store.runtime.loops.gc.collect", lambda: collected.append(None))
    backend = RedisBackend(redis_url)
    for n in range(3):
        asyncio.run(backend.save("t", {"n": n}))
    assert collected == []
    asyncio.run(backend.close())


def test_a_client_is_refused_in_a_second_event_loop_though_the_first_is_closed(
    redis_url: str,
) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    backend = RedisBackend(client=client)

    async def first() -> None:
        await backend.save("t", {"n": 1})
        await client.aclose()

    asyncio.run(first())
    with pytest.raises(InvalidArgumentError, match="the event loop that it was first used in"):
        asyncio.run(backend.load("t"))


@pytest.mark.parametrize("is_used_before", first_of(True, False))
def test_a_client_is_refused_behind_a_fork(redis_url: str, *, is_used_before: bool) -> None:
    code = f"""
import asyncio, os, sys
from redis.asyncio import Redis
from locus_store import InvalidArgumentError, RedisBackend
client = Redis.from_url({redis_url!r})
backend = RedisBackend(client=client)
async def parent():
    if {is_used_before}:
        await backend.save("t", {{"n": 1}})
    if not os.fork():
        asyncio.events._set_running_loop(None)
        try:
            asyncio.run(backend.load("t"))
        except InvalidArgumentError as exc:
            print(exc, flush=True)
        os._exit(0)
    os.wait()
    await backend.save("t", {{"n": 2}})
    print(await backend.load("t"))
    await client.aclose()
asyncio.run(parent())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refusal, found = done.stdout.splitlines()
    assert "create the client after the fork" in refusal
    assert found == "{'n': 2}"


def test_a_client_that_reads_from_replicas_is_refused() -> None:
    node = [redis.asyncio.cluster.ClusterNode("h", 1)]
    strategy = redis.cluster.LoadBalancingStrategy.ROUND_ROBIN
    with pytest.warns(DeprecationWarning, match="load_balancing_strategy"):
        old = redis.asyncio.RedisCluster(startup_nodes=node, read_from_replicas=True)
    new = redis.asyncio.RedisCluster(startup_nodes=node, load_balancing_strategy=strategy)
    for client in (old, new):
        with pytest.raises(InvalidArgumentError, match="reads must come from masters"):
            RedisBackend(client=client)


async def test_a_cancelled_load_ends(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await backend.save("t", {"n": 1})
        for at in range(120):
            load = asyncio.create_task(backend.fetch("t"))
            for _ in range(at % 8):
                await asyncio.sleep(0)
            if load.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await load
        assert await backend.load("t") == {"n": 1}


@pytest.mark.full
async def test_more_calls_than_connections_wait_for_each_other(
    redis_url: str, redis_cluster: redis_clusters.Cluster
) -> None:
    redis_cluster.flush()
    for url in (redis_url, redis_cluster.url()):
        async with RedisBackend(url, pool_size=2) as backend:
            await asyncio.gather(*(backend.save(f"t{n}", {"n": n}) for n in range(200)))
            found = await asyncio.gather(*(backend.load(f"t{n}") for n in range(200)))
        assert found == [{"n": n} for n in range(200)]


MODULES = ("connections", "failures", "keys", "records", "addresses", "scripts", "threads")


def test_a_missing_driver_is_named_whatever_is_imported_first() -> None:
    names = [
        *(f"locus_store.backends.redis.{it}" for it in MODULES),
        "locus_store.backends.redis",
        "locus_store.adapters.locus.source_redis",
    ]
    code = f"""
import sys
sys.modules["redis"] = None
from importlib import import_module
from locus_store import MissingExtraError, open_checkpointer
def opened(): open_checkpointer("redis://h")
def named(): from locus_store import redis_checkpointer
for call in (*(lambda it=it: import_module(it) for it in {names!r}), opened, named):
    try:
        call()
    except MissingExtraError as exc:
        print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    told = f"Redis needs redis-py: {make_install_command('redis')}"
    assert done.stdout.splitlines() == [told] * (len(names) + 2)


async def test_a_close_that_is_cancelled_leaves_no_connection(redis_server) -> None:
    with redis_server.client() as watcher:
        before = len(watcher.client_list())
        for steps in range(1, 20):
            backend = RedisBackend(redis_server.url())
            await asyncio.gather(*(backend.save(f"t{it}", {"n": 1}) for it in range(4)))
            closing = asyncio.create_task(backend.close())
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
        async with asyncio.timeout(30):
            while len(watcher.client_list()) > before:  # noqa: ASYNC110  (it tells nobody)
                await asyncio.sleep(0.01)
