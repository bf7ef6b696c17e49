"""LangGraphSaver beside langgraph's own savers, in one run.

    python -m benchmarks.comparisons.langgraph_peers

On a PostgreSQL server of its own, with fsync, and on SQLite files. Prints Markdown; ``--quick`` is
a tenth of it, ``--only`` one backend.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langgraph.checkpoint.base import empty_checkpoint

from benchmarks import machine, report
from benchmarks.comparisons import langgraph_sides as sides
from benchmarks.comparisons.langgraph_sides import OURS, SIDES, THEIRS
from benchmarks.places import server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LAST = 50
"""Calls at the end whose median is "the 1,000th"."""

NEWEST = 100
"""Versions of the whole conversation that are read again, by both sides."""

SYNC_TURNS = 20
WRITERS = 64
VERSIONS_A_TURN = 3


@dataclass
class Times:
    """Seconds of both sides, by what was done."""

    seconds: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    async def take(self, what: str, side: str, call: Callable[[], Awaitable[Any]]) -> Any:
        begin = time.perf_counter()
        found = await call()
        self.seconds[what][side].append(time.perf_counter() - begin)
        return found

    def row(self, what: str) -> list[object]:
        theirs, ours = (statistics.median(self.seconds[what][it]) for it in SIDES)
        number = len(self.seconds[what][OURS])
        return [
            what,
            number,
            f"{theirs * 1e3:.2f}",
            f"{ours * 1e3:.2f}",
            f"**{theirs / ours:.1f}**",
        ]


# --- (a), (b), (d), (e): one long thread


@dataclass
class Long:
    """A conversation, on both sides."""

    title: str
    times: Times = field(default_factory=Times)
    total: dict[str, int] = field(default_factory=dict)
    packed: dict[str, int] = field(default_factory=dict)
    text: int = 0

    def row(self) -> list[object]:
        theirs, ours = self.total[THEIRS], self.total[OURS]
        return [
            self.title,
            f"{self.text / 1e6:.2f} MB",
            f"{theirs / 1e6:.1f} MB",
            f"{ours / 1e6:.2f} MB",
            f"**1/{theirs / ours:.0f}**",
            f"{self.packed[THEIRS] / 1e6:.1f} MB",
            f"{self.packed[OURS] / 1e6:.2f} MB",
            f"1/{self.packed[THEIRS] / self.packed[OURS]:.0f}",
        ]


async def long(place: sides.Place, title: str, turns: int, repeats: int) -> Long:
    kind = sides.KINDS[title]
    found = Long(f"{place.title}, {title}")
    names = {it: place.new() for it in SIDES}
    async with AsyncExitStack() as stack:
        savers = {
            it: await stack.enter_async_context(sides.opened(place, it, names[it])) for it in SIDES
        }
        calls = {it: sides.Calls(saver) for it, saver in savers.items()}
        graphs = {it: sides.chat(kind, saver) for it, saver in savers.items()}
        for turn in range(turns):
            for side in in_turn(turn):
                await found.times.take("a turn", side, lambda: sides.say(graphs[side], kind, turn))  # noqa: B023
            if turn + 1 == third(turns):
                versions = VERSIONS_A_TURN * third(turns)
                await histories(found.times, graphs, repeats, versions)
        await histories(found.times, graphs, 1, min(NEWEST, turns))
        found.text = await same(graphs, turns)
        noted(found.times, calls, turns)
        await lists(found.times, savers, repeats)
    await colds(found.times, place, names, repeats)
    await asyncio.to_thread(in_threads, found.times, place, names, kind, turns)
    for side, name in names.items():
        found.total[side] = place.total(name)
        print(f"    {side}: {place.parts(name)}")
        found.packed[side] = place.packed(name)
        place.drop(name)
    print(" ", *found.row(), flush=True)
    for what in found.times.seconds:
        print("   ", *found.times.row(what), flush=True)
    return found


def in_turn(number: int) -> tuple[str, ...]:
    return SIDES if number % 2 else SIDES[::-1]


def noted(times: Times, calls: dict[str, sides.Calls], turns: int, how: str = "") -> None:
    """Keep the last calls of each kind, and the last turns."""
    for side, made in calls.items():
        for name, seconds in made.seconds.items():
            times.seconds[f"{name}{how}, {turns:,}th turn"][side] = seconds[-LAST:]
        puts = made.seconds["put"][-LAST * VERSIONS_A_TURN :]
        per_turn = [sum(puts[it : it + 3]) for it in range(0, len(puts), 3)]
        times.seconds[f"the 3 puts of a turn{how}"][side] = per_turn
        if not how:
            times.seconds["a turn"][side] = times.seconds["a turn"][side][-LAST:]


async def same(graphs: dict[str, Any], turns: int) -> int:
    """Bytes of text in both states, which must be the same."""
    states = [(await graphs[it].aget_state(sides.config())).values["messages"] for it in SIDES]
    if states[0] != states[1] or len(states[0]) != 2 * turns:
        raise SystemExit("the two sides do not give the same messages")
    return sum(len(it["content"] if isinstance(it, dict) else it.content) for it in states[0])


def third(turns: int) -> int:
    """Turns that make as many versions as there will be turns."""
    return -(-turns // VERSIONS_A_TURN)


async def histories(times: Times, graphs: dict[str, Any], repeats: int, versions: int) -> None:
    """Read the newest versions by the graphs."""
    what = f"get_state_history, {versions:,} versions"
    for repeat in range(repeats):
        for side in in_turn(repeat):
            read = graphs[side].aget_state_history(sides.config(), limit=versions)
            count = await times.take(what, side, lambda: counted(read))  # noqa: B023
            if count != versions:
                raise SystemExit(f"{side} has {count} of {versions} versions")


async def counted(found: AsyncIterator[Any]) -> int:
    count = 0
    async for _ in found:
        count += 1
    return count


async def lists(times: Times, savers: dict[str, Any], repeats: int) -> None:
    for repeat in range(repeats):
        for side in in_turn(repeat):
            read = savers[side].alist(sides.config(), limit=10)
            await times.take("list(limit=10)", side, lambda: counted(read))  # noqa: B023


async def colds(times: Times, place: sides.Place, names: dict[str, str], repeats: int) -> None:
    """The first ``get_tuple`` of a saver that knows nothing."""
    for repeat in range(repeats):
        for side in in_turn(repeat):
            async with sides.opened(place, side, names[side]) as saver:
                read = saver.aget_tuple
                what = "get_tuple by another process"
                await times.take(what, side, lambda: read(sides.config()))  # noqa: B023


def in_threads(
    times: Times, place: sides.Place, names: dict[str, str], kind: type[Any], turns: int
) -> None:
    """A few turns more, by the sync methods."""
    with ExitStack() as stack:
        savers = {
            it: stack.enter_context(sides.opened_in_threads(place, it, name))
            for it, name in names.items()
        }
        calls = {it: sides.Calls(saver) for it, saver in savers.items()}
        graphs = {it: sides.chat(kind, saver) for it, saver in savers.items()}
        for turn in range(turns, turns + SYNC_TURNS):
            for side in in_turn(turn):
                question = sides.asked(kind, turn)
                graphs[side].invoke(question, sides.config(), durability="sync")
    noted(times, calls, turns, ", sync")


# --- (c): many threads at once


@dataclass
class Rate:
    """Calls of all writers in one run."""

    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.elapsed

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)] * 1e3


def growing(messages: list[Any], turn: int) -> list[Any]:
    """A chat: 1.4 KB more each time."""
    texts = zip(("user", "assistant"), sides.TEXTS[turn % len(sides.TEXTS)], strict=True)
    return messages + [{"role": role, "content": text} for role, text in texts]


def short(messages: list[Any], turn: int) -> list[Any]:
    """1.4 KB that is replaced each time."""
    return growing([], turn + len(messages))


STATES: dict[str, Callable[[list[Any], int], list[Any]]] = {
    "a chat that grows": growing,
    "1.4 KB that stays as large": short,
}


def step(
    saver: Any, before: dict[str, Any], messages: list[Any], number: int
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the arguments that a graph gives to ``put`` after a step that changed the messages."""
    checkpoint: dict[str, Any] = dict(empty_checkpoint())
    changed = {"messages": saver.get_next_version(before.get("messages"), None)}
    checkpoint["channel_values"] = {"messages": messages}
    checkpoint["channel_versions"] = changed
    checkpoint["versions_seen"] = {"__input__": {}, "answer": dict(before)}
    checkpoint["updated_channels"] = ["messages"]
    return checkpoint, {"source": "loop", "step": number, "parents": {}}, changed


