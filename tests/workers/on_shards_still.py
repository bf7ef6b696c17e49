"""A client of a set of shards that is stopped: it creates and changes threads until its input ends.

The arguments are the URLs; its looks at the layout are as old as those of the test. It prints
``ack``, a thread and its number of versions after each save and copy, ``log`` and a thread after
each first message, and ``wrong`` with what it found instead of its last save.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from itertools import count
from typing import Any

from locus_store import open_sharded
from locus_store.backends.sharded import shard_set

shard_set.LEASE_SECONDS, shard_set.ANNOUNCED_SECONDS = 0.02, 0.1
TASKS = 8


async def work(storage: Any, number: int, is_over: asyncio.Event) -> None:
    checkpointer, log = storage.checkpointer(state_type=dict), storage.messages()
    dice, names, counts = random.Random(number), count(), dict[str, int]()
    while not is_over.is_set():
        name = f"{os.getpid()}-{number}-{next(names)}"
        known, what = dice.choice([*counts, None]), dice.random()
        if known is None or what < 0.4:
            known = name
            await checkpointer.save({"n": 1}, known)
        elif what < 0.5:
            await log.append(f"log-{name}", [("hello",)])
            print("log", f"log-{name}", flush=True)
            continue
        elif what < 0.6:
            if not await checkpointer.copy_thread(known, name):
                print("wrong", known, "is not there to be copied", flush=True)
            known, counts[name] = name, counts[known] - 1
        else:
            state = await checkpointer.load(known)
            if state != {"n": counts[known]}:
                print("wrong", known, "is", state, "and not", counts[known], flush=True)
            await checkpointer.save({**(state or {}), "n": counts[known] + 1}, known)
        counts[known] = counts.get(known, 0) + 1
        print("ack", known, counts[known], flush=True)


async def run(urls: list[str]) -> None:
    async with open_sharded(urls) as storage:
        is_over = asyncio.Event()
        tasks = asyncio.gather(*(work(storage, it, is_over) for it in range(TASKS)))
        await asyncio.to_thread(sys.stdin.read)
        is_over.set()
        await tasks


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
