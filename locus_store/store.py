"""Long-term memory that outlives threads: values under a namespace and a key, with search.

A namespace is a tuple of strings, like a path: ``("memory", "u42")``. The methods under "what a
backend implements" differ per technology; everything else is the same for all.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from sys import float_info
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.runtime.stepping import run_together
from locus_store.types.arguments import (
    check_limit,
    check_list,
    check_mapping,
    check_max_state_bytes,
    check_number,
    check_text,
)
from locus_store.types.items import (
    NO_METADATA,
    Change,
    Name,
    Namespace,
    NamespaceMatch,
    Put,
    PutItem,
    Remove,
    SemanticSearchResult,
    StoreCapabilities,
    StoreItem,
    Wanted,
    as_given,
    check_name,
    check_namespace,
)
from locus_store.types.tenants import Closing, ForTenants
from locus_store.values import vectors
from locus_store.values.canonical import canonicalize_object, encode_canonical_json
from locus_store.values.encoding import MAX_INT, MAX_STATE_BYTES, require_size
from locus_store.values.filters import Filter
from locus_store.values.frames import collect_text
from locus_store.values.surrogates import restore
from locus_store.values.text import query_words
from locus_store.values.vectors import Metric

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection


__all__ = ["BaseStore", "InMemoryStore"]  # noqa: F822  (see __getattr__)

Embed: TypeAlias = Callable[[list[str]], Any]
"""Returns an embedding for each string; asynchronous or not."""

Items: TypeAlias = "list[StoreItem]"  # in the class, `list` is a method
Hits: TypeAlias = "list[SemanticSearchResult]"
Keys: TypeAlias = "list[str]"
Lists: TypeAlias = "list[list[StoreItem]]"
Namespaces: TypeAlias = "list[Namespace]"
Versions: TypeAlias = "list[int]"

MAX_SECONDS = 10**11
SWEEP = 1000
"""Expired items that are removed at a time."""


class BaseStore(ForTenants, Closing, ABC):
    """Stores values under a namespace and a key, for all threads.

    Args:
        dimension: Dimensions of the embeddings, fixed once set; ``None``: no embeddings.
        metric: How embeddings are compared: ``cosine``, ``l2`` (Euclidean) or ``ip`` (inner
            product).
        embed: Computes the embeddings of several strings; if it is not a coroutine function, in a
            thread. With it, ``put`` embeds a value's strings, and ``search`` ranks by meaning.
        max_state_bytes: The largest item, value and metadata as compact JSON.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: There is a dimension, and NumPy is not installed.
    """

    def __init__(
        self,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        if dimension is not None:
            vectors.check_dimension(dimension)
            vectors.require_numpy()
        elif embed is not None:
            raise InvalidArgumentError("embed= needs dimension=, the number of its dimensions")
        vectors.check_metric(metric)
        self.dimension = self.stored_dimension = dimension  # the latter is known once it is open
        self.metric = metric
        self.embed = embed
        self.max_state_bytes = check_max_state_bytes(max_state_bytes)

    @property
    def capabilities(self) -> StoreCapabilities:
        """The capabilities of this store."""
        return StoreCapabilities(
            semantic_search=self.dimension is not None, embedding_dimension=self.dimension
        )

    # --- what a backend implements

    @abstractmethod
    async def setup(self) -> None:
        """Open the storage now instead of in the first call, so that errors show here."""

    async def open(self) -> None:
        """Open the storage, as ``setup`` does; checkpointers have the same method."""
        await self.setup()

    @abstractmethod
    def apply(self, changes: Sequence[Change]) -> Awaitable[Versions]:
        """Write all changes, each of another item, or none, in one transaction.

        Returns:
            The version of each item that was put; for a removal whether there was one, as 1 or 0.

        Raises:
            ConflictError: An item has not the version that was expected.
        """

    @abstractmethod
    def read(self, names: Sequence[Name]) -> Awaitable[list[StoreItem | None]]:
        """Return the live items of these names, in their order."""

    @abstractmethod
    async def page(self, namespace: Namespace, limit: int, after: str | None) -> Items:
        """Return live items of one namespace with keys greater than ``after``, by key.

        Fewer than ``limit`` are all.
        """

    @abstractmethod
    async def recent(self, wanted: Wanted) -> Items:
        """Return the live items that match, the last updated first."""

    @abstractmethod
    async def nearest(self, wanted: Wanted, vector: bytes, threshold: float | None) -> Items:
        """Return the live items that match and have an embedding, with scores.

        The nearest first, then by namespace and key; the score is that of an item's best embedding.
        """

    @abstractmethod
    async def vectors_of(self, namespace: Namespace, key: str) -> list[bytes]:
        """Return the embeddings of a live item."""

    @abstractmethod
    async def namespaces(self, match: NamespaceMatch, limit: int, offset: int) -> Namespaces:
        """Return the distinct namespaces of live items that match, in order."""

    @abstractmethod
    async def clear(self, namespace: Namespace, *, recursive: bool) -> int:
        """Remove a namespace's items, or those below it too; return how many were live."""

    @abstractmethod
    async def renew(self, names: Sequence[Name]) -> None:
        """Restart the time to live of live items."""

    @abstractmethod
    async def sweep(self, limit: int) -> int:
        """Remove at most ``limit`` expired items; return how many."""

    async def apply_on(self, changes: Sequence[Change], connection: object) -> Versions:
        """Write changes as ``apply`` does, inside a caller's transaction, which stays open.

        Under a savepoint: an error leaves the caller's transaction usable, without the changes.

        Raises:
            InvalidArgumentError: ``connection`` is not SQLAlchemy's, or leads elsewhere.
            UnsupportedError: This store does not keep its items in a SQL database.
        """
        raise UnsupportedError(
            f"{type(self).__name__} has no SQL transaction to write in: connection= needs SQLite, "
            "PostgreSQL or Oracle; nothing was written"
        )

    @abstractmethod
    async def close(self) -> None:
        """Release what was opened; idempotent, and the store may be used again afterwards."""

    async def put(  # noqa: PLR0917  (its users' order)
        self,
        namespace: Namespace,
        key: str,
        value: Any,
        metadata: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
        expected_version: int | None = None,
        *,
        connection: AsyncConnection | Connection | None = None,
    ) -> int:
        """Store a value in place of any existing one; return the item's version.

        Args:
            namespace: Namespace of the item; ``()`` is the root.
            key: 1 to 255 characters.
            value: Any JSON value.
            metadata: A JSON object; it replaces the existing one.
            ttl_seconds: Its time to live; ``None``: for good.
            expected_version: Put only if this is the stored version; 0: only if there is no item.
            connection: Put inside the transaction of this SQLAlchemy connection, which the caller
                commits or rolls back. SQL databases only.

        Raises:
            ConflictError: It is not; nothing was written.
            SerializationError: JSON cannot keep the value exactly.
            InvalidArgumentError: A name or option is not valid.
        """
        item = PutItem(namespace, key, value, metadata, ttl_seconds, expected_version)
        [version] = await self._put_all([item], connection)
        return version

    async def put_with_embedding(  # noqa: PLR0917  (its users' order)
        self,
        namespace: Namespace,
        key: str,
        value: Any,
        embedding: Sequence[float],
        metadata: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
        expected_version: int | None = None,
        *,
        connection: AsyncConnection | Connection | None = None,
    ) -> int:
        """Store a value with its embedding; otherwise as ``put``.

        Args:
            namespace: See ``put``, as the rest.
            key: Key of the item.
            value: Any JSON value.
            embedding: As many finite numbers as the store's dimension; kept as float32.
            metadata: A JSON object.
            ttl_seconds: Its time to live.
            expected_version: The version that must be there.
            connection: The connection of the transaction to write in.

        Raises:
            UnsupportedError: The store has no embeddings.
            InvalidArgumentError: It is not such a list of numbers; nothing was written.
        """
        item = PutItem(namespace, key, value, metadata, ttl_seconds, expected_version, embedding)
        [version] = await self._put_all([item], connection)
        return version

    async def get(self, namespace: Namespace, key: str) -> Any | None:
        """Return the value; ``None`` if there is no such item."""
        return item.value if (item := await self.get_item(namespace, key)) else None

    async def get_item(self, namespace: Namespace, key: str) -> StoreItem | None:
        """Return the whole item; ``None`` if there is no such item."""
        check_name(namespace, key)
        [item] = await self.read([(namespace, key)])
        return item and as_given(item)

    async def exists(self, namespace: Namespace, key: str) -> bool:
        """Return whether the item exists."""
        return await self.get_item(namespace, key) is not None

    async def get_embedding(self, namespace: Namespace, key: str) -> list[float] | None:
        """Return an item's (first) embedding; ``None`` if it has none."""
        check_name(namespace, key)
        self._require_vectors()
        found = await self.vectors_of(namespace, key)
        return vectors.unpack(found[0]) if found else None

    async def delete(
        self,
        namespace: Namespace,
        key: str,
        *,
        connection: AsyncConnection | Connection | None = None,
    ) -> bool:
        """Remove an item and its embeddings; return whether it existed; see ``put``."""
        check_name(namespace, key)
        return await self._apply([Remove(namespace=namespace, key=key)], connection) == [1]

    async def touch(self, namespace: Namespace, key: str) -> None:
        """Restart an item's time to live, if it has one."""
        check_name(namespace, key)
        await self.renew([(namespace, key)])

    async def put_batch(
        self,
        items: Sequence[PutItem | tuple[Any, ...]],
        *,
        connection: AsyncConnection | Connection | None = None,
    ) -> Versions:
        """Store several items, all or none; the last of several with the same name wins.

        ``connection``: see ``put``.

        Returns:
            The version of each.

        Raises:
            ConflictError: One has not the version that was expected; nothing was written.
            InvalidArgumentError: An item is not valid; nothing was written.
        """
        found, fields = check_list("items", items), PutItem._fields
        for item in found:
            if not isinstance(item, tuple) or not 3 <= len(item) <= len(fields):  # noqa: PLR2004
                raise InvalidArgumentError(f"an item of put_batch is a tuple ({', '.join(fields)})")
        return await self._put_all([PutItem(*it) for it in found], connection)

    async def get_batch(self, keys: Sequence[Name]) -> dict[Name, Any]:
        """Return the values of existing items, by namespace and key."""
        names = check_list("keys", keys)
        for name in names:
            if not isinstance(name, tuple) or len(name) != len(("namespace", "key")):
                raise InvalidArgumentError("a key of get_batch is a tuple (namespace, key)")
            check_name(*name)
        found = await self.read(list(dict.fromkeys(names))) if names else []
        return {(it.namespace, it.key): restore(it.value) for it in found if it is not None}

    async def list(self, namespace: Namespace, limit: int = 100, after: str | None = None) -> Items:
        """Return the items of a namespace, not of those below it, by key.

        Args:
            namespace: Namespace of the items.
            limit: At most this many.
            after: The last key of the page before.
        """
        check_namespace(namespace)
        check_limit(limit)
        check_text("after", after, optional=True)
        return [*map(as_given, await self.page(namespace, limit, after))] if limit else []

    async def list_keys(
        self, namespace: Namespace, limit: int = 100, after: str | None = None
    ) -> Keys:
        """Return the keys of a namespace; see ``list``."""
        return [it.key for it in await self.list(namespace, limit, after)]

    async def search(  # noqa: PLR0917  (its users' order)
        self,
        namespace_prefix: Namespace,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  (the field's name for it)
        limit: int = 10,
        offset: int = 0,
        metadata_filter: Mapping[str, Any] | None = None,
        *,
        recursive: bool = True,
    ) -> Items:
        """Return items of a namespace and of all namespaces below it.

        Args:
            namespace_prefix: ``("a",)`` finds what is in ``("a",)`` and ``("a", "b")``.
            query: With ``embed``, items with an embedding are ranked by their meaning's nearness;
                else those that have all its words in their text, the last updated first. ``None``:
                the last updated first.
            filter: Conditions on the values; see ``locus_store.values.filters.Filter``.
            limit: At most this many.
            offset: So many are left out first.
            metadata_filter: Conditions on the metadata.
            recursive: ``False``: of the very namespace only.

        Raises:
            InvalidArgumentError: A filter or number is not valid, or the query has no word.
        """
        embeds = query is not None and self.embed is not None
        wanted = _make_query(
            namespace_prefix,
            filter,
            metadata_filter,
            limit=limit,
            offset=offset,
            recursive=recursive,
            words=() if query is None or embeds else tuple(query_words(query)),
        )
        if not limit:
            return []
        if query is None or not embeds:
            return [*map(as_given, await self.recent(wanted))]
        if not isinstance(query, str) or not query.strip():
            raise InvalidArgumentError(f"query must be a str, not {query!r}")
        [vector] = await self._compute_embeddings([query])
        return [*map(as_given, await self.nearest(wanted, vector, None))]

    async def search_many(
        self, namespaces: Sequence[Namespace], query: str | None = None, limit: int = 10
    ) -> Lists:
        """Search several namespaces at once; return one list for each."""
        each = check_list("namespaces", namespaces)
        return await run_together(self.search(it, query=query, limit=limit) for it in each)

    async def search_by_embedding(
        self,
        namespace: Namespace,
        query: Sequence[float] | None = None,
        limit: int = 10,
        threshold: float | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  (the field's name for it)
        *,
        query_embedding: Sequence[float] | None = None,
        metadata_filter: Mapping[str, Any] | None = None,
        recursive: bool = True,
    ) -> Hits:
        """Return the items whose embeddings are nearest, in a namespace and below it.

        Args:
            namespace: A prefix, as in ``search``.
            query: An embedding.
            limit: At most this many.
            threshold: Only those with at least this score.
            filter: Conditions on the values.
            query_embedding: Another name for ``query``.
            metadata_filter: Conditions on the metadata.
            recursive: ``False``: of the very namespace only.

        Raises:
            UnsupportedError: The store has no embeddings.
            InvalidArgumentError: It is not an embedding of the store's dimension.
        """
        if (query is None) == (query_embedding is None):
            raise InvalidArgumentError("give query or query_embedding: an embedding")
        self._require_vectors()
        vector = self._pack_embedding(query if query is not None else query_embedding)
        check_number("threshold", threshold, minimum=-float_info.max, optional=True)
        wanted = _make_query(namespace, filter, metadata_filter, limit=limit, recursive=recursive)
        found = await self.nearest(wanted, vector, threshold) if limit else []
        return [SemanticSearchResult(item=as_given(it), score=it.score or 0.0) for it in found]

    async def list_namespaces(
        self,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Namespaces:
        """Return the namespaces that have items, in order.

        Args:
            prefix: Segments they begin with; ``*`` stands for any one.
            suffix: Segments they end with.
            max_depth: Cut namespaces to this many segments.
            limit: At most this many.
            offset: So many are left out first.
        """
        for given in (prefix, suffix):
            check_namespace(() if given is None else given)
        check_limit(max_depth, "max_depth", minimum=1, optional=True)
        check_limit(limit)
        check_limit(offset, "offset")
        match = NamespaceMatch(prefix=prefix or (), suffix=suffix or (), max_depth=max_depth)
        return await self.namespaces(match, limit, offset) if limit else []

    async def clear_namespace(self, namespace: Namespace, *, recursive: bool = False) -> int:
        """Remove all items of a namespace; return how many.

        Args:
            namespace: The namespace whose items are removed.
            recursive: Those of all namespaces below it, too.
        """
        check_namespace(namespace)
        return await self.clear(namespace, recursive=recursive)

    async def expire(self) -> int:
        """Delete expired items, which no call returns any more; return how many."""
        removed = 0
        while gone := await self.sweep(SWEEP):
            removed += gone
        return removed

    async def __aenter__(self) -> Self:
        await self.setup()
        return self

    async def _put_all(self, items: Sequence[PutItem], connection: object = None) -> Versions:
        checked = await self._with_embeddings(items, [self.checked(it) for it in items])
        last = {it.name: it for it in checked}
        if not last:
            return []
        versions = dict(zip(last, await self._apply([*last.values()], connection), strict=True))
        return [versions[it.name] for it in checked]

    async def _apply(self, changes: Sequence[Change], connection: object) -> Versions:
        if connection is None:
            return await self.apply(changes)
        return await self.apply_on(changes, connection)

    def checked(self, item: PutItem) -> Put:
        """Return a validated item for ``apply``.

        Raises:
            InvalidArgumentError: It is not valid.
            SerializationError: JSON cannot keep it exactly.
        """
        check_name(item.namespace, item.key)
        expected = item.expected_version
        check_limit(expected, "expected_version", maximum=MAX_INT, optional=True)
        check_number("ttl_seconds", item.ttl_seconds, maximum=MAX_SECONDS, optional=True)
        packed: tuple[bytes, ...] = ()
        if item.embedding is not None:
            self._require_vectors()
            packed = (self._pack_embedding(item.embedding),)
        metadata = NO_METADATA
        if item.metadata is not None:
            metadata = canonicalize_object(check_mapping("metadata", item.metadata), "metadata")
        put = Put(
            namespace=item.namespace,
            key=item.key,
            json=encode_canonical_json(item.value, "value"),
            metadata=metadata,
            ttl_seconds=item.ttl_seconds,
            expected_version=expected,
            vectors=packed,
        )
        require_size(put.json_bytes, self.max_state_bytes)
        return put

    async def _with_embeddings(
        self, items: Sequence[PutItem], puts: Sequence[Put]
    ) -> Sequence[Put]:
        """Return the items, with embeddings of their strings if the store computes them."""
        if self.embed is None:
            return puts
        texts = {
            at: text
            for at, (item, put) in enumerate(zip(items, puts, strict=True))
            if item.embedding is None and (text := collect_text(put.value)).strip()
        }
        if not texts:
            return puts
        made = dict(zip(texts, await self._compute_embeddings(list(texts.values())), strict=True))
        return [
            replace(put, vectors=(made[at],)) if at in made else put for at, put in enumerate(puts)
        ]

    async def _compute_embeddings(self, texts: Sequence[str]) -> Sequence[bytes]:
        """Return the embeddings of strings; refuse what else ``embed`` gives."""
        found = await call_embedder(self.embed, [*texts])
        if not isinstance(found, Sequence) and not hasattr(found, "__len__"):
            raise InvalidArgumentError(f"embed= must give a list of embeddings, not {found!r}")
        if len(found) != len(texts):
            raise InvalidArgumentError(
                f"embed= gave {len(found)} embeddings for {len(texts)} strings: give one for each"
            )
        return [self._pack_embedding(it) for it in found]

    def _pack_embedding(self, embedding: object) -> bytes:
        assert self.dimension is not None  # noqa: S101  (checked before)
        return vectors.pack(embedding, self.dimension, self.metric)

    def _require_vectors(self) -> None:
        """Refuse embeddings if the store has none."""
        if self.dimension is None:
            raise UnsupportedError(
                f"this {type(self).__name__} keeps no embeddings: open it with dimension="
            )


def _make_query(prefix: Namespace, values: Any, metadata: Any, **given: Any) -> Wanted:
    """Return the criteria of a search; ``given`` are fields of ``Wanted``."""
    check_namespace(prefix)
    wanted = Wanted(prefix=prefix, filter=Filter(values), metadata_filter=Filter(metadata), **given)
    check_limit(wanted.limit)
    check_limit(wanted.offset, "offset")
    return wanted


async def call_embedder(call: Any, *args: Any) -> Any:
    """Call a user's function; a synchronous one runs in a thread."""
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004  (its method, not whether it has one)
    ):
        return await call(*args)
    found = await asyncio.to_thread(call, *args)
    return await found if isinstance(found, Awaitable) else found


def __getattr__(name: str) -> Any:
    """Return ``InMemoryStore``, whose place this module is in the Locus SDK."""
    if name != "InMemoryStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("locus_store.store_backends").InMemoryStore
