"""The cache of a session: what it holds, how stale it may be, and what its failures cost."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from zlib import crc32

import pytest
from lazily import TESTS_RUN
from session_storage import Storage
from test_session import ALICE, BOB, T, said, texts
from tiers import first_of

from locus_store import ConflictError, InvalidArgumentError, MemoryBackend, NotOwnerError
from locus_store.session import LocalCache, Message, SessionCheckpointer, cache as guards
from locus_store.session.cache import CachedState, StateCache
from locus_store.types import Mark

if TESTS_RUN:
    import redis.asyncio

    from locus_store.session.redis_cache import RedisCache

pytestmark = pytest.mark.anyio


def mark(sequence: int, *, line: int = 1, store: str = "s") -> Mark:
    return Mark(store=store, line=line, sequence=sequence, digest=b"d" * 16)


def entry(sequence: int | None, text: str = "x", **more: Any) -> CachedState:
    at = None if sequence is None else mark(sequence, line=more.pop("line", 1))
    return CachedState(mark=at, labels={"owner": "alice"}, state=text.encode(), **more)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in ("cache", "reads", "owners"):
        monkeypatch.setattr(f"locus_store.session.{module}.time.monotonic", made)
    return made


@pytest.fixture(params=["local", *first_of("redis", "cluster")])
def caches(request):
    """Makes caches on one empty storage."""
    if request.param == "local":
        return LocalCache
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        return lambda **options: RedisCache(url, **options)
    cluster = request.getfixturevalue("redis_cluster")
    cluster.flush()
    return lambda **options: RedisCache(cluster.url(), **options)


# --- what every cache does


async def test_an_entry_comes_back(caches) -> None:
    cache = caches()
    assert await cache.get("k") is None
    for name, it in (
        ("k", entry(1, "é\0")),
        ("0::a}b", entry(None)),
        ("w", entry(2, is_working=True)),
    ):
        await cache.put(name, it)
        assert await cache.get(name) == it
    await cache.drop("k")
    await cache.drop("k")
    assert await cache.get("k") is None
    await cache.close()


async def test_only_what_is_newer_is_set(caches) -> None:
    cache = caches()
    steps = [
        (entry(5, "5"), "5"), (entry(4, "4"), "5"), (entry(5, "w", is_working=True), "w"),
        (entry(5, "5"), "w"), (entry(5, "v", is_working=True), "v"), (entry(6, "6"), "6"),
        (entry(5, "w", is_working=True), "6"), (entry(1, "new", line=2), "new"),
        (entry(9, "9"), "new"), (entry(10**15, "big", line=2**62), "big"),
        (entry(10**15 + 1, "more", line=2**62), "more"),
        (entry(10**15, "less", line=2**62), "more"), (entry(None, "none"), "none"),
        (entry(1, "1"), "1"),
    ]  # fmt: skip
    for put, expected in steps:
        await cache.put("k", put)
        assert (await cache.get("k")).state == expected.encode()
    await cache.put("k", entry(9, "9"))
    await cache.put("k", entry(8, "8"), instead_of=entry(7))
    assert (await cache.get("k")).state == b"9"
    await cache.put("k", entry(8, "8"), instead_of=entry(9))
    assert (await cache.get("k")).state == b"8"
    await cache.close()


async def test_the_rule_of_replacing_is_the_same_everywhere(caches) -> None:
    cache = caches()
    entries = [entry(None)] + [
        entry(n, line=line, is_working=w) for n in (1, 2) for line in (1, 2) for w in (False, True)
    ]
    for old in entries:
        for new in entries:
            for wrong in (None, old):
                await cache.drop("k")
                await cache.put("k", old)
                await cache.put("k", new, instead_of=wrong)
                expected = new if new.replaces(old, wrong) else old
                assert await cache.get("k") == expected, (old, new, wrong)
    await cache.close()


async def test_the_least_recently_used_entry_is_dropped(caches) -> None:
    cache = caches(max_threads=10)
    is_local = isinstance(cache, LocalCache)
    for n in range(10):
        await cache.put(f"k{n}", entry(1))
        await _tick(is_local)
    assert await cache.get("k0") is not None
    await _tick(is_local)
    for n in range(10, 15):
        await cache.put(f"k{n}", entry(1))
        await _tick(is_local)
    there = [n for n in range(15) if await cache.get(f"k{n}") is not None]
    assert there == [0, *range(6, 15)]
    await cache.close()


async def _tick(is_local: bool) -> None:
    """Wait until a server's clock of milliseconds has moved on."""
    began = time.time_ns() // 1_000_000
    while not is_local and time.time_ns() // 1_000_000 <= began + 1:
        time.sleep(0)  # noqa: ASYNC251  (a clock sets no event)


