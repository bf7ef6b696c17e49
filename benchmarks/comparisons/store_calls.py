"""Many concurrent calls of one store.

    python -m benchmarks.comparisons.store_calls [--calls 6000 60000]

LangGraph's AsyncPostgresStore and AsyncSqliteStore beside ours, on a PostgreSQL server with fsync
and on SQLite files. 6,000 calls at a time are made in one tick of the event loop. Each round has an
empty database. Prints Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.store.postgres import AsyncPostgresStore
from langgraph.store.sqlite import AsyncSqliteStore

from benchmarks import machine, report
from benchmarks.places import server
from locus_store import open_store
from locus_store.adapters.langgraph import LangGraphStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

USERS = 100
TICK = 6_000
"""Calls that are made at once; LangGraph's own store for PostgreSQL fails from 13,108 puts on."""

TARGET = 0.8
"""Of the throughput of LangGraph's own store."""

TRANSACTIONS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


@dataclass
class Round:
    """One run of one store."""

    seconds: float
    cpu_seconds: float
    transactions: int | None


def _space(number: int) -> tuple[str, ...]:
    return ("users", f"u{number % USERS}")


def _puts(store: Any, calls: int) -> Iterator[Awaitable[Any]]:
    return (store.aput(_space(it), f"k{it}", {"n": it, "text": "x" * 100}) for it in range(calls))


def _gets(store: Any, calls: int) -> Iterator[Awaitable[Any]]:
    return (store.aget(_space(it), f"k{it}") for it in range(calls))


def _mixed(store: Any, calls: int) -> Iterator[Awaitable[Any]]:
    """Half of the calls put and half of them get."""
    for number in range(calls // 2):
        yield store.aput(_space(number), f"k{number}", {"n": number, "text": "x" * 100})
        yield store.aget(_space(number), f"k{number}")


def _searches(store: Any, calls: int) -> Iterator[Awaitable[Any]]:
    return (store.asearch(_space(it), filter={"n": it}) for it in range(calls))


WORKLOADS: dict[str, Callable[[Any, int], Iterator[Awaitable[Any]]]] = {
    "put": _puts,
    "get": _gets,
    "put and get": _mixed,
    "search": _searches,
}


def _ours(url: str) -> Any:
    return LangGraphStore(open_store(url))


@asynccontextmanager
async def _opened(kind: str, place: str) -> AsyncIterator[Any]:
    if kind == "AsyncPostgresStore":
        async with AsyncPostgresStore.from_conn_string(place) as store:
            await store.setup()
            yield store
    elif kind == "AsyncSqliteStore":
        async with AsyncSqliteStore.from_conn_string(place.removeprefix("sqlite:///")) as store:
            await store.setup()
            yield store
    else:
        async with _ours(place) as store:
            await store.asetup()
            yield store


class Bench:
    """Both sides on one kind of database."""

    def __init__(self, running: Any, folder: Path) -> None:
        self.running = running
        self.folder = folder
        self.made = 0

    async def run(self, kind: str, work: str, calls: int, *, is_server: bool) -> Round:
        """One round on an empty database."""
        self.made += 1
        database = self.running.new_database() if is_server else None
        place = (
            self.running.url(database)
            if database
            else f"sqlite:///{self.folder / f'{self.made}.db'}"
        )
        async with _opened(kind, place) as store:
            if work in {"get", "search"}:
                await asyncio.gather(*_puts(store, min(calls, 1000)))
            before = await self._transactions(database)
            begin, cpu = time.perf_counter(), time.process_time()
            todo = WORKLOADS[work](store, calls)
            while some := list(islice(todo, TICK)):
                await asyncio.gather(*some)
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        after = await self._transactions(database)
        return Round(seconds, cpu, None if before is None or after is None else after - before)

    async def _transactions(self, database: str | None) -> int | None:
        """Transactions so far; a session reports its own within a second."""
        if database is None:
            return None
        await asyncio.sleep(1.5)
        return int(self.running.value(TRANSACTIONS, database=database))


PEERS = {"PostgreSQL": "AsyncPostgresStore", "SQLite": "AsyncSqliteStore"}


async def measured(
    calls: list[int], only: list[str], rounds: int, databases: list[str]
) -> list[list[object]]:
    rows: list[list[object]] = []
    with server() as (running, _), tempfile.TemporaryDirectory(prefix="locus-store-") as folder:
        bench = Bench(running, Path(folder))
        for name, theirs in ((it, PEERS[it]) for it in databases):
            for work in only:
                for count in calls:
                    is_server = name == "PostgreSQL"
                    sides: dict[str, list[Round]] = {theirs: [], "LangGraphStore": []}
                    for _ in range(rounds):
                        for kind, found in sides.items():
                            found.append(await bench.run(kind, work, count, is_server=is_server))
                    peer, own = map(_median, sides.values())
                    ratio = peer.seconds / own.seconds
                    is_met = f"≥ {TARGET}" if ratio >= TARGET else f"≥ {TARGET}: MISSED"
                    rows.append([name, f"{count:,}", work, *_row(peer), *_row(own),
                                 f"**{ratio:.2f}**", f"{peer.cpu_seconds / own.cpu_seconds:.2f}",
                                 is_met])  # fmt: skip
                    print(*rows[-1], flush=True)
    return rows


def _median(rounds: list[Round]) -> Round:
    """The round in the middle, by its time."""
    return sorted(rounds, key=lambda it: it.seconds)[len(rounds) // 2]


def _row(it: Round) -> tuple[str, str, str]:
    count = "" if it.transactions is None else f"{it.transactions:,}"
    return f"{it.seconds:.2f}", f"{it.cpu_seconds:.2f}", count


HEAD = """# Concurrent calls of a store

Machine: {machine}; load average {load}. Times in
seconds; CPU is the client's. The median of {rounds} rounds, both sides in turn. The ratio is that
of the throughputs.

{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, nargs="+", default=[6_000, 60_000])
    parser.add_argument("--only", nargs="+", default=[*WORKLOADS], choices=[*WORKLOADS])
    parser.add_argument("--on", nargs="+", default=[*PEERS], choices=[*PEERS])
    parser.add_argument("--rounds", type=int, default=5, help="of each side, one after the other")
    report.add_write(parser)
    options = parser.parse_args()
    databases = [it for it in PEERS if it in options.on]
    rows = asyncio.run(measured(options.calls, options.only, options.rounds, databases))
    head = ("", "calls", "work", "LangGraph's, s", "CPU, s", "transactions", "ours, s", "CPU, s",
            "transactions", "ratio", "of CPU", "target")  # fmt: skip
    page = HEAD.format(
        machine=machine.described(),
        load=machine.load_average(),
        rounds=options.rounds,
        table=machine.table(head, rows),
    )
    report.publish("store-calls", page, write=options.write)


if __name__ == "__main__":
    main()
