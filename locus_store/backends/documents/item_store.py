"""The rules of a store whose items are in memory; a subclass decides how changes are kept."""

from __future__ import annotations

import copy
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

from locus_store.backends.documents.workers import move_off_loop
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
from locus_store.values.times import EPOCH, MICROSECOND

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptItem:
    """An item in memory."""

    item: StoreItem
    order: int
    """The order of the last put, among items with the same time."""

    vectors: tuple[bytes, ...]

    def is_over(self, at: datetime) -> bool:
        """Return whether the item has expired."""
        return self.item.expires_at is not None and self.item.expires_at <= at


class ItemStore(BaseStore):
    """Keeps items in memory, by namespace and key.

    Each method of the contract is a piece of work on the items, which ``_run`` carries out. See
    ``BaseStore`` for the options.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.needs_no_loop = self.moves_between_threads = self.embed is None
        self._namespaces: dict[Namespace, dict[str, KeptItem]] = {}
        self._orders = count()
        self._last_put_at = EPOCH

    @abstractmethod
    async def _run(self, work: Callable[[], T], *, changes: bool = False) -> T:
        """Do work on the items, while no other work is done; keep what it changed.

        Args:
            work: May be repeated; ends with an error only before it changed anything.
            changes: It may change items.
        """

    def _get_time(self) -> datetime:
        return datetime.now(UTC)

    async def apply(self, changes: Sequence[Change]) -> list[int]:
        return await self._run(lambda: self._apply_changes(changes), changes=True)

    def _apply_changes(self, changes: Sequence[Change]) -> list[int]:
        for change in changes:
            if isinstance(change, Put):
                self._require(change)
        return [self._put(it) if isinstance(it, Put) else self._remove(it) for it in changes]

    def _require(self, change: Put) -> None:
        found = self._find_live(change.name)
        require_version(change, found.item.version if found else 0)

    def _put(self, change: Put) -> int:
        found = self._find_live(change.name)
        at = max(self._get_time(), self._last_put_at + MICROSECOND)
        before = (found.item.version, found.item.created_at) if found else ()
        stamp = change.make_stamp(at, *before)
        item = StoreItem(
            namespace=change.namespace,
            key=change.key,
            value=change.value,
            metadata=change.metadata,
            created_at=stamp.created_at,
            updated_at=stamp.updated_at,
            version=stamp.version,
            expires_at=stamp.expires_at,
            ttl_seconds=change.ttl_seconds,
        )
        self._set(change.name, KeptItem(item, next(self._orders), change.vectors))
        return item.version

    def _remove(self, change: Change) -> int:
        was_live = self._find_live(change.name) is not None
        self._set(change.name, None)
        return int(was_live)

    async def clear(self, namespace: Namespace, *, recursive: bool) -> int:
        def clear() -> int:
            found = [it.item for it in self._list_live(namespace, recursive=recursive)]
            for item in found:
                self._set((item.namespace, item.key), None)
            return len(found)

        return await self._run(clear, changes=True)

    async def renew(self, names: Sequence[Name]) -> None:
        def renew() -> None:
            for name in names:
                found = self._find_live(name)
                if found and found.item.ttl_seconds is not None:
                    until = self._get_time() + timedelta(seconds=found.item.ttl_seconds)
                    self._set(name, replace(found, item=replace(found.item, expires_at=until)))

        await self._run(renew, changes=True)

    async def sweep(self, limit: int) -> int:
        def sweep() -> int:
            at = self._get_time()
            gone = [it.item for it in self._iterate_items() if it.is_over(at)][:limit]
            for item in gone:
                self._set((item.namespace, item.key), None)
            return len(gone)

        return await self._run(sweep, changes=True)

    async def read(self, names: Sequence[Name]) -> list[StoreItem | None]:
        found = await self._run(lambda: [self._find_live(it) for it in names])
        return [None if it is None else _copy_item(it.item) for it in found]

    @move_off_loop
    def page(self, namespace: Namespace, limit: int, after: str | None) -> list[StoreItem]:
        kept = {it.item.key: it.item for it in self._list_live(namespace, recursive=False)}
        keys = sorted(kept)
        begin = 0 if after is None else bisect_right(keys, after)
        return [_copy_item(kept[it]) for it in keys[begin : begin + limit]]

    @move_off_loop
    def recent(self, wanted: Wanted) -> list[StoreItem]:
        found = self._list_matching(wanted)
        found.sort(key=lambda it: (it.item.updated_at, it.order), reverse=True)
        return [_copy_item(it.item) for it in found[wanted.offset : wanted.offset + wanted.limit]]

    async def nearest(
        self, wanted: Wanted, vector: bytes, threshold: float | None
    ) -> list[StoreItem]:
        kept = await self._run(lambda: [it for it in self._list_matching(wanted) if it.vectors])
        scored = iter(
            vectors.compute_scores(vector, [v for it in kept for v in it.vectors], self.metric)
        )
        best = [(max(next(scored) for _ in it.vectors), it.item) for it in kept]
        found = [(score, it) for score, it in best if threshold is None or score >= threshold]
        found.sort(key=lambda pair: (-pair[0], pair[1].namespace, pair[1].key))
        page = found[wanted.offset : wanted.offset + wanted.limit]
        return [replace(_copy_item(it), score=score) for score, it in page]

    async def vectors_of(self, namespace: Namespace, key: str) -> list[bytes]:
        found = await self._run(lambda: self._find_live((namespace, key)))
        return list(found.vectors) if found else []

    @move_off_loop
    def namespaces(self, match: NamespaceMatch, limit: int, offset: int) -> list[Namespace]:
        there = {it.item.namespace for it in self._list_live(match.fixed, recursive=True)}
        found = {cut for it in there if (cut := match.cut(it)) is not None}
        return sorted(found)[offset : offset + limit]

    def _find(self, name: Name) -> KeptItem | None:
        """Return an item, expired or not."""
        namespace, key = name
        return self._namespaces.get(namespace, {}).get(key)

    def _set(self, name: Name, entry: KeptItem | None) -> None:
        """Replace or remove an item; all changes end here."""
        namespace, key = name
        if entry is not None:
            self._last_put_at = max(self._last_put_at, entry.item.updated_at)
            self._namespaces.setdefault(namespace, {})[key] = entry
        elif (items := self._namespaces.get(namespace)) is not None:
            items.pop(key, None)
            if not items:
                del self._namespaces[namespace]

    def _find_live(self, name: Name) -> KeptItem | None:
        found = self._find(name)
        is_over = found is not None and found.item.expires_at and found.is_over(self._get_time())
        return None if is_over else found

    def _iterate_items(self) -> Iterator[KeptItem]:
        return (it for items in self._namespaces.values() for it in items.values())

    def _list_live(self, namespace: Namespace, *, recursive: bool) -> list[KeptItem]:
        at, depth = self._get_time(), len(namespace)
        groups = (
            [items for name, items in self._namespaces.items() if name[:depth] == namespace]
            if recursive
            else [self._namespaces.get(namespace, {})]
        )
        return [it for items in groups for it in items.values() if not it.is_over(at)]

    def _list_matching(self, search: Wanted) -> list[KeptItem]:
        """Return the live items that match, in no order."""
        found = self._list_live(search.prefix, recursive=search.recursive)
        return [it for it in found if search.takes(it.item.value, it.item.metadata)]


def _copy_item(item: StoreItem) -> StoreItem:
    """Return the item with copies of its value and metadata that the caller may change."""
    return replace(item, value=copy.deepcopy(item.value), metadata=copy.deepcopy(item.metadata))