async def test_many_threads_stay_within_the_limit(caches) -> None:
    cache = caches(max_threads=100)
    await asyncio.gather(*(cache.put(f"k{n}", entry(1)) for n in range(500)))
    there = [n for n in range(500) if await cache.get(f"k{n}") is not None]
    assert len(there) == 100
    await cache.close()


async def test_unused_entries_of_this_process_expire(clock) -> None:
    cache = LocalCache(ttl_seconds=10)
    await cache.put("used", entry(1))
    await cache.put("unused", entry(1))
    clock.now += 9
    assert await cache.get("used") is not None
    clock.now += 9
    assert len(cache) == 1
    assert await cache.get("unused") is None
    assert await cache.get("used") is not None


async def test_use_renews_the_time_to_live_in_redis(redis_url) -> None:
    cache, client = RedisCache(redis_url, ttl_seconds=100), redis.asyncio.Redis.from_url(redis_url)
    await cache.put("k", entry(1))
    (name,) = await client.keys()
    assert 99_000 < await client.pttl(name) <= 100_000
    await client.pexpire(name, 5000)
    await cache.get("k")
    assert await client.pttl(name) > 99_000
    limited = RedisCache(redis_url, ttl_seconds=100, max_threads=3, prefix="p:")
    await limited.put("k", entry(1))
    names = [it for it in await client.keys() if it.startswith(b"p:")]
    assert len(names) == 2
    assert all([await client.pttl(it) > 90_000 for it in names])
    await client.aclose()
    for it in (cache, limited):
        await it.close()


def whole(head: bytes) -> bytes:
    """An entry with this head and a right checksum."""
    body = head + b"\n{}"
    return b"%08x" % crc32(body) + body


async def test_an_entry_that_cannot_be_read_is_dropped(redis_url, caplog) -> None:
    caplog.set_level(logging.WARNING, "locus_store")
    cache, client = RedisCache(redis_url), redis.asyncio.Redis.from_url(redis_url)
    await cache.put("k", entry(1))
    (name,) = await client.keys()
    good = await client.hget(name, "entry")
    right = b'{"mark":null,"is_working":true,"born":"","labels":{}}'
    heads = [
        *(right.replace(b"null", it) for it in (b"[1]", b'["s",1,2]', b'["s",1,2,"x"]', b'"m"')),
        right.replace(b"{}", b"[]"), right.replace(b"{}", b"7"), right.replace(b"true", b'"yes"'),
        b"[]", b"null", b"7", b"{}",
    ]  # fmt: skip
    wrong = [b"", b"x", good[:-1], good.replace(b"alice", b"bobby"), b"00000000" + good[8:]]
    for bad in (*wrong, *map(whole, heads)):
        await client.hset(name, "entry", bad)
        assert await cache.get("k") is None
        assert not await client.exists(name)
    assert len(caplog.records) == len(wrong) + len(heads)
    await client.hset(name, "entry", whole(right))
    assert await cache.get("k") == CachedState(mark=None, is_working=True, labels={}, state=b"{}")
    await client.aclose()
    await cache.close()


