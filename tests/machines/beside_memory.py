"""A storage and memory, which answer the same calls."""

from __future__ import annotations

import asyncio
import re
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hostile import Calls

from locus_store import (
    InMemoryMessageLog,
    InMemoryStore,
    LocusStoreError,
    MemoryBackend,
    StorageBackendAdapter,
)
from locus_store.saver import CheckpointSaver

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from storages import Storage

GENERATED = re.compile(r"[0-9a-f]{24}")
HIDDEN = frozenset({
    "mark", "revision", "updated_at", "created_at", "changed_at", "expires_at", "score",
})  # fmt: skip
EXPIRY_SECONDS = 0.001
"""Time to live of the expiring log, and the pause between two calls."""


class Side:
    """The objects of one of both.

    Args:
        storage: Its objects; ``None``: memory.
    """

    def __init__(self, storage: Storage | None) -> None:
        if storage is None:
            backend = MemoryBackend()
            self.saver = CheckpointSaver(backend)
            self.store: Any = InMemoryStore(dimension=3)
            checkpointer: Any = partial(StorageBackendAdapter, backend)
            log: Any = partial(InMemoryMessageLog, backend=backend)
        else:
            self.saver = CheckpointSaver(storage.backend())
            self.store = storage.store()
            checkpointer, log = storage.checkpointer, storage.log
        keeping: list[dict[str, Any]] = [{}, {}, {"keep_last": 2}]
        self.checkpointers = [checkpointer(state_type=dict, **it) for it in keeping]
        self.log, self.expiring_log = log(), log(ttl_seconds=EXPIRY_SECONDS)
        self.states: list[Any] = []
        """Loaded and changed."""

    async def answer(self, call: Awaitable[Any]) -> Any:
        """Return the result of a call, or its error."""
        try:
            return await call
        except LocusStoreError as error:
            return error

    async def close(self) -> None:
        objects = [*self.checkpointers, self.saver, self.store, self.log, self.expiring_log]
        for it in objects:
            await it.close()


async def find_difference(storage: Storage, seed: int, count: int) -> str | None:
    """Return the first of some random calls that a storage does not answer as memory does."""
    calls, sides = Calls(seed), [Side(storage), Side(None)]
    try:
        for number in range(count):
            kind, call = calls.make_call()
            found = [show(await it.answer(call(it))) for it in sides]
            await asyncio.sleep(EXPIRY_SECONDS)
            if found[0] != found[1]:
                return f"seed {seed}, call {number}: {kind}\n{found[0]}\nin memory {found[1]}"
    finally:
        for it in sides:
            await it.close()
    return None


def show(answer: Any) -> Any:
    """Return what of an answer has to be equal; ``repr`` tells 1, 1.0 and True apart."""
    if isinstance(answer, LocusStoreError):
        ids = [getattr(answer, it, None) for it in ("head_id", "parent_id")]
        return [type(answer).__name__, *map(show, ids)]
    if is_dataclass(answer) and not isinstance(answer, type):
        return show({it.name: getattr(answer, it.name) for it in fields(answer)})
    if hasattr(answer, "_asdict"):
        return show(answer._asdict())
    if isinstance(answer, dict):
        return sorted((ascii(name), show(it)) for name, it in answer.items() if name not in HIDDEN)
    if isinstance(answer, list | tuple):
        return [*map(show, answer)]
    is_generated = isinstance(answer, str) and GENERATED.fullmatch(answer)
    return "generated" if is_generated else ascii(answer)
