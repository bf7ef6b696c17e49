"""Redis 6.2 and later, and Valkey: a server or a cluster, with built-in data types only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.packed import PackedForm
from locus_store.backends.redis import addresses
from locus_store.backends.redis.addresses import (
    CONNECT_TIMEOUT_SECONDS,
    POOL_SIZE,
    RETRY_SECONDS,
    TIMEOUT_SECONDS,
    WAIT_SECONDS,
)
from locus_store.backends.redis.documents import RedisDocuments
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError
from locus_store.saver import CheckpointSaver
from locus_store.types.arguments import check_backend
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from locus_store.backends.redis.options import RedisOptions
    from locus_store.types import ArchivedThread, OnConflict
    from locus_store.types.facts import Fact

DEFAULT_URL = "redis://localhost:6379"
DEFAULT_PREFIX = "locus:state:"


class RedisBackend(DocumentBackend):
    """Keeps versions in Redis or Valkey, in plain data types.

    A save is one script, all or nothing, on a cluster too; a load is one round trip. A server that
    dies may lose acknowledged writes: see docs/redis.md for ``appendfsync`` and replicas.

    Args:
        url: ``redis://``, ``rediss://`` (TLS), ``unix://``; with ``+cluster``, any node of a
            cluster (``redis+cluster://``); also ``valkey://``. The query string may have
            options of redis-py.
        prefix: Prefix of all keys.
        db: The number of the database; also ``/2`` in the URL.
        client: A ``redis.asyncio.Redis`` or ``RedisCluster`` used instead of ``url`` and left open,
            in the process that made it and the event loop that it is first used in. It must
            read from masters and retry nothing by itself: ``retry=Retry(NoBackoff(), 0)``. A client
            that retries, as a ``RedisCluster`` does by default, repeats a store's puts.
        cluster: ``url`` is a node of a cluster.
        wait_replicas: How many replicas must have a write before it is acknowledged (``WAIT``).
        wait_timeout_seconds: How long to wait for them. After that the call raises
            ``BackendError``, although the write is done.
        pool_size: Most calls at once, and most connections to a server, per event loop.
        retry_seconds: How long a call is retried while a server is lost, loads its data, or a
            cluster makes a replica a master.
        timeout_seconds: Time limit of each answer.
        connect_timeout_seconds: Time limit of each connection.
        max_state_bytes: The largest state that is saved or read, as compact JSON.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: redis-py is not installed.
    """

    factory = "redis_checkpointer"
    _documents: RedisDocuments

    def __init__(
        self,
        url: str = DEFAULT_URL,
        prefix: str = DEFAULT_PREFIX,
        *,
        db: int = 0,
        client: Any = None,
        cluster: bool = False,
        wait_replicas: int = 0,
        wait_timeout_seconds: float = WAIT_SECONDS,
        pool_size: int = POOL_SIZE,
        retry_seconds: float = RETRY_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        self.prefix = prefix
        options = addresses.Options(
            wait_replicas=wait_replicas,
            wait_timeout_seconds=wait_timeout_seconds,
            pool_size=pool_size,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
        )
        if client is not None:
            theirs = (url, db, cluster, timeout_seconds, connect_timeout_seconds)
            if theirs != (DEFAULT_URL, 0, False, TIMEOUT_SECONDS, CONNECT_TIMEOUT_SECONDS):
                raise InvalidArgumentError(
                    "a client has its own url, db, cluster and timeouts; leave them out"
                )
            self.connections = addresses.handed_in(client, options)
        else:
            self.connections = addresses.named(url, db, options, is_cluster=cluster)
        documents = RedisDocuments(self.connections, prefix)
        form = PackedForm(documents)
        super().__init__(documents, form=form, max_state_bytes=max_state_bytes)

    def __repr__(self) -> str:
        return f"RedisBackend({self.connections.where!r}, prefix={self._documents.names.prefix!r})"

    async def open(self) -> None:
        """See ``StorageBackend``, also for the following methods."""
        await self.list_threads(1)

    async def close(self) -> None:
        await super().close()
        await self.connections.close()

    async def restore(self, thread: ArchivedThread) -> None:
        await self._documents.accept_import(thread)
        await super().restore(thread)

    async def expire(self) -> int:
        return await self._look(self._documents.expire)

    async def facts(self) -> list[Fact]:
        return [*await super().facts(), *await addresses.facts(await self.connections.home())]


class RedisMessageLog(DocumentMessageLog):
    """Keeps message logs in Redis or Valkey, with the threads of a prefix.

    Args:
        url: See ``RedisBackend``, as ``prefix`` and ``options``.
        prefix: Prefix of all keys.
        ttl_seconds: See ``BaseMessageLog``.
        backend: The backend whose threads have the logs, instead of a URL and options.
        options: Of ``RedisBackend``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: redis-py is not installed.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        prefix: str = DEFAULT_PREFIX,
        *,
        ttl_seconds: float | None = None,
        backend: RedisBackend | None = None,
        **options: Unpack[RedisOptions],
    ) -> None:
        if backend is not None:
            is_alone = (url, prefix, options) == (DEFAULT_URL, DEFAULT_PREFIX, {})
            check_backend(backend, RedisBackend, is_alone=is_alone)
        made = backend or RedisBackend(url, prefix, **options)
        super().__init__(made, owns=backend is None, ttl_seconds=ttl_seconds)


