"""The blocking facade behind ``await`` again, each call from a thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio.to_thread

from locus_store import BaseCheckpointer

if TYPE_CHECKING:
    from locus_store import HeldTurn
    from locus_store.blocking import BlockingCheckpointer, BlockingStore


class Unblocked(BaseCheckpointer):
    """A blocking checkpointer."""

    def __init__(self, blocking: BlockingCheckpointer) -> None:
        self.blocking = blocking

    capabilities = property(lambda self: self.blocking.capabilities)
    deletes_single_checkpoints = True

    def for_tenant(self, tenant: str) -> Unblocked:
        return Unblocked(self.blocking.for_tenant(tenant))

    def turn(self, thread_id: str, **options: Any) -> Any:
        return UnblockedTurn(self.blocking.turn(thread_id, **options))


class UnblockedTurn:
    """A blocking turn."""

    def __init__(self, turn: HeldTurn) -> None:
        self._turn = turn

    number = property(lambda self: self._turn.number)

    async def begin(self) -> None:
        await anyio.to_thread.run_sync(self._turn.run, self._turn.begin)

    async def end(self) -> None:
        await anyio.to_thread.run_sync(self._turn.run, self._turn.end)

    async def __aenter__(self) -> Self:
        await self.begin()
        self._turn.enter()
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._turn.leave()
        await self.end()


def _in_a_thread(name: str) -> Any:
    async def call(self: Unblocked, *args: Any, **kwargs: Any) -> Any:
        method = partial(getattr(self.blocking, name), *args, **kwargs)
        return await anyio.to_thread.run_sync(method)

    return call


for _name in (
    "save", "load", "list_checkpoints", "delete", "exists", "open", "close", "search",
    "query_by_metadata", "get_metadata", "vacuum", "expire", "copy_thread", "list_threads",
    "list_with_metadata", "tenants", "effect", "effects", "resolve_effect", "busy", "turns",
    "release_turn",
):  # fmt: skip
    setattr(Unblocked, _name, _in_a_thread(_name))
Unblocked.__abstractmethods__ = frozenset()


class UnblockedStore:
    """A blocking store."""

    def __init__(self, store: BlockingStore) -> None:
        self._blocking = store
        self.dimension = store._async.dimension

    capabilities = property(lambda self: self._blocking.capabilities)

    def for_tenant(self, tenant: str) -> UnblockedStore:
        return UnblockedStore(self._blocking.for_tenant(tenant))

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await anyio.to_thread.run_sync(partial(method, *args, **kwargs))

        method = getattr(self._blocking, name)
        return call

    async def __aenter__(self) -> Self:
        await self.__getattr__("__enter__")()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()
