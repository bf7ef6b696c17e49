"""The storage backend that all SQL databases share."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from locus_store.arguments import (
    check_days,
    check_limit,
    check_names,
    check_scan,
    check_text,
)
from locus_store.backends.base import StorageBackend
from locus_store.errors import LocusStoreError
from locus_store.filters import check_key
from locus_store.sql import archives
from locus_store.sql.facts import Examination
from locus_store.text import query_words
from locus_store.types import (
    ArchivedThread,
    CheckpointerCapabilities,
    Head,
    Hit,
    Mark,
    PendingWrite,
    Save,
    Stored,
    Version,
    Written,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Connection

    from locus_store.facts import Fact
    from locus_store.sql.database import Database
    from locus_store.sql.grouping import Runner
    from locus_store.sql.repository import Repository

T = TypeVar("T")

SECONDS_PER_DAY = 86_400

VACUUM_BATCH = 64
"""Threads that a vacuum works on between two chances for others to write."""


class Shared(NamedTuple):
    """What a store over the same connections works with."""

    database: Database
    runner: Runner
    translating: Callable[[], AbstractContextManager[None]]
    """Within it a driver's error becomes ours."""


class SqlBackend(StorageBackend):
    """Runs a repository's methods in transactions; a subclass names its database and runner.

    Args:
        database: What differs per dialect.
        runner: Where the transactions run.
    """

    capabilities = CheckpointerCapabilities(
        search=True,
        metadata_query=True,
        vacuum=True,
        branching=True,
        ttl=True,
        list_threads=True,
        list_with_metadata=True,
        persistent_checkpoint_ids=True,
    )

    examination: ClassVar[type[Examination]] = Examination
    """What ``facts`` looks at."""

    def __init__(self, database: Database, runner: Runner) -> None:
        super().__init__()
        self._database = database
        self._runner = runner

    @property
    def shared(self) -> Shared:
        """For a store."""
        return Shared(self._database, self._runner, self._translating)

    async def _write(self, body: Callable[[Repository], T]) -> T:
        database = self._database

        def run(connection: Connection) -> T:
            repository = database.on(connection)
            result = body(repository)
            repository.finish()
            return result

        with self._translating():
            return await self._runner.write(run)

    async def _read(self, body: Callable[[Repository], T]) -> T:
        database = self._database
        with self._translating():
            return await self._runner.read(lambda connection: body(database.on(connection)))

    async def _query(self, body: Callable[[Repository], T]) -> T:
        database = self._database
        with self._translating():
            return await self._runner.query(lambda connection: body(database.on(connection)))

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except LocusStoreError:  # some are OSErrors too
            raise
        except self._database.driver_errors as exc:
            raise self._database.translated(exc) from exc

    async def close(self) -> None:
        """See ``StorageBackend.close``."""
        await self._runner.close()

    # --- the contract

    async def commit(self, save: Save) -> Written:
        """See ``StorageBackend``, as the following."""
        return await self._write(lambda repository: repository.save(save))

    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        return await self._read(
            lambda it: it.fetch(thread_id, namespace, checkpoint_id, with_writes=with_writes)
        )

    async def fetch_head(
        self, thread_id: str, *, namespace: str = "", known: Mark, with_writes: bool = False
    ) -> Stored | None:
        return await self._read(
            lambda it: it.fetch(thread_id, namespace, known=known, with_writes=with_writes)
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
        return await self._read(
            lambda it: it.history(thread_id, namespace, limit=limit, before=before)
        )

    async def remove(
        self,
        thread_id: str,
        checkpoint_ids: Sequence[str] | None = None,
        *,
        namespace: str = "",
        writer: str | None = None,
    ) -> int:
        check_names(thread_id, namespace, *(checkpoint_ids or ()))
        return await self._write(
            lambda it: it.delete(thread_id, namespace, checkpoint_ids, writer=writer)
        )

    async def list_threads(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[str]:
        check_limit(limit)
        return await self._query(lambda it: it.threads(limit, pattern, after))

    async def heads(self, limit: int = 100) -> list[Head]:
        check_limit(limit)
        return await self._query(lambda it: it.heads(limit))

    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        check_key(key)
        check_limit(limit)
        return await self._query(lambda it: it.query(key, value, limit))

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        check_limit(limit)
        wanted = query_words(query)
        return await self._read(lambda it: it.search(wanted, limit))

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        check_text("source_thread_id", source_thread_id)
        check_text("dest_thread_id", dest_thread_id)
        return await self._write(lambda it: it.copy_thread(source_thread_id, dest_thread_id))

    # --- whole threads

    async def scan(self, limit: int = 100, *, after: str | None = None) -> list[str]:
        check_scan(limit, after)
        return await self._query(lambda it: archives.scan(it, limit, after))

    async def read_thread(self, thread_id: str) -> ArchivedThread | None:
        check_text("thread_id", thread_id)
        return await self._read(lambda it: archives.read_thread(it, thread_id))

    async def restore(self, thread: ArchivedThread) -> None:
        await self._write(lambda it: archives.restore(it, thread))

    async def store_writes(
        self,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        writes: list[PendingWrite],
        *,
        known: Mark | None,
        seen: Collection[tuple[str, int]] | None,
    ) -> bool:
        return await self._write(
            lambda it: archives.store_writes(
                it, thread_id, namespace, checkpoint_id, writes=writes, known=known, seen=seen
            )
        )

    async def writes_of(
        self, thread_id: str, checkpoint_ids: Sequence[str], *, namespace: str = ""
    ) -> dict[str, list[PendingWrite]]:
        check_names(thread_id, namespace, *checkpoint_ids)
        return await self._read(
            lambda it: archives.writes_of(it, thread_id, namespace, checkpoint_ids)
        )

    async def namespaces(self, thread_id: str) -> list[str]:
        check_text("thread_id", thread_id)
        return await self._query(lambda it: archives.namespaces(it, thread_id))

    async def records(
        self, thread_id: str, *, namespace: str = "", first: int, last: int
    ) -> list[tuple[int, int, bytes]]:
        check_names(thread_id, namespace)
        return await self._read(lambda it: it.records(thread_id, namespace, first, last))

    async def tagged(self, key: str, value: Any) -> list[tuple[str, str, str]]:
        check_key(key)
        return await self._query(lambda it: archives.tagged(it, key, value))

    async def prune(self, thread_id: str) -> int:
        check_text("thread_id", thread_id)
        return await self._write(lambda it: it.prune(thread_id))

    async def threads_of(self, user_id: str) -> list[str]:
        check_text("user_id", user_id)
        return await self._read(lambda it: archives.threads_of(it, user_id))

    async def forget_user(self, user_id: str) -> dict[str, int]:
        counts = await super().forget_user(user_id)
        counts["store"] = await self._write(lambda it: archives.forget_items(it, user_id))
        return counts

    async def damage(self) -> list[str]:
        return await self._read(archives.damage)

    async def facts(self) -> list[Fact]:
        return [*await super().facts(), *await self._read(lambda it: self.examination(it).facts())]

    # --- housekeeping

    async def vacuum(self, older_than_days: float = 30) -> int:
        seconds = check_days(older_than_days) * SECONDS_PER_DAY
        aged = await self._query(lambda it: it.aged(seconds))
        removed = 0
        for at in range(0, len(aged), VACUUM_BATCH):
            batch = aged[at : at + VACUUM_BATCH]
            counts = await asyncio.gather(*(self._vacuum_thread(it, seconds) for it in batch))
            removed += sum(counts)
        return removed

    async def _vacuum_thread(self, thread_id: str, seconds: float) -> int:
        """One thread's part; those of a batch may share a commit."""
        return await self._write(lambda it: it.vacuum_thread(thread_id, seconds))

    async def expire(self) -> int:
        removed = 0
        while gone := await self._write(lambda it: it.expire()):
            removed += gone
        return removed
