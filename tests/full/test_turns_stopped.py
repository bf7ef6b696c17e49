"""Turns of several processes: of holders that stand still, in a queue, and of killed waiters."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from served import Served
from tiers import LONG

from locus_store import BackendError, open_checkpointer, turns as turns_module

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.posix

WORKER = Path(__file__).parent.parent / "workers" / "turn_holders.py"
STORAGES = ("sqlite", "postgresql", "redis", "http", "file")
OBJECTS = ("s3", "oci", "opensearch")
STOPS, THREADS, LEASE = (50 if LONG else 3), 10, 1.0
PROCESSES, TURNS, QUEUE_LEASE = (32, 313, 20) if LONG else (6, 10, 5)


@pytest.fixture
def url(storage: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty storage that several processes share."""
    if storage == "http":
        served = Served(f"sqlite:///{tmp_path / 'served.db'}", "--workers", "2")
        yield served.base_url
        served.stop()
    elif storage == "file":
        # A stop within the lock of a file is seen when this time is over.
        yield f"file://{tmp_path / 'threads'}?busy_timeout_seconds=5"
    elif storage == "sqlite":
        yield f"sqlite:///{tmp_path / 'agents.db'}"
    elif storage in OBJECTS:
        name = {"s3": "s3_place", "oci": "bucket", "opensearch": "index"}[storage]
        yield request.getfixturevalue(name).url()
    else:
        name = {"postgresql": "migrated_database", "redis": "redis_url"}[storage]
        yield request.getfixturevalue(name)


@contextmanager
def started(*arguments: object) -> Iterator[Any]:
    """Start a worker; it is killed at the end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    with subprocess.Popen(command, **pipes) as worker:  # type: ignore[call-overload]
        try:
            yield worker
        finally:
            worker.kill()


async def take_over(url: str, first: int) -> dict[str, Any]:
    """Take all turns of a holder that stands still; return the heads of the threads.

    Every other turn is given back, every other one expires later.
    """
    heads = {}
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        turns = [checkpointer.turn(f"t{first + n}", lease_seconds=60) for n in range(THREADS)]
        await asyncio.gather(*(asyncio.wait_for(it.begin(), 20) for it in turns))
        for n, turn in enumerate(turns):
            heads[turn.thread_id] = await checkpointer.list_checkpoints(turn.thread_id, 1)
            if n % 2:
                await turn.end()
            else:
                turns_module._heartbeats.discard(turn._renew)
    return heads


async def read_heads(url: str, heads: dict[str, Any]) -> dict[str, Any]:
    """Return the present heads, and end the turns that are held."""
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        found = {it: await checkpointer.list_checkpoints(it, 1) for it in heads}
        for thread_id in heads:
            await checkpointer.release_turn(thread_id)
        return found


@pytest.mark.parametrize("storage", [*STORAGES, *OBJECTS])
def test_a_holder_that_stood_still_past_its_end_cannot_write(storage: str, url: str) -> None:
    chance, trials, locked = random.Random(1), 0, 0
    with started("hold", url, LEASE) as worker:
        while trials < STOPS * THREADS:
            first = trials + locked * THREADS
            print(first, THREADS, file=worker.stdin, flush=True)
            assert worker.stdout.readline() == "held\n"
            time.sleep(0.2 + chance.random() / 10)
            os.kill(worker.pid, signal.SIGSTOP)
            try:
                heads = asyncio.run(take_over(url, first))
            except (BackendError, TimeoutError):  # it stands still within a transaction
                heads, locked = {}, locked + 1
                assert locked <= 10 * STOPS  # about one in three on files
            os.kill(worker.pid, signal.SIGCONT)
            assert worker.stdout.readline().startswith("refused ")
            assert asyncio.run(read_heads(url, heads)) == heads
            trials += len(heads)
    print(f"{storage}: {trials} writes refused, {locked} more stops within a transaction")


@pytest.mark.parametrize("storage", STORAGES)
def test_a_queue_is_fair_and_outlives_killed_waiters(storage: str, url: str) -> None:
    killed = PROCESSES // 4
    with ExitStack() as stack:
        workers = [
            stack.enter_context(started("queue", url, QUEUE_LEASE, TURNS))
            for _ in range(PROCESSES + killed)
        ]
        for worker in workers:
            assert worker.stdout.readline() == "open\n"
        began = time.monotonic()
        for worker in workers:
            print(file=worker.stdin, flush=True)
        for worker in workers[PROCESSES:]:
            time.sleep(0.3)
            worker.kill()
        waits = [float(it.stdout.readline().split()[1]) for it in workers[:PROCESSES]]
        seconds = time.monotonic() - began
    state = asyncio.run(load(url))
    assert state["turns"] >= PROCESSES * TURNS
    print(
        f"{storage}: {state['turns']} turns of {PROCESSES} processes in {seconds:.0f} s,"
        f" {killed} more killed; longest wait {min(waits):.1f} to {max(waits):.1f} s"
    )


async def load(url: str) -> Any:
    """Return the state of the thread of the queue."""
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        assert await checkpointer.turns() == [] or not await checkpointer.busy("t")
        return await checkpointer.load("t")
