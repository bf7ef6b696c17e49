"""Session memory beside AgentFlow's own checkpointer, on PostgreSQL 18 and Valkey 9.

    make sessions
    build/agentflow-venv/bin/python -m benchmarks.comparisons.sessions --only calls --rounds 5

AgentFlow needs Python 3.12 and an environment of its own, which ``make sessions`` creates. Both
sides run in one process and in turn; a graph's turns run in a process for each side, because
AgentFlow keeps one checkpointer per process. Prints Markdown; ``--write`` keeps it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import machine, report, workloads
from benchmarks.comparisons.session_lists import lists
from benchmarks.comparisons.session_sides import (
    OURS,
    SIDES,
    THEIRS,
    counted,
    maker,
    name_of,
    opened,
    started,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.comparisons.session_sides import Maker, Servers

SMALL, LARGE, BATCH, CALLERS, COLD = 20, 400, 200, 16, 60
"""Messages of a state, of a large one, and of one ``aput_messages``; callers; unknown threads."""

TURNS = 1000
KINDS: Final = ("CPU", "servers' CPU", "elapsed")
Times = dict[tuple[str, str, str], list[float]]
"""Milliseconds per call of each round, by call, side and kind."""

HEAD = """# Session memory

Machine: {machine}; load average {load}. {versions}. AgentFlow's `PgCheckpointer` beside the one of
`locus_store.session`, each with its own classes, on one PostgreSQL 18 with fsync and one Valkey 9,
with the defaults of both. Milliseconds per call, the least and the median of {rounds} rounds of
{calls} calls (a tenth of them for `aput_messages`), both sides in turn in one process; the ratio is
locus-store / AgentFlow. A message has 100 or 300 characters; a save replaces the last message and
the summary. *Small*: {small} messages; *large*: {large}. Other programs load the machine, which
makes elapsed times wide."""


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
        self._cold: list[str] = []

    def prepare(self, method: str, count: int, cold: Sequence[str]) -> None:
        """Make what the next calls need, so that it is not timed."""
        batches = count if method == "put_messages" else 0
        self._batches = [self._make.messages(BATCH, self._rng) for _ in range(batches)]
        self._cold = list(cold)

    async def put_state(self) -> None:
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
        _found(await self._saver.aget_state(self.config))

    async def get_cold(self) -> None:
        config = {**self.config, "thread_id": self._cold.pop()}
        _found(await self._saver.aget_state(config))

    async def get_cached(self) -> None:
        _found(await self._saver.aget_state_cache(self.config))

    async def put_messages(self) -> None:
        await self._saver.aput_messages(self.config, self._batches.pop())

    async def list_messages(self) -> None:
        _found(await self._saver.alist_messages(self.config, limit=50))


def _found(it: object) -> None:
    if not it:
        raise SystemExit("a call found nothing")


METHODS: Final = {
    "put_state": "`aput_state`",
    "put_state_and_cache": "`aput_state`; AgentFlow's with `aput_state_cache`",
    "get_state": "`aget_state`",
    "get_cold": "`aget_state`, first of a thread",
    "get_cached": "`aget_state_cache`, in the cache",
    "put_messages": f"`aput_messages` of {BATCH}",
    "list_messages": "`alist_messages(limit=50)`",
}
STATES: Final = ("put_state", "put_state_and_cache", "get_state", "get_cached")
WARM: Final = tuple(it for it in METHODS if it != "get_cold")


class Both:
    """Both sides, each on a database of its own, and objects that write what a side reads cold."""

    def __init__(self, servers: Servers) -> None:
        urls = {it: servers.database() for it in SIDES}
        self.savers = {it: opened(it, url, servers.valkey.url()) for it, url in urls.items()}
        self.writers = {THEIRS: self.savers[THEIRS], OURS: opened(OURS, urls[OURS], None)}

    async def write(self, number: int, count: int) -> list[str]:
        """Write threads that the readers do not know; return their ids."""
        names = [f"cold {number} {n}" for n in range(count)]
        for side, writer in self.writers.items():
            for name in names:
                caller = Caller(writer, maker(side), name, SMALL)
                for _ in range(3):
                    await caller.put_state()
        return names

    async def close(self) -> None:
        for it in (*self.savers.values(), self.writers[OURS]):
            await it.arelease()


# --- times


async def calls(servers: Servers, rounds: int, each: int) -> str:
    """Return the table of the calls that both sides have."""
    times: Times = defaultdict(list)
    sides = Both(servers)
    for saver in sides.savers.values():
        await saver.asetup()
    for title, size, callers, methods in (
        ("small", SMALL, 1, tuple(METHODS)),
        (f"small, {CALLERS} callers", SMALL, CALLERS, WARM),
        ("large", LARGE, 1, STATES),
    ):
        every = {
            side: [Caller(it, maker(side), f"{title} {n}", size) for n in range(callers)]
            for side, it in sides.savers.items()
        }
        for number in range(rounds + 1):  # the first one prepares statements
            for method in methods:
                count = max(each // (10 if method == "put_messages" else 1) // callers, 1)
                cold = await sides.write(number, count) if method == "get_cold" else ()
                for side, some in every.items():
                    found = await timed(servers, some, method, count, cold)
                    for kind, value in found.items() if number else ():
                        times[f"{METHODS[method]}, {title}", side, kind].append(value)
    await sides.close()
    head = [f"{kind}, {it}" for kind in KINDS for it in (*SIDES, "ratio")]
    names = dict.fromkeys(call for call, _, _ in times)
    return machine.table(("ms", *head), [_row(it, times) for it in names])


async def timed(
    servers: Servers, some: list[Caller], method: str, count: int, cold: Sequence[str]
) -> dict[str, float]:
    """Return the milliseconds of a call, by ``KINDS``."""
    for it in some:
        it.prepare(method, count, cold)
    gc.collect()  # what another call left

    async def run(call: Callable[[], Awaitable[Any]]) -> None:
        for _ in range(count):
            await call()

    before, begun = servers.cpu(), (time.process_time(), time.perf_counter())
    await asyncio.gather(*(run(getattr(it, method)) for it in some))
    ended = time.process_time(), time.perf_counter()
    cpu, elapsed = (b - a for a, b in zip(begun, ended, strict=True))
    seconds = cpu, servers.cpu_seconds(before), elapsed
    taken = (1e3 * it / count / len(some) for it in seconds)
    return dict(zip(KINDS, taken, strict=True))


def _row(call: str, times: Times) -> list[str]:
    cells = [call]
    for kind in KINDS:
        theirs, ours = (times[call, side, kind] for side in (THEIRS, OURS))
        cells += [f"{min(it):.2f} / {median(it):.2f}" for it in (theirs, ours)]
        cells.append(f"{min(ours) / min(theirs):.2f} / {median(ours) / median(theirs):.2f}")
    return cells


# --- round trips


async def trips(servers: Servers) -> str:
    """Return the table of the round trips, to the database and to the cache."""
    found: dict[str, list[str]] = {METHODS[it]: [METHODS[it]] for it in WARM}
    for side in SIDES:
        async with counted(servers, servers.database()) as (database, cache, wire):
            saver = opened(side, database, cache)
            await saver.asetup()
            caller = Caller(saver, maker(side), "t", SMALL)
            for number in range(3):
                for method in WARM:
                    caller.prepare(method, 1, ())
                    wire.taken()
                    await getattr(caller, method)()
                    taken = wire.taken()
                    if number == 2:
                        found[METHODS[method]].append(f"{taken[0]} + {taken[1]}")
            await saver.arelease()
    turn = [f"a turn of a graph with 3 nodes, mean of {TURNED}"]
    cpu = ["… its CPU, graph included, ms"]
    for side in SIDES:
        database, cache, times = await turned(servers, side)
        turn.append(f"{database:.1f} + {cache:.1f}")
        cpu.append(" / ".join(f"{it:.0f}" for it in times["cpu"]))
    return machine.table(("database + cache", *SIDES), [*found.values(), turn, cpu])


TURNED = 20


async def turned(servers: Servers, side: str) -> tuple[float, float, dict[str, list[float]]]:
    """Return the round trips of one turn, and the times of turns."""
    url, counts, times = servers.database(), [], {}
    for count in (1, 5, 5 + TURNED):  # the first run migrates
        async with counted(servers, url) as (database, cache, wire):
            module = "benchmarks.comparisons.session_turns"
            command = (sys.executable, "-m", module, side, database, cache, str(count))
            run = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            printed, _ = await run.communicate()
            times = json.loads(printed)
            counts.append(wire.taken())
    database, cache = ((b - a) / TURNED for a, b in zip(*counts[1:], strict=True))
    return database, cache, times


# --- space


async def space(servers: Servers) -> str:
    """Return the table of the space of ``TURNS`` turns, with all versions."""
    rows = [await _grown(servers, *sizes) for sizes in ((400, 1000), (100, 300))]
    head = ("a turn", "state's JSON", "log's JSON", "state / JSON", "log / JSON", "of the goal")
    return machine.table(head, rows)


async def _grown(servers: Servers, *sizes: int) -> list[str]:
    url, make, rng = servers.database(), maker(OURS), random.Random(7)
    session = opened(OURS, url, None, cache_verify_seconds=1000)
    config, state = {"thread_id": "t", "user_id": "u"}, make.state(0, rng)
    for _ in range(TURNS):
        roles = zip(sizes, ("user", "assistant"), strict=True)
        new = [make.message(workloads.prose(rng, size), role=role) for size, role in roles]
        state.context.extend(new)
        await session.aput_state(config, state)
        await session.aput_messages(config, new)
    await session.arelease()
    sizes_of = servers.postgresql.fetch(
        "SELECT relname IN ('locus_logs', 'locus_messages'), sum(pg_total_relation_size(oid))::int8"
        " FROM pg_class WHERE relname LIKE 'locus%' AND relkind = 'r' GROUP BY 1",
        database=name_of(url),
    )
    of_log = dict(sizes_of)
    final = len(state.model_dump_json())
    log = sum(len(it.model_dump_json()) for it in state.context)
    goal = 2 * final + 1.5 * log
    return [
        f"{sizes[0]} + {sizes[1]} characters",
        *(f"{it:,}" for it in (final, log)),
        f"{of_log[False] / final:.2f}",
        f"{of_log[True] / log:.2f}",
        f"{sum(of_log.values()) / goal:.2f}",
    ]


# --- blocking methods


async def blocking(servers: Servers, rounds: int, each: int) -> str:
    """Return the table of our blocking methods beside the asynchronous ones."""
    url = servers.database()
    await (session := opened(OURS, url, servers.valkey.url())).asetup()
    twin = opened(OURS, url, servers.valkey.url())
    caller, state = Caller(session, maker(OURS), "a", SMALL), maker(OURS).state(SMALL, random)
    config = {"thread_id": "b", "user_id": "user"}
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, method in (("put_state", caller.put_state), ("get_state", caller.get_state)):
            gc.collect()
            begun = time.process_time()
            for _ in range(each):
                await method()
            between = time.process_time()
            await asyncio.to_thread(_blocking, twin, name, config, state, each)
            taken = between - begun, time.process_time() - between
            for key, seconds in zip((f"a{name}", name), taken, strict=True):
                found[key] += [1e3 * seconds / each] if number else []
    await session.arelease()
    await asyncio.to_thread(twin.release)
    rows = [(f"`{name}`", f"{min(it):.2f} / {median(it):.2f}") for name, it in found.items()]
    return machine.table(("CPU, ms", "small"), rows)


def _blocking(twin: Any, name: str, config: dict[str, Any], state: Any, each: int) -> None:
    for number in range(each):
        state.context_summary = str(number)
        getattr(twin, name)(config, *([state] if name == "put_state" else []))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=64)
    parser.add_argument(
        "--only", nargs="+", help="of: calls, trips, blocking, space, lists; a page of its own"
    )
    report.add_write(parser)
    options = parser.parse_args()
    amount = options.rounds, options.calls
    sections: dict[str, tuple[str, Callable[[Servers], Awaitable[str]]]] = {
        "calls": ("Times", lambda it: calls(it, *amount)),
        "trips": ("Round trips", trips),
        "blocking": ("Blocking methods of locus-store", lambda it: blocking(it, *amount)),
        "space": (f"Space of {TURNS:,} turns with all versions, state and log", space),
        "lists": ("Lists of locus-store, least and median of 7 rounds of 20 calls", lists),
    }
    parts = []
    with started() as servers:
        for name in options.only or sections:
            title, section = sections[name]
            parts.append(f"## {title}\n\n{asyncio.run(section(servers))}")
    head = HEAD.format(
        machine=machine.described(), load=machine.load_average(), versions=versions(),
        small=SMALL, large=LARGE, **vars(options),
    )  # fmt: skip
    name = "-".join(["sessions", *(options.only or [])])
    report.publish(name, "\n\n".join([head, *parts]), write=options.write)


if __name__ == "__main__":
    main()
