"""Calls on a log of many messages, beside the same calls on a short one.

    python -m benchmarks.comparisons.long_logs [--messages 100000] [--rounds 3]

On SQLite and PostgreSQL, in turn. Prints Markdown: milliseconds per call, the least of the rounds.
Checks the copy and that a vacuum removes nothing of it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.places import server
from locus_store import NewMessage, open_message_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SHORT = 1000
BATCH = 1000
TEXT = "word " * 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(machine.described())
    with server() as (running, database), tempfile.TemporaryDirectory() as directory:
        urls = {
            "SQLite": f"sqlite:///{Path(directory) / 'logs.db'}",
            "PostgreSQL": running.url(database),
        }
        print(f"| | call | {SHORT:,} messages | {options.messages:,} |\n|---|---|---:|---:|")
        for name, url in urls.items():
            times = asyncio.run(measured(url, options.messages, options.rounds))
            for call, (short, long) in times.items():
                print(f"| {name} | {call} | {short:.1f} | {long:.1f} |", flush=True)


async def measured(url: str, messages: int, rounds: int) -> dict[str, list[float]]:
    """Return the least milliseconds of each call, on the short log and on the long one."""
    least: dict[str, dict[str, float]] = defaultdict(dict)
    async with open_message_log(url) as log:
        for thread_id, size in (("short", SHORT), ("long", messages)):
            for at in range(0, size, BATCH):
                batch = [NewMessage(f"{TEXT}{n}", "user", f"m{n}") for n in range(at, at + BATCH)]
                await log.append(thread_id, batch)
        for _ in range(rounds):
            for thread_id, size in (("short", SHORT), ("long", messages)):
                for name, call in calls_on(log, thread_id, size).items():
                    begun = time.perf_counter()
                    await call()
                    taken = 1000 * (time.perf_counter() - begun)
                    least[name][thread_id] = min(taken, least[name].get(thread_id, taken))
    return {name: [it["short"], it["long"]] for name, it in least.items()}


def require(is_right: object) -> None:
    if not is_right:
        raise SystemExit("a call did not do what it promises")


def calls_on(log: Any, thread_id: str, size: int) -> dict[str, Callable[[], Awaitable[None]]]:
    async def page() -> None:
        require(len(await log.page(thread_id, limit=50)) == 50)

    async def newest() -> None:
        require(len(await log.load(thread_id, newest=50)) == 50)

    async def logs() -> None:
        require([it.count for it in await log.logs(prefix=thread_id, limit=1)] == [size])

    async def append() -> None:
        await log.append(thread_id, [NewMessage("again", "user", "m7")])

    async def copy() -> None:
        require(await log.backend.copy_thread(thread_id, "copy"))

    async def vacuum() -> None:
        require(await log.backend.vacuum(30) == 0)
        require((await log.info("copy")).count == size)

    async def delete() -> None:
        require(await log.delete("copy"))

    return {
        "page of 50": page,
        "newest 50": newest,
        "list of logs": logs,
        "append of 1": append,
        "copy of the thread": copy,
        "vacuum": vacuum,
        "delete": delete,
    }


if __name__ == "__main__":
    main()
