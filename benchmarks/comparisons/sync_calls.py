"""CPU time of LangGraph's sync methods, called by one thread.

    python -m benchmarks.comparisons.sync_calls [--rounds 9] [--calls 100]

LangGraphSaver beside SqliteSaver and PostgresSaver, in one process and in turn: ``put``,
``put_writes`` and ``get_tuple`` of a state of 1.4 KB that changes as a whole. Below it, the
blocking facade beside the asynchronous object. Prints Markdown: microseconds per call, the least
and the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import empty_checkpoint

from benchmarks import machine, report
from benchmarks.comparisons.langgraph_sides import (
    SIDES,
    TEXTS,
    THEIRS,
    Place,
    PostgreSQL,
    SQLite,
    opened_in_threads,
)
from benchmarks.places import server
from locus_store import blocking, open_checkpointer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Times = defaultdict[tuple[str, str], list[float]]
"""Microseconds of CPU per call, of each round, by call and side."""


HEAD = """# Sync calls of one thread

Machine: {machine}; load average {load}. CPU in µs per call, the least and the median of {rounds}
rounds of {calls} calls, both sides in turn. A state of 1.4 KB changes as a whole."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=100, help="of each method in a round")
    parser.add_argument("--places", nargs="+", default=["sqlite", "postgresql"])
    report.add_write(parser)
    options = parser.parse_args()
    parts = [HEAD.format(machine=machine.described(), load=machine.load_average(), **vars(options))]
    with tempfile.TemporaryDirectory() as directory:
        files = SQLite(Path(directory))
        if "sqlite" in options.places:
            parts.append(section(files, savers(files, options.rounds, options.calls)))
        if "postgresql" in options.places:
            with server() as (running, _):
                place = PostgreSQL(running)
                parts.append(section(place, savers(place, options.rounds, options.calls)))
    times = facade(options.rounds, options.calls)
    parts.append(table("memory", times, ("async", "blocking")))
    report.publish("sync-calls", "\n\n".join(parts), write=options.write)


def section(place: Place, times: Times) -> str:
    return f"{place.settings()}\n\n{table(place.title, times, SIDES)}"


def table(title: str, times: Times, sides: tuple[str, str]) -> str:
    first, second = sides
    rows = []
    for call in dict.fromkeys(call for call, _ in times):
        one, other = times[call, first], times[call, second]
        rows.append(
            (
                call,
                f"{min(one):.0f} / {median(one):.0f}",
                f"{min(other):.0f} / {median(other):.0f}",
                f"{min(one) / min(other):.2f} / {median(one) / median(other):.2f}",
            )
        )
    return machine.table((title, first, second, f"{first} / {second}"), rows)


# --- savers


def savers(place: Place, rounds: int, calls: int) -> Times:
    """Both savers' methods, in turn."""
    times: Times = defaultdict(list)
    with ExitStack() as stack:
        opened = {}
        for side in SIDES:
            name = place.new()
            if side == THEIRS and isinstance(place, PostgreSQL):
                _set_up(place, name)
            opened[side] = stack.enter_context(opened_in_threads(place, side, name))
            use(opened[side], "warm", calls)
        for number in range(rounds):
            for side, saver in opened.items():
                for call, seconds in use(saver, f"t{number}", calls).items():
                    times[call, side].append(1e6 * seconds / calls)
    return times


def _set_up(place: PostgreSQL, name: str) -> None:
    async def set_up() -> None:
        async with place.theirs(name):
            pass

    asyncio.run(set_up())


def use(saver: Any, thread_id: str, calls: int) -> dict[str, float]:
    """Run steps as a graph does: save, write, load; return the CPU seconds of each method."""
    seconds: dict[str, float] = defaultdict(float)
    place = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    config: Any = place
    for number in range(calls):
        question, answer = TEXTS[number]
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"question": question, "answer": answer}
        versions = dict.fromkeys(checkpoint["channel_values"], f"{number + 1:032}")
        checkpoint["channel_versions"] = versions
        begun = time.process_time()
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, versions)
        put = time.process_time()
        saver.put_writes(config, [("answer", answer)], f"task{number}")
        written = time.process_time()
        config = saver.get_tuple(place).config
        read = time.process_time()
        seconds["put"] += put - begun
        seconds["put_writes"] += written - put
        seconds["get_tuple"] += read - written
    return seconds


# --- the facade


def facade(rounds: int, calls: int) -> Times:
    """Return the times of an asynchronous checkpointer in memory, and behind the facade."""
    times: Times = defaultdict(list)
    awaited = open_checkpointer("memory://", state_type=dict)
    with blocking.open_checkpointer("memory://", state_type=dict) as waited:
        waited.save({"n": 1}, "t")
        asyncio.run(awaited.save({"n": 1}, "t"))
        for _ in range(rounds):
            for name in ("exists", "load"):
                ours = getattr(awaited, name)
                times[name, "async"].append(asyncio.run(_awaited(ours, calls * 10)))
                times[name, "blocking"].append(_waited(getattr(waited, name), calls * 10))
    return times


async def _awaited(call: Callable[[str], Awaitable[Any]], calls: int) -> float:
    begun = time.process_time()
    for _ in range(calls):
        await call("t")
    return 1e6 * (time.process_time() - begun) / calls


def _waited(call: Callable[[str], Any], calls: int) -> float:
    begun = time.process_time()
    for _ in range(calls):
        call("t")
    return 1e6 * (time.process_time() - begun) / calls


if __name__ == "__main__":
    main()
