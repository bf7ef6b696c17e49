"""Payloads that stand together in one element of a log, on Redis and Valkey."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import redis
from storages.redis import empty_places

from locus_store import IntegrityError, RedisBackend
from locus_store.backends.redis.keys import RedisKeys
from locus_store.backends.redis.records import read_log
from locus_store.testing.steps import problems

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

PACKED = 32
SAID = [random.Random(n).randbytes(20).hex() for n in range(500)]
"""Beyond what is put together, also when it is compressed."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def log_of(url: str, thread_id: str = "t") -> list[bytes]:
    """The elements, of which there must be one for each version."""
    with redis.Redis.from_url(url) as client:
        _, _, order, log, _ = RedisKeys("locus:state:").reading(thread_id, "")
        found: list[bytes] = client.lrange(log, 0, -1)
        assert len(found) == client.zcard(order)
    assert [not it for it in found] == empty_places(found)
    return found


def blocks(url: str, thread_id: str = "t") -> list[int]:
    """Return the number of payloads of each element."""
    return [len(list(read_log([it]))) for it in log_of(url, thread_id) if it]


async def grown(backend: RedisBackend, first: int, last: int, **options: Any) -> None:
    """Versions ``v<n>``, each of which says one thing more."""
    for n in range(first, last):
        state = {"said": [*SAID, *range(n)]}
        await backend.write_state("t", state, checkpoint_id=f"v{n}", **options)


async def require(url: str, *numbers: int) -> None:
    """Whoever loads these versions sees what was saved, and sees no others."""
    async with RedisBackend(url) as fresh:
        there = [it.checkpoint_id for it in await fresh.history("t", limit=1000)]
        assert there == [f"v{n}" for n in sorted(numbers, reverse=True)]
        for n in numbers:
            found = await fresh.read_state("t", f"v{n}")
            assert found is not None
            assert found.state == {"said": [*SAID, *range(n)]}
        assert await problems(fresh) == []


