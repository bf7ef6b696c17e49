"""Saves and loads on OpenSearch beside bare requests with the same bytes, in turn.

python -m benchmarks.comparisons.index_requests http://host:9200 [--rounds 300] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from base64 import b64decode
from statistics import median
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from benchmarks.comparisons.object_requests import chat
from benchmarks.report import add_write, publish
from locus_store.backends.documents.object_documents import HEADS
from locus_store.backends.opensearch import OpenSearchBackend
from locus_store.backends.opensearch.client import _id, _routing

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_TURNS = 8
"""Turns in one thread, whose head stays below the size of a segment."""

PAGE = """# Requests on OpenSearch

A save writes the head and the document of a version in one request. Beside it, the client writes a
document with the same head alone, and reads it. The states are a chat of 1,390 characters a turn.

| calls | N | ours, least / median | bare, least / median | ratio of the least | of the medians |
|---|---|---|---|---|---|
"""


class Bare:
    """Requests of the client alone, on the same index."""

    def __init__(self, backend: OpenSearchBackend, url: str) -> None:
        import opensearchpy

        self.client = opensearchpy.OpenSearch([url], max_retries=0)
        self.index = backend.index.place.name
        self._documents = backend._documents

    def head(self, thread: str) -> dict[str, Any]:
        name = HEADS + thread
        got = self.client.get(index=self.index, id=_id(name), routing=_routing(name))
        source: dict[str, Any] = got["_source"]
        b64decode(source["content"])
        return source

    def put(self, source: dict[str, Any]) -> None:
        bare = {**source, "name": "bare"}
        self.client.index(index=self.index, id="bare", routing="bare", body=bare)


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


async def took(work: Any) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


async def measured(url: str, rounds: int) -> list[str]:
    """Return the rows of saves and of loads."""
    found: dict[str, list[float]] = {"save": [], "index": [], "load": [], "get": []}
    async with OpenSearchBackend(url, index_name=f"bench-{uuid4().hex[:8]}") as backend:
        states, thread = list(chat(KEPT_TURNS)), ""
        for n in range(rounds):
            at = n % KEPT_TURNS
            if at == 0:
                thread = f"t{n}"
                await backend.write_state(thread, states[0])
                bare = Bare(backend, url)
                continue
            saved = await took(backend.write_state(thread, states[at]))
            source = bare.head(thread)
            order: list[Any] = [
                ("index", lambda s=source: bare.put(s)),
                ("get", lambda: bare.head(thread)),
            ]
            random.shuffle(order)
            for name, work in order:
                found[name].append(timed(work))
            found["load"].append(await took(backend.read_state(thread)))
            found["save"].append(saved)
        backend.index.call("DELETE", f"/{backend.index.place.name}-000001")
    return [row(found, "save", "index"), row(found, "load", "get")]


def row(found: dict[str, list[float]], ours: str, bare: str) -> str:
    one, two = found[ours], found[bare]
    ratio = f"{min(one) / min(two):.2f} x | {median(one) / median(two):.2f} x"
    times = f"{min(one):.2f} / {median(one):.2f} ms | {min(two):.2f} / {median(two):.2f} ms"
    return f"| {ours} beside a bare `{bare}` | {len(one)} | {times} | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=300)
    add_write(parser)
    options = parser.parse_args()
    rows = asyncio.run(measured(options.url, options.rounds))
    publish("index-requests", PAGE + "\n".join(rows), write=options.write)


if __name__ == "__main__":
    main()
