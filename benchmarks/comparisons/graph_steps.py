"""The CPU of a graph's step with LangGraphSaver beside langgraph's own savers, in one process.

    python -m benchmarks.comparisons.graph_steps [--rounds 7] [--only sqlite]

``invoke`` and ``ainvoke`` of the graphs in ``graphs``, without a saver, with langgraph's and with
ours, in turn. Prints Markdown: the CPU of this process for a step, all its threads included, in
milliseconds, the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report
from benchmarks.comparisons import langgraph_sides as sides
from benchmarks.comparisons.graphs import GRAPHS, Graph
from benchmarks.comparisons.langgraph_sides import OURS, SIDES, THEIRS
from benchmarks.places import server

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE = "without"
"""A graph without a saver."""

Times = defaultdict[tuple[str, str, str], list[float]]
"""Milliseconds of CPU per step of each round, by graph, call and side."""


def in_turn(number: int) -> Iterator[str]:
    """Yield the sides in an order that changes with the round."""
    order = (NONE, *SIDES)
    yield from order if number % 2 else order[::-1]


class Run:
    """A graph on all sides."""

    def __init__(self, graph: Graph, savers: dict[str, Any]) -> None:
        builder, self.given = graph.make()
        self.graph = graph
        self.compiled = {NONE: builder.compile()}
        self.compiled |= {it: builder.compile(checkpointer=saver) for it, saver in savers.items()}
        self.steps = 1

    def config(self, number: int) -> Any:
        name = f"{self.graph.title} {number}"
        return {"configurable": {"thread_id": name}, "recursion_limit": 10_000}

    def note(self, times: Times, call: str, side: str, began: float) -> None:
        took = (time.process_time() - began) * 1e3
        times[self.graph.title, call, side].append(took / (self.graph.runs * self.steps))


def sync_steps(times: Times, place: sides.Place, rounds: int, graphs: list[Graph]) -> None:
    names = {it: place.new() for it in SIDES}
    with ExitStack() as stack:
        savers = {
            it: stack.enter_context(sides.opened_in_threads(place, it, name))
            for it, name in names.items()
        }
        if isinstance(place, sides.PostgreSQL):
            savers[THEIRS].setup()
        for graph in graphs:
            run = Run(graph, savers)
            run.compiled[OURS].invoke(run.given, run.config(-1))  # it warms up
            run.compiled[THEIRS].invoke(run.given, run.config(-1))
            run.steps = len([*run.compiled[THEIRS].get_state_history(run.config(-1))]) - 1
            for number in range(rounds):
                for side in in_turn(number):
                    began = time.process_time()
                    for _ in range(graph.runs):
                        run.compiled[side].invoke(run.given, run.config(number))
                    run.note(times, "invoke", side, began)
    for name in names.values():
        place.drop(name)


async def async_steps(times: Times, place: sides.Place, rounds: int, graphs: list[Graph]) -> None:
    names = {it: place.new() for it in SIDES}
    async with AsyncExitStack() as stack:
        savers = {
            it: await stack.enter_async_context(sides.opened(place, it, name))
            for it, name in names.items()
        }
        for graph in graphs:
            run = Run(graph, savers)
            await run.compiled[OURS].ainvoke(run.given, run.config(-1))
            await run.compiled[THEIRS].ainvoke(run.given, run.config(-1))
            history = run.compiled[THEIRS].aget_state_history(run.config(-1))
            run.steps = len([it async for it in history]) - 1
            for number in range(rounds):
                for side in in_turn(number):
                    began = time.process_time()
                    for _ in range(graph.runs):
                        await run.compiled[side].ainvoke(run.given, run.config(number))
                    run.note(times, "ainvoke", side, began)
    for name in names.values():
        place.drop(name)


TEXT = """# The step of a graph on {title}

Milliseconds of CPU for a step, the median of {rounds} rounds; *ratio* is ours divided by
LangGraph's. All sides ran in one process, in turn. Compare the ratios, not the times.

Machine: {machine}; load average {load}.
Durability, the same on both sides: {settings}.
Compared: {packages}.

The graphs are in `benchmarks/comparisons/graphs.py`; those called *bench* have the shapes of
langgraph's own benchmark. The CPU is that of the process with all its threads, without the server.

{table}
"""
HEAD = ("graph", "call", "without a saver", "langgraph", "locus-store", "ratio")


def rows(times: Times) -> Iterator[list[object]]:
    for graph, call in dict.fromkeys(it[:2] for it in times):
        found = [statistics.median(times[graph, call, it]) for it in (NONE, THEIRS, OURS)]
        shown = [f"{it:.2f}" for it in found]
        yield [graph, f"`{call}`", *shown, f"**{found[2] / found[1]:.2f}**"]


def measured(place: sides.Place, rounds: int, graphs: list[Graph]) -> str:
    times: Times = defaultdict(list)
    sync_steps(times, place, rounds, graphs)
    asyncio.run(async_steps(times, place, rounds, graphs))
    return TEXT.format(
        title=place.title,
        rounds=rounds,
        machine=machine.described(),
        load=machine.load_average(),
        settings=place.settings(),
        packages=", ".join(f"{it} {version(it)}" for it in ("langgraph", place.peer)),
        table=machine.table(HEAD, sorted(rows(times), key=lambda it: _order(str(it[0])))),
    )


def _order(title: str) -> int:
    return [it.title for it in GRAPHS].index(title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("postgresql", "sqlite"))
    parser.add_argument("--graph", help="only graphs whose title has this word")
    report.add_write(parser)
    options = parser.parse_args()
    graphs = [it for it in GRAPHS if (options.graph or "") in it.title]
    if options.only != "sqlite":
        with server() as (running, _):
            publish(options, sides.PostgreSQL(running), graphs)
    if options.only != "postgresql":
        with tempfile.TemporaryDirectory(prefix="locus-store-steps-") as directory:
            publish(options, sides.SQLite(Path(directory)), graphs)


def publish(options: argparse.Namespace, place: sides.Place, graphs: list[Graph]) -> None:
    page = measured(place, options.rounds, graphs)
    report.publish(f"graph-steps-{place.title.lower()}", page, write=options.write)


if __name__ == "__main__":
    main()
