"""A store in OpenSearch: a document for each item, in an index of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Any, Final, TypeVar, Unpack

from locus_store.backends.documents.workers import move_off_loop
from locus_store.backends.opensearch import items
from locus_store.backends.opensearch.access import DEFAULT_INDEX
from locus_store.backends.opensearch.backend import OpenSearchBackend
from locus_store.backends.opensearch.bulk import BulkWrite
from locus_store.backends.opensearch.items import (
    KEEP,
    PAGE,
    Decide,
    ItemChange,
    get_hits,
    make_clearing,
    make_item_write,
    open_item_index,
)
from locus_store.backends.opensearch.options import OpenSearchOptions
from locus_store.errors import LocusStoreError, SchemaError
from locus_store.runtime.forks import make_lock
from locus_store.runtime.retries import Pauses
from locus_store.runtime.stepping import run_in_thread
from locus_store.store import BaseStore, Embed
from locus_store.types.arguments import choose_backend
from locus_store.types.items import (
    DAMAGE,
    Change,
    Name,
    Namespace,
    NamespaceMatch,
    StoreItem,
    Wanted,
    decode_namespace,
    encode_namespace,
    make_damage_error,
)
from locus_store.values import vectors
from locus_store.values.vectors import Metric

T = TypeVar("T")

FIRST: Final = 64
"""Items that are asked for at first where each is looked at."""

SETTINGS: Final = "settings"
"""The id of the document that has the dimension of the embeddings."""

MOST: Final = 1000
"""Items that are removed, and unfinished batches that are put in place, at a time."""

KEPT_MICROSECONDS: Final = 86_400 * 10**6
"""The age at which decisions about batches are removed, if their batches did not do so."""

IS_ITEM: Final = {"exists": {"field": "updated"}}
BY_NAME: Final = ({"namespace": "asc"}, {"key": "asc"})
LAST_FIRST: Final = ({"updated": "desc"}, *BY_NAME)

WITHOUT_VECTORS: Final = {"_source_excludes": "kept.vectors,intent.kept.vectors"}
BEFORE_A_REMOVAL: Final = {"_source_includes": "namespace,key,batch,updated,expires"}
BEFORE_A_PUT: Final = {
    "_source_includes": "batch,updated,expires,kept.version,kept.created,kept.tokens"
}
LONGEST_PAUSE_SECONDS: Final = 0.1


class OpenSearchStore(BaseStore):
    """Keeps items in an index of OpenSearch; see docs/opensearch.md.

    A put is one conditional write of the item's document, after a read of it. A batch of several
    items is written whole or not at all, in six requests.

    Arguments and errors are those of ``OpenSearchBackend`` and ``BaseStore``; items are in the
    index ``<index_name>-store``. With ``backend``, its hosts, index and options are used instead.
    """

    def __init__(
        self,
        hosts: str | Sequence[str] | None = None,
        *,
        index_name: str = DEFAULT_INDEX,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        use_ssl: bool = True,
        backend: OpenSearchBackend | None = None,
        **options: Unpack[OpenSearchOptions],
    ) -> None:
        made = choose_backend(
            backend,
            OpenSearchBackend,
            hosts,
            defaults=[DEFAULT_INDEX, True],
            index_name=index_name,
            use_ssl=use_ssl,
            **options,
        )
        super().__init__(
            dimension=dimension, metric=metric, embed=embed, max_state_bytes=made.max_state_bytes
        )
        self.index = open_item_index(made.index.place, made.index.access)
        self._batches = items.ItemBatches(self.index)
        self._one_batch = make_lock()
        """Batches of this object do not meet each other's intents."""
        self._has_dimension = False

    def __repr__(self) -> str:
        return f"OpenSearchStore({str(self.index.place)!r})"

    async def _run(self, work: Callable[[], T]) -> T:
        """Run a call in a worker thread; what its code cannot read is a damaged document."""
        try:
            return await run_in_thread(work, pool=self.index.pool)
        except LocusStoreError:
            raise
        except DAMAGE as exc:
            raise make_damage_error(f"a document in {self.index.place}", items.REMEDY) from exc

    async def setup(self) -> None:
        await self._run(self._check_dimension)

    def _check_dimension(self) -> None:
        [found] = self.index.read([SETTINGS])
        self.stored_dimension = there = found.source["kept"]["dimension"] if found else None
        if found and self.dimension not in {None, there}:
            raise SchemaError(
                f"{self} has embeddings of {there} numbers, not {self.dimension}: open it with "
                f"dimension={there}, or use another index_name="
            )

    def _keep_dimension(self) -> None:
        """Store the dimension with the first embeddings, or compare it with the stored one."""
        if not self._has_dimension:
            self.index.write(
                [make_item_write(SETTINGS, None, {"kept": {"dimension": self.dimension}})]
            )
            self._check_dimension()
            self._has_dimension = True

    async def close(self) -> None:
        self._has_dimension = False
        self.index.close()

    @move_off_loop
    def apply(self, changes: Sequence[Change]) -> list[int]:
        if any(it.vectors for it in changes):
            self._keep_dimension()
        if len(changes) == 1:
            [change] = changes
            return self._change_each([change.name], ItemChange(change), **BEFORE_A_PUT)
        ids = [items.make_document_id(it.name) for it in changes]
        decide = [ItemChange(it, n) for n, it in enumerate(changes)]
        pauses = Pauses(0.002, LONGEST_PAUSE_SECONDS)
        with self._one_batch:
            while True:
                found = self._batches.settle(ids)
                made = [change(it, False) for change, it in zip(decide, found, strict=True)]
                plans = zip(ids, found, made, strict=True)
                changed = ((key, it, plan) for key, it, (plan, _) in plans if plan is not KEEP)
                if self._batches.write([items.Replacement(*it) for it in changed]):
                    return [answer for _, answer in made]
                pauses.sleep()

    def _change_each(self, names: Sequence[Name], decide: Decide, **reading: str) -> list[int]:
        """Change items, each alone and on the condition of what was read; return the answers."""
        answers, is_repeat = dict.fromkeys(names, 0), False
        rest, pauses = list(names), Pauses(0.002, LONGEST_PAUSE_SECONDS)
        while rest:
            found = self._batches.settle([items.make_document_id(it) for it in rest], **reading)
            writes: dict[Name, BulkWrite] = {}
            for name, document in dict(zip(rest, found, strict=True)).items():
                plan, answers[name] = decide(document, is_repeat)
                if plan is not KEEP:
                    tag = document.tag if document else None
                    writes[name] = make_item_write(items.make_document_id(name), tag, plan)
            done = self.index.write([*writes.values()], refresh=self.index.refresh)
            is_repeat = is_repeat or any(it.is_repeat for it in done)
            rest = [name for name, it in zip(writes, done, strict=True) if not it.is_done]
            if rest:
                pauses.sleep()
        return list(answers.values())

    @move_off_loop
    def clear(self, namespace: Namespace, *, recursive: bool) -> int:
        self.index.refresh_now()
        scope = _make_scope(namespace, recursive=recursive)
        self._finish_batches(scope)
        names = {"_source": ["namespace", "key", "updated"], "sort": BY_NAME}
        removed = 0
        for hits in self.index.iterate_pages(_make_body([*scope, IS_ITEM], size=MOST) | names):
            times = {items.get_name(it["_source"]): it["_source"]["updated"] for it in hits}
            removed += sum(self._change_each(list(times), make_clearing(times), **BEFORE_A_REMOVAL))
        return removed

    @move_off_loop
    def renew(self, names: Sequence[Name]) -> None:
        self._change_each(list(dict.fromkeys(names)), items.renew)

    @move_off_loop
    def sweep(self, limit: int) -> int:
        self.index.refresh_now()
        self._end_batches()
        over = [IS_ITEM, {"range": {"expires": {"lte": items.get_microseconds()}}}]
        hits = get_hits(self.index.search(_make_body(over, size=limit)))
        names = [items.get_name(it["_source"]) for it in hits]
        self._change_each(names, items.expire, **BEFORE_A_REMOVAL)
        return len(names)

    def _end_batches(self) -> None:
        """End batches whose writers have died, and forget decisions of a day ago."""
        held = get_hits(self.index.search(_make_body([{"exists": {"field": "batch"}}], size=MOST)))
        self._batches.settle([it["_id"] for it in held])
        old = [{"range": {"decided": {"lt": items.get_microseconds() - KEPT_MICROSECONDS}}}]
        hits = get_hits(self.index.search(_make_body(old, size=MOST)))
        batches = [it["_id"] for it in hits]
        self._batches.finish(batches)
        self._batches.forget(batches)

    @move_off_loop
    def read(self, names: Sequence[Name]) -> list[StoreItem | None]:
        found = self._batches.read([items.make_document_id(it) for it in names], **WITHOUT_VECTORS)
        return [self._make_item(it) if it and items.is_live(it) else None for it in found]

    def _make_item(self, source: Mapping[str, Any]) -> StoreItem:
        return items.make_item(source, self.max_state_bytes, str(self.index.place))

    @move_off_loop
    def vectors_of(self, namespace: Namespace, key: str) -> list[bytes]:
        [found] = self._batches.read([items.make_document_id((namespace, key))])
        return items.get_vectors(found) if found and items.is_live(found) else []

    @move_off_loop
    def page(self, namespace: Namespace, limit: int, after: str | None) -> list[StoreItem]:
        scope = _make_scope(namespace, recursive=False)
        scope += [{"range": {"key": {"gt": after}}}] if after is not None else []
        return self._find_first(scope, BY_NAME, limit, lambda _item: True)

    @move_off_loop
    def recent(self, wanted: Wanted) -> list[StoreItem]:
        scope = _make_scope(wanted.prefix, recursive=wanted.recursive)
        end = wanted.offset + wanted.limit
        found = self._find_first(
            scope, LAST_FIRST, end, lambda it: wanted.takes(it.value, it.metadata)
        )
        return found[wanted.offset :]

    def _find_first(
        self, scope: list[Any], sort: Sequence[Any], limit: int, takes: Callable[[StoreItem], bool]
    ) -> list[StoreItem]:
        body = _make_body(scope, live=True, sort=sort)
        size = min(max(FIRST, limit), PAGE)
        hits = self._read_first({**body, "size": size})
        found = self._take_wanted(hits, takes)
        if len(found) >= limit or len(hits) < size:
            return found[:limit]
        found = []
        for some in self.index.iterate_pages({**body, "size": PAGE}):
            found += self._take_wanted(some, takes)
            if len(found) >= limit:
                break
        return found[:limit]

    def _read_first(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the first hits of a search, once its committed batches are put in place."""
        batches = {"batches": {"terms": {"field": "batch", "size": MOST}}}
        answer = self.index.search({**body, "aggs": batches})
        aggregations = answer["aggregations"]["batches"] if answer else {"buckets": ()}
        named = [it["key"] for it in aggregations["buckets"]]
        if self._batches.finish(named):
            self.index.refresh_now()
            return get_hits(self.index.search(body))
        return get_hits(answer)

    def _finish_batches(self, scope: list[Any]) -> None:
        self._read_first(_make_body(scope, size=0))

    def _take_wanted(
        self, hits: Sequence[Any], takes: Callable[[StoreItem], bool]
    ) -> list[StoreItem]:
        made = (self._make_item(it["_source"]) for it in hits if items.is_live(it["_source"]))
        return [it for it in made if takes(it)]

    @move_off_loop
    def nearest(self, wanted: Wanted, vector: bytes, threshold: float | None) -> list[StoreItem]:
        scope = _make_scope(wanted.prefix, recursive=wanted.recursive)
        self._finish_batches(scope)
        least = -inf if threshold is None else threshold
        scored = self._iterate_scored(wanted, scope, vector)
        found = heapq.nsmallest(
            wanted.offset + wanted.limit,
            (it for it in scored if (it.score or 0.0) >= least),
            key=lambda it: (-(it.score or 0.0), it.namespace, it.key),
        )
        return found[wanted.offset :]

    def _iterate_scored(
        self, criteria: Wanted, scope: list[Any], vector: bytes
    ) -> Iterator[StoreItem]:
        """Yield the items that match and have embeddings, with the scores of the best ones."""
        body = _make_body([*scope, {"term": {"vectors": True}}], live=True)
        body |= {"_source": {"excludes": ["intent"]}, "sort": BY_NAME, "size": PAGE}
        for hits in self.index.iterate_pages(body):
            sources = [it["_source"] for it in hits if items.is_live(it["_source"])]
            each = [items.get_vectors(it) for it in sources]
            scores = iter(vectors.compute_scores(vector, [*chain.from_iterable(each)], self.metric))
            for source, own in zip(sources, each, strict=True):
                score, item = max(next(scores) for _ in own), self._make_item(source)
                if criteria.takes(item.value, item.metadata):
                    yield replace(item, score=score)

    @move_off_loop
    def namespaces(self, match: NamespaceMatch, limit: int, offset: int) -> list[Namespace]:
        self.index.refresh_now()
        scope = _make_scope(match.fixed, recursive=True)
        self._finish_batches(scope)
        found: dict[Namespace, None] = {}
        query = _make_body([*scope, *_match_live()])["query"]
        for text in chain.from_iterable(self.index.iterate_values("namespace", query)):
            cut = match.cut(decode_namespace(text))
            if cut is not None:
                found[cut] = None
            if len(found) >= limit + offset:
                break
        return list(found)[offset:]


def _make_scope(namespace: Namespace, *, recursive: bool) -> list[Any]:
    text = encode_namespace(namespace)
    if not recursive:
        return [{"term": {"namespace": text}}]
    return [{"prefix": {"namespace": text}} if text else {"exists": {"field": "namespace"}}]


def _match_live() -> list[Any]:
    """Return the conditions of items that have not expired."""
    over = {"range": {"expires": {"lte": items.get_microseconds()}}}
    return [IS_ITEM, {"bool": {"must_not": [over]}}]


def _make_body(conditions: Sequence[Any], *, live: bool = False, **more: Any) -> dict[str, Any]:
    """Return a search; ``live``: of items that have not expired, in the hits alone."""
    body: dict[str, Any] = {
        "query": {"bool": {"filter": list(conditions)}},
        "_source": {"excludes": ["intent", "kept.vectors"]},
        "track_total_hits": False,
        **more,
    }
    return {**body, "post_filter": {"bool": {"filter": _match_live()}}} if live else body
