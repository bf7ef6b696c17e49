"""Redis 6.2 and later, and Valkey: a server or a cluster, with built-in data types only."""

from __future__ import annotations

from typing import Any, Unpack

from locus_store.backend import SharedByTenants
from locus_store.backends.documents.backend import DocumentBackend
from locus_store.backends.documents.message_log import DocumentMessageLog
from locus_store.backends.documents.threads import DocumentThreads
from locus_store.backends.redis import addresses
from locus_store.backends.redis.documents import RedisDocuments
from locus_store.backends.redis.options import (
    RedisCheckpointerOptions,
    RedisOptions,
    RedisSaverOptions,
)
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError
from locus_store.saver import CheckpointSaver
from locus_store.types import ArchivedThread, Tenant
from locus_store.types.arguments import choose_backend
from locus_store.types.facts import Fact
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options

DEFAULT_URL = "redis://localhost:6379"
DEFAULT_PREFIX = "locus:state:"
DEFAULT_ITEMS_PREFIX = "locus:store:"


class RedisBackend(DocumentBackend, SharedByTenants):
    """Keeps versions in Redis or Valkey, in plain data types.

    A save is one script, all or nothing, on a cluster too; a load is one round trip. A server that
    dies may lose acknowledged writes: see docs/redis.md for ``appendfsync`` and replicas.

    Args:
        url: ``redis://``, ``rediss://`` (TLS), ``unix://``; with ``+cluster``, any node of a
            cluster (``redis+cluster://``), or with ``+sentinel``, the sentinels of a service
            (``redis+sentinel://host1,host2/service/db``); also ``valkey://``. The query string
            may have options of redis-py.
        prefix: Prefix of all keys.
        options: See ``options.RedisOptions``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: redis-py is not installed.
    """

    factory = "redis_checkpointer"
    _documents: RedisDocuments

    def __init__(
        self, url: str = DEFAULT_URL, prefix: str = DEFAULT_PREFIX, **options: Unpack[RedisOptions]
    ) -> None:
        given = fill_defaults(RedisOptions, options, "RedisBackend")
        self.prefix = prefix
        self._owns_connections = True
        if given["client"] is not None:
            default: dict[str, object] = {"url": DEFAULT_URL, **fill_defaults(RedisOptions, {}, "")}
            own: dict[str, object] = {**given, "url": url}
            names = ("url", "db", "cluster", "timeout_seconds", "connect_timeout_seconds")
            if any(own[name] != default[name] for name in names):
                raise InvalidArgumentError(
                    "a client has its own url, db, cluster and timeouts; leave them out"
                )
        self.connections = addresses.connect(url, **given)
        documents = RedisDocuments(self.connections, prefix, given["tenant"])
        super().__init__(documents, max_state_bytes=given["max_state_bytes"])
        self._threads.tenant = given["tenant"]

    def __repr__(self) -> str:
        return f"RedisBackend({self.connections.where!r}, prefix={self._documents.names.prefix!r})"

    async def open(self) -> None:
        await self.list_threads(1)

    async def close(self) -> None:
        if self._owns_connections:
            await super().close()
            await self.connections.close()

    @property
    def tenant(self) -> str:
        return self._documents.names.tenant

    def _enter(self, tenant: str) -> None:
        self._documents = self._documents.for_tenant(tenant)
        self._threads = DocumentThreads(
            self._documents,
            max_state_bytes=self.max_state_bytes,
            tenant=tenant,
            cache=self._threads.cache,
        )
        self._owns_connections = False

    async def tenants(self) -> list[Tenant]:
        return await self._threads.look(self._documents.count_tenants, self.items_prefix)

    @property
    def items_prefix(self) -> str:
        """The prefix of a store over this backend."""
        return DEFAULT_ITEMS_PREFIX if self.prefix == DEFAULT_PREFIX else self.prefix

    async def write_thread(self, thread: ArchivedThread) -> bool:
        await self._threads.look(self._documents.accept_import, thread)
        return await super().write_thread(thread)

    async def expire(self) -> int:
        return await self._threads.look(self._documents.expire)

    async def facts(self) -> list[Fact]:
        client = await self.connections.get()
        return [*await super().facts(), *await addresses.collect_facts(client)]


class RedisMessageLog(DocumentMessageLog):
    """Keeps message logs in Redis or Valkey, with the threads of a prefix.

    Arguments and errors are those of ``RedisBackend`` and ``BaseMessageLog``, or ``backend`` alone:
    the one whose threads have the logs.
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
        defaults = DEFAULT_URL, DEFAULT_PREFIX
        made = choose_backend(backend, RedisBackend, url, prefix, defaults=defaults, **options)
        super().__init__(made, owns=backend is None, ttl_seconds=ttl_seconds)


class RedisCheckpointSaver(CheckpointSaver):
    """A ``CheckpointSaver`` over Redis or Valkey.

    Arguments and errors are those of ``RedisBackend`` and ``CheckpointSaver``.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        prefix: str = DEFAULT_PREFIX,
        **options: Unpack[RedisSaverOptions],
    ) -> None:
        own, rest = split_options(CheckpointOptions, options)
        super().__init__(RedisBackend(url, prefix, **rest), **own)


def redis_checkpointer(
    url: str = DEFAULT_URL,
    prefix: str = DEFAULT_PREFIX,
    ttl_seconds: float | None = None,
    db: int = 0,
    client: Any = None,
    *,
    state_type: type[S] | None = None,
    **options: Unpack[RedisCheckpointerOptions],
) -> StorageBackendAdapter[S, RedisBackend]:
    """Return a checkpointer over Redis or Valkey.

    Options are those of ``RedisBackend``, and ``state_type``, ``on_conflict``, ``keep_last`` and
    ``ttl_seconds`` of ``StorageBackendAdapter``.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: redis-py is not installed.
    """
    own, rest = split_options(CheckpointOptions, options)
    backend = RedisBackend(url, prefix, db=db, client=client, **rest)
    return StorageBackendAdapter(backend, state_type=state_type, ttl_seconds=ttl_seconds, **own)
