"""An in-memory store for tests and notebooks; its items live as long as the object."""

from __future__ import annotations

import copy
import threading
from bisect import bisect_right
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from locus_store.store import BaseStore
from locus_store.types.items import (
    Change,
    Name,
    Namespace,
    NamespaceMatch,
    Put,
    StoreItem,
    Wanted,
    require_version,
)
from locus_store.values import vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from locus_store.backends.memory.options import InMemoryStoreOptions


@dataclass(slots=True)
class _Kept:
    item: StoreItem
    order: int
    """The order of the last put."""

    vectors: tuple[bytes, ...]


class InMemoryStore(BaseStore):
    """Keeps items in this process; usable from any number of threads and event loops.

    See ``BaseStore`` for the options. Nothing outlives the object.
    """

    def __init__(self, **options: Unpack[InMemoryStoreOptions]) -> None:
        super().__init__(**options)
        self.needs_no_loop = self.moves_between_threads = self.embed is None
        self._items: dict[Name, _Kept] = {}
        self._order = 0
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"InMemoryStore({len(self._items)} items)"

    async def setup(self) -> None:
        """See ``BaseStore``, also for the following methods."""

    async def apply(self, changes: Sequence[Change]) -> list[int]:
        with self._lock:
            for change in changes:
                if isinstance(change, Put):
                    self._require(change)
            return [self._put(it) if isinstance(it, Put) else self._remove(it) for it in changes]

    def _require(self, change: Put) -> None:
        found = self._live((change.namespace, change.key))
        require_version(change, found.item.version if found else 0)

    def _put(self, change: Put) -> int:
        name = (change.namespace, change.key)
        found, at = self._live(name), datetime.now(UTC)
        ttl = change.ttl_seconds
        self._order += 1
        item = StoreItem(
            namespace=change.namespace,
            key=change.key,
            value=change.value,
            metadata=change.metadata,
            created_at=found.item.created_at if found else at,
            updated_at=at,
            version=found.item.version + 1 if found else 1,
            expires_at=None if ttl is None else at + timedelta(seconds=ttl),
            ttl_seconds=ttl,
        )
        self._items[name] = _Kept(item, self._order, change.vectors)
        return item.version

    def _remove(self, change: Change) -> int:
        name = (change.namespace, change.key)
        was_live = self._live(name) is not None
        self._items.pop(name, None)
        return int(was_live)

    async def read(self, names: Sequence[Name]) -> list[StoreItem | None]:
        with self._lock:
            found = [self._live(it) for it in names]
        return [None if it is None else _given(it.item) for it in found]

    async def page(self, namespace: Namespace, limit: int, after: str | None) -> list[StoreItem]:
        kept = {it.item.key: it for it in self._below(namespace) if it.item.namespace == namespace}
        keys = sorted(kept)
        begin = 0 if after is None else bisect_right(keys, after)
        return [_given(kept[it].item) for it in keys[begin : begin + limit]]

    async def recent(self, wanted: Wanted) -> list[StoreItem]:
        found = [it for it in self._below(wanted.prefix) if _takes(wanted, it)]
        found.sort(key=lambda it: it.order, reverse=True)
        page = found[wanted.offset : wanted.offset + wanted.limit]
        return [_given(it.item) for it in page]

    async def nearest(
        self, wanted: Wanted, vector: bytes, threshold: float | None
    ) -> list[StoreItem]:
        kept = [it for it in self._below(wanted.prefix) if it.vectors and _takes(wanted, it)]
        scored = iter(vectors.scores(vector, [v for it in kept for v in it.vectors], self.metric))
        best = [(max(next(scored) for _ in it.vectors), it.item) for it in kept]
        found = [(score, it) for score, it in best if threshold is None or score >= threshold]
        found.sort(key=lambda pair: (-pair[0], pair[1].namespace, pair[1].key))
        page = found[wanted.offset : wanted.offset + wanted.limit]
        return [replace(_given(it), score=score) for score, it in page]

    async def vectors_of(self, namespace: Namespace, key: str) -> list[bytes]:
        with self._lock:
            found = self._live((namespace, key))
        return list(found.vectors) if found else []

    async def namespaces(self, match: NamespaceMatch, limit: int, offset: int) -> list[Namespace]:
        all_of_them = {it.item.namespace for it in self._below(match.fixed)}
        found = {cut for it in all_of_them if (cut := match.of(it)) is not None}
        return sorted(found)[offset : offset + limit]

    async def clear(self, namespace: Namespace, *, recursive: bool) -> int:
        with self._lock:
            gone = [
                it.item
                for it in self._below(namespace)
                if recursive or it.item.namespace == namespace
            ]
            for it in gone:
                del self._items[it.namespace, it.key]
        return len(gone)

    async def renew(self, names: Sequence[Name]) -> None:
        with self._lock:
            for name in names:
                found = self._live(name)
                if found and found.item.ttl_seconds is not None:
                    until = datetime.now(UTC) + timedelta(seconds=found.item.ttl_seconds)
                    found.item = replace(found.item, expires_at=until)

    async def sweep(self, limit: int) -> int:
        with self._lock:
            gone = [name for name, it in self._items.items() if _is_over(it)][:limit]
            for name in gone:
                del self._items[name]
        return len(gone)

    async def close(self) -> None:
        """Do nothing: no resource is open, and the items stay."""

    def _live(self, name: Name) -> _Kept | None:
        found = self._items.get(name)
        return None if found is None or _is_over(found) else found

    def _below(self, prefix: Namespace) -> list[_Kept]:
        with self._lock:
            return [
                it
                for (namespace, _), it in self._items.items()
                if namespace[: len(prefix)] == prefix and not _is_over(it)
            ]


def _given(item: StoreItem) -> StoreItem:
    """Return the item with copies of its value and metadata that the caller may change."""
    return replace(item, value=copy.deepcopy(item.value), metadata=copy.deepcopy(item.metadata))


def _takes(wanted: Wanted, kept: _Kept) -> bool:
    is_there = wanted.recursive or kept.item.namespace == wanted.prefix
    return is_there and wanted.takes(kept.item.value, kept.item.metadata)


def _is_over(kept: _Kept) -> bool:
    until = kept.item.expires_at
    return until is not None and until <= datetime.now(UTC)
