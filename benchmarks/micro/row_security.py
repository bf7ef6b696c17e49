"""The price of saves and loads under row security.

    python -m benchmarks.micro.row_security --write

Two databases of one PostgreSQL server take turns, call by call, so that both meet the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from itertools import count
from statistics import median, quantiles
from typing import Any

from benchmarks import machine, places, report
from benchmarks.micro.partitions import Database
from locus_store import open_checkpointer
from locus_store.backends.postgresql import row_security

ROLE = "locus_app"
THREADS = 200
VERSIONS = 20
WRITERS = 16


class Tenants(Database):
    """A database that a role uses which does not own its tables."""

    def __init__(self, server: Any, *, is_secured: bool) -> None:
        name = server.new_database(template=server.migrated_template())
        if is_secured:
            row_security.enable(server.url(name))
        rights = "SELECT, INSERT, UPDATE, DELETE"
        server.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO {ROLE}", database=name)
        self.url = server.url(name, user=ROLE)
        self.root = open_checkpointer(f"{self.url}?pool_size=2", state_type=dict)
        self.checkpointer = self.root.for_tenant("acme")
        self.numbers = count()
        self.found = {}
        self._processes = []

    async def fill(self) -> None:
        """Store threads of ten tenants, and a long one."""
        own = self.checkpointer
        for tenant in range(10):
            self.checkpointer = self.root.for_tenant(f"tenant {tenant}") if tenant else own
            for _ in range(VERSIONS):
                await self.save_at_once(0, THREADS)
        self.checkpointer = own
        said: list[str] = []
        for number in range(1_000):
            said.append(f"turn {number} of a conversation")
            await own.save({"said": said}, "long")


async def measure(databases: list[Tenants], rounds: int) -> None:
    for at in range(rounds):
        one, first = f"t{at % 40}", 40 + at * WRITERS % 140
        for of in databases[at % 2 :] + databases[: at % 2]:
            fresh = f"new {next(of.numbers)}"
            await of.time("a save", of.save(one))
            await of.time("the first save of a thread", of.save(fresh))
            await of.time(f"a save, {WRITERS} at once", of.save_at_once(first, WRITERS), WRITERS)
            await of.time("a load", of.checkpointer.backend.fetch(one))
            await of.time("a load of 1,000 turns", of.checkpointer.backend.fetch("long"))
            await of.time("a list of 10 versions", of.checkpointer.list_checkpoints(one))
            await of.time("a list of 100 threads", of.checkpointer.list_threads(limit=100))


async def run(databases: list[Tenants], rounds: int) -> list[Any]:
    for of in databases:
        await of.fill()
    await measure(databases, 40)
    for of in databases:
        of.found.clear()
        await of.find_processes()
    await measure(databases, rounds)
    rows = []
    for name in databases[0].found:
        (plain, cpu), (other, others_cpu) = (zip(*of.found[name], strict=True) for of in databases)
        tenths = [quantiles(it, n=10)[0] for it in (plain, other)]
        ratios = [tenths[1] / tenths[0], median(other) / median(plain)]
        used = median(others_cpu) / median(cpu)
        ratio = f"{ratios[0]:.2f} ({ratios[1]:.2f})"
        rows.append([name, f"{tenths[0]:,.0f} ({median(plain):,.0f})", ratio, f"{used:.2f}"])
    for of in databases:
        await of.root.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    report.add_write(parser)
    options = parser.parse_args()
    sys.path.insert(0, str(places.TESTS))
    import servers

    server = servers.PostgreSQL("18", fsync=True)
    try:
        server.execute(f"CREATE ROLE {ROLE} LOGIN")
        databases = [Tenants(server, is_secured=it) for it in (False, True)]
        rows = asyncio.run(run(databases, options.rounds))
    finally:
        server.stop()
    page = f"""
# Row security

Machine: {machine.described()}; load average {machine.load_average()}. Two databases of one \
PostgreSQL 18 server, fsync on, each with {THREADS:,} threads of {VERSIONS} versions of each of 10 \
tenants, without statistics; states of 1 KB. They take turns, call by call. Tenth percentiles, \
which other work on the machine disturbs least, and medians, of {options.rounds:,} calls.

{machine.table(("call", "without, µs", "with row security", "CPU of client and server"), rows)}
"""
    report.publish("row-security", page, write=options.write)


if __name__ == "__main__":
    main()
