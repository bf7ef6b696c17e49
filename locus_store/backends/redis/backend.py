"""Redis 6.2 and later, and Valkey: a server or a cluster, with built-in data types only."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from locus_store import versions
from locus_store.backend import FullBackend
from locus_store.backends.redis import addresses
from locus_store.backends.redis.addresses import (
    CONNECT_TIMEOUT_SECONDS,
    POOL_SIZE,
    RETRY_SECONDS,
    TIMEOUT_SECONDS,
    WAIT_SECONDS,
)
from locus_store.backends.redis.keys import RedisKeys
from locus_store.backends.redis.removal import drop_seen
from locus_store.backends.redis.thread_lists import ThreadLists, name_in, time_in
from locus_store.backends.redis.threads import AT_ONCE, RedisThreads, all_read
from locus_store.backends.redis.version_lists import PAGE, RedisVersionLists, VersionReads
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import InvalidArgumentError, NotFoundError
from locus_store.runtime.observe import skips_too_large
from locus_store.runtime.progress import steps
from locus_store.saver import CheckpointSaver
from locus_store.types import (
    Active,
    ArchivedThread,
    Head,
    Hit,
    Mark,
    MustExist,
    OnConflict,
    PendingWrite,
    Removed,
    Save,
    Stored,
    Vacuumed,
    Version,
    Written,
)
from locus_store.types.arguments import (
    check_days,
    check_limit,
    check_names,
    check_scan,
    check_text,
    thread_pattern,
)
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.values.filters import check_key, has_value, is_found
from locus_store.values.text import query_words
from locus_store.versions.erasing import Sweep, Swept

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from typing_extensions import Unpack

    from locus_store.backends.redis.connections import LoopClient
    from locus_store.backends.redis.options import RedisOptions
    from locus_store.types.facts import Fact
    from locus_store.versions.threads import Edit, Thread

T = TypeVar("T")

DEFAULT_URL = "redis://localhost:6379"
DEFAULT_PREFIX = "locus:state:"


class RedisBackend(RedisVersionLists, FullBackend):
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
    persistent_checkpoint_ids = True

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
        super().__init__(max_state_bytes=max_state_bytes)
        self.prefix, keys = prefix, RedisKeys(prefix)
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
        self._where = self.connections.where
        self._threads = RedisThreads(self.connections, keys, self.max_state_bytes)
        self._lists = ThreadLists(keys)
        self._reads = VersionReads(keys)

    def __repr__(self) -> str:
        return f"RedisBackend({self._where!r}, prefix={self._threads.keys.prefix!r})"

    async def open(self) -> None:
        """See ``StorageBackend``, also for the following methods."""
        await self.list_threads(1)

    async def close(self) -> None:
        await self.connections.close()

    async def _home(self) -> LoopClient:
        """Return the connections, for calls that begin with a read.

        A write takes its place in the order of its thread at once, and checks the layout then.
        """
        await self._threads.require_layout(await self.connections.home())
        return await self.connections.home()  # the other one may be closed by now

    # --- versions

    async def commit(self, save: Save) -> Written:
        home = await self.connections.home()
        return await home.in_order(save.thread_id, lambda: self._threads.save(home, save))

    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        return await self._threads.fetch(
            await self._home(), thread_id, namespace, checkpoint_id, None, with_writes=with_writes
        )

    async def fetch_head(
        self, thread_id: str, *, namespace: str = "", known: Mark, with_writes: bool = False
    ) -> Stored | None:
        return await self._threads.fetch(
            await self._home(), thread_id, namespace, None, known, with_writes=with_writes
        )

    async def history(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        limit: int = 10,
        before: str | None = None,
    ) -> list[Version]:
        check_names(thread_id, namespace, before)
        check_limit(limit)
        found = await self._threads.history(await self._home(), thread_id, namespace, limit, before)
        if found is None:
            raise NotFoundError(
                f"thread {thread_id!r} has no checkpoint {before!r} to list below; begin again "
                "without a cursor"
            )
        return found

    async def version(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: str = ""
    ) -> Version | None:
        check_names(thread_id, namespace, checkpoint_id)
        if checkpoint_id is not None:
            return await super().version(thread_id, checkpoint_id, namespace=namespace)
        home = await self._home()
        ((*found,),) = await self._reads.heads(home, [(thread_id, namespace)])
        if not found:
            await self._threads.refuse_foreign(home, thread_id)
        return found[0] if found else None

    async def remove(
        self,
        thread_id: str,
        checkpoint_ids: Sequence[str] | None = None,
        *,
        namespace: str = "",
        writer: str | None = None,
    ) -> int:
        if checkpoint_ids is None:
            return (await self.remove_thread(thread_id)).versions
        names = list(checkpoint_ids)
        check_names(thread_id, namespace, *names)
        home = await self.connections.home()

        def remove(edit: Edit) -> int:
            line = edit.find(thread_id, namespace)
            return versions.remove_named(edit, line, names, writer) if line else 0

        take = partial(self._take, home, thread_id, namespace, remove)
        return await home.in_order(thread_id, take)

    async def has_thread(self, thread_id: str) -> bool:
        check_text("thread_id", thread_id)
        return await self._threads.exists(await self._home(), thread_id)

    async def remove_thread(
        self, thread_id: str, *, head: Mark | None = None, namespace: str = ""
    ) -> Removed:
        check_names(thread_id, namespace)
        home = await self.connections.home()
        if head is None:
            return await home.in_order(thread_id, lambda: self._threads.drop(home, thread_id))
        drop = partial(drop_seen, self._threads, home, thread_id, head, namespace)
        return await home.in_order(thread_id, drop)

    async def _take(
        self, home: LoopClient, thread_id: str, namespace: str, body: Callable[[Edit], int]
    ) -> int:
        """Remove something from a namespace; return 0 if the thread does not exist."""
        found: int = await self._threads.edit(home, thread_id, namespace, body, creates=False)
        return found

    # --- lists

    async def recent(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[Active]:
        check_limit(limit)
        matches = thread_pattern(pattern).match
        home = await self._home()
        entry: bytes | None = b""
        if after is not None:
            check_text("after", after)
            entry = await self._lists.entry(home, after)
        if entry is None:
            raise NotFoundError(f"there is no thread {after!r} to list after")
        size = limit if pattern == "*" else max(limit, PAGE)
        found: list[Active] = []
        while len(found) < limit and (page := await self._lists.listed(home, size, entry)):
            found += [Active(name, time_in(it)) for it in page if matches(name := name_in(it))]
            entry = page[-1]
        return found[:limit]

    async def heads(self, limit: int = 100) -> list[Head]:
        check_limit(limit)
        home = await self._home()
        found: list[Head] = []
        entry = b""
        while len(found) < limit and (
            page := await self._lists.listed(home, limit - len(found), entry)
        ):
            names = [(name_in(it), "") for it in page]
            found += [it.as_head() for one in await self._reads.heads(home, names) for it in one]
            entry = page[-1]
        return found

    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        check_key(key)
        check_limit(limit)
        found = [it async for it in self._visible() if _has(it, key, value)]
        found.sort(key=lambda it: (it.created_at, it.mark.line, it.mark.sequence), reverse=True)
        return [it.as_head() for it in found[:limit]]

    async def _visible(self) -> AsyncIterator[Version]:
        """Yield all visible versions of all listed threads."""
        home = await self._home()
        async for page in self._lists.every_listed(home, PAGE):
            for rows in await self._reads.histories(home, [(it, "") for it in page]):
                for it in rows:
                    yield it

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        check_limit(limit)
        wanted = query_words(query)
        home = await self._home()
        hits: list[Hit] = []

        def look(thread: Thread) -> Hit | None:
            return self._hit(thread.thread_id, thread, wanted)

        async for page in self._lists.every_listed(home, AT_ONCE):
            seen = await self._threads.looked_at(home, page, look)
            hits += filter(None, seen)
        return sorted(hits, key=lambda it: (it.score, it.updated_at), reverse=True)[:limit]

    @skips_too_large
    def _hit(self, thread_id: str, thread: Thread, wanted: list[str]) -> Hit | None:
        space = thread.space("")
        return thread.hit(space, wanted, self.max_state_bytes) if space else None

    async def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        check_key(key)
        return [
            (thread.thread_id, space.namespace, row.record.checkpoint_id)
            async for thread, _ in self._all()
            for space in thread.spaces.values()
            for row in space.rows.values()
            if has_value(row.record.metadata, key, value)
        ]

    async def _all(self) -> AsyncIterator[tuple[Thread, dict[str, str]]]:
        """Yield all live threads without payloads, and the revision of each namespace."""
        home = await self._home()
        async for name in self._names():
            found = await self._threads.archive(home, name, is_whole=False)
            if found is not None:
                yield found

    async def _names(self) -> AsyncIterator[str]:
        """Yield the ids of all live threads."""
        home = await self._home()
        after: str | None = None
        while page := await self._lists.scanned(home, PAGE, after):
            for name in page:
                yield name
            after = page[-1]

    # --- whole threads

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        check_text("source_thread_id", source_thread_id)
        check_text("dest_thread_id", dest_thread_id)
        home = await self._home()
        found = await self._threads.archive(home, source_thread_id, is_whole=True)
        if found is None or not found[0].exists:
            await self._threads.refuse_foreign(home, source_thread_id)
            return False
        with all_read(source_thread_id):
            copy = replace(found[0].archived(), thread_id=dest_thread_id)
        await home.in_order(dest_thread_id, lambda: self._threads.restore(home, copy, is_copy=True))
        return True

    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        check_scan(limit, after)
        return await self._lists.scanned(await self._home(), limit, after)

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        check_text("thread_id", thread_id)
        found = await self._threads.archive(await self._home(), thread_id, is_whole=True)
        with all_read(thread_id):
            return found[0].archived() if found else None

    async def restore(self, thread: ArchivedThread) -> None:
        home = await self.connections.home()
        await home.in_order(thread.thread_id, lambda: self._threads.restore(home, thread))

    async def store_writes(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        writes: list[PendingWrite],
        *,
        known: Mark | None,
        seen: Collection[tuple[str, int]] | None,
        must_exist: MustExist | None = None,
        ttl_seconds: float | None = None,
    ) -> bool:
        home = await self.connections.home()
        return await home.in_order(
            thread_id,
            lambda: self._threads.put_writes(
                *(home, thread_id, namespace, checkpoint_id, writes),
                known=known,
                seen=seen,
                must_exist=must_exist,
                ttl_seconds=ttl_seconds,
            ),
        )

    async def writes_of(
        self, thread_id: str, checkpoint_ids: Sequence[str], *, namespace: str = ""
    ) -> dict[str, list[PendingWrite]]:
        check_names(thread_id, namespace, *checkpoint_ids)
        home = await self._home()
        return await self._threads.writes_of(home, thread_id, namespace, checkpoint_ids)

    async def namespaces(self, thread_id: str) -> list[str]:
        check_text("thread_id", thread_id)
        home = await self._home()
        found = await self._reads.heads(home, await self._reads.names(home, [thread_id]))
        return [it.namespace for some in found for it in some]

    async def records(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        check_names(thread_id, namespace)
        found = await self._threads.records(await self._home(), thread_id, namespace, last)
        return versions.made_of(found, first, last)

    async def prune(self, thread_id: str) -> int:
        check_text("thread_id", thread_id)
        home = await self._home()
        removed = 0

        def prune(namespace: str, edit: Edit) -> int:
            line = edit.find(thread_id, namespace)
            return versions.prune(edit, line) if line else 0

        for name in await self.namespaces(thread_id):
            removed += await self._take(home, thread_id, name, partial(prune, name))
        return removed

    # --- housekeeping

    async def facts(self) -> list[Fact]:
        return [*await super().facts(), *await addresses.facts(await self.connections.home())]

    async def vacuum_report(self, older_than_days: float = 30) -> Vacuumed:
        limit = datetime.now(UTC) - timedelta(days=check_days(older_than_days))
        home = await self._home()
        sweep = Sweep()
        for name in steps([it async for it in self._names()]):
            with sweep.of(name):
                await self._vacuum(home, name, limit, sweep)
        return sweep.report()

    async def _vacuum(self, home: LoopClient, name: str, limit: datetime, sweep: Sweep) -> None:
        found = await self._threads.archive(home, name, is_whole=False)
        if found is None:
            return
        thread, revisions = found
        is_dated = thread.versions() > 0 or bool(thread.logs)
        if not is_dated or thread.newest_at < limit:  # else pending writes make no difference
            whole = await self._threads.archive(home, name, is_whole=True)
            if whole is None:
                return
            thread, revisions = whole
            if thread.is_older_than(limit):
                removed = await self._threads.drop(home, name, revisions)
                is_whole = removed.existed or not thread.exists
                messages = len(thread.messages) if is_whole else 0
                sweep.count(name, Swept(removed.versions, messages, is_whole=is_whole))
                return
        for namespace, space in thread.spaces.items():
            if any(row.created_at < limit for row in space.rows.values()):
                body = partial(_vacuum, name, namespace, limit)
                with sweep.of(name):
                    sweep.count(name, Swept(await self._take(home, name, namespace, body)))

    async def renew(self, thread_id: str, ttl_seconds: float) -> bool:
        check_text("thread_id", thread_id)
        return await self._threads.renew(await self.connections.home(), thread_id, ttl_seconds)

    async def expire(self) -> int:
        return await self._lists.sweep(await self._home())


def _vacuum(thread_id: str, namespace: str, limit: datetime, edit: Edit) -> int:
    """Remove older versions from a namespace; return how many."""
    line = edit.find(thread_id, namespace)
    if line is None or edit.thread is None:
        return 0
    there = edit.thread.spaces[namespace].rows.items()
    return versions.vacuum(edit, line, [n for n, it in there if it.created_at < limit])


def _has(version: Version, key: str, value: Any) -> bool:
    return is_found(version.metadata, version.labels, key, value)


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
