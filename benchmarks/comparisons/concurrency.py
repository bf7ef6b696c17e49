"""Savers at once in one process, and what one save costs.

    python -m benchmarks.comparisons.concurrency

1 and 64 tasks, each on a thread of its own, against langgraph's AsyncSqliteSaver in the same run;
then cProfile of a save of a tiny state and of a chat of 1,000 turns (``--profile``).
"""

# ruff: noqa: SLF001  (the writer thread is profiled from inside)

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report, workloads
from benchmarks.comparisons.peer import Peer
from locus_store import MemoryCheckpointer, sqlite_checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable

SAVES = 3000
SAVERS = (1, 64)


def small(rng: random.Random, step: int) -> dict[str, Any]:
    """A state of 500 bytes."""
    return {"step": step, "node": "plan", "note": workloads.prose(rng, 400), "seen": [1, 2, step]}


async def rate(saver: Any, savers: int, saves: int) -> tuple[float, float, float]:
    """Saves a second, p50 and p99 in seconds."""
    times: list[float] = []

    async def work(number: int) -> None:
        rng = random.Random(number)
        for step in range(saves // savers):
            state = small(rng, step)
            begin = time.perf_counter()
            await saver.save(state, f"thread-{number}")
            times.append(time.perf_counter() - begin)

    await saver.save({}, "warm")
    begin = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(savers)))
    seconds = time.perf_counter() - begin
    cuts = statistics.quantiles(times, n=100)
    return len(times) / seconds, cuts[49], cuts[98]


async def compare(savers: int, saves: int) -> list[list[object]]:
    """The median of three runs of each, taking turns."""
    makers: dict[str, Callable[[Path], Any]] = {
        "locus-store": lambda path: sqlite_checkpointer(path, state_type=dict),
        "langgraph-checkpoint-sqlite": Peer,
        "locus-store, memory": lambda _: MemoryCheckpointer(state_type=dict),
    }
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in makers}
    for _ in range(3):
        for name, make in makers.items():
            with tempfile.TemporaryDirectory(prefix="locus-store-concurrency-") as directory:
                saver = make(Path(directory) / "saves.db")
                found[name].append(await rate(saver, savers, saves))
                await saver.close()
    middle = {name: sorted(runs)[1] for name, runs in found.items()}
    peer = middle["langgraph-checkpoint-sqlite"][0]
    return [
        [f"{savers} x {name}", f"{per_second:,.0f}", f"{p50 * 1e3:.2f} ms", f"{p99 * 1e3:.2f} ms",
         f"{per_second / peer:.2f}"]
        for name, (per_second, p50, p99) in middle.items()
    ]  # fmt: skip


def profiled(name: str, states: list[dict[str, Any]], warm: int, shown: int) -> None:
    """Profile the saves after the first ``warm``, by function, in both threads."""
    with tempfile.TemporaryDirectory(prefix="locus-store-profile-") as directory:
        saver = sqlite_checkpointer(Path(directory) / "saves.db", state_type=dict)
        loop_profile, writer_profile = cProfile.Profile(), cProfile.Profile()

        async def run() -> tuple[float, float]:
            for state in states[:warm]:
                await saver.save(state, "thread")
            writer: Any = saver.backend._runner._get_open().writer  # type: ignore[attr-defined]
            commit = writer._commit
            writer._commit = lambda jobs: writer_profile.runcall(commit, jobs)
            cpu, wall = time.process_time(), time.perf_counter()
            loop_profile.enable()
            for state in states[warm:]:
                await saver.save(state, "thread")
            loop_profile.disable()
            return time.perf_counter() - wall, time.process_time() - cpu

        wall, cpu = asyncio.run(run())
        asyncio.run(saver.close())
    count = len(states) - warm
    wall, cpu = wall / count * 1e3, cpu / count * 1e3
    print(f"\n== {name}: {count} saves, wall {wall:.2f} ms, CPU {cpu:.2f} ms each, profiled")
    for title, profile in (("event loop", loop_profile), ("writer thread", writer_profile)):
        print(f"-- {title}: microseconds a save")
        print_profile(profile, count, shown)


def print_profile(profile: cProfile.Profile, saves: int, shown: int) -> None:
    stats: Any = pstats.Stats(profile)
    rows = [
        (cumulative / saves * 1e6, own / saves * 1e6, calls / saves, function)
        for function, (_, calls, own, cumulative, _) in stats.stats.items()
    ]
    for by in (0, 1):
        print("   cumulative   own  calls" if by == 0 else "   ... by own time")
        for cumulative, own, calls, (file, line, function) in sorted(
            rows, key=lambda row: -row[by]
        )[:shown]:
            where = "/".join(Path(file).parts[-2:])
            print(f"   {cumulative:9.0f} {own:6.0f} {calls:6.1f}  {where}:{line} {function}")


PAGE = """# Writers on SQLite

Machine: {machine}; load average {load}. {saves:,} saves of a state of 500 bytes, in all; the median
of three runs in turn.

{table}
"""


def page(saves: int) -> str:
    rows = [row for savers in SAVERS for row in asyncio.run(compare(savers, saves))]
    return PAGE.format(
        machine=machine.described(),
        load=machine.load_average(),
        saves=saves,
        table=machine.table(("savers", "saves/s", "p50", "p99", "x langgraph"), rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=SAVES)
    parser.add_argument("--profile", action="store_true", help="only the breakdown of a save")
    parser.add_argument("--shown", type=int, default=25)
    report.add_write(parser)
    options = parser.parse_args()
    if not options.profile:
        report.publish("sqlite-writers", page(options.saves), write=options.write)
        return
    rng = random.Random(1)
    tiny = [small(rng, step) for step in range(600)]
    profiled("tiny state", tiny, 100, options.shown)
    chat: list[dict[str, Any]] = []
    for turn, state in enumerate(workloads.chat(1040)):
        if turn >= 1000:
            chat.append({"messages": list(state["messages"])})
    profiled("chat at 1,000 turns", chat, 10, options.shown)


if __name__ == "__main__":
    main()