async def test_a_key_of_another_type_is_replaced(redis_url) -> None:
    cache, client = RedisCache(redis_url), redis.asyncio.Redis.from_url(redis_url)
    await cache.put("k", entry(1))
    (name,) = await client.keys()
    for _ in range(2):
        await client.delete(name)
        await client.rpush(name, "another program's")
        assert await cache.get("k") is None
        await client.rpush(name, "another program's")
        await cache.put("k", entry(1))
        assert await cache.get("k") == entry(1)
    await client.aclose()
    await cache.close()


def test_options_that_make_no_sense_are_refused() -> None:
    for options in ({"max_threads": 0}, {"max_threads": True}, {"ttl_seconds": 0}):
        with pytest.raises(InvalidArgumentError):
            LocalCache(**options)
        with pytest.raises(InvalidArgumentError):
            RedisCache("redis://localhost", **options)
    for options in ({}, {"url": "redis://localhost", "client": object()}, {"client": object()}):
        with pytest.raises(InvalidArgumentError):
            RedisCache(**options)


async def test_two_writers_race_in_any_order(redis_url) -> None:
    """The newest of 200 concurrent puts stays."""
    many = [RedisCache(redis_url) for _ in range(4)]
    puts = [(many[n % 4], entry(n * 7919 % 200 + 1, str(n * 7919 % 200 + 1))) for n in range(200)]
    await asyncio.gather(*(cache.put("k", it) for cache, it in puts))
    assert (await many[0].get("k")).state == b"200"
    for it in many:
        await it.close()


# --- sessions with a cache


class Counted(MemoryBackend):
    """Counts what is read of the database."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    async def fetch(self, thread_id: str, **options: Any) -> Any:
        self.reads.append("fetch")
        await asyncio.sleep(0)
        return await super().fetch(thread_id, **options)

    async def fetch_head(self, thread_id: str, **options: Any) -> Any:
        self.reads.append("head")
        await asyncio.sleep(0)
        return await super().fetch_head(thread_id, **options)


@pytest.fixture
def database():
    return Counted()


async def test_a_confirmed_entry_costs_no_query(database, clock) -> None:
    session = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=10)
    await session.aput_state(T, said("a"))
    database.reads.clear()
    for _ in range(5):
        assert await session.aget_state_cache(T) is not None
    assert database.reads == []
    clock.now += 10
    assert await session.aget_state_cache(T) is not None
    assert database.reads == ["head"]
    assert await session.aget_state_cache(T) is not None
    assert database.reads == ["head"]


async def test_no_read_is_staler_than_was_asked_for(database, clock) -> None:
    ours = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=10)
    strict = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=0)
    other = SessionCheckpointer(database)
    await ours.aput_state(T, said("old"))
    for it in (ours, strict):
        assert texts((await it.aget_state_cache(T)).context) == ["old"]
    await other.aget_state(T)
    await other.aput_state(T, said("new"))
    assert texts((await strict.aget_state_cache(T)).context) == ["new"]
    assert texts((await ours.aget_state(T)).context) == ["new"]
    clock.now += 10
    assert texts((await ours.aget_state_cache(T)).context) == ["new"]
    await other.aclean_thread(T)
    assert await strict.aget_state_cache(T) is None
    clock.now += 10
    assert await ours.aget_state_cache(T) is None


@pytest.fixture
async def eager():
    """Tasks begin as they are created, with Python 3.12 and newer."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", None))
    yield
    loop.set_task_factory(None)


async def test_a_read_that_ends_as_it_begins_answers_no_later_one(database, clock, eager) -> None:
    session = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=10)
    other = SessionCheckpointer(database)
    await session.aput_state(T, said("old"))
    await other.aget_state(T)
    await other.aput_state(T, said("new"))
    clock.now += 9
    assert texts((await session.aget_state_cache(T)).context) == ["old"]
    clock.now += 9
    assert texts((await session.aget_state_cache(T)).context) == ["new"]


