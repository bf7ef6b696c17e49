"""Saves and loads on OpenSearch beside bare requests with the same bytes, in turn.

python -m benchmarks.comparisons.index_requests http://host:9200 [--rounds 300] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from benchmarks.comparisons.object_requests import chat
from benchmarks.report import add_write, publish
from locus_store import blocking
from locus_store.backends.documents.objects import HEADS, SEGMENTS, digest
from locus_store.backends.opensearch import OpenSearchBackend
from locus_store.backends.opensearch.bulk import make_id, make_routing
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

KEPT_TURNS = 8
"""Turns in one thread, whose head stays below the size of a segment."""

CALLERS = 16
"""Calls at once, in the rows of several callers."""

PAGE = """# Requests on OpenSearch

A save writes the head and the document of a version in one request. Beside it, the client writes a
document with the same head alone, and reads it. The small states are a chat of 1,390 characters a
turn; the large ones have a list of 400 kB, too, which is in a segment. A cold call is the first one
of an object on a thread: a load reads the head and its segments, a save reads the head first.

| calls | N | ours, least / median | bare, least / median | ratio of the least | of the medians |
|---|---|---|---|---|---|
"""

MERGES = 10
"""Attempts, 15 seconds apart."""


class Bare:
    """Requests of the client alone, on the same index."""

    def __init__(self, backend: OpenSearchBackend, url: str) -> None:
        import opensearchpy

        self._client = opensearchpy.OpenSearch([url], max_retries=0, pool_maxsize=2 * CALLERS)
        self._index = backend.index.place.name

    def get(self, name: str) -> dict[str, Any]:
        """Return a document with its content."""
        got = self._client.get(index=self._index, id=make_id(name), routing=make_routing(name))
        source: dict[str, Any] = got["_source"]
        b64decode(source["content"])
        return source

    def get_all(self, names: list[str]) -> None:
        """Read documents, one after another."""
        for it in names:
            self.get(it)

    def put(self, source: dict[str, Any], name: str = "bare") -> None:
        """Write a head's bytes as another document."""
        body = {**source, "name": name}
        self._client.index(index=self._index, id=name, routing=name, body=body)

    def replace(self, names: list[str]) -> None:
        """Read a head and its segments, and write the head's bytes as another document."""
        head, *segments = names
        source = self.get(head)
        self.get_all(segments)
        self.put(source)