async def writer(
    saver: Any, tag: str, number: int, turns: int, state: str, *, with_writes: bool, found: Rate
) -> None:
    messages: list[Any] = []
    versions: dict[str, Any] = {}
    at: Any = {"configurable": {"thread_id": f"{tag}-{number}", "checkpoint_ns": ""}}
    for turn in range(turns):
        messages = STATES[state](messages, turn + 7 * number)
        checkpoint, metadata, versions = step(saver, versions, messages, turn)
        begin = time.perf_counter()
        at = await saver.aput(at, checkpoint, metadata, versions)
        found.seconds.append(time.perf_counter() - begin)
        if with_writes:
            begin = time.perf_counter()
            await saver.aput_writes(at, [("messages", messages[-1:])], str(uuid4()))
            found.seconds.append(time.perf_counter() - begin)


async def many(place: sides.Place, turns: int, repeats: int) -> list[list[object]]:
    rows = []
    names = {it: place.new() for it in SIDES}
    for state in STATES:
        for with_writes in (False, True):
            rates: dict[str, list[Rate]] = {it: [] for it in SIDES}
            for repeat in range(repeats):
                for side in in_turn(repeat):
                    tag = f"{state}-{with_writes}-{repeat}"
                    async with sides.opened(place, side, names[side]) as saver:
                        await together(saver, f"warm-{tag}", 3, state, with_writes=with_writes)
                        rates[side].append(
                            await together(saver, tag, turns, state, with_writes=with_writes)
                        )
            what = "put + put_writes" if with_writes else "put"
            rows.append(rate_row(f"{place.title}: {what}, {state}", rates))
            print(" ", *rows[-1], flush=True)
    for name in names.values():
        place.drop(name)
    return rows


