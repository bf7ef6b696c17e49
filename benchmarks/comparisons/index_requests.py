"""Saves and loads on OpenSearch beside bare requests with the same bytes, in turn.

python -m benchmarks.comparisons.index_requests http://host:9200 [--rounds 300] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from base64 import b64decode
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from benchmarks.comparisons.object_requests import chat
from benchmarks.report import add_write, publish
from locus_store.backends.documents.object_documents import HEADS
from locus_store.backends.opensearch import OpenSearchBackend
from locus_store.backends.opensearch.client import _routing, id_of
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

KEPT_TURNS = 8
"""Turns in one thread, whose head stays below the size of a segment."""

PAGE = """# Requests on OpenSearch

A save writes the head and the document of a version in one request. Beside it, the client writes a
document with the same head alone, and reads it. The states are a chat of 1,390 characters a turn.

| calls | N | ours, least / median | bare, least / median | ratio of the least | of the medians |
|---|---|---|---|---|---|
"""

MERGES = 10
"""Attempts, 15 seconds apart."""


class Bare:
    """Requests of the client alone, on the same index."""

    def __init__(self, backend: OpenSearchBackend, url: str) -> None:
        import opensearchpy

        self._client = opensearchpy.OpenSearch([url], max_retries=0)
        self._index = backend.index.place.name

    def get(self, thread: str) -> dict[str, Any]:
        """Return a head with its content."""
        name = HEADS + thread
        got = self._client.get(index=self._index, id=id_of(name), routing=_routing(name))
        source: dict[str, Any] = got["_source"]
        b64decode(source["content"])
        return source

    def put(self, source: dict[str, Any]) -> None:
        """Write a head's bytes as another document."""
        body = {**source, "name": "bare"}
        self._client.index(index=self._index, id="bare", routing="bare", body=body)


def timed(work: Callable[..., Any], *args: Any) -> float:
    began = time.perf_counter()
    work(*args)
    return (time.perf_counter() - began) * 1e3


async def took(work: Any) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


async def measured(backend: OpenSearchBackend, url: str, rounds: int) -> list[str]:
    """Return the rows of saves and of loads."""
    found: dict[str, list[float]] = {"save": [], "index": [], "load": [], "get": []}
    states, bare = list(chat(KEPT_TURNS)), Bare(backend, url)
    for n in range(rounds // (KEPT_TURNS - 1)):
        thread = f"t{n}"
        await backend.write_state(thread, states[0])
        for state in states[1:]:
            found["save"].append(await took(backend.write_state(thread, state)))
            found["index"].append(timed(bare.put, bare.get(thread)))
            found["get"].append(timed(bare.get, thread))
            found["load"].append(await took(backend.read_state(thread)))
    return [row(found, "save", "index"), row(found, "load", "get")]


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


def row(found: dict[str, list[float]], ours: str, bare: str) -> str:
    one, two = found[ours], found[bare]
    ratio = f"{min(one) / min(two):.2f} x | {median(one) / median(two):.2f} x"
    times = f"{min(one):.2f} / {median(one):.2f} ms | {min(two):.2f} / {median(two):.2f} ms"
    return f"| {ours} beside a bare `{bare}` | {len(one)} | {times} | {ratio} |"


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
