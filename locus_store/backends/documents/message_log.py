"""The message log of any storage of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.messages import BaseMessageLog
from locus_store.runtime.stepping import needs_no_loop

if TYPE_CHECKING:
    from locus_store.backends.documents.backend import DocumentBackend
    from locus_store.types.logs import LogsWanted
    from locus_store.types.messages import LogChange, LogChanged, LogInfo, LogRead, LogWanted


class DocumentMessageLog(BaseMessageLog):
    """Keeps message logs in the documents of a backend.

    Args:
        backend: The backend whose threads have the logs.
        owns: ``close`` closes the backend as well.
        ttl_seconds: See ``BaseMessageLog``.
    """

    def __init__(
        self, backend: DocumentBackend, *, owns: bool, ttl_seconds: float | None = None
    ) -> None:
        super().__init__(ttl_seconds=ttl_seconds, max_state_bytes=backend.max_state_bytes)
        self.backend = backend
        self.moves_between_threads = backend.moves_between_threads
        self.needs_no_loop = needs_no_loop(backend)
        self._owns = owns

    def __repr__(self) -> str:
        return repr(self.backend).replace("Backend", "MessageLog", 1)

    async def open(self) -> None:
        """See ``BaseMessageLog``, also for the following methods."""
        await self.backend.open()

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
        if self._owns:
            await self.backend.close()
