"""The blocking form of every contract, for code without an event loop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, cast

from locus_store import open as opening
from locus_store.backends.memory import store as memory
from locus_store.checkpointer import BaseCheckpointer, Loads, S, loaded_here
from locus_store.errors import InvalidArgumentError
from locus_store.messages import BaseMessageLog
from locus_store.runtime.portals import Portals
from locus_store.store import BaseStore
from locus_store.types.tenants import ForTenants

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence

    from typing_extensions import Unpack

    from locus_store.backends.memory.options import InMemoryStoreOptions
    from locus_store.backends.options import CheckpointerOptions, StoreOptions
    from locus_store.messages import Heads, Logs, Messages
    from locus_store.store import Embed, Hits, Items, Keys, Lists, Namespaces, Versions
    from locus_store.types import CheckpointerCapabilities, Tenant
    from locus_store.types.items import Name, Namespace, PutItem, StoreCapabilities, StoreItem
    from locus_store.types.logs import New
    from locus_store.types.messages import LoggedMessage, LogInfo, LogSnapshot, Popped
    from locus_store.values.vectors import Metric

T = TypeVar("T")
Numbers: TypeAlias = "list[float]"  # in a store, `list` is a method
Wrapped = TypeVar("Wrapped", bound="BaseCheckpointer[Any] | BaseMessageLog | BaseStore")


class _Blocking(ForTenants, Generic[Wrapped]):
    """An object whose calls block; if they need an event loop, the first call makes it."""

    def __init__(self, wrapped: Wrapped) -> None:
        self._async: Wrapped = wrapped
        self._portals = Portals.of(self, wrapped)
        self._owns_portals = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._async!r})"

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._portals.run(type(self).__name__, call)

    def open(self) -> None:
        """Connect, and verify or create the schema; optional and idempotent."""
        self._run(self._async.open)

    def _enter(self, tenant: str) -> None:
        self._async = cast("Wrapped", self._async.for_tenant(tenant))
        self._owns_portals = False

    def close(self) -> None:
        """Close the wrapped object and end the loop's thread; usable again afterwards."""
        if self._portals.is_open and self._owns_portals:
            self._run(self._async.close)
            self._portals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _require_sync(options: Mapping[str, Any]) -> None:
    """Refuse a connection that belongs to an event loop other than this object's."""
    sqlalchemy = sys.modules.get("sqlalchemy.ext.asyncio")
    if sqlalchemy and isinstance(options.get("connection"), sqlalchemy.AsyncConnection):
        raise InvalidArgumentError(
            "connection= is an AsyncConnection, and this object blocks: pass a Connection of a "
            "sync engine, or use the asynchronous object"
        )


