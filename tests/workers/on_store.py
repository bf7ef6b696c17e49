"""A process that puts items into a store, and prints what was acknowledged.

``count URL STEPS`` increments an item so many times. ``write URL`` reads a number from each line of
its input, and has a child put items from this one on until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from locus_store import ConflictError, open_store
from locus_store.backends.documents import item_journal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from locus_store import BaseStore

item_journal.HEAD_BYTES = 2000  # type: ignore[misc]  # so that segments are written and joined

NS = ("counters",)


async def count(store: BaseStore, steps: int) -> None:
    """Increment an item; print each acknowledged value, and the conflicts at the end."""
    done = conflicts = 0
    while done < steps:
        item = await store.get_item(NS, "n")
        value, version = (item.value, item.version) if item else (0, 0)
        try:
            await store.put(NS, "n", value + 1, expected_version=version)
        except ConflictError:
            conflicts += 1
            continue
        done += 1
        print("put", value + 1, flush=True)
    print("conflicts", conflicts, flush=True)


async def write(store: BaseStore, first: int) -> None:
    """Put a new item and a batch of two namespaces, one after the other, for ever."""
    for n in range(first, 10**9):
        await store.put(("a",), f"k{n:06}", {"n": n, "text": f"{n} " * 20})
        await store.put_batch([(("a", "last"), "k", n), (("b", "last"), "k", n)])
        print("put", n, flush=True)


async def run(work: Callable[[BaseStore, int], Awaitable[None]], url: str, number: int) -> None:
    async with open_store(url) as store:
        await work(store, number)


def have_children_write(url: str) -> None:
    open_store(url)  # what it imports, the children share
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            print("pid", os.getpid(), flush=True)
            asyncio.run(run(write, url, int(line)))
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "count":
        asyncio.run(run(count, sys.argv[2], int(sys.argv[3])))
    else:
        have_children_write(sys.argv[2])
