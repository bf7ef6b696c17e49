"""Writers on PostgreSQL beside langgraph's AsyncPostgresSaver, in short rounds that take turns.

    python -m benchmarks.comparisons.postgresql_writers

As ``postgresql``, for a machine that is busy: both sides stay open, a round takes about a second,
and a ratio is the median of the ratios of neighbouring rounds. ``--lazy`` turns off
``synchronous_commit`` for both sides, so that the disk does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report
from benchmarks.comparisons.postgresql import SIDES, Rate, chat, counters, opened, write
from benchmarks.places import server

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: dict[str, tuple[Callable[[dict[str, Any], int], None], int, int]] = {
    "1 writer, 1.2 KB": (counters, 1, 150),
    "1 writer, a chat of 100 turns": (chat, 1, 100),
    "64 writers, 1.2 KB": (counters, 64, 10),
    "64 writers, a chat of 100 turns": (chat, 64, 100),
}


async def compared(url: str, case: str, rounds: int) -> list[object]:
    """Median and spread of the ratios of rate and p50, and the median times."""
    step, count, turns = CASES[case]
    rates: list[dict[str, tuple[Rate, float]]] = []
    async with opened(SIDES[0], url) as theirs, opened(SIDES[1], url) as ours:
        for number in range(rounds + 1):
            found = {}
            for side in (theirs, ours):
                cpu = time.process_time()
                rate = await write(side, step, f"{case}-{number}", count, turns)
                found[side.name] = rate, (time.process_time() - cpu) / len(rate.seconds)
            rates.append(found)
    del rates[0]  # connections were opened in it
    pairs = [(it["langgraph"], it["locus-store"]) for it in rates]
    p50s = [[side[0].at(0.5) for side in pair] for pair in pairs]
    cpus = [[side[1] * 1e6 for side in pair] for pair in pairs]
    faster = sorted(our.rate / their.rate for (their, _), (our, _) in pairs)
    return [
        case,
        *(f"{statistics.median(it):.2f}" for it in zip(*p50s, strict=True)),
        f"{statistics.median(their / our for their, our in p50s):.2f}",
        f"{statistics.median(faster):.2f} ({faster[0]:.2f} to {faster[-1]:.2f})",
        *(f"{statistics.median(it):.0f}" for it in zip(*cpus, strict=True)),
    ]


HEAD = ("case", "p50, ms: langgraph", "ours", "ratio", "rate: ratio (spread)", "CPU, µs: langgraph",
        "ours")  # fmt: skip

PAGE = """# Writers on PostgreSQL

Machine: {machine}; load average {load}. fsync on, `synchronous_commit = {commit}`. {rounds} rounds
in turn, the median of each column; a ratio is langgraph's time over ours, or our rate over
langgraph's.

{table}
"""


async def measure(options: argparse.Namespace) -> str:
    with server() as (running, database):
        if options.lazy:
            running.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
        url = running.url(database)
        cases = [it for it in CASES if options.only in it]
        rows = [await compared(url, it, options.rounds) for it in cases]
    return PAGE.format(
        machine=machine.described(),
        load=machine.load_average(),
        commit="off" if options.lazy else "on",
        rounds=options.rounds,
        table=machine.table(HEAD, rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", default="", help="cases that contain this")
    parser.add_argument("--lazy", action="store_true", help="synchronous_commit = off")
    report.add_write(parser)
    options = parser.parse_args()
    name = "postgresql-writers" + ("-lazy" if options.lazy else "")
    report.publish(name, asyncio.run(measure(options)), write=options.write)


if __name__ == "__main__":
    main()
