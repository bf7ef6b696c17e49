"""The saves that an event loop has begun, for the loads that follow them."""

from __future__ import annotations

import asyncio
from typing import Final, Self, TypeAlias

from locus_store.runtime.gathering import PerLoop
from locus_store.runtime.stepping import may_block

_Key: TypeAlias = tuple[str, str]

PATIENCE_SECONDS: Final = 5.0
"""A load waits so long for a save: that one may wait for a transaction of the load's caller."""

_saves: Final[PerLoop[dict[_Key, set[asyncio.Future[None]]]]] = PerLoop(dict)


class Saving:
    """A block that saves a thread.

    Args:
        storage: Names the storage.
        thread_id: The thread.
    """

    __slots__ = ("_all", "_ended", "_key")

    def __init__(self, storage: str, thread_id: str) -> None:
        self._key = storage, thread_id

    def __enter__(self) -> Self:
        if may_block():
            return self
        self._all = _saves.here()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._all.setdefault(self._key, set()).add(self._ended)
        return self

    def __exit__(self, *_: object) -> None:
        if may_block():
            return
        if not self._ended.done():  # else the loop has ended
            self._ended.set_result(None)
        of_thread = self._all[self._key]
        of_thread.discard(self._ended)
        if not of_thread:
            del self._all[self._key]


async def saved(storage: str, thread_id: str) -> None:
    """Wait for the saves of a thread that this event loop has begun.

    An asynchronous generator that was abandoned, such as an agent's run after its first event, is
    closed two steps of the loop later, and saves then. Sync calls have no such generators.
    """
    if may_block():
        return
    for _ in range(2):
        await asyncio.sleep(0)
    if under_way := _saves.here().get((storage, thread_id)):
        await asyncio.wait(under_way, timeout=PATIENCE_SECONDS)
