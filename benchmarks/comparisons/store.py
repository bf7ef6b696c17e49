"""The store on real embeddings and on a million items.

    python -m benchmarks.comparisons.store FILE.npz

First ``python -m benchmarks.comparisons.embeddings 100200 FILE.npz``. Beside langgraph's, on a
PostgreSQL server of its own, with pgvector and fsync, and on an SQLite file. Prints Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from langgraph.store.postgres import PostgresStore

from benchmarks import machine, report
from benchmarks.places import server
from locus_store import PostgreSQLStore, SQLiteStore
from locus_store.sql.schema.vectors import create_vector_index

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from locus_store import BaseStore

LIMIT = 10
QUERIES = 200
BATCH = 500
BUCKETS = 100
"""A filter takes one item of so many."""

FEW, MANY = 1_000, 1_000_000
CALLS = 300
PAGE = 50
SPACE = ("facts",)


@dataclass
class Data:
    """Texts with their embeddings; the last ones are the queries."""

    texts: list[str]
    embeddings: Any
    queries: list[str] = field(default_factory=list)
    targets: Any = None

    @classmethod
    def read(cls, file: str) -> Data:
        with np.load(file) as found:
            # langgraph's store cannot keep a NUL
            texts = [str(it).replace("\0", " ") for it in found["texts"]]
            embeddings = found["embeddings"]
        cut = len(texts) - QUERIES
        return cls(texts[:cut], embeddings[:cut], texts[cut:], embeddings[cut:])

    def exact(self, wanted: Any = None) -> list[set[str]]:
        """Keys of the nearest items of each query, by comparing all."""
        rows = np.arange(len(self.texts)) if wanted is None else wanted
        scores = self.targets @ self.embeddings[rows].T
        return [{str(rows[it]) for it in np.argsort(-each)[:LIMIT]} for each in scores]

    def items(self) -> Iterator[list[tuple[str, dict[str, Any], list[float]]]]:
        """Key, value and embedding, in batches."""
        for at in range(0, len(self.texts), BATCH):
            yield [
                (str(it), {"text": self.texts[it], "bucket": it % BUCKETS},
                 self.embeddings[it].tolist())
                for it in range(at, min(at + BATCH, len(self.texts)))
            ]  # fmt: skip


@dataclass
class Found:
    """Return the results of one side's searches."""

    seconds: list[float] = field(default_factory=list)
    hits: int = 0
    returned: int = 0

    def note(self, begin: float, keys: set[str], exact: set[str]) -> None:
        self.seconds.append(time.perf_counter() - begin)
        self.hits += len(keys & exact)
        self.returned += len(keys)

    def row(self, title: str) -> list[object]:
        ordered = sorted(self.seconds)
        count = len(ordered)
        return [
            title,
            count,
            f"{self.hits / (LIMIT * count):.3f}",
            f"{self.returned / count:.1f}",
            f"{statistics.median(ordered) * 1e3:.1f}",
            f"{ordered[int(count * 0.99)] * 1e3:.1f}",
        ]


# --- searches by meaning


async def searched(store: BaseStore, data: Data, wanted: dict[str, Any] | None = None) -> Found:
    found, exact = Found(), data.exact(_rows(data, wanted))
    for target, nearest in zip(data.targets, exact, strict=True):
        begin = time.perf_counter()
        hits = await store.search_by_embedding(SPACE, target, limit=LIMIT, filter=wanted)
        found.note(begin, {it.item.key for it in hits}, nearest)
    return found


def searched_there(store: Any, data: Data, wanted: dict[str, Any] | None = None) -> Found:
    found, exact = Found(), data.exact(_rows(data, wanted))
    for query, nearest in zip(data.queries, exact, strict=True):
        begin = time.perf_counter()
        hits = store.search(SPACE, query=query, limit=LIMIT, filter=wanted)
        found.note(begin, {it.key for it in hits}, nearest)
    return found


def _rows(data: Data, wanted: dict[str, Any] | None) -> Any:
    if wanted is None:
        return None
    return np.arange(wanted["bucket"], len(data.texts), BUCKETS)


async def ours(store: BaseStore, data: Data, url: str | None) -> list[list[object]]:
    begin = time.perf_counter()
    for batch in data.items():
        await store.put_batch(
            [(SPACE, key, value, None, None, None, embedding) for key, value, embedding in batch]
        )
    print(f"  filled in {time.perf_counter() - begin:.0f} s", flush=True)
    name = type(store).__name__
    rows = [(await searched(store, data)).row(f"{name}, exact")]
    if url is not None:
        begin = time.perf_counter()
        await asyncio.to_thread(create_vector_index, url, dimension=data.embeddings.shape[1])
        print(f"  indexed in {time.perf_counter() - begin:.0f} s", flush=True)
        rows.append((await searched(store, data)).row(f"{name}, HNSW"))
    one = {"bucket": 7}
    rows.append((await searched(store, data, one)).row(f"{name}, filter that takes 1 %"))
    return rows


