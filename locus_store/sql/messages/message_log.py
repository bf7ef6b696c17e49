"""The message log that all SQL databases share, on the connections of a backend."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from locus_store.messages import BaseMessageLog
from locus_store.runtime.loops import off_loop
from locus_store.runtime.stepping import needs_no_loop
from locus_store.sql.messages import log_changes, log_reads
from locus_store.types.contents import contents_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

    from locus_store.sql.connections.backend import ConnectedBackend
    from locus_store.sql.threads.reads import Reads
    from locus_store.sql.threads.repository import Repository
    from locus_store.types.contents import PackedContents
    from locus_store.types.log_lists import LogsWanted
    from locus_store.types.messages import (
        LogChange,
        LogChanged,
        LogInfo,
        LogRead,
        LogWanted,
    )

T = TypeVar("T")


class SqlMessageLog(BaseMessageLog):
    """Runs the statements of ``log_changes``; a subclass creates the backend.

    Args:
        backend: The backend whose connections are used.
        owns: ``close`` closes the backend as well.
        options: See ``BaseMessageLog``.
    """

    def __init__(self, backend: ConnectedBackend, *, owns: bool, **options: Any) -> None:
        super().__init__(max_state_bytes=backend.max_state_bytes, **options)
        self.backend = backend
        self.moves_between_threads = backend.moves_between_threads
        self.needs_no_loop = needs_no_loop(backend)
        self._owns = owns
        self._shared = backend.shared

    def _enter(self, tenant: str) -> None:
        self.backend = self.backend.for_tenant(tenant)
        self._shared = self.backend.shared
        self._owns = False

    # --- running

    async def _write(self, body: Callable[[Repository], T]) -> T:
        database = self._shared.database

        def run(connection: Connection) -> T:
            repository = database.on(connection)
            result = body(repository)
            repository.finish()
            return result

        with self._shared.translating():
            return await self._shared.runner.write(run)

    async def _query(self, body: Callable[[Reads], T]) -> T:
        """Run a body of one statement."""
        database = self._shared.database
        with self._shared.translating():
            return await self._shared.runner.query(lambda it: body(database.on(it)))

    # --- the contract

    async def open(self) -> None:
        """See ``BaseMessageLog``, also for the following methods."""
        await self.backend.open()

    async def change(self, change: LogChange) -> LogChanged:
        return await self._write(lambda it: log_changes.change(it, change))

    async def look(self, wanted: LogWanted) -> LogRead | None:
        if wanted.needle is None:
            return await self._query(lambda it: log_reads.look(it, wanted))
        database = self._shared.database
        with self._shared.translating():
            return await self._shared.runner.read(
                lambda it: log_reads.search(database.on(it), wanted)
            )

    async def look_at_contents(self, wanted: LogWanted) -> list[Any]:
        log = wanted.thread_id, wanted.namespace

        def read(it: Reads) -> PackedContents:
            return log_reads.look_at_contents(it, wanted)

        def opened(packed: PackedContents) -> list[Any]:
            return contents_of(log, packed, self.max_state_bytes)

        if self._shared.runner.runs_in_threads:
            return await self._query(lambda it: opened(read(it)))
        found = await self._query(read)
        return await off_loop(partial(opened, found), found.size)

    async def find_logs(self, wanted: LogsWanted) -> list[LogInfo]:
        return await self._query(lambda it: log_reads.find_logs(it, wanted))

    async def find_heads(self, wanted: LogsWanted) -> list[LogRead]:
        return await self._query(lambda it: log_reads.find_heads(it, wanted))

    async def drop(
        self, thread_id: str, namespace: str | None, expected_revision: int | None
    ) -> bool:
        return await self._write(
            lambda it: log_changes.drop(it, thread_id, namespace, expected_revision)
        )

    async def close(self) -> None:
        if self._owns:
            await self.backend.close()
