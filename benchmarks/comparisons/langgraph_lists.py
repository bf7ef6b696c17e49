"""Lists, deletions and fan-outs of LangGraphSaver beside langgraph's own savers, in one run.

    python -m benchmarks.comparisons.langgraph_lists

On a PostgreSQL server of its own, with fsync, and on SQLite files. Prints Markdown; ``--only`` one
backend.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from benchmarks import machine, report
from benchmarks.comparisons import langgraph_sides as sides
from benchmarks.comparisons.langgraph_sides import OURS, SIDES, THEIRS
from benchmarks.places import server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

THREADS, USERS, STEPS = 2_000, 200, 3
"""Chats, the users that they belong to in turn, and checkpoints of each chat."""

NAMESPACES = 240
"""Of a thread that fanned out: six turns of 40 subgraphs."""

WIDTH = 40
"""Subgraphs of a turn that is run."""

CHUNK = 100
"""Writers at once while a database is filled."""


class Times:
    """Seconds of both sides, by what was done."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, what: str, side: str, began: float) -> None:
        self._seconds[what][side].append(time.perf_counter() - began)

    def rows(self) -> list[list[object]]:
        return [self._row(what, found) for what, found in self._seconds.items()]

    def _row(self, what: str, found: dict[str, list[float]]) -> list[object]:
        theirs, ours = (statistics.median(found[it]) for it in SIDES)
        shown = [f"{it * 1e3:.1f}" for it in (theirs, ours)]
        return [what, len(found[OURS]), *shown, f"**{ours / theirs:.1f}**"]


# --- chats and threads


async def steps(saver: Any, thread_id: str, namespace: str, metadata: dict[str, Any]) -> None:
    """Save a chat's checkpoints, each made from the one before."""
    at: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}
    versions: dict[str, Any] = {}
    for step in range(STEPS):
        checkpoint: dict[str, Any] = dict(empty_checkpoint())
        versions = {"messages": saver.get_next_version(versions.get("messages"), None)}
        said = [f"message {thread_id} {it}" for it in range(step + 1)]
        checkpoint["channel_values"] = {"messages": said}
        checkpoint["channel_versions"] = versions
        told = {"source": "loop", "step": step, "parents": {}, **metadata}
        at = await saver.aput(at, checkpoint, told, versions)


async def together(calls: list[Callable[[], Awaitable[None]]]) -> None:
    for first in range(0, len(calls), CHUNK):
        await asyncio.gather(*(it() for it in calls[first : first + CHUNK]))


async def chats(saver: Any) -> None:
    def chat(number: int) -> Callable[[], Awaitable[None]]:
        return lambda: steps(saver, f"t{number}", "", {"user_id": f"u{number % USERS}"})

    await together([chat(it) for it in range(THREADS)])


async def fan(saver: Any, thread_id: str) -> None:
    def subgraph(number: int) -> Callable[[], Awaitable[None]]:
        return lambda: steps(saver, thread_id, f"sub:{number}", {})

    await steps(saver, thread_id, "", {})
    await together([subgraph(it) for it in range(NAMESPACES)])


class Found(TypedDict, total=False):
    """The results of subgraphs."""

    out: Annotated[list[int], operator.add]


class Part(Found):
    """The state of a subgraph."""

    k: int


def graph(saver: Any) -> Any:
    """A graph whose turn fans out to subgraphs with checkpoints of their own."""
    one: Any = StateGraph(Part).add_node("work", lambda state: {"out": [state.get("k", 0)]})
    made: Any = StateGraph(Found).add_node("plan", lambda state: {})
    made.add_node("sub", one.add_edge(START, "work").compile()).add_edge(START, "plan")
    made.add_conditional_edges(
        "plan", lambda state: [Send("sub", {"k": it, "out": []}) for it in range(WIDTH)], ["sub"]
    )
    return made.compile(checkpointer=saver)


# --- measured


async def listed(
    times: Times, savers: dict[str, Any], rounds: int, config: Any, what: str, **options: Any
) -> None:
    """Read a list by both sides in turn; both give as many checkpoints."""
    for number in range(rounds + 1):  # the first one warms up
        counts = set()
        for side in SIDES if number % 2 else SIDES[::-1]:
            began = time.perf_counter()
            counts.add(len([it async for it in savers[side].alist(config, **options)]))
            if number:
                times.add(what, side, began)
        if len(counts) > 1:
            raise SystemExit(f"{what}: the sides list different numbers of checkpoints")


