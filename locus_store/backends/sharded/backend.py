"""A backend and a message log over several databases, each of which has some threads whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from locus_store.backend import StorageBackend
from locus_store.backends.sharded.lists import ShardedLists
from locus_store.backends.sharded.shard_set import Shard, ShardSet
from locus_store.errors import ConflictError, InvalidArgumentError, UnsupportedError
from locus_store.messages import BackendMessageLog, BaseMessageLog
from locus_store.runtime.loops import LoopResources, ResourcesPerLoop
from locus_store.runtime.stepping import may_block, needs_no_loop
from locus_store.sql.sharding import SqlShard
from locus_store.types import Mark, Removed, Save, Written
from locus_store.types.arguments import check_text
from locus_store.types.logs import LogsWanted
from locus_store.types.messages import LogChange, LogChanged, LogInfo, LogRead, LogWanted
from locus_store.versions.sharding import HIDDEN_TENANT, HasShards

T = TypeVar("T")


def _route(name: str, *, writes: bool) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a method that asks the shard of the thread that its first argument is or names."""

    async def method(self: ShardedBackend, *args: Any, **kwargs: Any) -> Any:
        first: Any = args[0] if args else kwargs.get("thread_id", next(iter(kwargs.values()), None))
        thread_id: Any = getattr(first, "thread_id", first)
        ask = self.change_at if writes else self.read_at
        return await ask(thread_id, lambda it: getattr(it, name)(*args, **kwargs))

    method.__name__, method.__qualname__ = name, f"ShardedBackend.{name}"
    method.__doc__ = f"Ask the shard of the thread; see ``{name}`` of the contract."
    return method


_READS = (
    *("fetch", "fetch_head", "history", "version", "has_thread", "writes_of", "read_thread"),
    *("list_writes", "namespaces", "records", "facts_of"),
)
_WRITES = (
    *("remove", "store_writes", "restore", "prune", "renew", "put_facts", "clear_versions"),
    *("step_turn", "end_turn", "rewrite_thread"),
)

_Routed: Any = type(
    "Routed",
    (),
    {
        "__doc__": "The methods that one shard answers.",
        **{name: _route(name, writes=False) for name in _READS},
        **{name: _route(name, writes=True) for name in _WRITES},
    },
)
"""Type checkers see the methods of the contract."""


class _Turns(LoopResources):
    """The writes of an event loop that wait for the place of their thread."""

    async def _release(self) -> None:
        """Do nothing: no resource is open."""

    def is_free(self, name: str) -> bool:
        """Return whether no write of the thread waits."""
        return name not in self._last


