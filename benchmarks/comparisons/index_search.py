"""The server's time for a page of ten on OpenSearch, with few documents of versions and with many.

The documents are loaded in bulk, without heads: only the first request of each search is measured.

    python -m benchmarks.comparisons.index_search http://host:9200 [--versions 1000000] [--write]
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from functools import partial
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from benchmarks.report import add_write, publish
from locus_store.backends.opensearch import OpenSearchBackend, search
from locus_store.backends.opensearch.bulk import split_batches
from locus_store.backends.opensearch.documents import make_version_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locus_store.backends.opensearch.bulk import BulkWrite
    from locus_store.backends.opensearch.client import IndexObjects

FEW = 10_000
VERSIONS_OF_A_THREAD = 10
WORDS_OF_A_VERSION = 40
VOCABULARY = 20_000
LIMIT = 10
WARM_ROUNDS = 5
"""Are not counted."""

PAGE = """# Searches on OpenSearch

The time of the server (`took`) for the first request of a search with `limit=10`. A version has 40
words of 20,000, of which a few are frequent; a thread has ten versions. Two indexes, with few and
with many versions, are searched in turn. The figures are the least and the median, and the ratio of
the medians.

"""


def documents(objects: IndexObjects, count: int) -> Iterator[BulkWrite]:
    """Yield documents of versions."""
    chance = random.Random(1)
    words = [f"w{n}" for n in range(VOCABULARY)]
    weights = list(accumulate(1 / (n + 10) for n in range(VOCABULARY)))
    said = partial(chance.choices, words, cum_weights=weights, k=WORDS_OF_A_VERSION)
    texts = [" ".join(said()) for _ in range(2 * FEW)]
    for n in range(count):
        thread, sequence = f"t{n // VERSIONS_OF_A_THREAD}", 1 + n % VERSIONS_OF_A_THREAD
        fields = {
            "thread": thread,
            "namespace": "",
            "line": n // VERSIONS_OF_A_THREAD,
            "sequence": sequence,
            "created_at": n,
            "words": chance.choice(texts),
            "metadata": [f"k={n % 10}", f"user={n % 1000}", f"order={n}"],
        }
        name = make_version_name(thread, n // VERSIONS_OF_A_THREAD, sequence)
        yield objects.write_document(name, "index", fields)


def load(objects: IndexObjects, count: int) -> float:
    """Load documents, in several requests at once; return the seconds that it took."""
    began = time.monotonic()
    objects.create()
    send = partial(objects.bulk, refresh="false")
    deque(objects.run_each(send, split_batches(documents(objects, count))), maxlen=0)
    objects.call("POST", f"/{objects.place.name}/_refresh")
    return time.monotonic() - began


class Timed:
    """The searches of an index, with the server's times."""

    def __init__(self, objects: IndexObjects) -> None:
        self._search = objects.search
        self.took: list[int] = []
        objects.search = self  # type: ignore[method-assign]

    def __call__(self, body: Any) -> Any:
        found = self._search(body)
        self.took.append(found["took"])
        return found


SEARCHES: dict[str, Callable[[IndexObjects], Any]] = {
    "a frequent word": lambda it: search.find_with_words(it, ["w0"], LIMIT),
    "two frequent words": lambda it: search.find_with_words(it, ["w3", "w7"], LIMIT),
    "a rare word": lambda it: search.find_with_words(it, ["w15000"], LIMIT),
    "a value of a tenth of the versions": lambda it: by_value(it, "k", 7),
    "a value of a thousandth": lambda it: by_value(it, "user", 77),
    "a value of one version": lambda it: by_value(it, "order", 4711),
}


def by_value(objects: IndexObjects, key: str, value: object) -> Any:
    return search.find_with_value(objects, key, value, LIMIT, is_tag=False)


def measured(indexes: list[IndexObjects], rounds: int) -> dict[str, list[list[int]]]:
    """Return the times of each search on each index, in turn."""
    timed = [Timed(it) for it in indexes]
    found: dict[str, list[list[int]]] = {name: [[] for _ in indexes] for name in SEARCHES}
    for number in range(WARM_ROUNDS + rounds):
        for name, ask in SEARCHES.items():
            for objects, its, times in zip(indexes, timed, found[name], strict=True):
                next(ask(objects))
                if number >= WARM_ROUNDS:
                    times.append(its.took[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--versions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=21)
    add_write(parser)
    options = parser.parse_args()
    names = (f"bench-{uuid4().hex[:8]}" for _ in range(2))
    opened = partial(OpenSearchBackend, options.url, pool_size=2, timeout_seconds=600)
    few, many = (opened(index_name=it).index for it in names)
    try:
        load(few, FEW)
        seconds = load(many, options.versions)
        found = measured([few, many], options.rounds)
        stats = many.call("GET", f"/{many.place.name}/_stats/store")
    finally:
        for it in (few, many):
            it.call("DELETE", f"/{it.place.name}-000001", seen=(404,))
            it.close()
    size = stats["_all"]["primaries"]["store"]["size_in_bytes"] / options.versions
    told = f"N = {options.rounds} of each. {size:.0f} bytes of the index for a version."
    rows = [
        f"| search | {FEW:,} versions | {options.versions:,} versions | ratio |",
        "|---|---|---|---|",
        *(row(name, *times) for name, times in found.items()),
        "",
        f"{told} Loaded in {seconds:.0f} s.",
    ]
    publish("index-search", PAGE + "\n".join(rows), write=options.write)


def row(name: str, few: list[int], many: list[int]) -> str:
    times = (f"{min(it)} / {median(it):.0f} ms" for it in (few, many))
    ratio = max(median(many), 1) / max(median(few), 1)
    return f"| {name} | {' | '.join(times)} | {ratio:.1f} x |"


if __name__ == "__main__":
    main()
