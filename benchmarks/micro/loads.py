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

from benchmarks import machine
from benchmarks.workloads import State, chat
from locus_store import sqlite_checkpointer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CONFIG: Any = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}


async def _timed(took: list[float], call: Callable[[], Awaitable[Any]]) -> Any:
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
            loaded = await _timed(took[name], lambda it=checkpointer: it.load("thread"))
            if loaded != state:
                raise SystemExit(f"{name}: what was loaded is not what was saved")
        await cold.close()
        async with AsyncSqliteSaver.from_conn_string(str(path / "theirs.db")) as peer:
            await peer.setup()
            await _timed(took["AsyncSqliteSaver"], lambda it=peer: it.aget_tuple(CONFIG))
    await behind.close()
    await writer.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="locus-store-loads-") as directory:
        took = asyncio.run(measure(Path(directory), options.turns, options.rounds))
    rows = [
        [name, f"{min(it):.2f} ms", f"{statistics.median(it):.2f} ms"] for name, it in took.items()
    ]
    print(machine.table(["load", "least", "median"], rows))


if __name__ == "__main__":
    main()
