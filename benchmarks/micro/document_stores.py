"""The store on files beside SQLite's: ``python -m benchmarks.micro.document_stores [ITEMS …]``."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from locus_store import FileStore, SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from locus_store import BaseStore

CALLS = 200
STORES: dict[str, Callable[[Path], BaseStore]] = {
    "files": lambda it: FileStore(it / "threads"),
    "SQLite": lambda it: SQLiteStore(it / "memory.db"),
}
NS = ("m", "u1")


def value(n: int) -> dict[str, Any]:
    return {"n": n, "text": "hello world " * 5}


async def micros(call: Callable[[int], Awaitable[Any]], calls: int = CALLS) -> float:
    """Return the median time of a call."""
    times = []
    for n in range(calls):
        begin = time.perf_counter()
        await call(n)
        times.append(time.perf_counter() - begin)
    return median(times) * 1e6


async def measure(name: str, items: int, folder: Path) -> str:
    make = STORES[name]
    async with make(folder) as store, make(folder) as other:
        for first in range(0, items, 1000):
            some = range(first, first + 1000)
            await store.put_batch([(("m", f"u{n % 50}"), f"k{n}", value(n)) for n in some])

        async def puts_and_other_gets(n: int) -> None:
            await store.put(NS, f"x{n}", value(n))
            begin = time.perf_counter()
            await other.get(NS, f"x{n}")
            others.append(time.perf_counter() - begin)

        others: list[float] = []
        put = await micros(lambda n: store.put(NS, f"y{n}", value(n)))
        await micros(puts_and_other_gets)
        get = await micros(lambda n: store.get(NS, f"y{n}"))
        listed = await micros(lambda _: store.list(("m", "u3"), 20))
        found = await micros(lambda _: store.search(("m", "u3"), filter={"n": {"$gt": 20}}))
        removed = await micros(lambda n: store.delete(NS, f"y{n}"), 20)
        begin = time.perf_counter()
        await asyncio.gather(*(store.put(NS, f"z{n}", value(n)) for n in range(1000)))
        rate = 1000 / (time.perf_counter() - begin)
    begin = time.process_time()
    async with make(folder) as store:
        await store.get(NS, "k1")
    first_get = (time.process_time() - begin) * 1e3
    told = (put, get, median(others) * 1e6, listed, found, removed)
    cells = (name, f"{items:,}", *(f"{it:,.0f}" for it in told), f"{rate:,.0f}", f"{first_get:.0f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    print("| store | items | put, us | get | other get | list 20 | search | delete |", end="")
    print(" puts/s, 1,000 at once | open and get, ms of CPU |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for items in map(int, sys.argv[1:] or ("1000", "10000")):
        for name in STORES:
            with tempfile.TemporaryDirectory() as folder:
                print(asyncio.run(measure(name, items, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
