"""Redis and Valkey: python -m benchmarks.micro.redis_calls [--kind valkey|redis]. Prints Markdown.

Saves and loads beside bare pipelined calls of redis-py that move the same bytes to and from the
same server, in turn; how a thread grows; and a page of the list of 100,000 threads.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import redis.asyncio as driver

from benchmarks import machine, report
from locus_store import versions
from locus_store.backends.redis import RedisBackend
from locus_store.backends.redis.keys import RedisKeys
from locus_store.versions.caches import KNOWN_BYTES, CachedVersions

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from redis_servers import Redis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from locus_store.types import Save, Written

TURNS = 200
CALLS = 300
ASKED, ANSWERED = 400, 1000
"""Characters."""

THREADS = 100_000
PAGE = 50


def grown(turns: int) -> dict[str, Any]:
    """A conversation."""
    return {"messages": [it for n in range(turns) for it in _more(n)], "turns": turns}


def _more(turn: int) -> list[dict[str, str]]:
    dice = random.Random(turn)
    said = (("user", ASKED), ("assistant", ANSWERED))
    return [{"role": role, "content": _prose(dice, size)} for role, size in said]


def _prose(dice: random.Random, size: int) -> str:
    """Words of chance: a third of their bytes when compressed."""
    return " ".join(dice.choice(WORDS) for _ in range(size // 6))[:size]


WORDS = ["".join(random.Random(n).choices("etaoinshrdlu", k=5)) for n in range(4000)]


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    begin = time.perf_counter()
    await call()
    return time.perf_counter() - begin


async def beside(url: str) -> list[list[object]]:
    """Medians of our calls and of bare ones, in turn: either is the first of two as often."""
    client = driver.Redis.from_url(url)
    async with RedisBackend(url) as backend, RedisBackend(url) as cold:
        saves = await _saves(client, backend)
        loads = await _loads(client, cold)
    await client.aclose()
    return [
        _row("save, once it is encoded", saves["stored"], saves["bare"], most=1.5),
        _row("load, as it is stored", loads["stored"], loads["bare"], most=1.5),
        _row("save, with its state compared and encoded", saves["ours"], saves["bare"]),
        _row("load, with its state folded and checked", loads["ours"], loads["bare"]),
    ]


async def _saves(client: driver.Redis, backend: RedisBackend) -> dict[str, list[float]]:
    """Either call comes behind the encoding of a state."""
    times: dict[str, list[float]] = {"ours": [], "stored": [], "bare": []}
    state = grown(TURNS)
    await backend.write_state("t", state)
    commit = backend.commit
    sent = [b""]  # by the first of the two: for the second one nothing changed

    def note(save: Save) -> None:
        append = versions.make_append(save, save.basis.store if save.basis else "")
        assert append is not None  # noqa: S101  (all these saves are)
        sent.append(append.payload or sent[-1])

    async def stored(save: Save) -> Written:
        note(save)
        begin = time.perf_counter()
        written = await commit(save)
        times["stored"].append(time.perf_counter() - begin)
        return written

    async def bare(save: Save) -> Written:
        note(save)
        header = b"0" * 70 + orjson.dumps([save.metadata, save.labels])
        begin = time.perf_counter()
        pipe = client.pipeline(transaction=False)
        pipe.rpush("bare:log", sent[-1])
        pipe.hset("bare:line", f"r{turn}", header)
        pipe.zadd("bare:order", {save.checkpoint_id: turn})
        pipe.hset("bare:line", mapping={"head": turn, "bytes": 1, "chain": 1})
        await pipe.execute()
        times["bare"].append(time.perf_counter() - begin)
        raise _SavedElsewhere

    for turn in range(CALLS):
        state = {**state, "messages": [*state["messages"], *_more(TURNS + turn)]}
        for call in [(stored, bare), (bare, stored)][turn % 2]:
            backend.commit = call  # type: ignore[method-assign]
            with suppress(_SavedElsewhere):
                times["ours"].append(await timed(lambda s=state: backend.write_state("t", s)))
    return times


class _SavedElsewhere(Exception):  # noqa: N818  (nothing failed)
    pass


async def _loads(client: driver.Redis, cold: RedisBackend) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"ours": [], "stored": [], "bare": []}
    found: Any = await cold.fetch("t")
    await client.delete("bare:log")
    await client.rpush("bare:log", *found.payloads)

    async def bare() -> None:
        pipe = client.pipeline(transaction=False)
        pipe.hgetall("bare:head")
        pipe.lrange("bare:log", 0, -1)
        await pipe.execute()

    calls = [("stored", lambda: cold.fetch("t")), ("bare", bare)]
    for turn in range(CALLS):
        for name, call in calls[:: 1 if turn % 2 else -1]:
            times[name].append(await timed(call))
    for _ in range(CALLS):
        cold._known = CachedVersions(KNOWN_BYTES)  # noqa: SLF001  (a first load)
        times["ours"].append(await timed(lambda: cold.read_state("t")))
    return times


def _row(
    what: str, ours: list[float], bare: list[float], most: float | None = None
) -> list[object]:
    mine, theirs = statistics.median(ours) * 1e3, statistics.median(bare) * 1e3
    ratio = mine / theirs
    told = "" if most is None else f"≤ {most}" + (": MISSED" if ratio > most else "")
    return [what, len(ours), f"{mine:.2f}", f"{theirs:.2f}", f"**{ratio:.2f}**", told]


async def growth(url: str) -> list[list[object]]:
    client = driver.Redis.from_url(url)
    sizes: dict[int, int] = {}
    async with RedisBackend(url) as backend:
        messages: list[Any] = []
        for turn in range(1, 1001):
            messages = [*messages, *_more(turn)]
            await backend.write_state("g", {"messages": messages})
            if turn in {500, 1000}:
                key = RedisKeys("locus:state:").get_document("g")
                sizes[turn] = await client.memory_usage(key, samples=0) or 0
    await client.aclose()
    ratio = sizes[1000] / sizes[500]
    told = "≤ 2.2" if ratio <= 2.2 else "≤ 2.2: MISSED"
    return [[f"{sizes[500]:,}", f"{sizes[1000]:,}", f"**{ratio:.2f}**", told]]


async def pages(url: str) -> list[list[object]]:
    async with RedisBackend(url) as backend:
        for at in range(0, THREADS, 500):
            await asyncio.gather(
                *(backend.save(f"thread-{n}", {"n": n}) for n in range(at, at + 500))
            )
        some, after = range(CALLS // 3), "thread-50000"
        first = [await timed(lambda: backend.list_threads(PAGE)) for _ in some]
        later = [await timed(lambda: backend.list_threads(PAGE, after=after)) for _ in some]
    return [
        [name, len(times), f"{statistics.median(times) * 1e3:.1f}", "≤ 10"]
        for name, times in (("the first", first), ("from the middle", later))
    ]


async def measured(kind: str) -> str:
    server = Redis(kind)
    try:
        url = str(server.url())
        calls = machine.table(
            ("", "calls", "ours, ms", "bare, ms", "ours/bare", "target"), await beside(url)
        )
        grew = machine.table(("500 turns", "1,000 turns", "", "target"), await growth(url))
        server.flush()
        listed = machine.table(("a page of 50", "calls", "p50, ms", "target"), await pages(url))
    finally:
        server.stop()
    return (
        f"# {kind.title()} beside bare calls\n\n"
        f"Machine: {machine.described()}; load average {machine.load_average()}.\n\n"
        f"## Calls\n\n{calls}\n\n## Growth, bytes\n\n{grew}\n\n"
        f"## {THREADS:,} threads\n\n{listed}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["valkey", "redis"], default="valkey")
    report.add_write(parser)
    options = parser.parse_args()
    report.publish(options.kind, asyncio.run(measured(options.kind)), write=options.write)


if __name__ == "__main__":
    main()
