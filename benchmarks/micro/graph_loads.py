"""CPU of ``aget_tuple`` on a thread that the saver does not know, after many turns of a graph.

``python -m benchmarks.micro.graph_loads [--turns N]``, on SQLite, beside LangGraph's own saver.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks import machine
from benchmarks.workloads import prose
from locus_store.adapters.langgraph import LangGraphSaver

CONFIG: Any = {"configurable": {"thread_id": "thread"}}


async def _run(saver: Any, turns: int) -> None:
    rng = random.Random(7)

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(prose(rng, 1000))]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile(checkpointer=saver)
    for _ in range(turns):
        await graph.ainvoke({"messages": [HumanMessage(prose(rng, 400))]}, CONFIG)


async def _took(saver: Any) -> float:
    begin = time.process_time()
    found = await saver.aget_tuple(CONFIG)
    took = (time.process_time() - begin) * 1e3
    if not found.checkpoint["channel_values"]["messages"]:
        raise SystemExit("the thread is empty")
    return took


async def measure(path: Path, turns: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of CPU, of this package and of LangGraph's saver."""
    url = f"sqlite:///{path / 'ours.db'}"
    async with LangGraphSaver.from_url(url) as saver:
        await _run(saver, turns)
    async with AsyncSqliteSaver.from_conn_string(str(path / "theirs.db")) as peer:
        await _run(peer, turns)
    ours, theirs = [], []
    for _ in range(rounds):
        async with LangGraphSaver.from_url(url) as saver:
            await saver.aget_tuple({"configurable": {"thread_id": "other"}})
            ours.append(await _took(saver))
        async with AsyncSqliteSaver.from_conn_string(str(path / "theirs.db")) as peer:
            await peer.setup()
            theirs.append(await _took(peer))
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="locus-store-loads-") as directory:
        sides = asyncio.run(measure(Path(directory), options.turns, options.rounds))
    names = ["LangGraphSaver", "AsyncSqliteSaver"]
    rows = [
        [name, f"{min(took):.1f} ms", f"{statistics.median(took):.1f} ms"]
        for name, took in zip(names, sides, strict=True)
    ]
    print(machine.table(["aget_tuple", "least", "median"], rows))


if __name__ == "__main__":
    main()
