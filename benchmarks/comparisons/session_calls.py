"""CPU time of a session's calls, beside those of a checkpointer on the same backend.

    python -m benchmarks.comparisons.session_calls [--rounds 9] [--calls 60]

On PostgreSQL, in one process and in turn, with a state of 20 messages that changes in one field.
Prints Markdown: microseconds per call, the least and the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.places import server
from locus_store import PostgreSQLBackend, StorageBackendAdapter
from locus_store.session import AgentState, LocalCache, Message, SessionCheckpointer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Calls = dict[str, "Callable[[], Awaitable[Any]]"]
numbers = count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=60, help="of each method in a round")
    options = parser.parse_args()
    print(machine.described())
    with server() as (running, database):
        times = asyncio.run(measured(running.url(database), options.rounds, options.calls))
    print("| call | least | median |\n|---|---:|---:|")
    for name, each in times.items():
        print(f"| {name} | {min(each):.0f} | {median(each):.0f} |")


def state() -> AgentState:
    return AgentState(context=[Message.text_message("word " * 20) for _ in range(20)])


async def measured(url: str, rounds: int, calls: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    async with PostgreSQLBackend(url) as backend:
        all_calls = calls_on(backend)
        for _ in range(rounds):
            for name, call in all_calls.items():
                begun = time.process_time()
                for _ in range(calls):
                    await call()
                times[name].append(1e6 * (time.process_time() - begun) / calls)
    return times


def calls_on(backend: PostgreSQLBackend) -> Calls:
    plain = StorageBackendAdapter(backend, state_type=AgentState)
    bare = SessionCheckpointer(backend, cache_verify_seconds=1000)
    cached = SessionCheckpointer(backend, LocalCache(), cache_verify_seconds=1000)
    mine, theirs, third = state(), state(), state()
    config, other = ({"thread_id": name, "user_id": "u"} for name in "bc")
    return {
        "save": lambda: plain.save(changed(mine), "a"),
        "aput_state": lambda: bare.aput_state(config, changed(theirs)),
        "aput_state, with a cache": lambda: cached.aput_state(other, changed(third)),
        "load": lambda: plain.load("a"),
        "aget_state": lambda: bare.aget_state(config),
        "aget_state_cache": lambda: cached.aget_state_cache(other),
    }


def changed(it: AgentState) -> AgentState:
    it.context_summary = str(next(numbers))
    return it


if __name__ == "__main__":
    main()
