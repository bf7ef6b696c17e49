"""A rebalance that is killed again and again loses no acknowledged save, and doubles no thread."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiers import ALL

from locus_store import Encryption, InMemoryStore, LocalKeyRing, open_sharded, open_storage
from locus_store.backends.sharded import shard_set
from locus_store.backends.sharded.rebalance import rebalance
from locus_store.versions import segments
from locus_store.versions.sharding import choose_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.posix]

WORKER = Path(__file__).parents[3] / "workers" / "on_shards.py"
TRIALS = 100 if ALL else 8
SHARDS = 5
"""A set grows from one shard to so many; then a new set begins."""

THREADS = 60


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def worker() -> Iterator[Any]:
    """The process whose children are killed."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(WORKER)], **pipes) as process:
        yield process
        process.stdin.close()


class Writer:
    """Saves and loads threads while they move, and knows what was acknowledged."""

    def __init__(self, storage: Any, counts: dict[str, int]) -> None:
        self._checkpointer = storage.checkpointer(state_type=dict)
        self.counts = counts
        self.is_over = False

    async def run(self) -> None:
        dice = random.Random(1)
        while not self.is_over:
            await self.save(dice.choice(sorted(self.counts)))
            await self.save(f"new {len(self.counts)}")
            await asyncio.sleep(0.01)

    async def save(self, thread_id: str) -> None:
        known = self.counts.get(thread_id, 0)
        state = await self._checkpointer.load(thread_id)
        assert (state or {"n": 0})["n"] == known, f"{thread_id} has {state}, and had {known}"
        state = state if known else {}
        state["n"] = known + 1
        await self._checkpointer.save(state, thread_id)
        self.counts[thread_id] = known + 1


async def kill_one(worker: Any, words: list[str], steps: int) -> None:
    """Start a rebalance, and kill it after so many lines of its output."""
    print(*words, file=worker.stdin, flush=True)
    pid = int((await asyncio.to_thread(worker.stdout.readline)).split()[1])
    for _ in range(steps):
        if await asyncio.to_thread(worker.stdout.readline) != "step\n":
            return  # it was over before
    os.kill(pid, signal.SIGKILL)
    while await asyncio.to_thread(worker.stdout.readline) == "step\n":
        pass


async def find_state(storage: Any) -> list[str]:
    """Return the state that a killed rebalance left, with its moves."""
    shards = storage.backend.shards
    newest = max(
        [it for shard in shards if (it := await shard.read_layout())], key=lambda it: it.epoch
    )
    moves = [it for shard in shards for it in await shard.list_moves()]
    return [newest.state, *("taken" if it.is_taken else "reserved" for it in moves)]


async def check(urls: list[str], counts: dict[str, int], options: dict[str, Any]) -> None:
    """Each thread has each of its versions, and is in its shard only."""
    for number, url in enumerate(urls):
        async with open_storage(url) as storage:
            storage.backend.join_set()
            threads = await storage.checkpointer().list_threads(limit=100_000)
            assert {choose_shard(len(urls), "default", it) for it in threads} <= {number}
            assert [it.name for it in await storage.backend.tenants()] == ["default"]
            assert await storage.backend.list_moves() == []
            assert await storage.backend.damage() == []
    async with open_sharded(urls, **options) as storage:
        checkpointer = storage.checkpointer(state_type=dict)
        assert sorted(await checkpointer.list_threads(limit=100_000)) == sorted(counts)
        for thread_id, count in counts.items():
            assert len(await checkpointer.list_checkpoints(thread_id, limit=100_000)) == count
            state: Any = await checkpointer.load(thread_id)
            assert state["n"] == count


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["clear", "encrypted"])
async def test_a_killed_rebalance_loses_and_doubles_nothing(
    is_encrypted: bool, make_url: Callable[[], str], worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encrypted, the clients have the keys, and the rebalance that is killed has none."""
    options = dict[str, Any]()
    if is_encrypted:
        ring = LocalKeyRing({"a": bytes(32)}, "a")
        options["encryption"] = Encryption(ring, InMemoryStore())
    monkeypatch.setattr(segments, "RECORDS", 4)
    monkeypatch.setattr(shard_set, "LEASE_SECONDS", 0.01)
    monkeypatch.setattr(shard_set, "ANNOUNCED_SECONDS", 0.05)
    monkeypatch.setattr(shard_set, "WAITS", 10_000)  # a write waits for the last rebalance
    dice, kills, met = random.Random(2), 0, Counter[str]()
    while kills < TRIALS:
        urls, counts = [make_url()], dict[str, int]()
        async with open_sharded(urls, **options) as storage:
            for it in range(THREADS):
                await Writer(storage, counts).save(f"t{it}")
        while len(urls) < SHARDS and kills < TRIALS:
            urls.append(make_url())
            tools = dice, met, options
            kills += await kill_some(worker, urls, counts, tools, TRIALS - kills)
            await check(urls, counts, options)
        kills += await kill_some(worker, urls, counts, tools, 5, removes_last=True)
        await check(urls[:-1], counts, options)
    print(f"{kills} kills, in the states {dict(met)}")


async def kill_some(
    worker: Any,
    urls: list[str],
    counts: dict[str, int],
    tools: tuple[random.Random, Counter[str], dict[str, Any]],
    most: int,
    *,
    removes_last: bool = False,
) -> int:
    """Kill a rebalance ten times at most while a client writes, and complete it."""
    dice, met, options = tools
    async with open_sharded(urls, **options) as storage, open_sharded(urls) as another:
        writer = Writer(storage, counts)
        writing = asyncio.create_task(writer.run())
        line = ["remove", *urls] if removes_last else urls
        for _ in range(min(10, most)):
            await kill_one(worker, line, dice.randrange(1, 40))
            met.update(await find_state(storage))
        await rebalance(another.backend, removes_last=removes_last)
        writer.is_over = True
        await writing
    return min(10, most)
