"""Requests of LangGraph's lists on a thread of many namespaces, where a network is between.

An object store in a dictionary, a service on loopback over memory, and a Valkey. Each list is the
first call of a new object; a call of Redis counts with the loading of scripts.

    python -m benchmarks.comparisons.list_requests [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.report import add_write, publish
from locus_store.adapters.langgraph import LangGraphSaver
from locus_store.backends.http import HTTPBackend
from locus_store.backends.memory import MemoryBackend
from locus_store.backends.redis import RedisBackend
from locus_store.backends.redis.connections import LoopClient
from locus_store.saver import CheckpointSaver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

NAMESPACES: Final = 241

THREAD: Final = {"configurable": {"thread_id": "t"}}

LISTS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "list(thread, limit=1)": (THREAD, {"limit": 1}),
    "list(thread)": (THREAD, {}),
    "list(None, limit=1)": (None, {"limit": 1}),
    "list(None, filter=…, limit=5)": (None, {"filter": {"user": "u1"}, "limit": 5}),
}


async def fill(backend: Any) -> None:
    """Save two checkpoints in each namespace, and writes in a few."""
    saver = LangGraphSaver(CheckpointSaver(backend))
    for step in range(2):
        for n in range(NAMESPACES):
            name = f"{n}-{step}"
            values = {"said": [name, "x" * 500]}
            point: Any = {
                "v": 4,
                "id": name,
                "ts": "2026-01-01T00:00:00+00:00",
                "channel_values": values,
                "channel_versions": {"said": f"{1:032}"},
                "versions_seen": {},
                "updated_channels": None,
            }
            where: Any = {"thread_id": "t", "checkpoint_ns": f"n{n}" if n else ""}
            where |= {"checkpoint_id": f"{n}-0"} if step else {}
            told: Any = {"step": step, "user": f"u{n % 7}"}
            made = await saver.aput({"configurable": where}, point, told, {"said": f"{1:032}"})
            if n < 5:
                await saver.aput_writes(made, [("said", ["w"])], "task")
    await backend.close()


async def counted(make: Callable[[], Any], count: Callable[[], int]) -> list[int]:
    """Return the requests of each list, then those of a deletion."""
    await fill(make())
    found = []
    for where, options in LISTS.values():
        backend = make()
        await backend.has_thread("other")
        before, saver = count(), LangGraphSaver(CheckpointSaver(backend))
        _ = [it async for it in saver.alist(where, **options)]
        found.append(count() - before)
        await backend.close()
    backend = make()
    await backend.has_thread("other")
    before = count()
    await LangGraphSaver(CheckpointSaver(backend)).adelete_thread("t")
    found.append(count() - before)
    await backend.close()
    return found


async def on_objects() -> list[int]:
    """Return the requests to an object store."""
    from shelf import Shelf, shelf_backend

    shelf = Shelf()
    return await counted(lambda: shelf_backend(shelf), lambda: sum(shelf.calls.values()))


async def over_http() -> list[int]:
    """Return the requests to a service."""
    from services import Service

    service = Service(MemoryBackend())
    found = await counted(lambda: HTTPBackend(service.url), lambda: len(service.asked))
    service.stop()
    return found


async def on_redis() -> list[int]:
    """Return the commands and pipelines that were sent to Valkey."""
    from containers import redis_server

    sent: list[object] = []
    run_in_slot = LoopClient._run_in_slot  # noqa: SLF001

    async def noted(self: LoopClient, call: Any, *args: Any) -> Any:
        sent.append(call)
        return await run_in_slot(self, call, *args)

    server = redis_server()
    LoopClient._run_in_slot = noted  # type: ignore[method-assign]  # noqa: SLF001
    found = await counted(lambda: RedisBackend(server.url()), lambda: len(sent))
    server.stop()
    return found


PAGE = f"""# Requests of LangGraph's lists

A thread of {NAMESPACES} namespaces with two checkpoints each. Each list is the first call of a new
object, counted once. Redis: commands and pipelines, with those that load a script.

|  | objects | HTTP | Redis |
| --- | ---: | ---: | ---: |
"""


def rows(*counts: list[int]) -> Iterator[str]:
    for name, *each in zip([*LISTS, "delete_thread(thread)"], *counts, strict=True):
        yield f"| `{name}` | {' | '.join(f'{it:,}' for it in each)} |"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_write(parser)
    options = parser.parse_args()
    counts = [await on_objects(), await over_http(), await on_redis()]
    publish("list-requests", PAGE + "\n".join(rows(*counts)), write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
