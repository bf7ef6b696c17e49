"""Session memory beside AgentFlow's own checkpointer, on PostgreSQL 18 and Valkey 9.

    make sessions
    build/agentflow-venv/bin/python -m benchmarks.comparisons.sessions --only calls --rounds 5

AgentFlow needs Python 3.12 and an environment of its own, which ``make sessions`` creates. Both
sides run in one process and in turn. Prints Markdown; ``--write`` keeps it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report
from benchmarks.comparisons.session_sides import (
    OURS,
    SIDES,
    THEIRS,
    maker,
    opened,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.comparisons.session_sides import Maker, Servers

SMALL, LARGE, BATCH = 20, 400, 200
"""Messages of a state, of a large state, and of one ``aput_messages``."""

CALLERS = 16


@dataclass
class Times:
    """Milliseconds per call of each round, by call and side."""

    cpu: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    elapsed: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    server: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def rows(self) -> list[list[str]]:
        calls = dict.fromkeys(call for call, _ in self.cpu)
        return [self._row(call) for call in calls]

    def _row(self, call: str) -> list[str]:
        cells = [call]
        for kind in (self.cpu, self.server, self.elapsed):
            ours, theirs = kind[call, OURS], kind[call, THEIRS]
            cells += [*map(_both, (theirs, ours)), _ratio(ours, theirs)]
        return cells


def _both(values: list[float]) -> str:
    return f"{min(values):.2f} / {median(values):.2f}"


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{min(ours) / min(theirs):.2f} / {median(ours) / median(theirs):.2f}"


COLUMNS = (
    "call",
    *(f"{kind}, {side}" if side else "ratio" for kind in ("CPU", "servers' CPU", "elapsed")
      for side in (*SIDES, "")),
)  # fmt: skip


class Caller:
    """One caller of one side, on a thread of its own."""

    def __init__(self, saver: Any, make: Maker, thread_id: str, size: int) -> None:
        self._rng = random.Random(7)
        self._saver = saver
        self._make = make
        self._state = make.state(size, self._rng)
        self._news = make.messages(100, self._rng)
        self._turn = 0
        self._batches: list[list[Any]] = []
        self.config = {"thread_id": thread_id, "user_id": "user"}

    def prepare(self, batches: int) -> None:
        """Make the messages of the next calls, so that they are not timed."""
        self._batches = [self._make.messages(BATCH, self._rng) for _ in range(batches)]

    async def put_state(self) -> None:
        """Save a state whose last message and summary are new, as a step of a graph does."""
        self._turn += 1
        new = self._news[self._turn % len(self._news)]
        self._state.context = [*self._state.context[:-1], new]
        self._state.context_summary = f"summary {self._turn}"
        await self._saver.aput_state(self.config, self._state)

    async def put_state_and_cache(self) -> None:
        """Write the state and the cache: one call of ours, two of AgentFlow's."""
        await self.put_state()
        if not hasattr(self._saver, "cache"):
            await self._saver.aput_state_cache(self.config, self._state)

    async def get_state(self) -> None:
        assert await self._saver.aget_state(self.config) is not None

    async def get_cached(self) -> None:
        assert await self._saver.aget_state_cache(self.config) is not None

    async def put_messages(self) -> None:
        await self._saver.aput_messages(self.config, self._batches.pop())

    async def list_messages(self) -> None:
        assert len(await self._saver.alist_messages(self.config, limit=50)) == 50


async def calls(servers: Servers, rounds: int, each: int) -> str:
    """Return the table of the calls that both sides have."""
    times = Times()
    savers = {}
    for side in SIDES:
        savers[side] = opened(side, servers.database(), servers.valkey.url())
        await savers[side].asetup()
    for title, size, callers, names in (
        ("small", SMALL, 1, None),
        (f"{CALLERS} callers", SMALL, CALLERS, None),
        ("large", LARGE, 1, ("put_state", "put_state_and_cache", "get_state", "get_cached")),
    ):
        every = {
            side: [Caller(it, maker(side), f"{title} {n}", size) for n in range(callers)]
            for side, it in savers.items()
        }
        await measure(times, servers, title, every, rounds, each, names)
    for saver in savers.values():
        await saver.arelease()
    return machine.table(COLUMNS, times.rows())


METHODS = {
    "put_state": "`aput_state`",
    "put_state_and_cache": "`aput_state` with the cache",
    "get_state": "`aget_state`",
    "get_cached": "`aget_state_cache`, in the cache",
    "put_messages": f"`aput_messages` of {BATCH}",
    "list_messages": "`alist_messages(limit=50)`",
}


async def measure(
    times: Times,
    servers: Servers,
    title: str,
    every: dict[str, list[Caller]],
    rounds: int,
    each: int,
    names,
) -> None:
    for number in range(rounds + 1):  # the first one prepares statements
        for name in names or METHODS:
            count = max(each // 10, 2) if name == "put_messages" else each
            count = max(count // len(every[OURS]), 1)
            for side, callers in every.items():
                for it in callers:
                    it.prepare(count if name == "put_messages" else 0)
                found = await timed(servers, [getattr(it, name) for it in callers], count)
                if number:
                    key = f"{METHODS[name]}, {title}", side
                    for kind, value in zip((times.cpu, times.elapsed, times.server), found):
                        kind[key].append(1e3 * value / count / len(callers))


async def timed(
    servers: Servers, some: list[Callable[[], Awaitable[Any]]], count: int
) -> tuple[float, float, float]:
    """Return the seconds of CPU, by the clock and of the servers' CPU."""

    async def run(call: Callable[[], Awaitable[Any]]) -> None:
        for _ in range(count):
            await call()

    begun = time.process_time(), time.perf_counter(), servers.cpu_seconds()
    await asyncio.gather(*map(run, some))
    ended = time.process_time(), time.perf_counter(), servers.cpu_seconds()
    return tuple(b - a for a, b in zip(begun, ended))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=60)
    report.add_write(parser)
    options = parser.parse_args()
    with started() as servers:
        print(asyncio.run(calls(servers, options.rounds, options.calls)))


if __name__ == "__main__":
    main()