class Pairs:
    """Times of our calls, and of bare ones beside them, in milliseconds."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[list[float], list[float]]] = {}

    def add(self, name: str, ours: float, bare: float) -> None:
        one, two = self._found.setdefault(name, ([], []))
        one.append(ours)
        two.append(bare)

    def rows(self) -> list[str]:
        return [row(name, *times) for name, times in self._found.items()]


def timed(work: Callable[..., Any], *args: Any) -> float:
    began = time.perf_counter()
    work(*args)
    return (time.perf_counter() - began) * 1e3


async def took(work: Any) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


def states(size: str) -> list[dict[str, Any]]:
    """Return the states of one thread."""
    more = {"known": [f"{n:050}" for n in range(8000)]} if size == "large" else {}
    return [{**it, **more} for it in chat(KEPT_TURNS)]


async def one_caller(pairs: Pairs, backend: OpenSearchBackend, url: str, rounds: int) -> None:
    """Measure calls one after another, by an object that knows the thread, and by others."""
    bare, name = Bare(backend, url), backend.index.place.name
    async with (
        OpenSearchBackend(url, index_name=name) as reader,
        OpenSearchBackend(url, index_name=name) as writer,
    ):
        for size in ("small", "large"):
            for n in range(rounds // (KEPT_TURNS - 1)):
                thread, (first, *others) = f"{size}{n}", states(size)
                head = HEADS + thread
                await backend.write_state(thread, first)
                for state in others:
                    ours = await took(backend.write_state(thread, state))
                    direct = timed(bare.put, bare.get(head))
                    pairs.add(f"save, {size}, beside `index`", ours, direct)
                    direct = timed(bare.get, head)
                    ours = await took(backend.read_state(thread))
                    pairs.add(f"load of a known head, {size}, beside `get`", ours, direct)
                backend.index.call("POST", f"/{name}/_refresh")
                names = [it.name for it in backend.index.list(SEGMENTS + digest(thread))]
                ours = await took(reader.read_state(thread))
                direct = timed(bare.get_all, [head, *names])
                pairs.add(f"cold load, {size}, beside `get` of the same documents", ours, direct)
                ours = await took(writer.write_state(thread, {**others[-1], "n": 1}))
                direct = timed(bare.replace, [head, *names])
                pairs.add(f"cold save, {size}, beside these `get` and `index`", ours, direct)


async def many_callers(pairs: Pairs, backend: OpenSearchBackend, url: str, rounds: int) -> None:
    """Measure calls of several threads at once; a time is that of all of them."""
    bare, threads = Bare(backend, url), [f"many{n}" for n in range(CALLERS)]
    first, *others = states("small")
    for it in threads:
        await backend.write_state(it, first)
    with ThreadPoolExecutor(CALLERS) as pool:
        for n in range(rounds // CALLERS * 2):
            state = {**others[n % len(others)], "n": n}
            saves = (backend.write_state(it, state) for it in threads)
            ours = await took(asyncio.gather(*saves))
            sources = [bare.get(HEADS + it) for it in threads]
            direct = timed(list, pool.map(bare.put, sources, threads))
            pairs.add(f"{CALLERS} saves at once, beside `index`", ours, direct)
            direct = timed(list, pool.map(bare.get, [HEADS + it for it in threads]))
            ours = await took(asyncio.gather(*(backend.read_state(it) for it in threads)))
            pairs.add(f"{CALLERS} loads at once, beside `get`", ours, direct)


def blocking_caller(pairs: Pairs, backend: OpenSearchBackend, url: str, rounds: int) -> None:
    """Measure the blocking facade, from a thread without an event loop."""
    bare, place = Bare(backend, url), f"{urlsplit(url).netloc}/{backend.index.place.name}"
    with blocking.open_checkpointer(f"opensearch://{place}", state_type=dict) as checkpointer:
        for n in range(rounds // (KEPT_TURNS - 1)):
            head = f"{HEADS}blocking{n}"
            for state in states("small"):
                ours = timed(checkpointer.save, state, f"blocking{n}")
                direct = timed(bare.put, bare.get(head))
                if state["iteration"]:
                    pairs.add("blocking save, small, beside `index`", ours, direct)
                direct = timed(bare.get, head)
                ours = timed(checkpointer.load, f"blocking{n}")
                pairs.add("blocking load of a known head, small, beside `get`", ours, direct)


async def measured(backend: OpenSearchBackend, url: str, rounds: int) -> list[str]:
    """Return the rows of saves and of loads."""
    pairs = Pairs()
    await one_caller(pairs, backend, url, rounds)
    await many_callers(pairs, backend, url, rounds)
    await asyncio.to_thread(blocking_caller, pairs, backend, url, rounds)
    return pairs.rows()


async def stored(backend: OpenSearchBackend, turns: int) -> str:
    """Return the bytes of the index beside those of the last state."""
    last: dict[str, Any] = {}
    for last in chat(turns):
        await backend.write_state("long", last)
    size, final = merged_bytes(backend), len(encode(last))
    return (
        f"After {turns:,} turns, the index has {size:,} bytes, {size / final:.2f} x the {final:,} "
        "bytes of the last state as JSON, once OpenSearch has merged its segments."
    )


def merged_bytes(backend: OpenSearchBackend) -> int:
    """Return the bytes of an index without deleted documents, which it keeps for a while."""
    place, call = f"/{backend.index.place.name}", backend.index.call
    for _ in range(MERGES):
        call("POST", f"{place}/_flush")
        call("POST", f"{place}/_forcemerge", max_num_segments=1)
        call("POST", f"{place}/_refresh")  # the files of merged segments are in use until then
        told = call("GET", f"{place}/_stats/store,docs")["_all"]["primaries"]
        if not told["docs"]["deleted"]:
            break
        time.sleep(15)
    size: int = told["store"]["size_in_bytes"]
    return size


async def on_an_index(url: str, work: Callable[[OpenSearchBackend], Awaitable[T]]) -> T:
    """Return the result of work on an index that is dropped then."""
    async with OpenSearchBackend(url, index_name=f"bench-{uuid4().hex[:8]}") as backend:
        try:
            return await work(backend)
        finally:
            backend.index.call("DELETE", f"/{backend.index.place.name}-000001")


def row(name: str, ours: list[float], bare: list[float]) -> str:
    ratio = f"{min(ours) / min(bare):.2f} x | {median(ours) / median(bare):.2f} x"
    times = f"{min(ours):.2f} / {median(ours):.2f} ms | {min(bare):.2f} / {median(bare):.2f} ms"
    return f"| {name} | {len(ours)} | {times} | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--turns", type=int, default=1000)
    add_write(parser)
    options = parser.parse_args()
    url = options.url
    rows = asyncio.run(on_an_index(url, lambda it: measured(it, url, options.rounds)))
    told = asyncio.run(on_an_index(url, lambda it: stored(it, options.turns)))
    publish("index-requests", "\n".join([PAGE.rstrip(), *rows, "", told]), write=options.write)


if __name__ == "__main__":
    main()
