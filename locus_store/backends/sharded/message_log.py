"""The message logs of a set of shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from locus_store.backends.sharded.backend import ShardedBackend
from locus_store.backends.sharded.shard_set import Shard
from locus_store.errors import UnsupportedError
from locus_store.messages import BackendMessageLog, BaseMessageLog
from locus_store.runtime.stepping import needs_no_loop
from locus_store.types.logs import LogsWanted
from locus_store.types.messages import LogChange, LogChanged, LogInfo, LogRead, LogWanted

T = TypeVar("T")


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