def theirs(url: str, data: Data) -> list[list[object]]:
    known = dict(zip(data.texts + data.queries, [*data.embeddings, *data.targets], strict=True))
    index: Any = {
        "dims": data.embeddings.shape[1],
        "embed": lambda texts: [known[it].tolist() for it in texts],
        "fields": ["text"],
    }
    with PostgresStore.from_conn_string(url, index=index) as store:
        store.setup()
        begin = time.perf_counter()
        from langgraph.store.base import PutOp

        for batch in data.items():
            store.batch([PutOp(SPACE, key, value) for key, value, _ in batch])
        print(f"  langgraph: filled, indexed in {time.perf_counter() - begin:.0f} s", flush=True)
        return [
            searched_there(store, data).row("langgraph's PostgresStore, HNSW"),
            searched_there(store, data, {"bucket": 7}).row(
                "langgraph's PostgresStore, filter that takes 1 %"
            ),
        ]


# --- a million items


async def grown(store: BaseStore) -> list[list[object]]:
    """``get`` and a page of ``list`` with few items and with many."""
    rows: list[list[object]] = []
    times: dict[tuple[str, int], float] = {}
    count = 0
    for size in (FEW, MANY):
        while count < size:
            some = range(count, min(count + 2 * BATCH, size))
            await store.put_batch(
                [(_space(it), f"key-{it:07}", {"n": it, "text": "x" * 100}) for it in some]
            )
            count = some.stop
        for what, call in CALLED.items():
            times[what, size] = await _median(store, call, size)
    for what in CALLED:
        few, many = times[what, FEW], times[what, MANY]
        rows.append([
            f"{type(store).__name__}: {what}",
            CALLS,
            f"{few * 1e3:.2f}",
            f"{many * 1e3:.2f}",
            f"**{many / few:.2f}**",
            "≤ 1.5" if many / few <= 1.5 else "≤ 1.5: MISSED",
        ])  # fmt: skip
    return rows


def _space(number: int) -> tuple[str, ...]:
    return ("users", f"u{number % 10}" if number < FEW else f"v{number % 5000}")


CALLED: dict[str, Callable[[BaseStore, int], Awaitable[Any]]] = {
    "get": lambda store, at: store.get(_space(at), f"key-{at:07}"),
    f"a page of {PAGE}": lambda store, at: store.list(("users", f"u{at % 10}"), PAGE),
}


async def _median(
    store: BaseStore, call: Callable[[BaseStore, int], Awaitable[Any]], size: int
) -> float:
    seconds = []
    for at in range(CALLS + 20):
        begin = time.perf_counter()
        await call(store, at * 7919 % size)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[20:])


HEAD = """# {title}

Machine: {machine}; load average {load}. PostgreSQL {version} with pgvector, fsync on. One run of
{minutes:.1f} minutes.
"""
NEAREST = """
{count:,} sentences of installed docstrings, embedded by all-MiniLM-L6-v2 ({dimension} dimensions);
{queries} other sentences are looked for, one after the other, {limit} of each. *Recall*: how many
of the {limit} that comparing all of them gives were found. Milliseconds.

{table}
"""
GROWN = """
The median of so many calls, in milliseconds, with {few:,} items and with {many:,}.

{table}
"""


async def nearest(running: Any, folder: str, data: Data) -> str:
    dimension = data.embeddings.shape[1]
    print("langgraph", flush=True)
    rows = await asyncio.to_thread(theirs, running.url(running.new_database()), data)
    print("PostgreSQL", flush=True)
    url = running.url(running.new_database())
    async with PostgreSQLStore(url, dimension=dimension) as store:
        rows += await ours(store, data, url)
    print("SQLite", flush=True)
    async with SQLiteStore(Path(folder) / "vectors.db", dimension=dimension) as store:
        rows += await ours(store, data, None)
    return NEAREST.format(
        count=len(data.texts),
        dimension=dimension,
        queries=QUERIES,
        limit=LIMIT,
        table=machine.table(("", "searches", "recall", "returned", "p50, ms", "p99, ms"), rows),
    )


async def million(running: Any, folder: str) -> str:
    async with PostgreSQLStore(running.url(running.new_database())) as store:
        rows = await grown(store)
    print("SQLite", flush=True)
    async with SQLiteStore(Path(folder) / "many.db") as store:
        rows += await grown(store)
    head = ("", "calls", f"{FEW:,}", f"{MANY:,}", "times", "target")
    return GROWN.format(few=FEW, many=MANY, table=machine.table(head, rows))


async def measured(file: str | None, count: int | None) -> str:
    begin = time.monotonic()
    with server() as (running, _), tempfile.TemporaryDirectory(prefix="locus-store-") as folder:
        version = running.value("SHOW server_version")
        if file is None:
            title, text = "A store of a million items", await million(running, folder)
        else:
            data = Data.read(file)
            data.texts, data.embeddings = data.texts[:count], data.embeddings[:count]
            title, text = "Vector search", await nearest(running, folder, data)
    head = HEAD.format(
        title=title,
        minutes=(time.monotonic() - begin) / 60,
        machine=machine.described(),
        load=machine.load_average(),
        version=version,
    )
    return head + text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", help="of benchmarks/comparisons/embeddings.py")
    parser.add_argument("--count", type=int, help="use so many sentences only")
    parser.add_argument("--million", action="store_true", help="get and list, which need no file")
    report.add_write(parser)
    options = parser.parse_args()
    if (options.file is None) != options.million:
        parser.error("give a file, or --million")
    page = asyncio.run(measured(options.file, options.count))
    name = "store-million" if options.million else "store-vectors"
    report.publish(name, page, write=options.write)


if __name__ == "__main__":
    main()
