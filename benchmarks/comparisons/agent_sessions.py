"""Sessions of the OpenAI Agents SDK: its SQLAlchemySession beside LocusSession.

    python -m benchmarks.comparisons.agent_sessions [--rounds 7] [--calls 20] [--write]

On PostgreSQL with fsync and on an SQLite file, in one process and in turn. An item has 300
characters; a call of the batch appends 200, and a load reads 1,000. Prints Markdown: milliseconds
per call, the least and the median of all calls, and the least CPU time of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from agents.extensions.memory import SQLAlchemySession
from agents.memory import SQLiteSession
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks import machine, report
from benchmarks.places import server
from locus_store import open_message_log
from locus_store.adapters.openai_agents import LocusSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ITEM = {"role": "user", "content": "word " * 60}
LOADED = 1000
UNITS = "Milliseconds per call: least and median, and the least CPU time of the client."
HEAD = "| storage | call | session | least | median | CPU |\n|---|---|---|---:|---:|---:|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=20, help="of each kind in a round")
    report.add_write(parser)
    options = parser.parse_args()
    lines: list[str] = []
    before = machine.load_average()
    with tempfile.TemporaryDirectory() as folder, server() as (running, database):
        url = running.url(database)
        driven = url.replace("postgresql://", "postgresql+asyncpg://", 1)
        lines += asyncio.run(measured("PostgreSQL", url, driven, None, options))
        path = Path(folder) / "theirs.db"
        ours = f"sqlite:///{folder}/ours.db"
        alchemy = f"sqlite+aiosqlite:///{folder}/alchemy.db"
        lines += asyncio.run(measured("SQLite", ours, alchemy, path, options))
    load = f"Load average over five minutes: {before} before, {machine.load_average()} after."
    table = "\n".join([HEAD, *lines])
    page = ["# Sessions of the OpenAI Agents SDK", machine.described(), f"{UNITS} {load}", table]
    report.publish("agent-sessions", "\n\n".join(page), write=options.write)


async def measured(name: str, url: str, driven: str, path: Path | None, options: Any) -> list[str]:
    """Return the lines of the table."""
    engine = create_async_engine(driven)
    async with open_message_log(url) as log:
        sessions: dict[str, Callable[[str], Any]] = {
            "LocusSession": lambda session_id: LocusSession(session_id, log),
            "SQLAlchemySession": lambda session_id: SQLAlchemySession(
                session_id, engine=engine, create_tables=True
            ),
        }
        if path is not None:
            sessions["SQLiteSession"] = lambda session_id: SQLiteSession(session_id, path)
        times = await rounds_of(sessions, options.rounds, options.calls)
    await engine.dispose()
    return [line(name, call, kind, each) for (call, kind), each in times.items()]


def line(name: str, call: str, kind: str, times: list[tuple[float, float]]) -> str:
    walls, cpus = zip(*times, strict=True)
    return (
        f"| {name} | {call} | {kind} | {min(walls):.2f} | {median(walls):.2f} | {min(cpus):.2f} |"
    )


async def rounds_of(
    sessions: dict[str, Callable[[str], Any]], rounds: int, calls: int
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    times: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    full = {kind: make("full") for kind, make in sessions.items()}
    for session in full.values():
        await session.add_items([ITEM] * LOADED)
    for number in range(rounds):
        new = {kind: make(f"new-{number}") for kind, make in sessions.items()}
        for session in new.values():
            await session.add_items([ITEM])
        works: dict[str, tuple[int, Callable[[str], Awaitable[Any]]]] = {
            "append 1": (calls, lambda kind, new=new: new[kind].add_items([ITEM])),
            "append 200": (
                max(1, calls // 5),
                lambda kind, new=new: new[kind].add_items([ITEM] * 200),
            ),
            f"load {LOADED}": (max(1, calls // 5), lambda kind: full[kind].get_items()),
            "load the newest 20": (calls, lambda kind: full[kind].get_items(20)),
        }
        for call, (count, work) in works.items():
            for kind in sessions:
                for _ in range(count):
                    begun, cpu = time.perf_counter(), time.process_time()
                    await work(kind)
                    wall = 1e3 * (time.perf_counter() - begun)
                    times[call, kind].append((wall, 1e3 * (time.process_time() - cpu)))
    return times


if __name__ == "__main__":
    main()
