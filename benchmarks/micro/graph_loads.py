"""CPU of ``aget_tuple`` on a thread that the saver does not know, after many turns of a graph.

``python -m benchmarks.micro.graph_loads [--turns N]``, on SQLite, beside LangGraph's own saver.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.micro.loads import compare, timed
from benchmarks.workloads import prose
from locus_store.adapters.langgraph import LangGraphSaver

if TYPE_CHECKING:
    from pathlib import Path

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


async def _read(saver: Any, took: list[float]) -> None:
    found = await timed(took, lambda: saver.aget_tuple(CONFIG))
    if not found.checkpoint["channel_values"]["messages"]:
        raise SystemExit("the thread is empty")


async def measure(path: Path, turns: int, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of CPU, of this package and of LangGraph's saver."""
    url = f"sqlite:///{path / 'ours.db'}"
    async with LangGraphSaver.from_url(url) as saver:
        await _run(saver, turns)
    async with AsyncSqliteSaver.from_conn_string(str(path / "theirs.db")) as peer:
        await _run(peer, turns)
    took: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        async with LangGraphSaver.from_url(url) as saver:
            await saver.aget_tuple({"configurable": {"thread_id": "other"}})
            await _read(saver, took["LangGraphSaver"])
        async with AsyncSqliteSaver.from_conn_string(str(path / "theirs.db")) as peer:
            await peer.setup()
            await _read(peer, took["AsyncSqliteSaver"])
    return took


if __name__ == "__main__":
    compare("graph-loads", "First get_tuple of a graph's thread", measure)