async def test_a_session_reads_its_own_writes(database) -> None:
    session = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=1000)
    for text in "abc":
        reader = asyncio.create_task(session.aget_state_cache(T))
        await asyncio.sleep(0)
        await session.aput_state(T, said(text))
        assert texts((await session.aget_state_cache(T)).context) == [text]
        await reader
        assert texts((await session.aget_state_cache(T)).context) == [text]
    await session.aclear_state(T)
    assert await session.aget_state_cache(T) is None


@pytest.mark.parametrize("seconds", [0, 1])
async def test_100_readers_of_a_cold_thread_cause_one_load(database, seconds) -> None:
    await SessionCheckpointer(database).aput_state(T, said("a"))
    session = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=seconds)
    database.reads.clear()
    found = await asyncio.gather(*(session.aget_state_cache(T) for _ in range(100)))
    assert len(database.reads) == 1
    assert len({id(it) for it in found}) == 100
    found[0].context.clear()
    assert texts(found[1].context) == ["a"]


async def test_a_cancelled_reader_leaves_the_others_theirs(database) -> None:
    await SessionCheckpointer(database).aput_state(T, said("a"))
    session = SessionCheckpointer(database, LocalCache())
    readers = [asyncio.create_task(session.aget_state_cache(T)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    assert [texts(it.context) for it in await asyncio.gather(*readers[1:])] == [["a"], ["a"]]


async def test_a_failed_load_fails_its_readers_and_no_later_one(database, monkeypatch) -> None:
    session = SessionCheckpointer(database, LocalCache())
    await SessionCheckpointer(database).aput_state(T, said("a"))
    with monkeypatch.context() as patched:
        patched.setattr(database, "fetch", _fails)
        patched.setattr(database, "fetch_head", _fails)
        calls = (session.aget_state_cache(T) for _ in range(3))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(it) for it in results] == ["no database"] * 3
    assert await session.aget_state_cache(T) is not None


async def _fails(*args: Any, **options: Any) -> Any:
    raise ConnectionError("no database")


async def test_a_working_state_lies_over_its_version(database) -> None:
    session = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=0)
    await session.aput_state(ALICE, said("a"))
    state = await session.aget_state(ALICE)
    state.context_summary = "working"
    assert await session.aput_state_cache(ALICE, state) is state
    assert (await session.aget_state_cache(ALICE)).context_summary == "working"
    assert (await session.aget_state(ALICE)).context_summary is None
    assert await session.aget_state_cache(BOB) is None
    again = await session.aget_state_cache(ALICE)
    await session.aput_state(ALICE, again)
    assert (await session.aget_state(ALICE)).context_summary == "working"


async def test_a_newer_commit_outranks_a_working_state(database) -> None:
    cache = LocalCache()
    session = SessionCheckpointer(database, cache, cache_verify_seconds=0)
    other = SessionCheckpointer(database)
    await session.aput_state(T, said("a"))
    state = await session.aget_state(T)
    await session.aput_state_cache(T, state)
    await other.aget_state(T)
    await other.aput_state(T, said("newer"))
    assert texts((await session.aget_state_cache(T)).context) == ["newer"]
    await session.aput_state_cache(T, state)
    assert texts((await session.aget_state_cache(T)).context) == ["newer"]
    with pytest.raises(ConflictError):
        await session.aput_state(T, state)


async def test_a_working_state_may_come_before_any_version(database) -> None:
    session = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=0)
    await session.aput_state_cache(T, said("first"))
    found = await session.aget_state_cache(T)
    assert texts(found.context) == ["first"]
    assert await session.aget_state(T) is None
    await SessionCheckpointer(database).aput_state(T, said("other"))
    assert texts((await session.aget_state_cache(T)).context) == ["other"]
    with pytest.raises(ConflictError):
        await session.aput_state(T, found)


