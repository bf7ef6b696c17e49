"""CPU of blame and bisect: python -m benchmarks.micro.timeline [--versions N] [--postgresql].

Each beside one ``read_states`` over the same versions, of a chat that gets one message a version
and has a counter, a plan that is replaced and a window of its last 20 notes. The list of the
versions is read before ``read_states``, and by blame and bisect themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine, places, report
from benchmarks.workloads import State, prose
from locus_store import open_checkpointer
from locus_store.timeline import bisect as bisecting
from locus_store.timeline.ancestry import find_ancestry
from locus_store.timeline.bisect import bisect
from locus_store.timeline.blame import blame
from locus_store.timeline.paths import parse_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from locus_store.backend import FullBackend

THREAD = "thread"
ONE = "one read_states"


def states(count: int) -> Iterator[State]:
    """A chat; the same object changes."""
    rng = random.Random(7)
    state: State = {"messages": [], "notes": [], "plan": {}, "tokens": 0, "city": "Bern"}
    for number in range(count):
        role = "assistant" if number % 2 else "user"
        state["messages"].append({"id": f"m{number}", "role": role, "content": prose(rng, 120)})
        state["notes"] = [*state["notes"], prose(rng, 40)][-20:]
        state["tokens"] += rng.randrange(1000)
        if number % 10 == 0:
            state["plan"] = {"goal": prose(rng, 30), "step": number, "tools": ["search", "book"]}
        state["city"] = "Bern" if number < count // 2 else "Basel"
        yield state


def works(backend: FullBackend, count: int, versions: list[Any]) -> dict[str, Callable[[], Any]]:
    """The calls that are measured."""

    def ask(condition: bisecting.Condition) -> Awaitable[Any]:
        return bisect(backend, THREAD, condition)

    middle = parse_path(f'messages[id="m{count // 2}"].content')
    return {
        ONE: lambda: backend.read_states(versions, lambda version, folder: None),
        "blame": lambda: blame(backend, THREAD),
        "bisect, a key": lambda: ask(bisecting.equals(parse_path("city"), "Basel")),
        "bisect, a message by its id": lambda: ask(bisecting.exists(middle)),
        "bisect, a length": lambda: ask(
            bisecting.is_longer_than(parse_path("messages"), count // 2)
        ),
        "bisect, a text anywhere": lambda: ask(bisecting.HasText("Basel")),
    }


async def measure(url: str, count: int, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of CPU of each call, in turn."""
    took: dict[str, list[float]] = defaultdict(list)
    async with open_checkpointer(url, state_type=dict) as checkpointer:
        backend: Any = checkpointer.backend
        for state in states(count):
            await backend.save(THREAD, state)
        way = await find_ancestry(backend, THREAD)
        for _ in range(rounds):
            for name, call in works(backend, count, way.versions if way else []).items():
                begin = time.process_time()
                found = await call()
                took[name].append((time.process_time() - begin) * 1e3)
                if name.startswith("bisect"):
                    at = found.first.version.mark.sequence
                    if not count // 2 <= at <= count // 2 + 1:
                        raise SystemExit(f"{name}: version {at} is not the first")
    return took


PAGE = """# Blame and bisect over {versions:,} versions

Machine: {machine}; load average {load}. {place}; CPU of the client in ms, {rounds} rounds in turn.

{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Blame and bisect, CPU in ms.")
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    places.add_place(parser)
    report.add_write(parser)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="locus-store-timeline-") as directory,
        places.place(options, Path(directory)) as url,
    ):
        took = asyncio.run(measure(url, options.versions, options.rounds))
    base = min(took[ONE])
    rows = [
        (name, f"{min(it):.0f}", f"{statistics.median(it):.0f}", f"{min(it) / base:.2f} x")
        for name, it in took.items()
    ]
    page = PAGE.format(
        versions=options.versions,
        machine=machine.described(),
        load=machine.load_average(),
        place="PostgreSQL" if options.postgresql else "SQLite",
        rounds=options.rounds,
        table=machine.table(("call", "least", "median", "least, of read_states"), rows),
    )
    report.publish(
        f"timeline-{'postgresql' if options.postgresql else 'sqlite'}", page, write=options.write
    )


if __name__ == "__main__":
    main()
