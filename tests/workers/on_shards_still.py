"""A client of a set of shards that creates threads without a pause, until its input ends.

It prints the id of each thread whose save was acknowledged. The arguments are the URLs; its looks
at the layout are as old as those of the test.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from typing import Any

from locus_store import open_sharded
from locus_store.backends.sharded import shard_set

shard_set.LEASE_SECONDS, shard_set.ANNOUNCED_SECONDS = 0.02, 0.1
TASKS = 16


async def create(checkpointer: Any, numbers: count[int], is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        thread_id = f"{os.getpid()}-{next(numbers)}"
        await checkpointer.save({"of": thread_id}, thread_id)
        print(thread_id, flush=True)


async def run(urls: list[str]) -> None:
    async with open_sharded(urls) as storage:
        is_over, numbers = asyncio.Event(), count()
        checkpointer = storage.checkpointer(state_type=dict)
        tasks = [create(checkpointer, numbers, is_over) for _ in range(TASKS)]
        work = asyncio.gather(*tasks)
        await asyncio.to_thread(sys.stdin.read)
        is_over.set()
        await work


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
