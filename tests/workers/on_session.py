"""Mixed operations of one process on sessions that share a database and a cache.

``Board`` is memory that the processes share: what was acknowledged, and when. The clock is the
system's monotonic one, which all processes of a host read alike.
"""

from __future__ import annotations

import asyncio
import random
import time
from multiprocessing import get_context
from typing import Any

from locus_store import ConflictError, LocusStoreError
from locus_store.session import AgentState, Message, SessionCheckpointer
from locus_store.session.config import VERSION_KEY
from locus_store.session.redis_cache import RedisCache

THREADS = 4
MOST = 20_000
"""Numbers of a thread at most."""

spawning = get_context("spawn")


class Counting(AgentState):
    """A state that counts its saves."""

    n: int = 0


class Board:
    """The time at which each number of each thread was acknowledged; 0: not yet."""

    def __init__(self) -> None:
        self.acknowledged = [spawning.Array("d", MOST, lock=False) for _ in range(THREADS)]
        self.newest = [spawning.Array("l", 1) for _ in range(THREADS)]
        self.is_over = spawning.Event()

    def saved(self, thread: int, n: int) -> None:
        self.acknowledged[thread][n] = time.monotonic()
        with self.newest[thread].get_lock():
            self.newest[thread][0] = max(self.newest[thread][0], n)

    def staleness(self, thread: int, n: int, began: float) -> float:
        """The seconds between the next acknowledged number and the begin of the read."""
        newer = self.acknowledged[thread][n + 1]
        return max(0.0, began - newer) if newer else 0.0


def opened(kind: str, place: str, redis_url: str, seconds: float) -> SessionCheckpointer:
    from locus_store import PostgreSQLBackend, SQLiteBackend

    backend: Any = SQLiteBackend(place) if kind == "sqlite" else PostgreSQLBackend(place)
    cache = RedisCache(redis_url, max_threads=THREADS - 1)
    return SessionCheckpointer(backend, cache, cache_verify_seconds=seconds)


async def work(session: SessionCheckpointer, board: Board, me: int, count: int, told: Any) -> None:
    dice = random.Random(me)
    worst, reads, saves, conflicts, failures = 0.0, 0, 0, 0, 0
    puts: dict[int, list[str]] = {it: [] for it in range(THREADS)}

    async def read(thread: int, config: dict[str, Any]) -> Any:
        nonlocal worst, reads
        began = time.monotonic()
        state = await session.aget_state_cache(config)
        worst = max(worst, board.staleness(thread, state.n if state else 0, began))
        reads += 1
        return state or Counting()

    async def save(thread: int, config: dict[str, Any]) -> None:
        nonlocal saves, conflicts
        state = await read(thread, config)
        state.n += 1
        try:
            await session.aput_state(config, state)
        except ConflictError:
            conflicts += 1
            return
        board.saved(thread, state.n)
        saves += 1

    async def put(thread: int, config: dict[str, Any]) -> None:
        ids = [f"{me}.{thread}.{len(puts[thread]) + n}" for n in range(dice.randint(1, 3))]
        messages = [Message.text_message(it, message_id=it) for it in ids]
        while True:
            try:
                await session.aput_messages(config, messages)
            except LocusStoreError:  # ids make it safe to send again
                await asyncio.sleep(0.05)
            else:
                break
        puts[thread] += ids

    for _ in range(count):
        thread = dice.randrange(THREADS)
        config = {"thread_id": f"t{thread}", "user_id": "u", VERSION_KEY: None}
        call = dice.choice([read, read, save, put])
        try:
            await call(thread, config)
        except LocusStoreError:
            failures += 1
            await asyncio.sleep(0.05)
    await session.arelease()
    told.put((me, worst, reads, saves, conflicts, failures, puts))


def run(place: tuple[str, str, str, float], board: Board, me: int, count: int, told: Any) -> None:
    asyncio.run(work(opened(*place), board, me, count, told))