class ShardedBackend(_Routed, ShardedLists, HasShards):  # type: ignore[misc]
    """Keeps each thread in one of several databases; lists and searches ask all of them.

    The databases know their set: a list in another order, an incomplete one, or one that names a
    database twice is refused when it is opened. All are of one tenant and one ``max_state_bytes``.

    Args:
        shards: Backends over SQLite, PostgreSQL or Oracle, in the order of the set. It may name
            empty databases behind the shards: they are added by ``rebalance``.

    Raises:
        InvalidArgumentError: The list is empty, or the options of the backends differ.
        UnsupportedError: One of them cannot be a shard.
    """

    factory = "open_sharded"
    persistent_checkpoint_ids = True
    messages = True

    def __init__(self, shards: Sequence[StorageBackend]) -> None:
        self.shards = [cast("Shard", it) for it in shards]
        if not self.shards:
            raise InvalidArgumentError("the list of shards is empty; name a database at least")
        first = self.shards[0]
        for shard in self.shards:
            if not isinstance(shard, SqlShard):
                raise UnsupportedError(
                    f"{type(shard).__name__} cannot be a shard: shards are databases of SQLite,"
                    " PostgreSQL or Oracle"
                )
            if shard.reads_replicas:
                raise InvalidArgumentError(
                    "a shard has replicas=, whose answers may be older than the move of a thread;"
                    " leave it out"
                )
            if (shard.tenant, shard.max_state_bytes) != (first.tenant, first.max_state_bytes):
                raise InvalidArgumentError(
                    "the shards have different tenants or max_state_bytes; give those options to"
                    " the set, and not in the URLs"
                )
            shard.join_set()
        _check_tenant(first.tenant)
        super().__init__(max_state_bytes=first.max_state_bytes)
        self.shard_set = ShardSet(self.shards)
        self.moves_between_threads = all(it.moves_between_threads for it in shards)
        self.needs_no_loop = needs_no_loop(*shards)
        self._turns = ResourcesPerLoop(_Turns, None)
        self._owns_shards = True

    def __repr__(self) -> str:
        return f"ShardedBackend({self.shards!r})"

    @property
    def tenant(self) -> str | None:
        return self.shards[0].tenant

    def _enter(self, tenant: str) -> None:
        self.shards = [it.for_tenant(tenant) for it in self.shards]
        _check_tenant(tenant)
        self._owns_shards = False

    async def open(self) -> None:
        await self.shard_set.open()

    async def close(self) -> None:
        if not self._owns_shards:
            return
        if not may_block():
            await self._turns.close()
        for shard in self.shards:
            await shard.close()

    async def read_at(self, thread_id: str, ask: Callable[[Shard], Awaitable[T]]) -> T:
        check_text("thread_id", thread_id)
        return await self.shard_set.read(self.shards, thread_id, ask)

    async def change_at(
        self, thread_id: str, ask: Callable[[Shard], Awaitable[T]], *also: str
    ) -> T:
        """Have the shard where a thread belongs change it, in the order of the calls.

        A change that has to wait for the place of its thread continues if the caller is cancelled.

        Args:
            thread_id: The thread.
            ask: Changes the thread; called again if a database refused it as the layout changed.
            also: Further threads, which are where they belong meanwhile.
        """
        check_text("thread_id", thread_id)
        turn = f"{self.tenant}\0{thread_id}"
        change = partial(self.shard_set.change, self.shards, (thread_id, *also), ask)
        if may_block():
            return await change()
        turns = await self._turns.get()
        if turns.is_free(turn) and self.shard_set.find_settled(self.tenant, thread_id) is not None:
            return await change()
        return await turns.run_in_order(turn, change)

    async def commit(self, save: Save) -> Written:
        async def commit(shard: Shard) -> Written:
            expected, key = save.expected, (save.thread_id, save.namespace)
            made_from = (expected.made_from, expected.head) if expected else ()

            async def commit_from(side: Mark | None, *marks: Mark | None) -> Written:
                if (side, *marks) == (save.side_parent, *made_from):
                    return await shard.commit(save)
                made = expected and replace(expected, made_from=marks[0], head=marks[1])
                return await shard.commit(replace(save, expected=made, side_parent=side))

            return await self._give_marks(shard, key, commit_from, save.side_parent, *made_from)

        return await self.change_at(save.thread_id, commit)

    async def remove_thread(
        self, thread_id: str, *, head: Mark | None = None, namespace: str = ""
    ) -> Removed:
        async def remove(shard: Shard) -> Removed:
            async def remove_at(mark: Mark | None) -> Removed:
                return await shard.remove_thread(thread_id, head=mark, namespace=namespace)

            return await self._give_marks(shard, (thread_id, namespace), remove_at, head)

        return await self.change_at(thread_id, remove)

    async def _give_marks(
        self,
        shard: Shard,
        key: tuple[str, str],
        ask: Callable[..., Awaitable[T]],
        *marks: Mark | None,
    ) -> T:
        """Call with marks as the shard has them, of a thread and namespace that may have moved.

        A move keeps sequences and digests. Without a version there, a mark matches none.
        """
        of = self.shard_set
        if all(it is None or it.store == shard.store_id for it in marks):
            try:
                return await ask(*marks)
            except ConflictError:  # the thread may have left this shard and come back
                if not of.has_changed:
                    raise
        line = await self.find_line(shard, *key)

        def translate(mark: Mark | None) -> Mark | None:
            is_known = mark is not None and mark.store in of.stores
            return replace(mark, store=shard.store_id, line=line) if mark and is_known else mark

        return await ask(*map(translate, marks))

    async def find_line(self, shard: Shard, thread_id: str, namespace: str) -> int:
        """Return the line of a thread in a shard; 0 if it has no version there."""
        found = await shard.version(thread_id, namespace=namespace)
        return found.mark.line if found else 0

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        """See ``StoresThreads``; to another shard, the copy becomes visible at its end."""
        check_text("source_thread_id", source_thread_id)
        of = self.shard_set
        # After the writes to the source that wait for its place.
        await self.change_at(source_thread_id, self.identify)

        async def copy(dest: Shard) -> bool:
            source = self.shards[of.get_place(self.tenant, source_thread_id)]
            if source is dest:
                return await source.copy_thread(source_thread_id, dest_thread_id)
            if not await source.has_thread(source_thread_id):
                return False
            thread = await source.read_thread(source_thread_id)
            copy_it: Any = dest.copy_thread  # of a SQL database: it takes another one's thread
            return bool(thread and await copy_it(source_thread_id, dest_thread_id, thread=thread))

        return await self.change_at(dest_thread_id, copy, source_thread_id)

    async def identify(self, shard: Shard) -> int:
        """Return the number of a shard."""
        return self.shard_set.stores[shard.store_id]


