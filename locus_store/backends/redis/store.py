"""A store in Redis or Valkey: a server or a cluster, with built-in data types only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import inf
from typing import Any, Final, NamedTuple, Unpack
from zlib import crc32

from locus_store.backends.redis import items, scripts
from locus_store.backends.redis.backend import (
    DEFAULT_ITEMS_PREFIX as DEFAULT_PREFIX,
    DEFAULT_URL,
    RedisBackend,
)
from locus_store.backends.redis.connections import LoopClient
from locus_store.backends.redis.options import RedisOptions
from locus_store.errors import SchemaError
from locus_store.runtime.gathering import Failed, Gathering, GroupLimits, PerLoop
from locus_store.store import BaseStore, Embed
from locus_store.types.arguments import choose_backend
from locus_store.types.items import (
    Change,
    Name,
    Namespace,
    NamespaceMatch,
    Put,
    StoreCapabilities,
    StoreItem,
    Wanted,
    decode_namespace,
    get_names,
    make_version_conflict,
)
from locus_store.values import vectors
from locus_store.values.times import to_microseconds
from locus_store.values.vectors import Metric

FIRST: Final = 64
"""Items that are asked for at first where each is looked at."""

PAGE: Final = 1000
"""Items that one script answers with at most."""

PAGE_BYTES: Final = 4_000_000
"""Bytes of values or embeddings in a script's answer, the last one not counted."""

EMBEDDINGS: Final = 2048
"""Items whose embeddings one script answers with at most."""

CLEARED: Final = 1000
"""Items that one script of ``clear`` removes at most."""


class _Calls(NamedTuple):
    """The calls of one event loop, in groups."""

    changes: Gathering[Sequence[Change], list[int]]
    reads: Gathering[Sequence[Name], list[StoreItem | None]]


CHANGES: Final = GroupLimits(count=256, size=PAGE_BYTES)
"""The server does nothing else for about 15 µs for each change."""

READS: Final = GroupLimits(count=PAGE)

QUEUES: Final = 64
"""Writes that may be under way at once."""

ALL_QUEUES: Final = {str(it) for it in range(QUEUES)}


