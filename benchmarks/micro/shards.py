"""The price of a save in sets of 1, 2, 4 and 8 shards, and the databases that it touches.

    python -m benchmarks.micro.shards

The shards are databases of one PostgreSQL server. ``pg_stat_statements`` counts the statements of
each. The sets take turns, round by round; with them, as a control, eight databases without a set,
each of which has the threads that it has in a set of eight.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import machine, places
from locus_store import open_sharded, open_storage
from locus_store.versions.sharding import choose_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = (1, 2, 4, 8)
SAVES = 400
THREADS = 256
SETTINGS = {
    "shared_preload_libraries": "pg_stat_statements",
    "checkpoint_timeout": "1d",
    "max_wal_size": "8GB",
}
CALLS = """
SELECT d.datname, sum(s.calls), sum(s.wal_bytes)
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = ANY(string_to_array('{}', ',')) GROUP BY 1
"""


class Set:
    """An open set, and what was measured of it."""

    def __init__(self, server: Any, shards: int, *, shares: bool) -> None:
        self.names = [server.new_database() for _ in range(shards)]
        options = f"pool_size=2&group_saves={str(shares).lower()}"
        self.storages = self.open([f"{server.url(it)}?{options}" for it in self.names])
        self.checkpointers = [it.checkpointer(state_type=dict) for it in self.storages]
        self.states = {f"t{it}": {"messages": ["x" * 1_000], "n": it} for it in range(THREADS)}
        self.found: list[tuple[float, ...]] = []

    async def save(self, threads: Sequence[str]) -> None:
        for it in threads:
            state = self.states[it]
            state["n"] = int(str(state["n"])) + 1
            at = choose_shard(len(self.checkpointers), "default", it)
            await self.checkpointers[at].save(state, it)

    def open(self, urls: list[str]) -> list[Any]:
        return [open_sharded(urls)]

    def count(self, server: Any) -> tuple[Counter[str], int]:
        """Return the statements that each database has run, and the bytes of WAL of all."""
        import asyncpg

        async def ask() -> list[Any]:
            connection = await asyncpg.connect(server.admin_url())
            try:
                found = await connection.fetch(CALLS.format(",".join(self.names)))
                return list(found)
            finally:
                await connection.close()

        with asyncio.Runner() as runner:
            found = runner.run(ask())
        calls = Counter({name: int(calls) for name, calls, _ in found})
        return calls, sum(int(wal) for _, _, wal in found)


class Apart(Set):
    """The same databases without a set."""

    def open(self, urls: list[str]) -> list[Any]:
        return [open_storage(it) for it in urls]


def scheduled(server: Any) -> int:
    """Return the nanoseconds of CPU of the server's processes."""
    import servers

    total = 0
    for pid in servers.children(server.process.pid):
        # A worker of autovacuum ends between the two.
        with suppress(FileNotFoundError), open(f"/proc/{pid}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def measure(server: Any, of: Set, runner: asyncio.Runner, writers: int) -> None:
    """Save, and note CPU of client and server, WAL and statements per save."""
    count = SAVES * (len(of.names) if writers > 1 else 1)
    each = [
        [f"t{(it * writers + at) % THREADS}" for it in range(count // writers)]
        for at in range(writers)
    ]
    (calls, written), cpu, own = of.count(server), scheduled(server), time.process_time()
    lsn = server.value("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")

    async def run() -> None:
        await asyncio.gather(*map(of.save, each))

    runner.run(run())
    own = time.process_time() - own
    cpu = scheduled(server) - cpu
    wal = int(server.value("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")) - int(lsn)
    after, written_after = of.count(server)
    calls, written, saves = after - calls, written_after - written, sum(map(len, each))
    used = own * 1e6, cpu / 1e3, written, wal, calls.total()
    of.found.append(tuple(it / saves for it in used))


def count_touched(server: Any, of: Set, runner: asyncio.Runner) -> int:
    """Save one thread at a time; return how many databases ran a statement, its own included."""
    touched = 0
    for thread_id in ("t1", "t2", "t3"):
        before, _ = of.count(server)
        runner.run(of.save([thread_id] * 50))
        after = of.count(server)[0] - before
        own = of.names[choose_shard(len(of.names), "default", thread_id)]
        touched = max(touched, len({*after, own}))
    return touched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 16], help="per shard")
    parser.add_argument("--alone", action="store_true", help="each save has its own statement")
    options = parser.parse_args()
    sys.path.insert(0, str(places.TESTS))
    import servers

    server = servers.PostgreSQL("18", fsync=True, settings=SETTINGS)
    try:
        server.execute("CREATE EXTENSION pg_stat_statements")
        with asyncio.Runner() as runner:
            for writers in options.writers:
                report(server, runner, writers, options.rounds, shares=not options.alone)
    finally:
        server.stop()


def report(server: Any, runner: asyncio.Runner, writers: int, rounds: int, *, shares: bool) -> None:
    sets = [*(Set(server, it, shares=shares) for it in SIZES), Apart(server, 8, shares=shares)]
    for of in sets:
        runner.run(of.save([*of.states] * 2))
    for _ in range(rounds):
        for of in sets:
            measure(server, of, runner, writers * (len(of.names) if writers > 1 else 1))
    rows = []
    for of in sets:
        touched = count_touched(server, of, runner)
        middle = [median(it) for it in zip(*of.found, strict=True)]
        spread = f"{min(it[1] for it in of.found):,.0f} to {max(it[1] for it in of.found):,.0f}"
        name = f"{len(of.names)}{' apart' * isinstance(of, Apart)}"
        rows.append((
            name, f"{middle[0]:,.0f}", f"{middle[1]:,.0f} ({spread})",
            f"{middle[2]:,.0f}", f"{middle[3]:,.0f}", f"{middle[4]:.2f}", touched,
        ))  # fmt: skip
        for it in of.storages:
            runner.run(it.close())
    head = (
        "shards", "CPU of the client, µs", "CPU of the server, µs", "WAL of statements, bytes",
        "WAL of the server, bytes", "statements", "databases per save",
    )  # fmt: skip
    where = "one writer" if writers == 1 else f"{writers} writers per shard"
    print(f"\nPer save, {where}, {rounds} rounds of {SAVES} saves per shard, medians:\n")
    print(machine.table(head, rows))
    print(f"\nMachine: {machine.described()}; load average {machine.load_average()}.")


if __name__ == "__main__":
    main()
