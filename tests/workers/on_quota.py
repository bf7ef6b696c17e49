"""A process that creates threads of one tenant, several at once, until its quota refuses it.

It prints ``ready``, waits for a line, prints a line for each acknowledged save, and ``full`` when
it was refused ten times.
"""

from __future__ import annotations

import asyncio
import os
import sys

from locus_store import QuotaError, open_checkpointer

AT_ONCE = 4
REFUSALS = 10


async def create(url: str) -> None:
    async with open_checkpointer(url, state_type=dict, tenant="acme") as checkpointer:
        refusals = 0

        async def save(name: str) -> None:
            nonlocal refusals
            try:
                await checkpointer.save({"text": os.urandom(500).hex()}, name)
            except QuotaError:
                refusals += 1
            else:
                print("saved", flush=True)

        number = 0
        while refusals < REFUSALS:
            names = [f"{os.getpid()}-{number + it}" for it in range(AT_ONCE)]
            await asyncio.gather(*map(save, names))
            number += AT_ONCE
        print("full", flush=True)


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(create(sys.argv[1]))
