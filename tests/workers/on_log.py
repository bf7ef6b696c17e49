"""A process that appends to message logs: ``on_log.py URL WRITER FIRST LAST LOGS``.

Message ``n`` goes to log ``n % LOGS``: two of each thread. Every third message has no id. Each
acknowledged number is printed.
"""

from __future__ import annotations

import asyncio
import sys

from locus_store import NewMessage, open_message_log


async def write(url: str, writer: str, first: int, last: int, logs: int) -> None:
    log = open_message_log(url)
    for n in range(first, last):
        message = NewMessage([writer, n], message_id=f"{writer}-{n}" if n % 3 else None)
        await log.append(f"t{n % logs // 2}", [message], namespace=("", "sub")[n % logs % 2])
        print(n, flush=True)
    await log.close()


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:3], *map(int, sys.argv[3:6])))
