"""Fail-overs of Redis Sentinel under load: python -m benchmarks.storms.sentinels.

Three sentinels, a primary and two replicas. For each fault, 16 writers save on threads of their own
while the primary is killed, frozen until after the fail-over, replaced on request, or cut off with
or without the clients. Then all versions are read: which acknowledged saves are missing, and
whether each version was made of the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from typing import Any, NamedTuple

from benchmarks.machine import described
from benchmarks.places import TESTS

WRITERS = 16
REPLICAS = 2
PAUSE_SECONDS = 0.05
MIN_REPLICAS = {"min-replicas-to-write": 1, "min-replicas-max-lag": 2}
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "neither": ({}, {}),
    "min-replicas-to-write 1": (MIN_REPLICAS, {}),
    "wait_replicas=1": ({}, {"wait_replicas": 1, "wait_timeout_seconds": 0.5}),
    "wait_replicas=2": ({}, {"wait_replicas": 2, "wait_timeout_seconds": 0.5}),
}
"""Settings of the servers, and options of the checkpointers."""

FAULTS = {
    "kill": "`kill -9`",
    "freeze": "SIGSTOP until after the fail-over",
    "switch": "`SENTINEL FAILOVER`",
    "hand_over": "the same, `COORDINATED` (Valkey 9)",
    "isolate": "cut off; clients reach both sides",
    "strand": "cut off together with the clients and a sentinel",
}


HEAD = (
    *("fault", "safeguard", "N", "acknowledged", "lost", "stale loads", "errors"),
    *("seconds, median", "worst"),
)


class Outcome(NamedTuple):
    """The counts of a round."""

    acknowledged: int
    lost: int
    stale: int
    errors: int
    waits: list[float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each fault")
    parser.add_argument("--faults", nargs="+", default=[*FAULTS], choices=[*FAULTS])
    parser.add_argument("--kind", default="valkey", choices=["valkey", "redis"])
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    print(f"{described()}\n\n| {' | '.join(HEAD)} |\n| --- | --- |{' ---: |' * (len(HEAD) - 2)}")
    sys.stdout.flush()
    wrong = 0
    for fault in options.faults:
        for mode, (settings, own) in MODES.items():
            some = [run(fault, options.kind, settings, own) for _ in range(options.rounds)]
            saves, lost, stale, errors = (sum(it[n] for it in some) for n in range(4))
            waits = [wait for it in some for wait in it.waits]
            middle, most = statistics.median(waits), max(waits)
            cells = (FAULTS[fault], mode, len(some), f"{saves:,}", lost, stale, errors)
            print(f"| {' | '.join(map(str, cells))} | {middle:.1f} | {most:.1f} |", flush=True)
            wrong += lost if own.get("wait_replicas") == REPLICAS else 0
    return int(bool(wrong))


def run(fault: str, kind: Any, settings: dict[str, Any], own: dict[str, Any]) -> Outcome:
    """Let a new group of servers suffer a fault once."""
    import redis_sentinels

    is_proxied = fault in {"isolate", "strand"}
    group = redis_sentinels.Group(kind, is_proxied=is_proxied, settings=settings)
    try:
        return asyncio.run(suffer(getattr(redis_sentinels, fault), group, own))
    finally:
        group.stop()


async def suffer(fault: Any, group: Any, own: dict[str, Any]) -> Outcome:
    from redis_writers import Writers

    names = [f"t{n}" for n in range(WRITERS)]
    async with Writers(names, group.url(), pause_seconds=PAUSE_SECONDS, **own) as writers:
        await asyncio.to_thread(fault, group)
        await writers.until_each_has(3)
    lost = await writers.lost()
    stale = sum(len(writers.unseen[it] - lost.get(it, set())) for it in names)
    return Outcome(
        acknowledged=sum(map(len, writers.acknowledged.values())),
        lost=sum(map(len, lost.values())),
        stale=stale,
        errors=len(writers.errors),
        waits=writers.waits_since(group.struck_at),
    )


if __name__ == "__main__":
    sys.exit(main())
