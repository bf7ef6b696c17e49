"""CPU time of opening an SQLite database in a fresh process: python -m benchmarks.micro.opening.

Each figure is user and system time of a process of its own, measured from outside, so it includes
the start of Python. Prints Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import machine
from locus_store import open_checkpointer

TARGET_MS = 400

OPEN = """
import asyncio
from locus_store import open_checkpointer

async def main():
    checkpointer = open_checkpointer({url!r})
    await checkpointer.open()
    await checkpointer.close()

asyncio.run(main())
"""

ENGINE = """
import sqlalchemy
with sqlalchemy.create_engine({url!r}).connect() as connection:
    connection.execute(sqlalchemy.text("SELECT 1"))
"""


def programs(url: str) -> dict[str, str]:
    """Return the processes to run, by their names in the table."""
    return {
        "Python alone": "pass",
        "`import locus_store`": "import locus_store",
        "`import pydantic.BaseModel`": "from pydantic import BaseModel",
        "`import sqlalchemy`": "import sqlalchemy",
        "SQLAlchemy: `SELECT 1`": ENGINE.format(url=url),
        "`open()` of an existing database": OPEN.format(url=url),
    }


async def _make(url: str) -> None:
    async with open_checkpointer(url) as checkpointer:
        await checkpointer.open()


def cpu_ms(program: str) -> float:
    """User and system time of one process."""
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", program])  # noqa: S606
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"a process failed with status {status}")
    return (used.ru_utime + used.ru_stime) * 1000


def measured(rounds: int) -> list[list[object]]:
    with tempfile.TemporaryDirectory(prefix="locus-store-") as folder:
        url = f"sqlite:///{Path(folder) / 'existing.db'}"
        asyncio.run(_make(url))
        found: dict[str, list[float]] = {name: [] for name in programs(url)}
        for _ in range(rounds):
            for name, program in programs(url).items():
                found[name].append(cpu_ms(program))
    return [
        [name, f"{statistics.median(it):,.0f}", f"{min(it):,.0f}"] for name, it in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rows = measured(options.rounds)
    print(f"Machine: {machine.described()}; load average {machine.load_average()}.")
    print(f"Milliseconds of CPU, {options.rounds} rounds in turn; target {TARGET_MS}.\n")
    print(machine.table(("process", "median", "least"), rows))


if __name__ == "__main__":
    main()
