"""Saves on Redis and Valkey that meet a server that lost writes, or other writers."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN

from locus_store import ConflictError
from locus_store.testing.steps import problems
from locus_store.versions import CHAIN_ALLOWANCE, CHAIN_FACTOR, RECORD_OVERHEAD

if TESTS_RUN:
    import redis

    from locus_store import RedisBackend, redis_checkpointer
    from locus_store.backends.redis.keys import RedisKeys

if TYPE_CHECKING:
    from locus_store.backends.redis.scripts import Script

pytestmark = pytest.mark.anyio

SAID = [f"text {n}" for n in range(500)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Past:
    """Thread ``t`` as it is now, to be brought back as by a server that lost its last second."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._key = RedisKeys("locus:state:").document("t")
        self._dump = self._client.dump(self._key)

    def bring_back(self) -> None:
        self._client.restore(self._key, 0, self._dump, replace=True)
        self._client.close()


async def test_a_number_that_was_lost_and_given_again_is_no_basis(redis_url: str) -> None:
    async with RedisBackend(redis_url) as mine, RedisBackend(redis_url) as theirs:
        await mine.write_state("t", {"said": SAID})
        past = Past(redis_url)
        lost = await mine.write_state("t", {"said": [*SAID, "mine"]})
        past.bring_back()
        other = await theirs.write_state("t", {"said": [*SAID, "theirs"]})
        assert (lost.mark.line, lost.mark.sequence) == (other.mark.line, other.mark.sequence)
        await mine.write_state("t", {"said": [*SAID, "mine", "again"]})
    async with RedisBackend(redis_url) as fresh:
        assert await fresh.load("t") == {"said": [*SAID, "mine", "again"]}
        assert await problems(fresh) == []


async def test_a_number_that_was_lost_and_given_again_is_a_conflict(redis_url: str) -> None:
    async with (
        redis_checkpointer(redis_url, state_type=dict) as mine,
        redis_checkpointer(redis_url, state_type=dict) as theirs,
    ):
        await mine.save({"said": SAID}, "t")
        past = Past(redis_url)
        state = await mine.load("t")
        await mine.save({**state, "n": "mine"}, "t")
        late = await theirs.load("t")
        past.bring_back()
        await mine.save({**state, "n": "another"}, "t")
        with pytest.raises(ConflictError):
            await theirs.save({**late, "n": "theirs"}, "t")


async def test_a_root_of_an_object_that_knows_nothing_has_no_parent(redis_url: str) -> None:
    async with RedisBackend(redis_url) as one, RedisBackend(redis_url) as another:
        await one.write_state("t", {"n": 1})
        await another.write_state("t", {"n": 2}, is_root=True)
        assert [it.parent_id for it in await one.history("t")] == [None, None]


async def test_a_chain_that_is_too_long_is_not_continued(redis_url: str) -> None:
    state: dict[str, Any] = {"a": "a" * 20_000, "b": "b" * 20_000, "c": "c" * 20_000}
    most = CHAIN_FACTOR * 61_000 + CHAIN_ALLOWANCE
    async with RedisBackend(redis_url) as backend:
        for n in range(40):
            state = {**state, "a": random.Random(n).randbytes(10_000).hex()}
            await backend.write_state("t", state)
        sizes: dict[int, int] = {}
        for _, chain, payload in await backend.records("t", first=1, last=40):
            sizes[chain] = sizes.get(chain, 0) + len(payload) + RECORD_OVERHEAD
        assert len(sizes) > 1
        assert max(sizes.values()) <= most


async def test_what_grew_from_what_was_lost_is_read_whole(redis_url: str) -> None:
    async with RedisBackend(redis_url) as mine, RedisBackend(redis_url) as theirs:
        await mine.write_state("t", {"said": SAID})
        past = Past(redis_url)
        await mine.write_state("t", {"said": [*SAID, "lost"]})
        past.bring_back()
        for n in range(3):
            await theirs.write_state("t", {"said": [*SAID, *range(n)]})
        assert await mine.load("t") == {"said": [*SAID, 0, 1]}
        assert await problems(mine) == []


async def test_what_others_added_is_all_that_is_read(redis_url: str) -> None:
    async with RedisBackend(redis_url) as mine, RedisBackend(redis_url) as theirs:
        await mine.write_state("t", {"said": SAID})
        await theirs.load("t")
        with redis.Redis.from_url(redis_url) as client:
            for n in range(3):
                await mine.write_state("t", {"said": [*SAID, *range(n)]})
                client.config_resetstat()
                assert await theirs.load("t") == {"said": [*SAID, *range(n)]}
                assert client.info("stats")["total_net_output_bytes"] < 1500


async def test_an_edit_that_a_save_went_before_is_decided_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RedisBackend(redis_url) as one, RedisBackend(redis_url) as another:
        for n in range(3):
            await one.write_state("t", {"said": [*SAID, n]}, checkpoint_id=f"v{n}")
        write = one._documents._write
        tries: list[str] = []

        async def behind_somebodys_save(script: Script, *args: Any) -> Any:
            if not tries:
                await another.write_state("t", {"said": [*SAID, "late"]}, checkpoint_id="late")
            tries.append(script.name)
            return await write(script, *args)

        monkeypatch.setattr(one._documents, "_write", behind_somebodys_save)
        assert await one.delete("t", "v1")
        assert tries == ["documents put"] * 2
        assert [it.checkpoint_id for it in await one.history("t")] == ["late", "v2", "v0"]
        assert await another.load("t") == {"said": [*SAID, "late"]}
        assert await problems(one) == []


async def test_one_id_is_given_once_though_many_give_it(redis_url: str) -> None:
    async with RedisBackend(redis_url) as one, RedisBackend(redis_url) as another:
        await one.write_state("t", {"n": 0}, checkpoint_id="v")
        told = await asyncio.gather(
            *(it.write_state("t", {"n": 1}, checkpoint_id="same") for it in (one, another) * 5)
        )
        assert {it.checkpoint_id for it in told} == {"same"}
        assert [it.checkpoint_id for it in await one.history("t")] == ["same", "v"]
        assert await problems(one) == []


async def test_a_head_is_read_from_its_own_chain_though_others_stand_in_between(
    redis_url: str,
) -> None:
    async with RedisBackend(redis_url) as one, RedisBackend(redis_url) as late:
        await one.write_state("t", {"said": SAID}, checkpoint_id="v0")
        await late.read_state("t")
        said = SAID
        for n in range(1, 6):
            said = [*said, n]
            await one.write_state("t", {"said": said}, checkpoint_id=f"v{n}")
            await late.write_state(
                *("t", {"said": [*SAID, "late", n]}),
                parent_id="v0",
                forks=False,
                on_conflict="branch",
            )
        said = [*said, "last"]
        await one.write_state("t", {"said": said})
        records = await one.records("t", first=1, last=12)
        chain = {it[0]: it[1] for it in records}
        head = (await one.read_state("t")).version.mark.sequence
        others = [it for it in chain if chain[head] < it < head and chain[it] != chain[head]]
        assert others, chain
    async with RedisBackend(redis_url) as fresh:
        assert await fresh.load("t") == {"said": said}
        for version in await fresh.history("t"):
            assert (await fresh.read_state("t", version.checkpoint_id)) is not None
        assert await problems(fresh) == []