async def together(saver: Any, tag: str, turns: int, state: str, *, with_writes: bool) -> Rate:
    found = Rate()
    gc.collect()
    begin = time.perf_counter()
    await asyncio.gather(
        *(
            writer(saver, tag, it, turns, state, with_writes=with_writes, found=found)
            for it in range(WRITERS)
        )
    )
    found.elapsed = time.perf_counter() - begin
    return found


def rate_row(title: str, rates: dict[str, list[Rate]]) -> list[object]:
    theirs, ours = (statistics.median(it.rate for it in rates[side]) for side in SIDES)
    their_p99, our_p99 = (statistics.median(it.p99 for it in rates[side]) for side in SIDES)
    return [
        title,
        f"{len(rates[OURS][0].seconds):,}",
        f"{theirs:,.0f}",
        f"{ours:,.0f}",
        f"**{ours / theirs:.1f}**",
        f"{their_p99:.1f}",
        f"{our_p99:.1f}",
        f"1/{their_p99 / our_p99:.1f}",
    ]


# --- the page

TEXT = """# LangGraph's savers on {title}

Both savers ran in turn, in one run of {minutes:.1f} minutes. Compare the ratios, not the times: the
machine is small and shared.

Machine: {machine}; load average {load}.
Durability, the same on both sides: {settings}; graphs run with `durability="sync"`.
Compared: {packages}; a pool of {pool} connections on both sides.

## A conversation of {turns:,} turns, all versions kept

Real runs of a graph of one node: 400 characters asked, 1,000 answered, three checkpoints and two
calls of `put_writes` a turn; both savers take each turn one after the other. Bytes of all tables
and indexes after the run (SQLite: file and log after closing), and after `VACUUM FULL` (`VACUUM`).
{sync_turns} more turns use the sync methods.

{sizes}

## Times

Milliseconds, the median of N; *times* is how many times faster. Calls as the graph makes them, the
last {last} of each kind, by the async methods unless *sync* is named. `get_state_history` is read
when the thread has {versions:,} versions, all of them; and at the end, the newest {newest}. *By
another process*: by a saver that was just opened and has a connection.

{times}

## {writers} threads at once

Each task writes to a thread of its own, {each} steps, all in one event loop; median of {repeats}
runs.

{rates}
"""
SIZES_HEAD = (
    "", "text", "langgraph", "locus-store", "ratio", "langgraph, vacuumed",
    "locus-store, vacuumed", "ratio",
)  # fmt: skip
TIMES_HEAD = ("", "N", "langgraph", "locus-store", "times")
RATES_HEAD = (
    "", "calls", "langgraph, calls/s", "locus-store", "times", "p99, ms", "locus-store", "ratio",
)  # fmt: skip


async def measured(options: argparse.Namespace, place: sides.Place) -> str:
    begin = time.monotonic()
    print(place.title, flush=True)
    rates = await many(place, options.each, options.repeats)
    longs = [await long(place, it, options.turns, options.repeats) for it in sides.KINDS]
    packages = ["langgraph", place.peer]
    times: list[list[object]] = []
    for it in longs:
        times += [[f"**{it.title}**", *[""] * 4], *map(it.times.row, it.times.seconds)]
    return TEXT.format(
        title=place.title,
        minutes=(time.monotonic() - begin) / 60,
        machine=machine.described(),
        load=machine.load_average(),
        settings=place.settings(),
        packages=", ".join(f"{it} {version(it)}" for it in packages),
        pool=sides.POOL,
        turns=options.turns,
        versions=VERSIONS_A_TURN * third(options.turns),
        newest=min(NEWEST, options.turns),
        sync_turns=SYNC_TURNS,
        last=LAST,
        writers=WRITERS,
        each=options.each,
        repeats=options.repeats,
        sizes=machine.table(SIZES_HEAD, (it.row() for it in longs)),
        times=machine.table(TIMES_HEAD, times),
        rates=machine.table(RATES_HEAD, rates),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, help="of the long conversations; 1,000")
    parser.add_argument("--each", type=int, help=f"steps of each of the {WRITERS} writers; 20")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="100 turns, 10 steps")
    parser.add_argument("--only", choices=("postgresql", "sqlite"))
    report.add_write(parser)
    options = parser.parse_args()
    options.turns = options.turns or (100 if options.quick else 1000)
    options.each = options.each or (10 if options.quick else 20)
    if options.only != "sqlite":
        with server() as (running, _):
            publish(options, sides.PostgreSQL(running))
    if options.only != "postgresql":
        with tempfile.TemporaryDirectory(prefix="locus-store-peers-") as directory:
            publish(options, sides.SQLite(Path(directory)))


def publish(options: argparse.Namespace, place: sides.Place) -> None:
    page = asyncio.run(measured(options, place))
    report.publish(f"langgraph-{place.title.lower()}", page, write=options.write)


if __name__ == "__main__":
    main()