async def test_a_load_reads_few_values(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await grown(backend, 0, 100)
    # The state that the chain begins with is large.
    assert blocks(redis_url) == [1, PACKED, PACKED, PACKED, 1, 1, 1]
    await require(redis_url, *range(100))


async def test_a_small_thread_keeps_its_time_to_live(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        for n in range(PACKED):
            await backend.write_state("t", {"said": ["word"] * 500, "n": n}, ttl_seconds=60)
    assert blocks(redis_url) == [PACKED]
    with redis.Redis.from_url(redis_url) as client:
        keys = client.keys("*|t*")
        assert len(keys) == 4
        assert all(0 < client.pttl(it) <= 63_001 for it in keys)
    async with RedisBackend(redis_url) as fresh:
        assert await fresh.load("t") == {"said": ["word"] * 500, "n": PACKED - 1}


async def test_large_payloads_stay_alone(redis_url: str) -> None:
    said: list[Any] = list(SAID)
    async with RedisBackend(redis_url) as backend:
        await backend.write_state("t", {"said": said})
        for n in range(80):
            said = [*said, random.Random(n).randbytes(6_000 if n == 40 else 10).hex()]
            await backend.write_state("t", {"said": said})
    assert blocks(redis_url) == [1, PACKED, *[1] * 9, PACKED, *[1] * 7]
    async with RedisBackend(redis_url) as fresh:
        assert await fresh.load("t") == {"said": said}


@pytest.mark.parametrize(
    "gone",
    [[1], [7], [32], [33], [7, 8, 9], [7, 40], range(1, 33), range(20, 50), range(95), [0], [99]],
)
async def test_versions_go_out_of_a_block(redis_url: str, gone: Any) -> None:
    async with RedisBackend(redis_url) as backend:
        await grown(backend, 0, 100)
        assert await backend.remove("t", [f"v{n}" for n in gone]) == len(gone)
        left = [n for n in range(100) if n not in gone]
        await require(redis_url, *left)
        last = max(left) + 1
        await grown(backend, last, last + 70)
        await require(redis_url, *left, *range(last, last + 70))


async def test_what_is_hidden_goes_with_its_block(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await grown(backend, 0, 300, keep_last=5)
        await require(redis_url, *range(295, 300))
        assert len(log_of(redis_url)) < 150
        assert PACKED in blocks(redis_url)


async def test_a_chain_goes_on_behind_what_others_put_between(redis_url: str) -> None:
    async with RedisBackend(redis_url) as one, RedisBackend(redis_url) as late:
        await grown(one, 0, 40)
        await late.read_state("t")
        for n in range(40, 110):
            await grown(one, n, n + 1)
            if n % 9 == 0:
                await late.write_state(
                    *("t", {"said": [*SAID, "late", n]}),
                    checkpoint_id=f"late-{n}",
                    parent_id="v39",
                    forks=False,
                    on_conflict="branch",
                )
        await grown(one, 110, 150)
        assert blocks(redis_url)[-10:] == [PACKED, *[1] * 9]
        names = [it.checkpoint_id for it in await one.history("t", limit=1000)]
    async with RedisBackend(redis_url) as fresh:
        for name in names:
            kind, _, n = name.rpartition("-")
            state = [*SAID, "late", int(n)] if kind else [*SAID, *range(int(name[1:]))]
            found = await fresh.read_state("t", name)
            assert found is not None
            assert found.state == {"said": state}
        assert await problems(fresh) == []


async def test_a_wrong_note_of_what_stands_alone_makes_no_block(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await grown(backend, 0, 30)
        await backend.write_state(
            "t", {"said": [*SAID, "fork"]}, parent_id="v0", checkpoint_id="fork"
        )
        await backend.write_state("t", {"said": [*SAID, "fork", 1]}, checkpoint_id="fork 1")
        with redis.Redis.from_url(redis_url) as client:  # by another program
            client.hset(RedisKeys("locus:state:").reading("t", "")[1], "alone", PACKED - 1)
        await backend.write_state("t", {"said": [*SAID, "fork", 1, 2]}, checkpoint_id="fork 2")
        assert set(blocks(redis_url)) == {1}
    async with RedisBackend(redis_url) as fresh:
        assert await fresh.load("t") == {"said": [*SAID, "fork", 1, 2]}
        assert await problems(fresh) == []


async def test_records_end_where_they_are_asked_to(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await grown(backend, 0, 100)
        every = await backend.records("t", first=1, last=100)
        assert [sequence for sequence, _, _ in every] == list(range(1, 101))
        for last in (1, 2, 5, 33, 34, 99):
            assert await backend.records("t", first=1, last=last) == every[:last]


async def test_a_thread_from_elsewhere_has_blocks(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await grown(backend, 0, 100)
        thread = await backend.read_thread("t")
        assert thread is not None
        await backend.write_thread(replace(thread, thread_id="copy"))
        assert await backend.delete("t")
        await backend.write_thread(thread)
        for name in ("t", "copy"):
            assert blocks(redis_url, name) == [1, PACKED, PACKED, PACKED, 1, 1, 1]
        assert await backend.read_thread("t") == thread
        await grown(backend, 100, 140)
    await require(redis_url, *range(140))


async def test_a_block_that_was_cut_is_damage(redis_url: str) -> None:
    async with RedisBackend(redis_url) as backend:
        await grown(backend, 0, 33)
        await backend.write_state("t", {"said": ["fork"]}, parent_id="v0")  # another chain
        with redis.Redis.from_url(redis_url) as client:
            log = RedisKeys("locus:state:").reading("t", "")[3]
            client.lset(log, 1, client.lindex(log, 1)[:-1])
            there = client.lrange(log, 0, -1)
    async with RedisBackend(redis_url) as fresh:
        assert await fresh.load("t") == {"said": ["fork"]}
        for read in (partial(fresh.read_state, "t", "v32"), partial(fresh.read_thread, "t")):
            with pytest.raises(IntegrityError, match="a log in Redis is not as it was written"):
                await read()
        (problem,) = await problems(fresh)
        assert "a log in Redis" in problem
        with pytest.raises(IntegrityError, match="not as it was written"):
            await fresh.remove("t", ["v32"])  # of which no other is made
        with redis.Redis.from_url(redis_url) as client:
            assert client.lrange(log, 0, -1) == there


async def test_a_block_in_another_place_is_damage(redis_url: str) -> None:
    states = [{"said": ["word"] * 500, "n": n} for n in range(PACKED)]
    async with RedisBackend(redis_url) as backend:
        for n, state in enumerate(states):
            await backend.write_state("t", state, checkpoint_id=f"v{n}")
        with redis.Redis.from_url(redis_url) as client:
            log = RedisKeys("locus:state:").reading("t", "")[3]
            client.rpush(log, client.lpop(log))
            there = client.lrange(log, 0, -1)
            with pytest.raises(IntegrityError, match="is missing in Redis or was changed"):
                await backend.remove("t", ["v7"])
            assert client.lrange(log, 0, -1) == there


def test_a_log_is_read_in_order() -> None:
    log = [b"3 +1 2\n", b"+3 1 0 2\na\nb", b"", b"", b"7 "]
    assert list(read_log(log)) == [(3, b"+1 2\n"), (3, b"a"), (3, b""), (3, b"\nb"), (7, b"")]
    assert all(one <= other for one, other in pairwise(chain for chain, _ in read_log(log)))


@pytest.mark.parametrize("damage", [lambda _: b"", lambda it: b"9" + it, lambda it: it[:-3]])
async def test_a_reader_of_an_older_version_does_not_take_it_for_a_damaged_head(
    redis_url: str, damage: Callable[[bytes], bytes]
) -> None:
    async with RedisBackend(redis_url) as backend, RedisBackend(redis_url) as behind:
        await backend.write_state("t", {"said": ["x" * 9_000]})
        await behind.read_state("t")
        await backend.write_state("t", {"said": ["x" * 9_000, "new"]})
        with redis.Redis.from_url(redis_url) as client:
            log = RedisKeys("locus:state:").reading("t", "")[3]
            client.lset(log, -1, damage(client.lindex(log, -1)))
        with pytest.raises(IntegrityError):
            await behind.read_state("t")
