"""The price of saves and loads in tables with hash partitions, and of a move to them.

    python -m benchmarks.micro.partitions --write

The databases of one PostgreSQL server take turns, call by call, so that all meet the same machine.
The CPU time of a call is that of this process and of the connections' server processes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import asyncpg

from benchmarks import machine, places, report
from locus_store import open_checkpointer
from locus_store.backends.postgresql.partitions import partition
from locus_store.types import PendingWrite

if TYPE_CHECKING:
    from collections.abc import Awaitable

SIZES = (1, 8, 16, 64)
THREADS = 1_000
VERSIONS = 20
WRITERS = 16


def make_state(number: int) -> dict[str, Any]:
    return {"messages": ["x" * 1_000], "n": number}


class Database:
    """A database with some partitions, and what was measured of it."""

    def __init__(self, server: Any, partitions: int) -> None:
        name = server.new_database(template=server.migrated_template())
        self.url = server.url(name)
        partition(self.url, partitions)
        self.checkpointer = open_checkpointer(f"{self.url}?pool_size=2", state_type=dict)
        self.numbers = count()
        self.found: dict[str, list[tuple[float, float]]] = {}
        self._processes: list[Path] = []

    async def save(self, thread_id: str) -> None:
        await self.checkpointer.save(make_state(next(self.numbers)), thread_id)

    async def save_at_once(self, first: int, threads: int) -> None:
        await asyncio.gather(*(self.save(f"t{first + it}") for it in range(threads)))

    async def save_and_prune(self, thread_id: str) -> None:
        state = make_state(next(self.numbers))
        await self.checkpointer.backend.write_state(thread_id, state, keep_last=VERSIONS)

    async def write(self, thread_id: str) -> None:
        write = PendingWrite(task_id="t", idx=0, channel="c", type="json", payload=b"x" * 1_000)
        await self.checkpointer.backend.put_writes(thread_id, "next", [write])

    async def fill(self) -> None:
        for _ in range(VERSIONS):
            for first in range(0, THREADS, 50):
                await self.save_at_once(first, 50)

    async def find_processes(self) -> None:
        connection = await asyncpg.connect(self.url)
        pids = await connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )
        await connection.close()
        self._processes = [Path(f"/proc/{it['pid']}/schedstat") for it in pids]

    def read_cpu_ns(self) -> int:
        used = sum(int(it.read_text().split()[0]) for it in self._processes)
        return used + time.process_time_ns()

    async def time(self, name: str, call: Awaitable[Any], calls: int = 1) -> None:
        began, used = time.perf_counter(), self.read_cpu_ns()
        await call
        seconds, used = time.perf_counter() - began, self.read_cpu_ns() - used
        found = self.found.setdefault(name, [])
        found.append((seconds / calls * 1e6, used / calls / 1e3))


async def measure(databases: list[Database], rounds: int) -> None:
    for at in range(rounds):
        one, first = f"t{at % 40}", 40 + at * WRITERS % 800
        for of in databases[at % len(databases) :] + databases[: at % len(databases)]:
            await of.time("a save", of.save(one))
            await of.time(f"a save, {WRITERS} at once", of.save_at_once(first, WRITERS), WRITERS)
            await of.time("a save with `keep_last`", of.save_and_prune(f"t{900 + at % 40}"))
            await of.time("pending writes", of.write(one))
            await of.time("a first load", of.checkpointer.backend.fetch(one))
            await of.time("a further load", of.checkpointer.load(one))
            await of.save(f"d{at}")
            await of.time("a deletion", of.checkpointer.delete(f"d{at}"))


async def move(of: Database, before: int, to: int) -> list[str]:
    """Move a database beside a writer; return a row."""
    is_over, waits = asyncio.Event(), []

    async def write() -> None:
        for number in count():
            if is_over.is_set():
                return
            began = time.perf_counter()
            await of.save(f"t{number % THREADS}")
            waits.append(time.perf_counter() - began)

    writing = asyncio.create_task(write())
    began = time.perf_counter()
    waited = await asyncio.to_thread(partition, of.url, to)
    seconds = time.perf_counter() - began
    is_over.set()
    await writing
    return [
        f"{before} to {to}", f"{seconds:.1f}", f"{(waited or 0) * 1_000:,.0f}",
        f"{max(waits) * 1_000:,.0f}", f"{median(waits) * 1_000:.1f}", f"{len(waits):,}",
    ]  # fmt: skip


def summarize(found: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the tenth percentile of times and the median of CPU times."""
    times, cpu_times = zip(*found, strict=True)
    return quantiles(times, n=10)[0], median(cpu_times)


async def run(databases: list[Database], rounds: int) -> tuple[list[Any], list[Any]]:
    for of in databases:
        await of.fill()
    await measure(databases, 40)
    for of in databases:
        await of.find_processes()
        of.found.clear()
    await measure(databases, rounds)
    rows = []
    for name in databases[0].found:
        plain, *others = (summarize(of.found[name]) for of in databases)
        ratios = (f"{time_ / plain[0]:.2f} ({cpu / plain[1]:.2f})" for time_, cpu in others)
        rows.append([name, f"{plain[0]:,.0f} ({plain[1]:,.0f})", *ratios])
    moves = [await move(databases[0], 1, 64), await move(databases[0], 64, 1)]
    for of in databases:
        await of.checkpointer.close()
    return rows, moves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    report.add_write(parser)
    options = parser.parse_args()
    sys.path.insert(0, str(places.TESTS))
    import servers

    server = servers.PostgreSQL("18", fsync=True)
    try:
        databases = [Database(server, it) for it in SIZES]
        rows, moves = asyncio.run(run(databases, options.rounds))
    finally:
        server.stop()
    costs = machine.table(
        ("call", "plain tables, µs", *(f"{it} partitions" for it in SIZES[1:])), rows
    )
    head = (
        "partitions", "seconds", "locks kept writers waiting, ms", "longest save, ms",
        "median save, ms", "saves",
    )  # fmt: skip
    page = f"""
# Hash partitions

Machine: {machine.described()}; load average {machine.load_average()}. Databases of one PostgreSQL \
18 server, fsync on, each with {THREADS:,} threads of {VERSIONS} versions and states of 1 KB. They \
take turns, call by call. Tenth percentiles of times, which other work on the machine disturbs \
least, and in parentheses medians of CPU times of client and server, of {options.rounds:,} calls; \
those with partitions relative to plain tables.

{costs}

A first load knows the thread's id only, and asks for its line first.

A move of the first database, beside a writer:

{machine.table(head, moves)}
"""
    report.publish("partitions", page, write=options.write)


if __name__ == "__main__":
    main()