async def lists(times: Times, place: sides.Place, rounds: int) -> None:
    names = {it: place.new() for it in SIDES}
    async with AsyncExitStack() as stack:
        savers = {
            it: await stack.enter_async_context(sides.opened(place, it, names[it])) for it in SIDES
        }
        mine = {"user_id": "u7"}
        for saver in savers.values():
            await chats(saver)
        await listed(times, savers, rounds, None, "one user's checkpoints", filter=mine)
        await listed(times, savers, rounds, None, "… the newest 5", filter=mine, limit=5)
        await listed(times, savers, rounds, None, "… of no user", filter={"user_id": "nobody"})
        await listed(times, savers, rounds, None, "the newest 50 of all threads", limit=50)
        for saver in savers.values():
            await asyncio.gather(*(fan(saver, f"fan{it}") for it in range(rounds)))
        config = sides.config("fan0")
        await listed(times, savers, rounds, config, "many namespaces: the newest", limit=1)
        await listed(times, savers, rounds, config, "… the newest 10", limit=10)
        await listed(times, savers, rounds, config, "… all")
        for number in range(rounds):
            for side in SIDES if number % 2 else SIDES[::-1]:
                began = time.perf_counter()
                await savers[side].adelete_thread(f"fan{number}")
                times.add("… delete_thread", side, began)
    for name in names.values():
        place.drop(name)


def turns(times: Times, place: sides.Place, rounds: int) -> None:
    """Run turns that fan out, by the sync methods."""
    names = {it: place.new() for it in SIDES}
    with ExitStack() as stack:
        graphs = {}
        for side, name in names.items():
            if side == THEIRS:
                with sides.opened_in_threads(place, side, name) as saver:
                    saver.setup()
            graphs[side] = graph(stack.enter_context(sides.opened_in_threads(place, side, name)))
        for number in range(rounds + 1):
            for side in SIDES if number % 2 else SIDES[::-1]:
                began = time.perf_counter()
                graphs[side].invoke({"out": []}, sides.config("fan"))
                if number:
                    times.add(f"a turn of {WIDTH} subgraphs", side, began)
    for name in names.values():
        place.drop(name)


TEXT = """# Lists and deletions of LangGraph's savers on {title}

Milliseconds, the median of N calls; *ratio* is our time divided by LangGraph's. Both sides ran in
turn, in one run. Compare the ratios, not the times: the machine is small and shared.

Machine: {machine}; load average {load}.
Durability, the same on both sides: {settings}.
Compared: {packages}; a pool of {pool} connections on both sides.

{threads:,} threads of {users} users, {steps} checkpoints each. *Many namespaces*: a thread with
{namespaces} namespaces of {steps} checkpoints beside the root. Async methods, and sync ones for
*a turn*, which fans out to {width} subgraphs with checkpoints of their own.

{table}
"""
HEAD = ("", "N", "langgraph", "locus-store", "ratio")


def measured(place: sides.Place, rounds: int) -> str:
    times = Times()
    turns(times, place, rounds)
    asyncio.run(lists(times, place, rounds))
    return TEXT.format(
        title=place.title,
        machine=machine.described(),
        load=machine.load_average(),
        settings=place.settings(),
        packages=", ".join(f"{it} {version(it)}" for it in ("langgraph", place.peer)),
        pool=sides.POOL,
        threads=THREADS,
        users=USERS,
        steps=STEPS,
        namespaces=NAMESPACES,
        width=WIDTH,
        table=machine.table(HEAD, times.rows()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("postgresql", "sqlite"))
    report.add_write(parser)
    options = parser.parse_args()
    if options.only != "sqlite":
        with server() as (running, _):
            publish(options, sides.PostgreSQL(running))
    if options.only != "postgresql":
        with tempfile.TemporaryDirectory(prefix="locus-store-lists-") as directory:
            publish(options, sides.SQLite(Path(directory)))


def publish(options: argparse.Namespace, place: sides.Place) -> None:
    page = measured(place, options.rounds)
    report.publish(f"langgraph-lists-{place.title.lower()}", page, write=options.write)


if __name__ == "__main__":
    main()
