"""An in-memory message log for tests and notebooks, beside the checkpoints or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.backends.memory.backend import MemoryBackend
from locus_store.errors import InvalidArgumentError
from locus_store.messages import BaseMessageLog
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from locus_store.types.logs import LogsWanted
    from locus_store.types.messages import (
        LogChange,
        LogChanged,
        LogInfo,
        LogRead,
        LogWanted,
    )


class InMemoryMessageLog(BaseMessageLog):
    """Keeps message logs in this process; usable from any number of threads and event loops.

    Args:
        ttl_seconds: See ``BaseMessageLog``.
        max_state_bytes: See ``BaseMessageLog``; excludes ``backend``.
        backend: The backend whose threads have the logs, for example ``checkpointer.backend``;
            ``None``: a backend of its own.

    Raises:
        InvalidArgumentError: An option is not valid.
    """

    needs_no_loop = moves_between_threads = True

    def __init__(
        self,
        *,
        ttl_seconds: float | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        backend: MemoryBackend | None = None,
    ) -> None:
        if backend is not None and not isinstance(backend, MemoryBackend):
            raise InvalidArgumentError(f"backend must be a MemoryBackend, not {backend!r}")
        if backend is not None and max_state_bytes != MAX_STATE_BYTES:
            raise InvalidArgumentError("max_state_bytes is the backend's: give one of the two")
        self.backend = backend or MemoryBackend(max_state_bytes=max_state_bytes)
        super().__init__(ttl_seconds=ttl_seconds, max_state_bytes=self.backend.max_state_bytes)

    def __repr__(self) -> str:
        return "InMemoryMessageLog()"

    async def open(self) -> None:
        """See ``BaseMessageLog``, also for the following methods."""

    async def change(self, change: LogChange) -> LogChanged:
        return await self.backend.change_log(change)

    async def look(self, wanted: LogWanted) -> LogRead | None:
        return await self.backend.look_at_log(wanted)

    async def find_logs(self, wanted: LogsWanted) -> list[LogInfo]:
        return await self.backend.find_logs(wanted)

    async def find_heads(self, wanted: LogsWanted) -> list[LogRead]:
        return await self.backend.find_heads(wanted)

    async def drop(
        self, thread_id: str, namespace: str | None, expected_revision: int | None
    ) -> bool:
        return await self.backend.drop_logs(thread_id, namespace, expected_revision)

    async def close(self) -> None:
        """Do nothing: no resource is open, and the logs stay."""