async def test_without_a_cache_no_working_state_is_kept(database) -> None:
    session = SessionCheckpointer(database)
    await session.aput_state(T, said("a"))
    await session.aput_state_cache(T, said("working"))
    assert texts((await session.aget_state_cache(T)).context) == ["a"]


# --- failures


class Failing(StateCache):
    """A cache that raises ``error``, if there is one."""

    def __init__(self) -> None:
        self.inner = LocalCache()
        self.error: BaseException | None = None
        self.calls = 0

    async def _may(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    async def get(self, key: str) -> CachedState | None:
        await self._may()
        return await self.inner.get(key)

    async def put(
        self, key: str, entry: CachedState, *, instead_of: CachedState | None = None
    ) -> None:
        await self._may()
        await self.inner.put(key, entry, instead_of=instead_of)

    async def drop(self, key: str) -> None:
        await self._may()
        await self.inner.drop(key)

    async def close(self) -> None:
        await self.inner.close()


async def test_a_failing_cache_loses_and_hides_no_commit(database, clock, caplog) -> None:
    caplog.set_level(logging.WARNING, "locus_store")
    cache = Failing()
    session = SessionCheckpointer(database, cache, cache_verify_seconds=0)
    await session.aput_state(T, said("before"))
    cache.error = ConnectionError("down")
    for text in "abc":
        state = await session.aget_state_cache(T)
        state.context = said(text).context
        await session.aput_state(T, state)
        assert texts((await session.aget_state_cache(T)).context) == [text]
    assert cache.calls == 2  # the first put, and the get that failed
    assert len(caplog.records) == 1
    assert "Failing" in caplog.text
    cache.error = None
    clock.now += guards.LONGEST_PAUSE_SECONDS
    assert texts((await session.aget_state_cache(T)).context) == ["c"]
    assert texts((await session.aget_state_cache(T)).context) == ["c"]
    assert cache.calls > 2


async def test_the_pause_grows_while_the_cache_fails(database, clock) -> None:
    cache = Failing()
    guard = guards.GuardedCache(cache)
    cache.error = OSError("down")
    seen = []
    for _ in range(200):
        before = cache.calls
        await guard.get("k")
        seen += [clock.now - 1000] if cache.calls > before else []
        clock.now += 1
    assert seen[:6] == [0, 1, 3, 7, 15, 31]
    assert seen[6] - seen[5] == guards.LONGEST_PAUSE_SECONDS


async def test_a_cache_that_does_not_answer_is_left_alone(database, monkeypatch) -> None:
    monkeypatch.setattr(guards, "ANSWER_SECONDS", 0.01)
    cache = Failing()
    session = SessionCheckpointer(database, cache)
    monkeypatch.setattr(cache, "_may", asyncio.Event().wait)
    await session.aput_state(T, said("a"))
    assert texts((await session.aget_state_cache(T)).context) == ["a"]


async def test_a_bug_in_a_cache_fails_no_call_and_is_logged(database, caplog) -> None:
    caplog.set_level(logging.WARNING, "locus_store")
    cache = Failing()
    cache.error = ZeroDivisionError()
    session = SessionCheckpointer(database, cache)
    await session.aput_state(T, said("a"))
    assert texts((await session.aget_state_cache(T)).context) == ["a"]
    assert [it.args[1] for it in caplog.records] == ["ZeroDivisionError"]


async def test_an_option_that_is_wrong_is_told_before_anything_is_written(database) -> None:
    def wrong() -> StateCache:
        raise InvalidArgumentError("CACHE_URL='nonsense' is not a URL of Redis")

    session = SessionCheckpointer(database, wrong)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="CACHE_URL"):
            await session.aput_state(T, said("a"))
    await session.arelease()
    assert await SessionCheckpointer(database).aget_state(T) is None