class BlockingCheckpointer(_Blocking[BaseCheckpointer[S]], Generic[S]):
    """A checkpointer whose methods block; usable from any number of threads.

    On SQLite, files and memory, the calling thread does the work. Elsewhere the object has an event
    loop and a thread, started by the first call and ended by ``close``. Every method is the one of
    the same name of the checkpointer, with the same arguments, results and errors. What the calling
    thread has loaded is remembered for its next save.

    Args:
        checkpointer: Any checkpointer; closed by ``close``.
    """

    def __init__(self, checkpointer: BaseCheckpointer[S]) -> None:
        super().__init__(checkpointer)

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """The capabilities that the checkpointer declares."""
        return self._async.capabilities

    @property
    def deletes_single_checkpoints(self) -> bool:
        """True if ``delete`` can remove one version and leave the rest."""
        return self._async.deletes_single_checkpoints

    def save(
        self,
        state: Any,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        **options: Any,
    ) -> str:
        _require_sync(options)
        return self._run(
            lambda: self._async.save(state, thread_id, checkpoint_id, metadata, **options)
        )

    def load(self, thread_id: str, checkpoint_id: str | None = None) -> S | None:
        return self._run(lambda: self._async.load(thread_id, checkpoint_id))

    def list_checkpoints(self, thread_id: str, limit: int = 10, **options: Any) -> list[str]:
        return self._run(lambda: self._async.list_checkpoints(thread_id, limit, **options))

    def delete(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        return self._run(lambda: self._async.delete(thread_id, checkpoint_id))

    def exists(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        return self._run(lambda: self._async.exists(thread_id, checkpoint_id))

    def tenants(self) -> list[Tenant]:
        return self._run(self._async.tenants)

    def search(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        return self._run(lambda: self._async.search(query, limit))

    def query_by_metadata(self, key: str, value: Any, limit: int = 100) -> list[dict[str, Any]]:
        return self._run(lambda: self._async.query_by_metadata(key, value, limit))

    def get_metadata(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> dict[str, Any] | None:
        return self._run(lambda: self._async.get_metadata(thread_id, checkpoint_id))

    def vacuum(self, older_than_days: float = 30) -> int:
        return self._run(lambda: self._async.vacuum(older_than_days))

    def renewals(self) -> None:
        """Wait until the times to live that reads renew are written; ``close`` does."""
        self._run(self._async.renewals)

    def expire(self) -> int:
        return self._run(self._async.expire)

    def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        return self._run(lambda: self._async.copy_thread(source_thread_id, dest_thread_id))

    def list_threads(self, limit: int = 100, pattern: str = "*", **options: Any) -> list[str]:
        return self._run(lambda: self._async.list_threads(limit, pattern, **options))

    def list_with_metadata(self, limit: int = 100) -> list[dict[str, Any]]:
        return self._run(lambda: self._async.list_with_metadata(limit))

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call on the loop, and return its record of loads to the caller's context."""

        async def carried() -> tuple[T, Loads]:
            loaded_here.set(mine)
            return await call(), loaded_here.get()

        mine = loaded_here.get()
        result, noted = super()._run(carried)
        loaded_here.set(noted)
        return result


class BlockingStore(_Blocking[BaseStore]):
    """A store whose methods block; usable from any number of threads.

    The threads are those of ``BlockingCheckpointer``. Every method is the one of the same name of
    the store, with the same arguments, results and errors.

    Args:
        store: Any store; closed by ``close``.
    """

    def __init__(self, store: BaseStore) -> None:
        super().__init__(store)

    @property
    def capabilities(self) -> StoreCapabilities:
        """The capabilities that the store declares."""
        return self._async.capabilities

    def setup(self) -> None:
        self._run(self._async.setup)

    def put(  # noqa: PLR0917  (its users' order)
        self,
        namespace: Namespace,
        key: str,
        value: Any,
        metadata: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
        expected_version: int | None = None,
        **options: Any,
    ) -> int:
        _require_sync(options)
        return self._run(
            lambda: self._async.put(
                namespace, key, value, metadata, ttl_seconds, expected_version, **options
            )
        )

    def put_with_embedding(  # noqa: PLR0917  (its users' order)
        self,
        namespace: Namespace,
        key: str,
        value: Any,
        embedding: Sequence[float],
        metadata: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
        expected_version: int | None = None,
        **options: Any,
    ) -> int:
        _require_sync(options)
        return self._run(
            lambda: self._async.put_with_embedding(
                namespace, key, value, embedding, metadata, ttl_seconds, expected_version, **options
            )
        )

    def get(self, namespace: Namespace, key: str) -> Any | None:
        return self._run(lambda: self._async.get(namespace, key))

    def get_item(self, namespace: Namespace, key: str) -> StoreItem | None:
        return self._run(lambda: self._async.get_item(namespace, key))

    def exists(self, namespace: Namespace, key: str) -> bool:
        return self._run(lambda: self._async.exists(namespace, key))

    def get_embedding(self, namespace: Namespace, key: str) -> Numbers | None:
        return self._run(lambda: self._async.get_embedding(namespace, key))

    def delete(self, namespace: Namespace, key: str, **options: Any) -> bool:
        _require_sync(options)
        return self._run(lambda: self._async.delete(namespace, key, **options))

    def touch(self, namespace: Namespace, key: str) -> None:
        self._run(lambda: self._async.touch(namespace, key))

    def put_batch(self, items: Sequence[PutItem | tuple[Any, ...]], **options: Any) -> Versions:
        _require_sync(options)
        return self._run(lambda: self._async.put_batch(items, **options))

    def get_batch(self, keys: Sequence[Name]) -> dict[Name, Any]:
        return self._run(lambda: self._async.get_batch(keys))

    def list(self, namespace: Namespace, limit: int = 100, after: str | None = None) -> Items:
        return self._run(lambda: self._async.list(namespace, limit, after))

    def list_keys(self, namespace: Namespace, limit: int = 100, after: str | None = None) -> Keys:
        return self._run(lambda: self._async.list_keys(namespace, limit, after))

    def search(  # noqa: PLR0917  (its users' order)
        self,
        namespace_prefix: Namespace,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  (the field's name for it)
        limit: int = 10,
        offset: int = 0,
        metadata_filter: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Items:
        return self._run(
            lambda: self._async.search(
                namespace_prefix, query, filter, limit, offset, metadata_filter, **options
            )
        )

    def search_many(
        self, namespaces: Sequence[Namespace], query: str | None = None, limit: int = 10
    ) -> Lists:
        return self._run(lambda: self._async.search_many(namespaces, query, limit))

    def search_by_embedding(
        self,
        namespace: Namespace,
        query: Sequence[float] | None = None,
        limit: int = 10,
        threshold: float | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  (the field's name for it)
        **options: Any,
    ) -> Hits:
        return self._run(
            lambda: self._async.search_by_embedding(
                namespace, query, limit, threshold, filter, **options
            )
        )

    def list_namespaces(
        self,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Namespaces:
        return self._run(
            lambda: self._async.list_namespaces(prefix, suffix, max_depth, limit, offset)
        )

    def clear_namespace(self, namespace: Namespace, *, recursive: bool = False) -> int:
        return self._run(lambda: self._async.clear_namespace(namespace, recursive=recursive))

    def expire(self) -> int:
        return self._run(self._async.expire)

    def __enter__(self) -> Self:
        self.setup()
        return self


class InMemoryStore(BlockingStore):
    """The blocking form of the store for tests and notebooks; see ``BaseStore`` for the options."""

    def __init__(self, **options: Unpack[InMemoryStoreOptions]) -> None:
        super().__init__(memory.InMemoryStore(**options))


class BlockingMessageLog(_Blocking[BaseMessageLog]):
    """A message log whose methods block; usable from any number of threads.

    The threads are those of ``BlockingCheckpointer``. Each method has the arguments, results and
    errors of the message log's.

    Args:
        log: Any message log; closed by ``close``.
    """

    def __init__(self, log: BaseMessageLog) -> None:
        super().__init__(log)

    def append(self, thread_id: str, messages: New, **options: Any) -> int:
        return self._run(lambda: self._async.append(thread_id, messages, **options))

    def replace(self, thread_id: str, start: int, messages: New, **options: Any) -> int:
        return self._run(lambda: self._async.replace(thread_id, start, messages, **options))

    def pop(self, thread_id: str, **options: Any) -> Popped:
        return self._run(lambda: self._async.pop(thread_id, **options))

    def remove(self, thread_id: str, message_ids: Sequence[str], **options: Any) -> int:
        return self._run(lambda: self._async.remove(thread_id, message_ids, **options))

    def clear(self, thread_id: str, **options: Any) -> int:
        return self._run(lambda: self._async.clear(thread_id, **options))

    def delete(self, thread_id: str, **options: Any) -> bool:
        return self._run(lambda: self._async.delete(thread_id, **options))

    def load(self, thread_id: str, **options: Any) -> Messages | None:
        return self._run(lambda: self._async.load(thread_id, **options))

    def contents(self, thread_id: str, **options: Any) -> list[Any]:
        return self._run(lambda: self._async.contents(thread_id, **options))

    def read(self, thread_id: str, **options: Any) -> LogSnapshot | None:
        return self._run(lambda: self._async.read(thread_id, **options))

    def page(self, thread_id: str, **options: Any) -> Messages:
        return self._run(lambda: self._async.page(thread_id, **options))

    def get(self, thread_id: str, message_id: str, **options: Any) -> LoggedMessage | None:
        return self._run(lambda: self._async.get(thread_id, message_id, **options))

    def info(self, thread_id: str, **options: Any) -> LogInfo | None:
        return self._run(lambda: self._async.info(thread_id, **options))

    def logs(self, thread_id: str | None = None, **options: Any) -> Logs:
        return self._run(lambda: self._async.logs(thread_id, **options))

    def heads(self, thread_id: str | None = None, **options: Any) -> Heads:
        return self._run(lambda: self._async.heads(thread_id, **options))


class Finished:
    """An awaitable that is already complete."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


def open_checkpointer(
    url: str, *, state_type: type[S] | None = None, **options: Unpack[CheckpointerOptions]
) -> BlockingCheckpointer[S]:
    """Return the blocking form of the checkpointer that ``url`` names; see ``locus_store.open``."""
    return BlockingCheckpointer(opening.open_checkpointer(url, state_type=state_type, **options))


def open_store(
    url: str,
    *,
    dimension: int | None = None,
    metric: Metric = "cosine",
    embed: Embed | None = None,
    **options: Unpack[StoreOptions],
) -> BlockingStore:
    """Return the blocking form of the store that ``url`` names; see ``locus_store.open``."""
    opened = opening.open_store(url, dimension=dimension, metric=metric, embed=embed, **options)
    return BlockingStore(opened)


def open_message_log(
    url: str, *, ttl_seconds: float | None = None, **options: Unpack[StoreOptions]
) -> BlockingMessageLog:
    """Return the blocking form of the message log that ``url`` names; see ``locus_store.open``."""
    return BlockingMessageLog(opening.open_message_log(url, ttl_seconds=ttl_seconds, **options))


def _document(facade: type, wrapped: type) -> None:
    """Copy the docstrings of the wrapped class's methods to the facade's."""
    for name in vars(facade).keys() & vars(wrapped).keys():
        if not name.startswith("_") and not getattr(facade, name).__doc__:
            getattr(facade, name).__doc__ = getattr(wrapped, name).__doc__


_document(BlockingCheckpointer, BaseCheckpointer)
_document(BlockingMessageLog, BaseMessageLog)
_document(BlockingStore, BaseStore)
