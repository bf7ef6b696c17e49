"""A process whose children rebalance the set of shards that a line of its input names.

``remove`` before the URLs removes the last one.

It prints ``started PID``, ``step`` before and after each change of a shard, and ``ended`` when the
child has ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from locus_store import open_sharded
from locus_store.backends.sharded import shard_set
from locus_store.backends.sharded.rebalance import rebalance
from locus_store.sql.sharding import SqlShard

shard_set.LEASE_SECONDS, shard_set.ANNOUNCED_SECONDS = 0.01, 0.05


def report(name: str) -> None:
    """Print a line before and after each call of a method."""
    method = getattr(SqlShard, name)

    async def reporting(*args: Any, **kwargs: Any) -> Any:
        print("step", flush=True)
        result = await method(*args, **kwargs)
        print("step", flush=True)
        return result

    setattr(SqlShard, name, reporting)


async def run(words: list[str]) -> None:
    removes_last = words[0] == "remove"
    async with open_sharded(words[removes_last:]) as storage:
        await rebalance(storage.backend, removes_last=removes_last)


def have_children_rebalance() -> None:
    for name in ("write_layout", "reserve_move", "take_thread", "admit_thread", "drop_move"):
        report(name)
    open_sharded(["sqlite://"])  # what it imports, the children share
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(run(line.split()))
            os._exit(0)
        print("started", pid, flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    have_children_rebalance()
