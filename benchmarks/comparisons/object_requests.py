"""Calls and bytes of a thread in an object store, as OCI Object Storage.

A dictionary with etags stands for the store, so the counts are exact and the times are those of
the client alone.

    python -m benchmarks.comparisons.object_requests [--turns 1000] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import add_write, publish
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))


def chat(turns: int) -> Iterator[dict[str, Any]]:
    """The states of a conversation, 1,390 characters a turn."""
    chance = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(4000)]
    messages: list[dict[str, str]] = []
    for n in range(turns):
        text = ""
        while len(text) < 1390:
            text += chance.choice(words) + " "
        messages = [*messages, {"role": "user", "content": text}]
        yield {"messages": messages, "iteration": n}


def counter(turns: int) -> Iterator[dict[str, Any]]:
    """Small states."""
    for n in range(turns):
        yield {"n": n, "text": "y" * 200}


async def measured(name: str, states: list[dict[str, Any]]) -> str:
    """Return the row of a workload."""
    from shelf import Shelf, shelf_backend

    shelf = Shelf()
    backend, began = shelf_backend(shelf), time.process_time()
    for state in states:
        await backend.write_state("t", state)
    cpu, saves = time.process_time() - began, len(states)
    final = len(encode(states[-1]))
    head = next(len(it) for key, (_, _, it) in shelf.stored.items() if "/heads/" in key)
    stored = sum(len(it) for _, _, it in shelf.stored.values())
    calls = sum(shelf.calls.values()) / saves
    row = [
        f"{name}, {saves:,} saves",
        f"{calls:.3f}",
        f"{cpu / saves * 1e3:.2f}",
        f"{head / 1024:.1f}",
        f"{len(shelf.stored) - 2}",
        f"{stored / final:.2f} x",
        f"{shelf.bytes_put / final:.1f} x",
    ]
    for opened in (shelf_backend(shelf), backend):
        shelf.calls.clear()
        if await opened.load("t") != states[-1]:
            raise SystemExit("the load gave another state")
        row.append(f"{sum(shelf.calls.values())}")
    shelf.calls.clear()
    await backend.remove("t")
    row.append(f"{sum(shelf.calls.values())}")
    return f"| {' | '.join(row)} |"


PAGE = """# Requests to an object store

A dictionary with etags stands for the store, so requests and bytes are exact, and the CPU is that
of the client without its HTTP requests. *Requests* and *CPU* are those of a
save. Chats have 1,390 characters a turn. *Stored* and *sent* are
beside the JSON of the last state. A *cold* load is that of another process, which also reads the
identity of the store.

|  | requests | CPU, ms | head, KB | segments | stored | sent | cold load | known head | deletion |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    add_write(parser)
    options = parser.parse_args()
    rows = [
        await measured("chat", [*chat(options.turns)]),
        await measured("states of 200 bytes", [*counter(10 * options.turns)]),
    ]
    publish("object-requests", PAGE + "\n".join(rows), write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