async def test_many_failures_at_once_are_one(monkeypatch) -> None:
    monkeypatch.setattr(guards, "ANSWER_SECONDS", 0.01)
    cache = Failing()
    guard = guards.GuardedCache(cache)
    monkeypatch.setattr(cache, "_may", asyncio.Event().wait)
    await asyncio.gather(*(guard.get(f"k{n}") for n in range(guards.CALLS)))
    assert guard._failures == 1
    assert guard._closed_until - time.monotonic() <= guards.FIRST_PAUSE_SECONDS


async def test_a_wait_for_a_turn_is_no_failure(monkeypatch) -> None:
    monkeypatch.setattr(guards, "ANSWER_SECONDS", 0.8)
    guard = guards.GuardedCache(cache := Failing())
    running, most = 0, 0

    async def slowly() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    monkeypatch.setattr(cache, "_may", slowly)
    await asyncio.gather(*(guard.put(f"k{n}", entry(1)) for n in range(20 * guards.CALLS)))
    assert most == guards.CALLS
    assert guard._failures == 0


async def test_an_entry_whose_change_failed_is_not_read_again(database, clock) -> None:
    session = SessionCheckpointer(database, cache := Failing(), cache_verify_seconds=0)
    await session.aput_state(T, said("a"))
    state = await session.aget_state(T)
    state.context_summary = "first"
    await session.aput_state_cache(T, state)
    cache.error = OSError("down")
    state.context_summary = "second"
    await session.aput_state_cache(T, state)
    cache.error = None
    clock.now += 60
    assert (await session.aget_state_cache(T)).context_summary is None
    await session.aput_state_cache(T, state)
    cache.error = OSError("down")
    clock.now += 60
    await session.aclear_state(T)
    cache.error = None
    clock.now += 60
    assert await session.aget_state_cache(T) is None


async def test_a_working_state_of_an_empty_thread_replaces_no_newer_one(database) -> None:
    session = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=0)
    late = {**T, "_checkpoint_version": None}
    await session.aget_state(late)
    state = said("committed")
    await session.aput_state(T, state)
    state.context_summary = "working"
    await session.aput_state_cache(T, state)
    await session.aput_state_cache(late, said("late"))
    assert (await session.aget_state_cache(T)).context_summary == "working"


# --- users of working states


async def test_a_working_state_claims_its_thread(database) -> None:
    session = SessionCheckpointer(database, LocalCache(), cache_verify_seconds=0)
    await session.aput_state_cache(ALICE, said("private"))
    assert await session.aget_state_cache(BOB) is None
    for write in (session.aput_state_cache, session.aput_state):
        with pytest.raises(NotOwnerError):
            await write(BOB, said("planted"))
    assert texts((await session.aget_state_cache(ALICE)).context) == ["private"]


@pytest.mark.parametrize("seconds", [0, 10])
async def test_a_working_state_ends_with_its_thread(database, clock, seconds) -> None:
    cache = LocalCache()
    session = SessionCheckpointer(database, cache, cache_verify_seconds=seconds)
    await session.aput_state_cache(ALICE, said("private"))
    await database.remove_thread("t")
    clock.now += seconds
    assert await session.aget_state_cache(ALICE) is None
    await session.aput_state_cache(ALICE, said("private"))
    await database.remove_thread("t")
    await SessionCheckpointer(database).aput_messages(BOB, [Message.text_message("mine")])
    clock.now += seconds
    assert await session.aget_state_cache(BOB) is None
    assert await session.aget_state_cache(ALICE) is None


async def test_a_working_state_of_another_database_is_not_believed(database) -> None:
    cache = LocalCache()
    session, other = (
        SessionCheckpointer(it, cache, cache_verify_seconds=0) for it in (database, MemoryBackend())
    )
    for config in (ALICE, {"thread_id": "free"}):
        await session.aput_state_cache(config, said("ours"))
        assert await other.aget_state_cache(config) is None
    await other.aput_messages(ALICE, [Message.text_message("hello")])
    await session.aput_state_cache(ALICE, said("ours"))
    assert await other.aget_state_cache(ALICE) is None