def _check_tenant(tenant: str | None) -> None:
    """Refuse the name of a tenant that hides copies."""
    if tenant is not None and tenant.startswith(HIDDEN_TENANT):
        raise InvalidArgumentError(
            f"tenant {tenant!r}: names that begin with {HIDDEN_TENANT!r} are of threads that change"
            " their shard"
        )


class ShardedMessageLog(BackendMessageLog):
    """Keeps the logs of a thread in the thread's shard.

    A change of the logs of several threads is one transaction, so it is refused if they are in
    different shards.

    Args:
        backend: See ``BackendMessageLog``, as ``owns``.
        logs: The message log of each shard.
        owns: ``close`` closes the backend as well.
    """

    backend: ShardedBackend
    changes_several_threads = False

    def __init__(
        self, backend: ShardedBackend, logs: Sequence[BaseMessageLog], *, owns: bool = False
    ) -> None:
        super().__init__(backend, owns=owns, ttl_seconds=logs[0].ttl_seconds)
        self.needs_no_loop = needs_no_loop(backend, *logs)
        self._logs = logs

    def __repr__(self) -> str:
        return f"ShardedMessageLog({self.backend!r})"

    def _enter(self, tenant: str) -> None:
        self.backend, self.owns = self.backend.for_tenant(tenant), False
        self._logs = [it.for_tenant(tenant) for it in self._logs]

    def _wrap(self, ask: Callable[[BaseMessageLog], Awaitable[T]]) -> Callable[[Shard], Any]:
        """Return a question to a shard's log as one to the shard."""
        return lambda it: ask(self._logs[self.backend.shard_set.stores[it.store_id]])

    async def change(self, change: LogChange) -> LogChanged:
        of = self.backend
        others = sorted({it.thread_id for it in change.also} - {change.thread_id})
        for other in others:  # after the writes to it that wait for its place
            await of.change_at(other, of.identify)

        async def apply(shard: Shard) -> LogChanged:
            for other in others:
                if of.shard_set.get_place(of.tenant, other) != await of.identify(shard):
                    raise UnsupportedError(
                        f"threads {change.thread_id!r} and {other!r} are in different shards, and"
                        " their logs cannot be changed in one transaction; nothing was written"
                    )
            changed: LogChanged = await self._wrap(lambda it: it.change(change))(shard)
            return changed

        return await of.change_at(change.thread_id, apply, *others)

    async def look(self, wanted: LogWanted) -> LogRead | None:
        return await self.backend.read_at(wanted.thread_id, self._wrap(lambda it: it.look(wanted)))

    async def look_at_contents(self, request: LogWanted) -> list[Any]:
        ask = self._wrap(lambda it: it.look_at_contents(request))
        return await self.backend.read_at(request.thread_id, ask)

    async def find_logs(self, wanted: LogsWanted) -> list[LogInfo]:
        found = await self._gather(wanted, lambda it: it.find_logs(wanted))
        return _sort(found, lambda it: (it.thread_id, it.namespace), wanted.limit)

    async def find_heads(self, wanted: LogsWanted) -> list[LogRead]:
        found = await self._gather(wanted, lambda it: it.find_heads(wanted))
        return _sort(found, lambda it: (it.info.thread_id, it.info.namespace), wanted.limit)

    async def drop(
        self, thread_id: str, namespace: str | None, expected_revision: int | None
    ) -> bool:
        ask = self._wrap(lambda it: it.drop(thread_id, namespace, expected_revision))
        return await self.backend.change_at(thread_id, ask)

    async def _gather(
        self, criteria: LogsWanted, ask: Callable[[BaseMessageLog], Awaitable[list[T]]]
    ) -> list[T]:
        if criteria.thread_id is not None:
            return await self.backend.read_at(criteria.thread_id, self._wrap(ask))
        found = await self.backend.shard_set.gather(self.backend.shards, self._wrap(ask))
        return [it for some in found for it in some]


def _sort(logs: list[T], name: Callable[[T], tuple[str, str]], limit: int) -> list[T]:
    each = {name(it): it for it in logs}
    return [each[it] for it in sorted(each)][:limit]
