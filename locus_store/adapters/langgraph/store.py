"""LangGraph's long-term memory, over any of this package's stores."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, Self, TypeAlias

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    _ensure_refresh,
    _ensure_ttl,
    _validate_namespace,
    _validate_namespace_labels,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from locus_store import open as opening
from locus_store.errors import InvalidArgumentError, LocusStoreError
from locus_store.runtime.portals import Portals, SyncLife, make_sync_wrapper
from locus_store.runtime.stepping import run_in_thread
from locus_store.store import BaseStore as Store
from locus_store.types.arguments import check_limit, check_mapping
from locus_store.types.items import (
    Change,
    Name,
    Namespace,
    Put,
    PutItem,
    Remove,
    StoreItem,
    Wanted,
    check_name,
    check_namespace,
)
from locus_store.types.tenants import ForTenants
from locus_store.values.filters import Filter
from locus_store.values.surrogates import restore
from locus_store.values.vectors import pack
from locus_store.versions.archives import select

Path: TypeAlias = "list[str] | str"

_ITEM_OPS: Final = (GetOp, PutOp)

ALL: Final = "$"
"""The path of the whole value."""

SECONDS: Final = 60
DEFAULT_SWEEP_MINUTES: Final = 5.0

logger = logging.getLogger(__name__)


class LangGraphStore(SyncLife, ForTenants, BaseStore):
    """The long-term memory of LangGraph's graphs: ``graph.compile(store=…)``.

    One object serves the sync and the async methods of any number of graphs, from any thread and
    any event loop. A sync method in a running loop, as in a notebook, stops it for that long.

    ``batch`` reads first, then writes: its reads do not see its own writes. Its writes are atomic;
    of two with the same name the later counts. A batch that is not valid, or whose strings cannot
    be embedded, does nothing.

    LangGraph's own stores differ from one another. This one does as

    - all of them: ``put`` refuses the root namespace, a first label ``langgraph`` and labels with a
      dot, and a query without ``index`` is not looked at; ``batch`` takes each namespace that the
      store takes, for here ``("a.b",)`` is not ``("a", "b")``;
    - ``PostgresStore`` and ``SqliteStore``: without a query the last updated item comes first, an
      item keeps its ``created_at``, a namespace is listed while it has items, and ``None`` in a
      filter does not find what is missing; these have to hold for more than one process;
    - ``InMemoryStore``: filters descend into objects and compare numbers as numbers, ``$ne`` takes
      what is missing, and items without an embedding, with no score, follow those that have one.
      They are paged as part of the whole, where ``InMemoryStore`` starts over on each page;
    - none: strings are compared with strings only, ``True`` is not 1, an item that is put again
      loses all of its old embeddings, an empty string is not embedded, and expired items are never
      shown (``omit_expired`` has no effect).

    A put replaces the whole item, its metadata too: items that are put here have none, so
    ``forget`` finds them by their namespace, not by a user.

    Args:
        store: Of this package. Its own ``embed`` is not asked.
        index: LangGraph's ``IndexConfig``: ``embed`` (``Embeddings``, a function, sync or async, or
            ``"provider:model"``), ``dims``, which is the store's dimension, and ``fields``.
        ttl: LangGraph's ``TTLConfig``, in minutes.

    Raises:
        InvalidArgumentError: The store does not keep embeddings of ``dims`` numbers.
        TypeError: ``store`` is not a store of this package.
    """

    supports_ttl = True

    def __init__(
        self, store: Store, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None
    ) -> None:
        super().__init__()
        if not hasattr(store, "nearest"):
            raise TypeError(f"store must be a store of locus_store, not {type(store).__name__}")
        self.store = store
        self.ttl_config = ttl
        self.index_config = index.copy() if index else None
        self.embeddings = ensure_embeddings(index.get("embed")) if index else None
        self._fields = [_split_path(it) for it in (index or {}).get("fields") or [ALL]]
        self._portals = Portals() if index else Portals.make_for(self, store)
        self._owns_portals = True
        self._sweeper: _Sweeper | None = None
        if index and store.dimension != _find_dimension(index):
            raise InvalidArgumentError(
                f"index= has dims={index['dims']}, and {type(store).__name__} keeps embeddings of "
                f"{store.dimension or 'no'} numbers: open it with dimension={index['dims']}"
            )

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        **options: Any,
    ) -> Self:
        """Return a store for a URL; see ``open_store`` for the options.

        The dimension is ``index["dims"]``. Use it as it is, in ``with`` or in ``async with``.
        """
        dimension = _find_dimension(index) if index else None
        return cls(opening.open_store(url, dimension=dimension, **options), index=index, ttl=ttl)

    def _enter(self, tenant: str) -> None:
        self.store = self.store.for_tenant(tenant)
        self._owns_portals = False
        self._sweeper = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"

    async def asetup(self) -> None:
        await self.store.setup()

    async def aclose(self) -> None:
        """Stop the sweeper and close the store; idempotent, and usable again afterwards."""
        await self.astop_ttl_sweeper()
        await self.store.close()

    def close(self) -> None:
        if self._sweeper is not None and not self._owns_portals:
            self._block("aclose")
        super().close()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute LangGraph's operations; return one result for each.

        Raises:
            InvalidArgumentError: An operation is not valid; nothing was done.
            SerializationError: JSON cannot keep a value exactly; nothing was done.
        """
        todo = [_check_operation(it) for it in ops]
        puts = [it for it in todo if isinstance(it, PutOp)]
        changes = await self._changes(puts) if puts else []
        results: list[Result] = []
        if len(puts) < len(todo):
            names = _list_names(todo)
            found = await self.store.read(names) if names else []
            results = await self._read(todo, dict(zip(names, found, strict=True)))
        if changes:
            await self.store.apply(changes)
        return results or [None] * len(todo)

    batch = make_sync_wrapper(abatch)

    # Thousands of these may wait at a time. They leave out ``abatch``, because Python's garbage
    # collector visits every list and coroutine of a call that waits, again and again.

    async def aget(
        self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """Return an item; ``None`` where there is none."""
        _validate_namespace_labels(namespace)
        name = _check_name(namespace, str(key))
        [found] = await self.store.read((name,))
        if found is None:
            return None
        if found.ttl_seconds is not None and _ensure_refresh(self.ttl_config, refresh_ttl):
            await self.store.renew([name])
        return Item(**_make_fields(found))

    async def aput(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Store an item; see LangGraph's ``BaseStore``."""
        _validate_namespace(namespace)
        minutes = _ensure_ttl(self.ttl_config, ttl)
        history = _as_tuple(namespace)
        changes: Sequence[Change]
        if self.embeddings is None:
            changes = (self._change(history, str(key), value, minutes),)
        else:
            changes = await self._changes([PutOp(history, str(key), value, index, minutes)])
        del value  # the changes have a copy
        await self.store.apply(changes)

    async def adelete(self, namespace: Namespace, key: str) -> None:
        """Remove an item."""
        _validate_namespace_labels(namespace)
        history, name = _check_name(namespace, str(key))
        await self.store.apply((Remove(namespace=history, key=name),))

    async def _read(
        self, ops: Sequence[Op], items: Mapping[Name, StoreItem | None]
    ) -> list[Result]:
        """Return the results of the reads; restart the times to live of the items returned."""
        searches = [it for it in ops if isinstance(it, SearchOp)]
        wanted = iter([_make_wanted(it) for it in searches])
        queries = await self._embed_queries(searches) if searches else {}
        results: list[Result] = []
        renewed: list[StoreItem] = []
        for op in ops:
            if isinstance(op, GetOp):
                found = items[op.namespace, op.key]
                results.append(None if found is None else Item(**_make_fields(found)))
                renewed += [found] if found and op.refresh_ttl else []
            elif isinstance(op, SearchOp):
                page = await self._find_items(next(wanted), queries.get(op.query or ""))
                results.append([SearchItem(**_make_fields(it), score=it.score) for it in page])
                renewed += page if op.refresh_ttl else []
            elif isinstance(op, ListNamespacesOp):
                results.append(await self._list_namespaces(op))
            else:
                results.append(None)
        if names := {(it.namespace, it.key): None for it in renewed if it.ttl_seconds is not None}:
            await self.store.renew([*names])
        return results

    async def _list_namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        paths = _merge_conditions(op.match_conditions or ())
        if paths is None:
            return []
        prefix, suffix = paths
        return await self.store.list_namespaces(
            prefix, suffix, op.max_depth, limit=op.limit, offset=op.offset
        )

    async def _find_items(self, query: Wanted, vector: bytes | None) -> list[StoreItem]:
        if not query.limit:
            return []
        if vector is None:
            return await self.store.recent(query)
        page = await self.store.nearest(query, vector, None)
        if len(page) == query.limit:
            return page
        up_to = replace(query, limit=query.offset + query.limit, offset=0)
        scored = await self.store.nearest(up_to, vector, None) if query.offset else page
        names = {(it.namespace, it.key) for it in scored}
        others = await self.store.recent(up_to)  # enough: at most len(scored) of them have scores
        rest = [it for it in others if (it.namespace, it.key) not in names]
        return [*scored, *rest][query.offset : up_to.limit]

    async def _embed_queries(self, ops: Sequence[SearchOp]) -> dict[str, bytes]:
        """Return the embeddings of the queries, by their text."""
        queries = list(dict.fromkeys(it.query for it in ops if it.query and it.limit))
        if self.embeddings is None or not queries:
            return {}
        made = await asyncio.gather(*map(self.embeddings.aembed_query, queries))
        return {text: self._pack(it) for text, it in zip(queries, made, strict=True)}

    async def _changes(self, ops: Sequence[PutOp]) -> list[Change]:
        """Return the items to write, checked and embedded; of two with the same name the later."""
        checked = [self._change(it.namespace, it.key, it.value, it.ttl) for it in ops]
        last = sorted({it.name: at for at, it in enumerate(checked)}.values())
        if self.embeddings is not None:
            texts = {at: self._list_texts(ops[at]) for at in last if ops[at].value is not None}
            made = await self._embed(dict.fromkeys(it for each in texts.values() for it in each))
            for at, each in texts.items():
                if isinstance(put := checked[at], Put):
                    checked[at] = replace(put, vectors=tuple(made[it] for it in each))
        return [checked[at] for at in last]

    def _change(
        self, namespace: Namespace, key: str, value: Mapping[str, Any] | None, ttl: float | None
    ) -> Put | Remove:
        if value is None:
            check_name(namespace, key)
            return Remove(namespace=namespace, key=key)
        check_mapping(f"the value of item {key!r}", value)
        ttl_seconds = None if ttl is None else ttl * SECONDS
        return self.store.checked(PutItem(namespace, key, dict(value), None, ttl_seconds))

    def _list_texts(self, op: PutOp) -> list[str]:
        """Return the strings of an item that are embedded, each once."""
        if op.index is False:
            return []
        paths = self._fields if op.index is None else [_split_path(it) for it in op.index]
        found = (text for path in paths for text in get_text_at_path(op.value, path))
        return list(dict.fromkeys(it for it in found if it.strip()))

    async def _embed(self, texts: Iterable[str]) -> dict[str, bytes]:
        wanted = list(texts)
        if self.embeddings is None or not wanted:
            return {}
        made = await self.embeddings.aembed_documents(wanted)
        if len(made) != len(wanted):
            raise InvalidArgumentError(
                f"embed gave {len(made)} embeddings for {len(wanted)} strings: give one for each"
            )
        return {text: self._pack(it) for text, it in zip(wanted, made, strict=True)}

    def _pack(self, embedding: object) -> bytes:
        assert self.store.dimension is not None  # noqa: S101  (checked before)
        return pack(embedding, self.store.dimension, self.store.metric)

    async def asweep_ttl(self) -> int:
        """Delete expired items, which no call returns any more; return how many."""
        return await self.store.expire()

    sweep_ttl = make_sync_wrapper(asweep_ttl)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep at intervals in a separate thread until it is stopped or the store is closed.

        Args:
            sweep_interval_minutes: Otherwise that of ``ttl``, otherwise 5.

        Returns:
            Done once the sweeper has stopped; cancel it to stop the sweeper. Without ``ttl`` there
            is nothing to do, and it is done at once.
        """
        if not self.ttl_config:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        if self._sweeper is None or not self._sweeper.is_alive():
            minutes = sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes")
            self._sweeper = _Sweeper(self.sweep_ttl, (minutes or DEFAULT_SWEEP_MINUTES) * SECONDS)
            self._sweeper.start()
        return self._sweeper.future

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper; return whether it stopped within the timeout."""
        return self._sweeper is None or self._sweeper.stop(timeout)

    async def astart_ttl_sweeper(
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Future[None]:
        return asyncio.wrap_future(self.start_ttl_sweeper(sweep_interval_minutes))

    async def astop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  (LangGraph's name for it)
        if (sweeper := self._sweeper) is None:
            return True
        return await run_in_thread(lambda: sweeper.stop(timeout))


class _Sweeper(threading.Thread):
    def __init__(self, sweep: Callable[[], int], seconds: float) -> None:
        super().__init__(name="locus-store-sweeper", daemon=True)
        self.future: Future[None] = Future()
        self._sweep, self._seconds = sweep, seconds
        self._stop_asked = threading.Event()
        self.future.add_done_callback(lambda _: self._stop_asked.set())

    def run(self) -> None:
        while not self._stop_asked.wait(self._seconds):
            try:
                self._sweep()
            except LocusStoreError:  # the next one may do better
                logger.exception("expired items of a store were not removed")
        with suppress(InvalidStateError):  # cancelled
            self.future.set_result(None)

    def stop(self, timeout: float | None) -> bool:
        self._stop_asked.set()
        self.join(timeout)
        return not self.is_alive()


def _find_dimension(index: IndexConfig) -> int:
    """Return the number of dimensions that the index must state for its embeddings."""
    if "dims" not in index:
        raise InvalidArgumentError("index= needs dims, the number of embed's dimensions")
    return index["dims"]


def _split_path(path: str) -> Path:
    return path if path == ALL else tokenize_path(path)


def _check_operation(op: Op) -> Op:
    """Return the operation with its namespace as a tuple; LangGraph also accepts a list."""
    if isinstance(op, _ITEM_OPS):
        return op._replace(namespace=_as_tuple(op.namespace))
    if isinstance(op, SearchOp):
        return op._replace(namespace_prefix=_as_tuple(op.namespace_prefix))
    if not isinstance(op, ListNamespacesOp):
        raise InvalidArgumentError(f"not an operation of a store: {op!r}")
    return op


def _as_tuple(namespace: object) -> Any:
    return tuple(namespace) if isinstance(namespace, list) else namespace


def _check_name(namespace: object, key: str) -> Name:
    name = _as_tuple(namespace), key
    check_name(*name)
    return name


def _list_names(ops: Iterable[Op]) -> list[Name]:
    """Return the names of the items that are read, each once."""
    names: dict[Name, None] = {}
    for op in ops:
        if isinstance(op, GetOp):
            check_name(op.namespace, op.key)
            names[op.namespace, op.key] = None
    return [*names]


def _make_wanted(op: SearchOp) -> Wanted:
    check_namespace(op.namespace_prefix)
    return Wanted(
        prefix=op.namespace_prefix,
        filter=Filter(op.filter),
        metadata_filter=Filter(),
        limit=check_limit(op.limit),
        offset=check_limit(op.offset, "offset"),
    )


def _merge_conditions(conditions: Iterable[MatchCondition]) -> tuple[Namespace, Namespace] | None:
    """Return the prefix and suffix that satisfy all conditions; ``None`` if nothing has both."""
    prefix: Namespace | None = ()
    suffix: Namespace | None = ()
    for kind, path in conditions:
        if kind == "prefix":
            prefix = _merge_prefixes(prefix, tuple(path))
        elif kind == "suffix":
            backwards = _merge_prefixes(suffix and suffix[::-1], tuple(path)[::-1])
            suffix = backwards and backwards[::-1]
        else:
            raise InvalidArgumentError(f"match_type must be prefix or suffix, not {kind!r}")
    return None if prefix is None or suffix is None else (prefix, suffix)


def _merge_prefixes(one: Namespace | None, other: Namespace) -> Namespace | None:
    """Return the prefix that satisfies both prefixes, if any; ``*`` is any segment."""
    if one is None or any("*" not in it and it[0] != it[1] for it in zip(one, other, strict=False)):
        return None
    longer = max(one, other, key=len)
    merged = (b if a == "*" else a for a, b in zip(one, other, strict=False))
    return (*merged, *longer[min(len(one), len(other)) :])


def _make_fields(item: StoreItem) -> dict[str, Any]:
    """Return the fields of LangGraph's items."""
    names = ("key", "namespace", "created_at", "updated_at")
    return {"value": restore(item.value), **select(item, names)}