class RedisStore(BaseStore):
    """Keeps items in Redis or Valkey; see ``RedisBackend``.

    A call that writes is all or nothing, also over several namespaces. Waiting calls of one event
    loop share a script, so a store is on one node of a cluster. Each ``prefix`` is a separate
    store. Only ``clear_namespace`` works in steps, of 1,000 items. While a script runs, the server
    does nothing else: about 15 µs for each item of a batch. A put whose answer is lost is not
    repeated, because it may have been done. The version of the item shows whether it was.

    Reading is one script and one round trip too, as long as it is of at most 1,000 items and 4 MB.
    A search with a filter or a query looks at the items below its namespace, the last updated
    first, until it has found enough; one by an embedding compares all that are below it, exactly,
    in this process. Neither uses search or vector commands of a server that has them.

    A server that evicts keys (``maxmemory-policy``) would evict a whole store: use ``noeviction``.

    Args:
        url: See ``RedisBackend``.
        prefix: Prefix of all keys, followed by ``{store}``.
        dimension: See ``BaseStore``, as the next two options; it cannot be changed later.
        metric: How embeddings are compared.
        embed: Computes the embeddings of strings.
        backend: A backend whose connections are used instead of ``url`` and the options, for
            example ``checkpointer.backend``; also its ``prefix``, if it has one of its own.
        options: See ``options.RedisOptions``. A client that tries again by itself repeats puts.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: redis-py is not installed, or NumPy, which a dimension needs.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        prefix: str = DEFAULT_PREFIX,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: RedisBackend | None = None,
        **options: Unpack[RedisOptions],
    ) -> None:
        defaults = DEFAULT_URL, DEFAULT_PREFIX
        self._owns = backend is None
        self.backend: RedisBackend = choose_backend(
            backend, RedisBackend, url, prefix, defaults=defaults, **options
        )
        super().__init__(
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=self.backend.max_state_bytes,
        )
        self._prefix = prefix if backend is None else backend.items_prefix
        self._begin()

    def _begin(self) -> None:
        """Begin without calls that wait."""
        self._keys, self._others = items.make_keys(self._prefix, self.backend.tenant)
        self._is_known = False
        """True once it was seen to be of our layout and dimension."""
        self._calls = PerLoop(self._make_calls)

    def _enter(self, tenant: str) -> None:
        self.backend, self._owns = self.backend.for_tenant(tenant), False
        self._begin()

    @property
    def capabilities(self) -> StoreCapabilities:
        return replace(super().capabilities, tenants=True)

    def _make_calls(self) -> _Calls:
        return _Calls(
            Gathering(self._run_changes, CHANGES, get_names), Gathering(self._run_reads, READS)
        )

    def __repr__(self) -> str:
        return repr(self.backend).replace("Backend", "Store", 1)

    async def setup(self) -> None:
        await self._get_client()

    async def _get_client(self) -> LoopClient:
        connections = self.backend.connections
        if not self._is_known:
            client = await connections.get()
            settings = self._keys[-1]
            layout, dimension = await client.run_command("HMGET", settings, "layout", "dimension")
            self._require("layout", layout)
            self._require("dimension", dimension)
            self.stored_dimension = None if dimension is None else int(dimension)
            self._is_known = True
        return await connections.get()  # the other one may be closed by now

    def _require(self, setting: str, value: bytes | None) -> None:
        """Refuse keys of another library or layout, or embeddings of another dimension."""
        if value is None:
            return
        there = value.decode()
        if setting == "layout" and there != items.LAYOUT:
            raise SchemaError(
                f"{self} is of layout {there}, this release knows {items.LAYOUT} only; use the "
                "release that created it, or choose another prefix="
            )
        if setting == "dimension" and self.dimension is not None and there != str(self.dimension):
            raise SchemaError(
                f"{self} has embeddings of {there} numbers, not {self.dimension}: open it with "
                f"dimension={there}, or use another prefix="
            )

    async def close(self) -> None:
        calls = self._calls.get()
        await calls.changes.drain()
        await calls.reads.drain()
        if self._owns:
            await self.backend.close()
        self._is_known = False

    async def _write(self, queues: set[str], script: scripts.Script, *args: Any) -> Any:
        """Run a script once, after all earlier writes of the same items."""
        client = await self._get_client()
        first, *others = queues
        keys = [*self._keys, *self._others]
        return await client.run_in_order(
            first, lambda: client.run_once(lambda: client.write(script, keys, *args)), *others
        )

    async def apply(self, changes: Sequence[Change]) -> list[int]:
        size = sum([it.size for it in changes])
        return await self._calls.get().changes.submit(changes, count=len(changes), size=size)

    async def _run_changes(
        self, calls: Sequence[Sequence[Change]], is_alone: bool
    ) -> list[list[int] | Failed]:
        """Execute the puts and removals of several calls; each call is decided separately."""
        del is_alone  # a script waits for nothing
        changes = list(chain.from_iterable(calls))
        has_vectors = any(it.vectors for it in changes)
        dimension = self.dimension if has_vectors else ""
        given = [items.make_arguments(it, at) for at, call in enumerate(calls) for it in call]
        queues = {_choose_queue(items.make_name(it.namespace, it.key)) for it in changes}
        what = items.LAYOUT, dimension, *chain.from_iterable(given)
        done, found, *others = await self._write(queues, scripts.ITEMS["apply"], *what)
        if done != b"done":
            self._require(done.decode(), found)
        [conflicts] = others
        results = iter(found)
        answers: list[list[int] | Failed] = [list(islice(results, len(it))) for it in calls]
        for at in range(0, len(conflicts), 3):
            call, place, version = conflicts[at : at + 3]
            change = changes[place]
            assert isinstance(change, Put)  # noqa: S101  (no other expects a version)
            answers[call] = Failed(make_version_conflict(change, version))
        return answers

    async def clear(self, namespace: Namespace, *, recursive: bool) -> int:
        start = items.make_start(namespace, recursive=recursive)
        at, removed = b"", 0
        while True:
            low, high = items.make_bounds(start, at)
            count, at = await self._write(ALL_QUEUES, scripts.ITEMS["clear"], low, high, CLEARED)
            removed += int(count)
            if not at:
                return removed

    async def renew(self, names: Sequence[Name]) -> None:
        given = [items.make_name(*it) for it in names]
        await self._write(set(map(_choose_queue, given)), scripts.ITEMS["renew"], *given)

    async def sweep(self, limit: int) -> int:
        count: int = await self._write(ALL_QUEUES, scripts.ITEMS["sweep"], limit)
        return count

    async def _read(self, script: scripts.Script, *args: Any) -> Any:
        client = await self._get_client()
        return await client.read(script, self._keys, *args)

    async def read(self, names: Sequence[Name]) -> list[StoreItem | None]:
        return await self._calls.get().reads.submit(names, count=len(names))

    async def _run_reads(
        self, calls: Sequence[Sequence[Name]], is_alone: bool
    ) -> list[list[StoreItem | None]]:
        names = [items.make_name(*it) for it in chain.from_iterable(calls)]
        found = iter(await self._read_with_embeddings(names, ""))
        return [[it and it[0] for it in islice(found, len(call))] for call in calls]

    async def _read_with_embeddings(
        self, names: Sequence[bytes], with_vectors: str = "1"
    ) -> list[tuple[StoreItem, bytes] | None]:
        found = await self._read(scripts.ITEMS["read"], with_vectors, *names)
        return [
            (items.make_item(name, expires, packed, self.max_state_bytes), data) if packed else None
            for name, (expires, packed, data) in zip(names, items.split_rows(found), strict=True)
        ]

    async def page(self, namespace: Namespace, limit: int, after: str | None) -> list[StoreItem]:
        start = items.make_start(namespace, recursive=False)
        at = b"" if after is None else items.make_name(namespace, after)
        found: list[StoreItem] = []
        while True:
            count = min(limit - len(found), PAGE)
            bounds = items.make_bounds(start, at)
            rows, at = await self._read(scripts.ITEMS["page"], *bounds, count, PAGE_BYTES)
            found += self._make_items(rows)
            if not at or len(found) == limit:
                return found

    async def namespaces(self, match: NamespaceMatch, limit: int, offset: int) -> list[Namespace]:
        start, at = items.make_start(match.fixed, recursive=True), b""
        found: dict[Namespace, None] = {}
        size = max(FIRST, offset + limit)
        while True:
            bounds = items.make_bounds(start, at)
            rows, at = await self._read(scripts.ITEMS["namespaces"], *bounds, min(size, PAGE))
            size = PAGE
            for row in rows:
                cut = match.cut(decode_namespace(row.decode()))
                if cut is not None:
                    found[cut] = None
            if not at or len(found) >= offset + limit:
                return list(found)[offset : offset + limit]

    async def recent(self, wanted: Wanted) -> list[StoreItem]:
        count = wanted.offset + wanted.limit
        size = max(FIRST, count) if wanted.must_inspect() else count
        taken: list[StoreItem] = []
        before, newest = b"", None
        while True:
            rows, before, last = await self._read_recent(wanted, min(size, PAGE), before=before)
            newest = last if newest is None else newest
            taken += [it for it in rows if wanted.takes(it.value, it.metadata)]
            size = PAGE
            if before and len(taken) < count:
                continue
            while last != newest:
                taken, newest, last = await self._with_newer(wanted, taken, newest)
            if not before or len(taken) >= count:
                return taken[wanted.offset : count]

    async def _with_newer(
        self, search: Wanted, page: list[StoreItem], newest: bytes
    ) -> tuple[list[StoreItem], bytes, bytes]:
        """Add items that were put meanwhile: a put moves an item away from the read position.

        Args:
            search: The search.
            page: Items in its order.
            newest: When the last item was put that it may have seen.

        Returns:
            Items in its order; the new ``newest``; and when the last of all was put.
        """
        newer, before, seen = await self._read_recent(search, PAGE, after=newest)
        last = seen
        while before:
            rows, before, last = await self._read_recent(search, PAGE, before=before, after=newest)
            newer += rows
        names = {(it.namespace, it.key) for it in newer}
        rest = [it for it in page if (it.namespace, it.key) not in names]
        page = [it for it in newer if search.takes(it.value, it.metadata)] + rest
        return page, seen, last

    async def _read_recent(
        self, search: Wanted, count: int, *, before: bytes = b"", after: bytes = b""
    ) -> tuple[list[StoreItem], bytes, bytes]:
        """Return live items below the prefix, the next position, and the last item's put time."""
        start = items.make_start(search.prefix, recursive=search.recursive)
        rows, at, last = await self._read(
            scripts.ITEMS["recent"], start, before, after, count, PAGE_BYTES
        )
        return self._make_items(rows), at, last

    def _make_items(self, rows: bytes) -> list[StoreItem]:
        return [items.make_item(*it, self.max_state_bytes) for it in items.split_rows(rows)]

    async def nearest(
        self, wanted: Wanted, vector: bytes, threshold: float | None
    ) -> list[StoreItem]:
        least = -inf if threshold is None else threshold
        ranked = sorted(
            [it async for it in self._iterate_scored(wanted, vector) if -it.negative >= least]
        )
        count = wanted.offset + wanted.limit
        size = max(FIRST, count) if wanted.must_inspect() else count
        taken: list[StoreItem] = []
        at = 0
        while at < len(ranked) and len(taken) < count:
            some = ranked[at : at + min(size, PAGE)]
            at, size = at + len(some), PAGE
            found = await self._read_with_embeddings([it.name for it in some])
            for scored, pair in zip(some, found, strict=True):
                if pair is None or not wanted.takes(pair[0].value, pair[0].metadata):
                    continue
                item, data = pair
                is_same = to_microseconds(item.updated_at) == scored.put_at
                score = -scored.negative if is_same else self._compute_best([data], vector)[0]
                if score >= least:
                    taken.append(replace(item, score=score))
        taken.sort(key=lambda it: (-(it.score or 0.0), it.namespace, it.key))
        return taken[wanted.offset : count]

    async def _iterate_scored(self, search: Wanted, vector: bytes) -> AsyncIterator[_Scored]:
        """Yield all items below the prefix that have embeddings."""
        start, at = items.make_start(search.prefix, recursive=search.recursive), b""
        while True:
            bounds = items.make_bounds(start, at)
            page, at = await self._read(scripts.ITEMS["vectors"], *bounds, EMBEDDINGS, PAGE_BYTES)
            rows = [*items.split_rows(page)]
            best = self._compute_best([data for _, _, data in rows], vector)
            for score, (name, put_at, _) in zip(best, rows, strict=True):
                yield _Scored(-score, name, int(float(put_at)))
            if not at:
                return

    def _compute_best(self, embeddings: Sequence[bytes], vector: bytes) -> list[float]:
        """Return the best score of each item's embeddings; minus infinity if it has none."""
        each = [items.split_embeddings(it, len(vector)) for it in embeddings]
        scores = iter(vectors.compute_scores(vector, [*chain.from_iterable(each)], self.metric))
        return [max((next(scores) for _ in it), default=-inf) for it in each]

    async def vectors_of(self, namespace: Namespace, key: str) -> list[bytes]:
        [found] = await self._read_with_embeddings([items.make_name(namespace, key)])
        size = (self.dimension or 1) * vectors.FLOAT_BYTES
        return items.split_embeddings(found[1], size) if found else []


def _choose_queue(name: bytes) -> str:
    """Return an item's queue; writes in one queue run in order, queues run concurrently."""
    return str(crc32(name) % QUEUES)


class _Scored(NamedTuple):
    """A scored item; sorts in the order of hits, because names sort like namespaces and keys."""

    negative: float
    """The score, negative."""

    name: bytes
    put_at: int
    """The microsecond, which no two items of a store share."""
