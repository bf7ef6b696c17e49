"""Stores of Pydantic AI and the Microsoft Agent Framework beside the frameworks' own ones.

    python -m benchmarks.comparisons.framework_stores [--rounds 5] [--calls 10]

The frameworks have no SQL stores: theirs are in memory and in files. Ours are on PostgreSQL with
fsync and on an SQLite file. In one process and in turn. A message has 300 characters; a long
conversation 1,000 messages, and a workflow 200 checkpoints of 20 messages each. Prints Markdown:
milliseconds per call, the least and the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import warnings
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

from agent_framework import FileCheckpointStorage, FileHistoryProvider, Message, WorkflowCheckpoint
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.messages import ModelRequest

from benchmarks import machine
from benchmarks.places import server
from locus_store.adapters.agent_framework import LocusCheckpointStorage, LocusHistoryProvider
from locus_store.adapters.pydantic_ai import LocusConversationStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LONG, CHECKPOINTS, TEXT = 1000, 200, "word " * 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10, help="of each kind in a round")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the framework's files are experimental
    print(machine.described())
    print("| call | store | least | median |\n|---|---|---:|---:|")
    with tempfile.TemporaryDirectory() as folder, server() as (running, database):
        urls = {"PostgreSQL": running.url(database), "SQLite": f"sqlite:///{folder}/ours.db"}
        asyncio.run(measured(urls, folder, options))


async def measured(urls: dict[str, str], folder: str, options: Any) -> None:
    for sides, works in (
        ({"in memory": InMemoryConversationStore()}, conversations),
        ({"files": FileHistoryProvider(folder)}, histories),
        ({"files": FileCheckpointStorage(folder)}, checkpoints),
    ):
        kind = OURS[works]
        stores = {name: kind.from_url(url) for name, url in urls.items()} | sides
        for (call, store), times in (await rounds_of(stores, works, options)).items():
            print(f"| {call} | {store} | {min(times):.2f} | {median(times):.2f} |")
        for name in urls:
            await stores[name].close()


async def rounds_of(
    stores: dict[str, Any], works: Callable[..., Any], options: Any
) -> dict[tuple[str, str], list[float]]:
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    calls = {name: await works(store) for name, store in stores.items()}
    for _ in range(options.rounds):
        for call in next(iter(calls.values())):
            for name, of_store in calls.items():
                count = options.calls if call.endswith(" 1") else max(1, options.calls // 5)
                begun = time.perf_counter()
                for _ in range(count):
                    await of_store[call]()
                times[call, name].append(1e3 * (time.perf_counter() - begun) / count)
    return times


Calls = dict[str, "Callable[[], Awaitable[Any]]"]


async def conversations(store: Any) -> Calls:
    async def append(count: int, name: str) -> None:
        found = await store.load(name, limit=0) or Conversation(conversation_id=name)
        found.messages += [ModelRequest.user_text_prompt(TEXT) for _ in range(count)]
        await store.save(found)

    await append(LONG, "full")
    return {
        "conversation: append 1": lambda: append(1, "one"),
        "conversation: append 200": lambda: append(200, "many"),
        "conversation: load 1,000": lambda: store.load("full"),
        "conversation: fork 1,000": lambda: store.fork("full"),
    }


async def histories(store: Any) -> Calls:
    numbers = iter(range(10**9))

    async def append(count: int, name: str) -> None:
        said = [Message("user", [f"{next(numbers)} {TEXT}"]) for _ in range(count)]
        await store.save_messages(name, said)

    await append(LONG, "a full session")
    return {
        "history: append 1": lambda: append(1, "a session"),
        "history: append 200": lambda: append(200, "a long session"),
        "history: load 1,000": lambda: store.get_messages("a full session"),
    }


async def checkpoints(store: Any) -> Calls:
    previous: list[str | None] = [None]

    async def save() -> None:
        state = {"said": [Message("user", [TEXT]) for _ in range(20)], "n": len(previous)}
        made = WorkflowCheckpoint("w", "h", previous_checkpoint_id=previous[-1], state=state)
        previous.append(await store.save(made))

    for _ in range(CHECKPOINTS):
        await save()
    return {
        "checkpoint: save 1": save,
        "checkpoint: load 1": lambda: store.load(previous[-1]),
        "checkpoint: load an old 1": lambda: store.load(previous[CHECKPOINTS // 2]),
        "checkpoint: latest of 200": lambda: store.get_latest(workflow_name="w"),
    }


OURS = {
    conversations: LocusConversationStore,
    histories: LocusHistoryProvider,
    checkpoints: LocusCheckpointStorage,
}


if __name__ == "__main__":
    main()
