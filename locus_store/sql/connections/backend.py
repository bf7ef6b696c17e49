"""The part of a SQL backend that has the database and its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from locus_store.backend import FullBackend, JoinsTransactions, SharedByTenants
from locus_store.errors import LocusStoreError
from locus_store.types.arguments import check_tenant
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from sqlalchemy.engine import Connection

    from locus_store.sql.connections.database import Database
    from locus_store.sql.connections.runner import Runner
    from locus_store.sql.threads.repository import Repository

T = TypeVar("T")


class Shared(NamedTuple):
    """The objects that a store shares with the backend of its connections."""

    database: Database
    runner: Runner
    translating: Callable[[], Translation]


class Translation:
    """A context in which a driver's errors are raised as those of this library."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None or isinstance(exc, LocusStoreError):  # some are OSErrors too
            return
        if isinstance(exc, self._database.driver_errors):
            raise self._database.translated(exc) from exc


class ConnectedBackend(FullBackend, SharedByTenants, JoinsTransactions):
    """Runs a repository's methods in transactions.

    Args:
        database: What differs per dialect.
        runner: Where the transactions run.
        max_state_bytes: The largest state that is saved or read, as compact JSON.
    """

    def __init__(
        self, database: Database, runner: Runner, *, max_state_bytes: int = MAX_STATE_BYTES
    ) -> None:
        super().__init__(max_state_bytes=max_state_bytes)
        self._database = database
        database.max_state_bytes = self.max_state_bytes
        self._runner = runner
        self._owns_runner = True

    @property
    def shared(self) -> Shared:
        """Return the objects that a store shares with this backend."""
        return Shared(self._database, self._runner, self._translating)

    async def _write(self, body: Callable[[Repository], T]) -> T:
        with self._translating():
            return await self._runner.write(self._writing(body))

    async def _read(self, body: Callable[[Repository], T]) -> T:
        database = self._database
        with self._translating():
            return await self._runner.read(lambda connection: body(database.on(connection)))

    async def _query(self, body: Callable[[Repository], T]) -> T:
        database = self._database
        with self._translating():
            return await self._runner.query(lambda connection: body(database.on(connection)))

    def _writing(self, body: Callable[[Repository], T]) -> Callable[[Connection], T]:
        database = self._database

        def run(connection: Connection) -> T:
            repository = database.on(connection)
            result = body(repository)
            repository.finish()
            return result

        return run

    def _translating(self) -> Translation:
        return Translation(self._database)

    async def open(self) -> None:
        """See ``StorageBackend.open``."""
        await self._read(lambda _: None)

    async def close(self) -> None:
        """See ``StorageBackend.close``."""
        if self._owns_runner:
            await self._runner.close()

    # --- tenants

    @property
    def tenant(self) -> str:
        return self._database.tenant

    def _enter(self, tenant: str) -> None:
        check_tenant(tenant)
        self._database = self._database.for_tenant(tenant)
        self._owns_runner = False
