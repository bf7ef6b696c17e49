"""Calls and bytes of a thread in an object store: python -m benchmarks.comparisons.object_requests.

A dictionary with etags stands for the store, so the counts are exact and the times are those of
the client alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


async def measured(name: str, states: list[dict[str, Any]]) -> None:
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
    print(f"{name}, {saves:,} saves: {calls:.3f} calls and {cpu / saves * 1e3:.2f} ms of CPU each")
    print(f"  head {head / 1024:.1f} KB, {len(shelf.stored) - 2} segments")
    print(f"  stored {stored / final:.2f} x the final JSON, sent {shelf.bytes_put / final:.1f} x")
    for told, opened in (("another process", shelf_backend(shelf)), ("a known head", backend)):
        shelf.calls.clear()
        if await opened.load("t") != states[-1]:
            raise SystemExit("the load gave another state")
        print(f"  load in {told}: {dict(shelf.calls)}")
    shelf.calls.clear()
    await backend.remove("t")
    print(f"  deletion: {dict(shelf.calls)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    turns = parser.parse_args().turns
    asyncio.run(measured("chat", list(chat(turns))))
    asyncio.run(measured("small states", list(counter(10 * turns))))


if __name__ == "__main__":
    main()
