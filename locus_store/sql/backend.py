"""The storage backend that all SQL databases share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from locus_store.backends.base import StorageBackend, check_days, check_limit, check_text
from locus_store.filters import check_key
from locus_store.sql.migrate import AutoMigrate, ensure
from locus_store.sql.reads import Scope
from locus_store.sql.repository import Repository
from locus_store.sql.schema import Tables, tables
from locus_store.text import query_words
from locus_store.types import CheckpointerCapabilities, Head, Hit, Save, Stored, Version, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy.engine import Connection

    from locus_store.errors import LocusStoreError
    from locus_store.sql.grouping import Runner

T = TypeVar("T")

SECONDS_PER_DAY = 86_400


class SqlBackend(StorageBackend):
    """Runs a repository's methods in transactions; a subclass names its dialect.

    Args:
        prefix: Of the tables.
        schema: Database schema; ``None`` is the connection's default.
        tenant: Whose threads this object sees; no other's are ever read or changed.
        auto_migrate: ``True`` creates the schema where none exists, and never upgrades one;
            ``"upgrade"`` does both; ``False`` only verifies.
    """

    repository: ClassVar[type[Repository]] = Repository
    driver_errors: ClassVar[tuple[type[Exception], ...]] = (SQLAlchemyError, OSError)
    """What is translated; a dialect adds its driver's own."""

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

    def __init__(
        self,
        *,
        prefix: str = "locus_",
        schema: str | None = None,
        tenant: str = "default",
        auto_migrate: AutoMigrate = True,
    ) -> None:
        super().__init__()
        check_text("tenant", tenant)
        self._tables: Tables = tables(prefix, schema)
        self._tenant = tenant
        self._auto_migrate = auto_migrate
        self._scope: Scope | None = None
        self._runner = self._make_runner()

    # --- what a dialect brings

    @abstractmethod
    def _make_runner(self) -> Runner:
        """Where bodies run."""

    @abstractmethod
    def begin_write(self, connection: Connection) -> None:
        """Begin a transaction that nobody else can write beside."""

    @abstractmethod
    def begin_read(self, connection: Connection) -> None:
        """Begin a transaction that sees one snapshot."""

    @abstractmethod
    def identity(self) -> object:
        """Changes when another database was put in the place of the opened one."""

    @abstractmethod
    def _translated(self, exc: Exception) -> LocusStoreError:
        """The error to raise for a driver's."""

    def opened(self, connection: Connection) -> None:
        """Verify or create the schema, once per opened database."""
        settings = ensure(
            connection,
            auto_migrate=self._auto_migrate,
            prefix=self._tables.prefix,
            schema=self._tables.schema,
        )
        self._scope = Scope(tables=self._tables, tenant=self._tenant, store=settings.store_id)

    # --- running repositories

    async def _write(self, body: Callable[[Repository], T]) -> T:
        try:
            return await self._runner.write(lambda connection: body(self._on(connection)))
        except self.driver_errors as exc:
            raise self._translated(exc) from exc

    async def _read(self, body: Callable[[Repository], T]) -> T:
        try:
            return await self._runner.read(lambda connection: body(self._on(connection)))
        except self.driver_errors as exc:
            raise self._translated(exc) from exc

    def _on(self, connection: Connection) -> Repository:
        assert self._scope is not None  # noqa: S101  (a runner opens before it runs)
        return self.repository(connection, self._scope)

    async def close(self) -> None:
        """See ``StorageBackend.close``."""
        await self._runner.close()

    # --- the contract

    async def commit(self, save: Save) -> Written:
        """See ``StorageBackend``, as the following."""
        return await self._write(lambda repository: repository.save(save))

    async def fetch(
        self, thread_id: str, *, namespace: str = "", checkpoint_id: str | None = None
    ) -> Stored | None:
        return await self._read(lambda it: it.fetch(thread_id, namespace, checkpoint_id))

    async def history(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        limit: int = 10,
        before: str | None = None,
    ) -> list[Version]:
        check_text("thread_id", thread_id)
        check_limit(limit)
        return await self._read(
            lambda it: it.history(thread_id, namespace, limit=limit, before=before)
        )

    async def remove(
        self, thread_id: str, checkpoint_ids: Iterable[str] | None = None, *, namespace: str = ""
    ) -> int:
        ids = None if checkpoint_ids is None else list(checkpoint_ids)
        return await self._write(lambda it: it.delete(thread_id, namespace, ids))

    async def list_threads(
        self, limit: int = 100, pattern: str = "*", *, after: str | None = None
    ) -> list[str]:
        check_limit(limit)
        return await self._read(lambda it: it.threads(limit, pattern, after))

    async def heads(self, limit: int = 100) -> list[Head]:
        check_limit(limit)
        return await self._read(lambda it: it.heads(limit))

    async def query(self, key: str, value: Any, limit: int = 100) -> list[Head]:
        check_key(key)
        check_limit(limit)
        return await self._read(lambda it: it.query(key, value, limit))

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        check_limit(limit)
        wanted = query_words(query)
        return await self._read(lambda it: it.search(wanted, limit))

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        check_text("source_thread_id", source_thread_id)
        check_text("dest_thread_id", dest_thread_id)
        return await self._write(lambda it: it.copy_thread(source_thread_id, dest_thread_id))

    async def vacuum(self, older_than_days: float = 30) -> int:
        seconds = check_days(older_than_days) * SECONDS_PER_DAY
        removed = 0
        for thread_id in await self._read(lambda it: it.aged(seconds)):
            removed += await self._vacuum_thread(thread_id, seconds)
        return removed

    async def _vacuum_thread(self, thread_id: str, seconds: float) -> int:
        """One thread in a transaction of its own: nobody waits for the whole of a vacuum."""
        return await self._write(lambda it: it.vacuum_thread(thread_id, seconds))

    async def expire(self) -> int:
        removed = 0
        while gone := await self._write(lambda it: it.expire()):
            removed += gone
        return removed
