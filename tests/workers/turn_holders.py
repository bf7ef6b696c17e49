"""Processes that take turns: ``hold URL LEASE`` or ``queue URL LEASE TURNS``.

``hold`` reads a line with the first thread and their number, takes the turn of each thread, prints
``held`` and saves all threads again and again. It prints ``refused`` and the number of saves once
every thread has refused one. ``queue`` takes the turn of one thread many times, and appends its
number to the thread's state.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from time import monotonic

from locus_store import BackendError, ConnectionFailedError, TurnError, open_checkpointer

PASSED = (BackendError, ConnectionFailedError)
"""A time limit of a call has passed while the process stood still."""


async def hold(url: str, lease_seconds: float) -> None:
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        while line := await asyncio.to_thread(sys.stdin.readline):
            first, count = map(int, line.split())
            held = asyncio.Barrier(count + 1)

            async def run(n: int, held: asyncio.Barrier = held) -> int:
                thread_id, saves = f"t{n}", 0
                try:
                    async with checkpointer.turn(thread_id, lease_seconds=lease_seconds):
                        await held.wait()
                        while True:
                            with suppress(*PASSED):
                                state = await checkpointer.load(thread_id) or {}
                                await checkpointer.save({**state, "n": saves}, thread_id)
                                saves += 1
                            await asyncio.sleep(0.1)
                except TurnError:
                    return saves

            tasks = [asyncio.ensure_future(run(first + n)) for n in range(count)]
            await held.wait()
            print("held", flush=True)
            print("refused", sum(await asyncio.gather(*tasks)), flush=True)


async def queue(url: str, lease_seconds: float, turns: int) -> None:
    longest = 0.0
    async with open_checkpointer(url, state_type=dict, keep_last=3) as checkpointer:
        await checkpointer.open()
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for _ in range(turns):
            asked = monotonic()
            held = checkpointer.turn("t", lease_seconds=lease_seconds, most_waiting=1000)
            async with held as turn:
                longest = max(longest, monotonic() - asked)
                state = await checkpointer.load("t") or {"turns": 0, "last": 0}
                assert state["last"] < turn.number
                await checkpointer.save({"turns": state["turns"] + 1, "last": turn.number}, "t")
    print("done", longest, flush=True)


if __name__ == "__main__":
    work = {"hold": hold, "queue": queue}[sys.argv[1]]
    url, lease_seconds, *turns = sys.argv[2:]
    asyncio.run(work(url, float(lease_seconds), *map(int, turns)))
