"""Turns of a real AgentFlow graph of three nodes, in a process of its own.

    python -m benchmarks.comparisons.session_turns SIDE DATABASE_URL CACHE_URL TURNS

AgentFlow keeps one checkpointer per process. Prints JSON: milliseconds of CPU and by the clock of
a turn, the least and the median.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import median
from typing import Any

from benchmarks.comparisons.session_sides import OURS, opened

WARM = 3
"""Turns that are not measured."""


def graph(saver: Any) -> Any:
    """Return a graph of three nodes, each of which says something."""
    from agentflow.core.graph import StateGraph
    from agentflow.core.state import Message
    from agentflow.utils.constants import END

    made = StateGraph()
    names = "plan", "act", "answer"
    for name in names:
        made.add_node(name, lambda name=name: Message.text_message(f"{name} done", "assistant"))
    for name, following in zip(names, (*names[1:], END), strict=True):
        made.add_edge(name, following)
    made.set_entry_point(names[0])
    return made.compile(checkpointer=saver)


async def turns(side: str, database: str, cache: str, count: int) -> dict[str, list[float]]:
    """Run turns of one thread, with a pause of more than a second's worth of claims."""
    from agentflow.core.state import Message

    saver = _saver(side, database, cache)
    await saver.asetup()
    compiled = graph(saver)
    cpu, elapsed = [], []
    for number in range(count):
        config = {"thread_id": "turn", "user_id": "user"}
        begun = time.process_time(), time.perf_counter()
        asked = [Message.text_message(f"question {number}")]
        await compiled.ainvoke({"messages": asked}, config=config)
        cpu.append(1e3 * (time.process_time() - begun[0]))
        elapsed.append(1e3 * (time.perf_counter() - begun[1]))
    await saver.arelease()
    return {
        name: [min(it[WARM:]), median(it[WARM:])] if it[WARM:] else []
        for name, it in (("cpu", cpu), ("elapsed", elapsed))
    }


def _saver(side: str, database: str, cache: str) -> Any:
    if side != OURS:
        return opened(side, database, cache)
    from locus_store.adapters.pyagenity import PgCheckpointer

    return PgCheckpointer(database, redis_url=cache)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(turns(*sys.argv[1:4], int(sys.argv[4])))))
