"""Memory of one object per tenant: ``python -m benchmarks.micro.tenants [tenants]``.

Prints the mean bytes of an object that ``for_tenant`` made, by tracemalloc: as it was made, after
it saved a thread of one small version, and after it loaded that.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import tracemalloc
from pathlib import Path

from locus_store import sqlite_checkpointer


async def main(count: int) -> None:
    """Make so many tenants in a new file."""
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = sqlite_checkpointer(Path(folder, "tenants.db"), state_type=dict)
        await checkpointer.save({"n": 0}, "t")
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        tenants = [checkpointer.for_tenant(f"tenant {n}") for n in range(count)]
        _print("made", before, count)
        for it in tenants:
            await it.save({"n": 1}, "t")
        _print("saved", before, count)
        for it in tenants:
            await it.load("t")
        _print("loaded", before, count)
        await checkpointer.close()


def _print(what: str, before: int, count: int) -> None:
    gc.collect()
    print(f"{what}: {(tracemalloc.get_traced_memory()[0] - before) / count:,.0f} bytes per tenant")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000))
