"""Saves on Redis and Valkey that meet a server that lost writes, or other writers."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN

from locus_store import BackendError, ConflictError, SchemaError
from locus_store.runtime.greenlets import wait
from locus_store.runtime.retries import Pauses
from locus_store.testing.steps import find_problems
from locus_store.versions import CHAIN_ALLOWANCE, CHAIN_FACTOR, RECORD_OVERHEAD

if TESTS_RUN:
    import redis

    from locus_store import RedisBackend, redis_checkpointer
    from locus_store.backends.redis.connections import LoopClient
    from locus_store.backends.redis.keys import RedisKeys

if TYPE_CHECKING:
    import redis_clusters

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
        self._key = RedisKeys("locus:state:").get_document("t")
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
        assert await find_problems(fresh) == []


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
        assert await find_problems(mine) == []


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

        def behind_another_save(script: Script, *args: Any) -> Any:
            if not tries:
                wait(another.write_state("t", {"said": [*SAID, "late"]}, checkpoint_id="late"))
            tries.append(script.name)
            return write(script, *args)

        monkeypatch.setattr(one._documents, "_write", behind_another_save)
        assert await one.delete("t", "v1")
        assert tries == ["documents put"] * 2
        assert [it.checkpoint_id for it in await one.history("t")] == ["late", "v2", "v0"]
        assert await another.load("t") == {"said": [*SAID, "late"]}
        assert await find_problems(one) == []


async def test_one_id_is_given_once_though_many_give_it(redis_url: str) -> None:
    async with RedisBackend(redis_url) as one, RedisBackend(redis_url) as another:
        await one.write_state("t", {"n": 0}, checkpoint_id="v")
        told = await asyncio.gather(
            *(it.write_state("t", {"n": 1}, checkpoint_id="same") for it in (one, another) * 5)
        )
        assert {it.checkpoint_id for it in told} == {"same"}
        assert [it.checkpoint_id for it in await one.history("t")] == ["same", "v"]
        assert await find_problems(one) == []


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
        assert await find_problems(fresh) == []


# --- saves that share a round trip

TOGETHER = [f"t{n}" for n in range(32)]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of writes that shared a round trip."""
    found: list[int] = []
    write = LoopClient._write

    async def noted(self: LoopClient, calls: Any) -> Any:
        found.append(len(calls))
        return await write(self, calls)

    monkeypatch.setattr(LoopClient, "_write", noted)
    return found


async def all_saved(backend: RedisBackend, number: int) -> None:
    await asyncio.gather(*(backend.save(it, {"n": number}) for it in TOGETHER))
    assert [await backend.load(it) for it in TOGETHER] == [{"n": number}] * len(TOGETHER)


async def test_saves_at_once_share_round_trips(redis_url: str, groups: list[int]) -> None:
    async with RedisBackend(redis_url) as backend:
        await all_saved(backend, 0)
        groups.clear()
        await all_saved(backend, 1)
        assert sum(groups) == len(TOGETHER)
        assert len(groups) <= 4
        with redis.Redis.from_url(redis_url) as client:
            client.script_flush()
        await all_saved(backend, 2)
        assert await find_problems(backend) == []


async def test_saves_at_once_share_round_trips_to_their_servers(
    redis_cluster: redis_clusters.Cluster, groups: list[int]
) -> None:
    redis_cluster.flush()
    async with RedisBackend(redis_cluster.url()) as backend:
        for number in range(3):
            await all_saved(backend, number)
        assert max(groups) > 1
        assert await find_problems(backend) == []


async def test_one_wait_for_replicas_is_for_all_saves_that_share_a_round_trip(
    redis_url: str, groups: list[int]
) -> None:
    options: dict[str, Any] = {"wait_replicas": 1, "wait_timeout_seconds": 0.01}
    async with RedisBackend(redis_url) as backend:
        await all_saved(backend, 0)
    groups.clear()
    with redis.Redis.from_url(redis_url) as client:
        async with RedisBackend(redis_url, **options) as backend:
            client.config_resetstat()
            found = await asyncio.gather(
                *(backend.save(it, {"n": 1}) for it in TOGETHER), return_exceptions=True
            )
            waits = client.info("commandstats")["cmdstat_wait"]["calls"]
            assert [type(it) for it in found] == [BackendError] * len(TOGETHER)
            assert waits == len(groups) < len(TOGETHER)
            assert [await backend.load(it) for it in TOGETHER] == [{"n": 1}] * len(TOGETHER)


async def test_a_save_that_is_refused_fails_alone(redis_url: str, groups: list[int]) -> None:
    async with RedisBackend(redis_url) as backend:
        await all_saved(backend, 0)
        with redis.Redis.from_url(redis_url) as client:
            client.set(RedisKeys("locus:state:").get_document(TOGETHER[7]), "of another program")
        groups.clear()
        found = await asyncio.gather(
            *(backend.save(it, {"n": 1}) for it in TOGETHER), return_exceptions=True
        )
        assert max(groups) > 7
        refused = [it for it in found if isinstance(it, BaseException)]
        assert [type(it) for it in refused] == [SchemaError]
        assert found.index(refused[0]) == 7
        for name in TOGETHER[:7] + TOGETHER[8:]:
            assert await backend.load(name) == {"n": 1}


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
async def test_a_cancelled_save_takes_no_other_one_with_it(redis_url: str, steps: int) -> None:
    async with RedisBackend(redis_url) as backend:
        await all_saved(backend, 0)
        saves = [asyncio.ensure_future(backend.save(it, {"n": 1})) for it in TOGETHER]
        for _ in range(steps):
            await asyncio.sleep(0)
        for it in saves[::2]:
            it.cancel()
        found = await asyncio.gather(*saves, return_exceptions=True)
        assert {type(it) for it in found[1::2]} == {str}
        assert [await backend.load(it) for it in TOGETHER[1::2]] == [{"n": 1}] * 16
    async with RedisBackend(redis_url) as fresh:  # the other one has ended what was begun
        assert await find_problems(fresh) == []


async def test_saves_that_lose_their_connection_are_decided_each(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RedisBackend(redis_url) as backend:
        await all_saved(backend, 0)
        pipelined = LoopClient._run_pipeline
        lost: list[int] = []

        async def and_lost(self: LoopClient, commands: Any) -> Any:
            answers = await pipelined(self, commands)
            if not lost:
                lost.append(len(commands))
                raise redis.ConnectionError("the answers were lost")
            return answers

        monkeypatch.setattr(LoopClient, "_run_pipeline", and_lost)
        await all_saved(backend, 1)
        assert lost[0] > 1
        assert [len(await backend.history(it)) for it in TOGETHER] == [2] * len(TOGETHER)


async def test_a_write_whose_answer_was_lost_is_asked_for_at_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients may rewrite the thread meanwhile, again and again."""
    monkeypatch.setattr(Pauses, "get_next", lambda _: 29.0)
    async with RedisBackend(redis_url) as backend:
        await backend.save("t", {"n": 0})
        written = LoopClient._write
        lost: list[int] = []

        async def and_lost(self: LoopClient, calls: Any) -> Any:
            answers = await written(self, calls)
            if not lost:
                lost.append(len(calls))
                raise redis.ConnectionError("the answers were lost")
            return answers

        monkeypatch.setattr(LoopClient, "_write", and_lost)
        monkeypatch.setattr(backend._documents, "pause", bool)
        async with asyncio.timeout(20):
            await backend.save("t", {"n": 1})
        assert lost == [1]
        assert len(await backend.history("t")) == 2
