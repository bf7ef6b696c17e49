"""The price of the record of calls.

    python -m benchmarks.micro.audit --write

Databases with and without it take turns, call by call, so that all meet the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks import machine, places, report
from locus_store import NewMessage, Storage, open_storage
from locus_store.blocking import BlockingCheckpointer

if TYPE_CHECKING:
    from collections.abc import Awaitable

THREADS = 200
WRITERS = 16
OPTIONS: dict[str, dict[str, Any]] = {
    "without": {},
    "audit": {"audit": "worker"},
    "audit and reads": {"audit": "worker", "audit_reads": True},
}


def make_state(number: int) -> dict[str, Any]:
    return {"messages": ["x" * 1_000], "n": number}


class Database:
    """A database, and what was measured of it."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        storage: Storage = open_storage(url, **options)
        self.checkpointer = storage.checkpointer(state_type=dict)
        self.log, self.store = storage.messages(), storage.store()
        self.blocking = BlockingCheckpointer(
            open_storage(url, **options).checkpointer(state_type=dict)
        )
        self.numbers = count()
        self.found: dict[str, list[float]] = {}

    async def save(self, thread_id: str) -> None:
        await self.checkpointer.save(make_state(next(self.numbers)), thread_id)

    async def save_at_once(self, first: int) -> None:
        await asyncio.gather(*(self.save(f"t{first + it}") for it in range(WRITERS)))

    async def time(self, name: str, call: Awaitable[Any], calls: int = 1) -> None:
        began = time.perf_counter()
        await call
        self._note(name, began, calls)

    def time_sync(self, name: str, thread_id: str) -> None:
        state = make_state(next(self.numbers))
        began = time.perf_counter()
        self.blocking.save(state, thread_id)
        self._note(name, began, 1)

    def _note(self, name: str, began: float, calls: int) -> None:
        self.found.setdefault(name, []).append((time.perf_counter() - began) / calls * 1e6)


async def measure(databases: list[Database], rounds: int) -> None:
    for at in range(rounds):
        one, first = f"t{at % 20}", 20 + at * WRITERS % 160
        for of in databases[at % len(databases) :] + databases[: at % len(databases)]:
            await of.time("a save", of.save(one))
            await of.time(f"a save, {WRITERS} at once", of.save_at_once(first), WRITERS)
            await of.time("an append of a message", of.log.append(one, [NewMessage("words")]))
            await of.time("a put into the store", of.store.put(("a",), one, {"n": at}))
            await of.time("a load", of.checkpointer.load(one))


def measure_sync(databases: list[Database], rounds: int) -> None:
    for at in range(rounds):
        for of in databases[at % len(databases) :] + databases[: at % len(databases)]:
            of.time_sync("a sync save", f"s{at % 20}")


async def run(databases: list[Database], rounds: int) -> None:
    await measure(databases, 40)
    for of in databases:
        of.found.clear()
    await measure(databases, rounds)
    for of in databases:
        await of.checkpointer.close()


def compare(urls: list[str], rounds: int) -> str:
    """Return a table of the databases."""
    options = OPTIONS.values()
    databases = [Database(url, given) for url, given in zip(urls, options, strict=True)]
    measure_sync(databases, 40)
    for of in databases:
        of.found.clear()
    measure_sync(databases, rounds)
    sync = [of.found.pop("a sync save") for of in databases]
    for of in databases:
        of.blocking.close()
    asyncio.run(run(databases, rounds))
    rows = []
    for name in ("a sync save", *databases[0].found):
        found = sync if name == "a sync save" else [of.found[name] for of in databases]
        plain, *others = ((quantiles(it, n=10)[0], median(it)) for it in found)
        ratios = [f"{it[0] / plain[0]:.2f} ({it[1] / plain[1]:.2f})" for it in others]
        rows.append([name, f"{plain[0]:,.0f} ({plain[1]:,.0f})", *ratios])
    return machine.table(("call", "without, µs", *list(OPTIONS)[1:]), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    report.add_write(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [f"sqlite:///{Path(folder) / f'{at}.db'}" for at in range(len(OPTIONS))]
        on_sqlite = compare(files, options.rounds)
    with places.server() as (running, _):
        urls = [running.url(running.new_database()) for _ in OPTIONS]
        on_postgresql = compare([f"{it}?pool_size=2" for it in urls], options.rounds)
    page = f"""
# The record of calls

Machine: {machine.described()}; load average {machine.load_average()}. Databases with and without \
`audit=`, with fsync, take turns, call by call; states of 1 KB. Tenth percentiles, which other \
work on the machine disturbs least, and medians, of {options.rounds:,} calls; with `audit=` \
relative to without. Sealing runs beside the calls.

On SQLite:

{on_sqlite}

On PostgreSQL 18:

{on_postgresql}
"""
    report.publish("audit", page, write=options.write)


if __name__ == "__main__":
    main()