async def test_failures_are_counted(database, monkeypatch) -> None:
    from locus_store.runtime import observe

    counted: list[Any] = []

    class Telemetry:
        class cache_failures:  # noqa: N801
            @staticmethod
            def add(number: int, about: dict[str, str]) -> None:
                counted.append((number, about["error.type"]))

    monkeypatch.setattr(observe, "_find_telemetry", Telemetry)
    guard = guards.GuardedCache(cache := Failing())
    cache.error = OSError("down")
    await guard.get("k")
    assert counted == [(1, "OSError")]


# --- Redis


@pytest.fixture(params=first_of("sqlite", "postgresql"))
def place(request):
    return Storage(request.param, request)


@pytest.fixture
async def storage(place):
    yield place
    await place.close()


async def test_sessions_share_a_cache_in_redis(storage, redis_url) -> None:
    first, second = (storage.open(RedisCache(redis_url)) for _ in range(2))
    await first.aput_state(ALICE, said("a"))
    assert texts((await second.aget_state_cache(ALICE)).context) == ["a"]
    working = await first.aget_state_cache(ALICE)
    working.context_summary = "working"
    await first.aput_state_cache(ALICE, working)
    assert (await second.aget_state_cache(ALICE)).context_summary == "working"
    assert await second.aget_state_cache(BOB) is None
    await second.aput_state(ALICE, await second.aget_state(ALICE))
    assert (await second.aget_state_cache(ALICE)).context_summary is None
    await first.aclean_thread(ALICE)
    assert await second.aget_state_cache(T) is None


async def test_a_cache_from_an_old_snapshot_is_found_out(storage, redis_url) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    cache = RedisCache(redis_url)
    session, other = storage.open(cache, cache_verify_seconds=0), storage.open()
    await session.aput_state(T, said("old"))
    (name,) = await client.keys()
    snapshot = await client.dump(name)
    await other.aget_state(T)
    await other.aput_state(T, said("new"))
    for _ in range(3):
        await client.restore(name, 0, snapshot, replace=True)
        assert texts((await session.aget_state_cache(T)).context) == ["new"]
        assert (await cache.get((await client.keys())[0].decode()[15:-1])).mark.sequence == 2
    await client.flushdb()
    assert texts((await session.aget_state_cache(T)).context) == ["new"]
    await client.aclose()


async def test_an_entry_of_another_database_is_not_believed(storage, redis_url, tmp_path) -> None:
    session = storage.open(RedisCache(redis_url), cache_verify_seconds=0)
    other = SessionCheckpointer(MemoryBackend(), RedisCache(redis_url), cache_verify_seconds=0)
    await session.aput_state(T, said("ours"))
    await other.aput_state({"thread_id": "t"}, said("theirs"))
    for _ in range(2):
        found = [await it.aget_state_cache(T) for it in (session, other)]
        assert [texts(it.context) for it in found] == [["ours"], ["theirs"]]
    await other.arelease()


async def test_a_full_or_missing_redis_costs_no_state(storage, redis_url, caplog) -> None:
    caplog.set_level(logging.WARNING, "locus_store")
    unreachable = RedisCache("redis://127.0.0.1:1")
    session = storage.open(unreachable, cache_verify_seconds=0)
    for n in range(3):
        await session.aput_state({"thread_id": f"t{n}"}, said("a"))
        assert await session.aget_state_cache({"thread_id": f"t{n}"}) is not None
    warnings = [it for it in caplog.records if "RedisCache" in it.getMessage()]
    assert len(warnings) == 1


async def test_a_client_that_is_handed_in_stays_open(storage, redis_url) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    session = storage.open(RedisCache(client=client))
    await session.aput_state(T, said("a"))
    await session.arelease()
    assert await client.ping()
    await client.aclose()
