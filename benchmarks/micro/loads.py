"""CPU of loads of a chat on SQLite: python -m benchmarks.micro.loads [--turns N].

Cold: by an object that does not know the thread. Behind: by one that knows the version before the
head. Known: by one that knows the head. Beside them LangGraph's own saver, on the same state.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks import machine, report
from benchmarks.workloads import State, chat
from locus_store import sqlite_checkpointer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Measure = Callable[[Path, int, int], Coroutine[Any, Any, dict[str, list[float]]]]

CONFIG: Any = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}


async def timed(took: list[float], call: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of a call; append its milliseconds of CPU."""
    begin = time.process_time()
    result = await call()
    took.append((time.process_time() - begin) * 1e3)
    return result


async def _save_peer(path: Path, state: State) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = state
        await saver.aput(CONFIG, checkpoint, {}, {})


async def measure(path: Path, turns: int, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of CPU of each kind of load."""
    took: dict[str, list[float]] = defaultdict(list)
    writer = sqlite_checkpointer(path / "ours.db", state_type=dict)
    for state in chat(turns):
        await writer.save(state, "thread")
    await writer.save({}, "other")
    await _save_peer(path / "theirs.db", state)
    behind = sqlite_checkpointer(path / "ours.db", state_type=dict)
    await behind.load("thread")
    for turn in range(rounds):
        state["messages"].append({"role": "user", "content": f"{turn} " * 100})
        await writer.save(state, "thread")
        cold = sqlite_checkpointer(path / "ours.db", state_type=dict)
        await cold.load("other")
        loads = {"cold": cold, "one version behind": behind, "head known": behind}
        for name, checkpointer in loads.items():
            loaded = await timed(took[name], lambda it=checkpointer: it.load("thread"))
            if loaded != state:
                raise SystemExit(f"{name}: what was loaded is not what was saved")
        await cold.close()
        async with AsyncSqliteSaver.from_conn_string(str(path / "theirs.db")) as peer:
            await peer.setup()
            await timed(took["AsyncSqliteSaver"], lambda it=peer: it.aget_tuple(CONFIG))
    await behind.close()
    await writer.close()
    return took


PAGE = """# {title}

Machine: {machine}; load average {load}. SQLite; CPU in ms, {rounds} rounds in turn.

{table}
"""


def compare(name: str, title: str, measure: Measure) -> None:
    """Publish a page with the least and the median of each load."""
    parser = argparse.ArgumentParser(description=f"{title}. SQLite, CPU in ms.")
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    report.add_write(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="locus-store-loads-") as directory:
        took = asyncio.run(measure(Path(directory), options.turns, options.rounds))
    rows = [(side, f"{min(it):.2f}", f"{statistics.median(it):.2f}") for side, it in took.items()]
    page = PAGE.format(
        title=f"{title}, {options.turns:,} turns",
        machine=machine.described(),
        load=machine.load_average(),
        rounds=options.rounds,
        table=machine.table(("load", "least", "median"), rows),
    )
    report.publish(name, page, write=options.write)


if __name__ == "__main__":
    compare("loads", "Loads of a chat", measure)
