"""The part of a SQL backend that has the database and its connections."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from locus_store.backend import FullBackend, JoinsTransactions, SharedByTenants
from locus_store.errors import LocusStoreError
from locus_store.types.arguments import check_backend, check_tenant
from locus_store.values.encoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Connection

    from locus_store.sql.connections.database import Database
    from locus_store.sql.connections.runner import Runner
    from locus_store.sql.threads.repository import Repository

T = TypeVar("T")


class Shared(NamedTuple):
    """The objects that a store shares with the backend of its connections."""

    database: Database
    runner: Runner
    translating: Callable[[], AbstractContextManager[None]]
    """A context manager that translates the driver's errors."""


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

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except LocusStoreError:  # some are OSErrors too
            raise
        except self._database.driver_errors as exc:
            raise self._database.translated(exc) from exc

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


def backend_of(given: Any, kind: type[Any], *place: object, **options: Any) -> Any:
    """Return the backend that a store or a message log is given, or a new one.

    Args:
        given: The caller's backend; ``None``: a new one is made of the other arguments.
        kind: The class of the backend.
        place: The first arguments of that class; ``None`` is one that is left out.
        options: Its options.

    Raises:
        InvalidArgumentError: ``given`` is of another class, or there are other arguments beside it.
    """
    if given is None:
        return kind(*place, **options)
    check_backend(given, kind, is_alone=not options and all(it is None for it in place))
    return given
