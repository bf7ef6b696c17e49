"""Redis Sentinel: each entrance finds the primary, follows a fail-over, and names what is wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import servers
from lazily import TESTS_RUN
from redis_sentinels import NAME, Group
from servers import started

from locus_store import ConnectionFailedError, open_storage
from locus_store.blocking import BlockingCheckpointer

if TESTS_RUN:
    from locus_store import RedisBackend
    from locus_store.backends.redis import sentinels

if TYPE_CHECKING:
    import redis_servers

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def failure_of(url: str) -> str:
    """Return the error of the first call, without a retry."""
    async with RedisBackend(url, retry_seconds=0) as backend:
        with pytest.raises(ConnectionFailedError) as error:
            await backend.load("t")
    return str(error.value)


async def test_every_part_of_a_storage_follows_a_fail_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentinels, "CONFIRM_SECONDS", 0)  # the test does not wait for a second
    with started(Group, replicas=1, sentinels=1) as group:
        async with open_storage(group.url(2)) as storage:
            checkpointer = storage.checkpointer(state_type=dict)
            store, log = storage.store(), storage.messages()
            for n in (1, 2):
                await checkpointer.save({"n": n}, "t")
                await store.put(("a",), f"k{n}", {"n": n})
                await log.append("m", [(f"{n}", "user")])
                if n == 1:
                    await asyncio.to_thread(group.request_failover)
            assert len(await checkpointer.list_checkpoints("t")) == 2
            assert len(await store.list(("a",))) == 2
            assert await log.contents("m") == ["1", "2"]
            facts = {it.name: (it.value, it.verdict) for it in await storage.backend.facts()}
            assert facts["sentinels"] == ("1 of 1 name the primary", "info")
        text = await failure_of(group.url().replace(NAME, "other"))
        assert f"the sentinels monitor '{NAME}', not 'other'" in text
        url = group.url(2)

        def load() -> Any:
            with BlockingCheckpointer(storage.checkpointer(state_type=dict)) as blocking:
                return blocking.load("t")

        assert await asyncio.to_thread(load) == {"n": 2}
        dead = f"{servers.LOOPBACK}:{servers.free_port()}"
        async with RedisBackend(url.replace("://", f"://{dead},", 1)) as backend:
            assert await backend.load("t") == {"n": 2}
            facts = {it.name: it.verdict for it in await backend.facts()}
            assert facts["sentinels"] == "warn"


async def test_what_is_no_sentinel_is_named(redis_server: redis_servers.Redis) -> None:
    place = f"{servers.LOOPBACK}:{servers.free_port()}"
    text = await failure_of(f"redis+sentinel://u:s3cr3t@{place},nowhere.invalid/{NAME}")
    assert "no sentinel can be reached: Connection refused, the name is not resolved" in text
    assert "nothing was done" in text
    assert "s3cr3t" not in text
    text = await failure_of(f"redis+sentinel://{servers.LOOPBACK}:{redis_server.port}/{NAME}")
    assert "not a sentinel" in text


class Answering:
    """A fake of a sentinel's client and pipeline: it answers with an address, or late."""

    def __init__(self, port: int, epoch: int, next_port: int = 0, *, seconds: float = 0) -> None:
        state = {
            "ip": "h", "port": port, "config-epoch": epoch, "is_master": True,
            "is_sdown": next_port > 0, "is_odown": False,
        }  # fmt: skip
        self._answers = [{NAME: state}, ("h", next_port or port)]
        self._seconds = seconds

    def pipeline(self, *, transaction: bool) -> Answering:
        del transaction
        return self

    def execute_command(self, *command: str) -> None:
        """Do nothing."""

    async def execute(self) -> Any:
        await asyncio.sleep(self._seconds)
        return self._answers

    async def aclose(self) -> None:
        """Do nothing."""


async def test_the_answer_after_the_latest_failover_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = sentinels.Sentinels([])
    asked.sentinels = [Answering(1, 7), Answering(1, 7), Answering(1, 8, 2, seconds=0.02)]
    with monkeypatch.context() as patch:
        patch.setattr(sentinels, "PROMPT_SECONDS", servers.DEADLINE_SECONDS)
        found = await asyncio.gather(*(asked.discover_master(NAME) for _ in range(9)))
    assert set(found) == {("h", 2)}
    for few in ([Answering(1, 7)] * 3, [Answering(1, 7), *[Answering(2, 8, seconds=9)] * 2]):
        asked.sentinels = few  # it is silent by now, or has not heard of the failover
        with pytest.raises(sentinels.NoPrimaryError, match="do not know the last failover"):
            await asked.discover_master(NAME)
    await asked.aclose()


async def test_a_silent_sentinel_delays_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = sentinels.Sentinels([])
    asked.sentinels = [Answering(1, 7), Answering(1, 7), Answering(1, 7, seconds=60)]
    assert await asked.discover_master(NAME) == ("h", 1)
    for name in ("ASK_SECONDS", "PROMPT_SECONDS"):
        monkeypatch.setattr(sentinels, name, 60)
    async with asyncio.timeout(30):
        assert await asked.discover_master(NAME) == ("h", 1)
    await asked.aclose()