class RedisCheckpointSaver(CheckpointSaver):
    """A ``CheckpointSaver`` over Redis or Valkey.

    Args:
        url: See ``RedisBackend``, as ``prefix`` and what else it takes.
        prefix: Prefix of all keys.
        on_conflict: See ``CheckpointSaver``, also for the following methods.
        keep_last: Versions to keep per thread and namespace.
        ttl_seconds: A thread's time to live after its last save.
        refresh_on_read: A load renews that time.
        options: Of ``RedisBackend``.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        prefix: str = DEFAULT_PREFIX,
        *,
        on_conflict: OnConflict = "raise",
        keep_last: int | None = None,
        ttl_seconds: float | None = None,
        refresh_on_read: bool = False,
        **options: Unpack[RedisOptions],
    ) -> None:
        super().__init__(
            RedisBackend(url, prefix, **options),
            on_conflict=on_conflict,
            keep_last=keep_last,
            ttl_seconds=ttl_seconds,
            refresh_on_read=refresh_on_read,
        )


def redis_checkpointer(
    url: str = DEFAULT_URL,
    prefix: str = DEFAULT_PREFIX,
    ttl_seconds: float | None = None,
    db: int = 0,
    client: Any = None,
    *,
    refresh_on_read: bool = False,
    cluster: bool = False,
    wait_replicas: int = 0,
    wait_timeout_seconds: float = WAIT_SECONDS,
    pool_size: int = POOL_SIZE,
    retry_seconds: float = RETRY_SECONDS,
    timeout_seconds: float = TIMEOUT_SECONDS,
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    max_state_bytes: int = MAX_STATE_BYTES,
    state_type: type[S] | None = None,
    on_conflict: OnConflict = "raise",
    keep_last: int | None = None,
) -> StorageBackendAdapter[S]:
    """Return a checkpointer over Redis or Valkey.

    Options are those of ``RedisBackend``, and ``state_type``, ``on_conflict``, ``keep_last`` and
    ``ttl_seconds`` of ``StorageBackendAdapter``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: redis-py is not installed.
    """
    return StorageBackendAdapter(
        RedisBackend(
            url,
            prefix,
            db=db,
            client=client,
            cluster=cluster,
            wait_replicas=wait_replicas,
            wait_timeout_seconds=wait_timeout_seconds,
            pool_size=pool_size,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
            max_state_bytes=max_state_bytes,
        ),
        state_type=state_type,
        on_conflict=on_conflict,
        keep_last=keep_last,
        ttl_seconds=ttl_seconds,
        refresh_on_read=refresh_on_read,
    )
