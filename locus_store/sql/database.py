"""One opened database: what differs per dialect around the bodies that run on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy.exc import SQLAlchemyError

from locus_store.errors import InvalidArgumentError
from locus_store.sql.migrate import AutoMigrate, ensure
from locus_store.sql.reads import Scope
from locus_store.sql.repository import Repository

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from locus_store.errors import LocusStoreError
    from locus_store.sql.schema import Tables
    from locus_store.sql.status import Settings


class Database(ABC):
    """A database by its tables and tenant.

    It knows neither the backend nor the runner, so that a thread that works for them does not keep
    them alive.

    Args:
        tables: Of one prefix and schema.
        tenant: Whose threads are seen; no other's are ever read or changed.
        auto_migrate: ``True`` creates the schema where none exists, and never upgrades one;
            ``"upgrade"`` does both; ``False`` only verifies.
    """

    repository: type[Repository] = Repository
    driver_errors: ClassVar[tuple[type[Exception], ...]] = (SQLAlchemyError, OSError)
    """What ``translated`` takes; a dialect adds its driver's own."""

    def __init__(
        self, tables: Tables, *, tenant: str = "default", auto_migrate: AutoMigrate = True
    ) -> None:
        if not isinstance(auto_migrate, bool) and auto_migrate != "upgrade":
            raise InvalidArgumentError(
                f'auto_migrate={auto_migrate!r} must be True, False or "upgrade"'
            )
        self.tables = tables
        self.tenant = tenant
        self._auto_migrate = auto_migrate
        self._scope: Scope | None = None

    @property
    def may_create(self) -> bool:
        """Whether the schema may be made where none exists."""
        return self._auto_migrate is not False

    def opened(self, connection: Connection) -> None:
        """Verify or create the schema, outside any transaction."""
        self._ensure(connection, auto_migrate=self._auto_migrate)

    def verified(self, connection: Connection) -> None:
        """Verify the schema, outside any transaction."""
        self._ensure(connection, auto_migrate=False)

    def _ensure(self, connection: Connection, *, auto_migrate: AutoMigrate) -> None:
        settings = ensure(
            connection,
            auto_migrate=auto_migrate,
            prefix=self.tables.prefix,
            schema=self.tables.schema,
        )
        self._scope = Scope(tables=self.tables, tenant=self.tenant, store=settings.store_id)
        self.noted(settings)

    def noted(self, settings: Settings) -> None:  # noqa: B027  (optional)
        """Take what a dialect wants of the settings of the database that was opened."""

    @property
    def scope(self) -> Scope:
        """Of the opened database."""
        assert self._scope is not None  # noqa: S101  (a runner opens before it runs)
        return self._scope

    def on(self, connection: Connection) -> Repository:
        """The queries, on a connection of the opened database."""
        return self.repository(connection, self.scope)

    @abstractmethod
    def begin_write(self, connection: Connection) -> None:
        """Begin a transaction that nobody else can write beside."""

    @abstractmethod
    def begin_read(self, connection: Connection) -> None:
        """Begin a transaction that sees one snapshot."""

    @abstractmethod
    def identity(self) -> object:
        """Changes when another database was put in the place of the opened one.

        Raises:
            ConnectionFailedError: The opened one is gone.
        """

    @abstractmethod
    def translated(self, exc: Exception) -> LocusStoreError:
        """The error to raise for a driver's."""

    def left(self) -> None:  # noqa: B027  (optional)
        """Check, with every connection closed, that what stands here now may be opened."""
