"""An opened database: the hooks in which dialects differ, and the errors of its connections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from locus_store.errors import InvalidArgumentError, LocusStoreError
from locus_store.sql.audit import Audit
from locus_store.sql.migrate import AutoMigrate, ensure
from locus_store.sql.quotas import QUOTAS_SETTING, KnownQuotas
from locus_store.sql.schema.status import NO_LAYOUT, SEARCH_SETTING, SHARDS_SETTING, Settings
from locus_store.sql.schema.tables import Tables, make_tables
from locus_store.sql.threads.repository import Repository
from locus_store.sql.threads.statements import Tenancy, compile_statements
from locus_store.types.tenants import ForTenants
from locus_store.types.thread_info import UserIdType
from locus_store.values.encoding import MAX_STATE_BYTES
from locus_store.versions.sharding import ShardLayout


@dataclass(slots=True)
class OpenedDatabase:
    """The settings of the opened database, shared by the objects of all tenants."""

    store: str = ""
    """``store_id``; ``""`` before the database was opened."""

    has_index: bool = False
    """There is a full-text index, as far as is known; a save refuses where it is wrong."""

    user_id_type: UserIdType = "string"
    """The type of the column for users' ids."""

    has_partitions: bool = False
    """The tables are divided by line."""

    has_row_security: bool = False
    """Statements have to name their tenant to the server."""

    layout: str = ""
    """The layout of the set of shards that the caller knows, as it is stored; ``""`` before the
    database was opened."""

    joins_set: bool = False
    """It is opened beside the other shards of its set, or to be looked at."""

    quotas: KnownQuotas = field(default_factory=KnownQuotas)
    """The quotas, as this process knows them."""


class Database(ForTenants, ABC):
    """A database, its tables, and a tenant.

    It knows neither the backend nor the runner, so that a thread that works for them does not keep
    them alive.

    Args:
        where: The database, for a person.
        tables: Of one prefix and schema; ``tenancy`` has them with its types.
        tenant: The tenant whose threads are read and changed; no others are.
        auto_migrate: ``True`` creates the schema where none exists, and never upgrades one;
            ``"upgrade"`` does both; ``False`` only verifies.
    """

    dialect: ClassVar[str]
    """SQLAlchemy's name of it."""

    has_one_writer: ClassVar[bool] = False
    """Two transactions never write at the same time, so one waits for the end of the other."""

    repository: type[Repository] = Repository
    driver_errors: ClassVar[tuple[type[Exception], ...]] = (SQLAlchemyError, OSError)
    """The errors that ``translate_error`` accepts; a dialect adds its driver's own."""

    def __init__(
        self, where: str, tables: Tables, *, tenant: str, auto_migrate: AutoMigrate
    ) -> None:
        if not isinstance(auto_migrate, bool) and auto_migrate != "upgrade":
            raise InvalidArgumentError(
                f'auto_migrate={auto_migrate!r} must be True, False or "upgrade"'
            )
        self._where = where
        self.tables = tables
        self.tenant = tenant
        self._auto_migrate = auto_migrate
        self.max_state_bytes = MAX_STATE_BYTES
        """The largest state that is folded; its backend sets it."""

        self.audit: Audit | None = None
        """The recording of calls, if they are recorded; its backend sets it."""

        self.opened = OpenedDatabase()
        self._tenancy: tuple[object, Tenancy] | None = None

    def _enter(self, tenant: str) -> None:
        self.tenant = tenant
        self._tenancy = None

    @property
    def may_create(self) -> bool:
        """True if a missing schema may be created."""
        return self._auto_migrate is not False

    def open(self, connection: Connection) -> None:
        """Verify or create the schema, outside any transaction."""
        self.verify(connection, auto_migrate=self._auto_migrate)

    def verify(self, connection: Connection, *, auto_migrate: AutoMigrate = False) -> None:
        """Verify the schema, outside any transaction; create it with ``auto_migrate``."""
        settings = ensure(
            connection,
            auto_migrate=auto_migrate,
            prefix=self.tables.prefix,
            schema=self.tables.schema,
        )
        layout = settings.raw.get(SHARDS_SETTING)
        if layout and not self.opened.joins_set:
            ShardLayout.from_text(layout).require_whole()
        if not (self.opened.joins_set and self.opened.layout):
            self.opened.layout = layout or NO_LAYOUT
        self.opened.store = settings.store_id
        self.opened.user_id_type = settings.user_id_type
        self.opened.has_index = SEARCH_SETTING in settings.raw
        self.opened.quotas.note(has_some=QUOTAS_SETTING in settings.raw)
        self.read_settings(settings)

    def read_settings(self, settings: Settings) -> None:
        """Take what a dialect needs from the settings of the opened database."""

    def list_open_transactions(self, connection: Connection) -> set[str]:
        """Return names of transactions that may have read the settings and are not over.

        Where a reader of the settings prevents their change until it is over, there are none.
        """
        return set()

    @property
    def tenancy(self) -> Tenancy:
        """The tables, the tenant and the limits of the opened database."""
        opened, known = self.opened, self._tenancy
        of = opened.store, opened.layout, opened.user_id_type
        if known is None or known[0] != of:
            assert opened.store  # noqa: S101  (a runner opens before it runs)
            found = Tenancy(
                tables=make_tables(self.tables.prefix, self.tables.schema, opened.user_id_type),
                tenant=self.tenant,
                store=opened.store,
                layout=opened.layout,
                max_state_bytes=self.max_state_bytes,
            )
            known = self._tenancy = of, found
        return known[1]

    def make_repository(self, connection: Connection) -> Repository:
        return self.repository(connection, self.tenancy)

    def enter_tenant(self, connection: Connection) -> None:
        """Name this tenant to a server that keeps tenants apart itself."""

    def require_joinable(self, connection: object) -> None:
        """Check that only the caller uses the caller's connection; refuse one that is shared."""

    def join(self, connection: Connection) -> None:
        """Begin the caller's transaction, if a savepoint does not begin it."""

    def keep_index(self, connection: Connection) -> None:
        """Prevent other sessions from creating the full-text index during this transaction."""

    def require_opened(self, connection: Connection) -> None:
        """Refuse a caller's connection that leads to another database than the opened one."""
        setting = compile_statements(self.tables, connection.dialect).setting
        try:
            row = setting.fetch_first(connection, {"name": "store_id"})
        except self.driver_errors as exc:
            if not self.is_lost_schema(exc):
                raise
            row = None
        if row is None or row[0] != self.tenancy.store:
            raise InvalidArgumentError(
                "connection= leads to another database, or another schema, than these tables are "
                "in; nothing was written"
            )

    def is_lost_race(self, exc: BaseException, attempts: int) -> bool:
        """Return whether the statement lost to another transaction and may be retried.

        An attempt finds the rows that others have made before it, so few attempts lose to them.
        """
        return False

    def is_refused_value(self, exc: BaseException) -> bool:
        """Return whether the database refused a value; the statement may succeed without it."""
        return isinstance(exc, DBAPIError) and not isinstance(exc, OperationalError)

    @abstractmethod
    def is_lost_schema(self, exc: BaseException) -> bool:
        """Return whether the tables no longer exist, so that the schema must be checked again."""

    @abstractmethod
    def begin_write(self, connection: Connection) -> None:
        """Begin a transaction that excludes all other writers."""

    @abstractmethod
    def begin_read(self, connection: Connection) -> None:
        """Begin a transaction that sees one snapshot."""

    @abstractmethod
    def translate_error(self, exc: Exception) -> LocusStoreError:
        """Return the error to raise for a driver's."""


class ServerDatabase(Database):
    """A database behind connections that may be lost."""

    def keep_index(self, connection: Connection) -> None:
        table = connection.dialect.identifier_preparer.format_table(self.tables.checkpoints)
        connection.exec_driver_sql(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")

    @abstractmethod
    def is_lost_connection(self, exc: BaseException) -> bool:
        """Return whether the connection was lost, and with it the outcome of the last statement."""

    @abstractmethod
    def begin_copy(self, connection: Connection) -> None:
        """Begin a transaction that writes what it reads of one snapshot."""

    def begin_statement(self, connection: Connection) -> None:
        """Set autocommit: a single statement follows, which commits by itself."""
        connection.execution_options(isolation_level="AUTOCOMMIT")

    def leave(self, connection: Connection) -> None:
        """Undo the settings of a ``begin`` before the connection is returned."""

    @abstractmethod
    def ping(self, driver: Any) -> Coroutine[Any, Any, Any]:
        """Ask the server for an answer on a connection of the driver."""

    @abstractmethod
    def is_lost_primary(self, exc: BaseException) -> bool:
        """Return whether the server refused to write: it is a standby, or was demoted to one."""

    def is_unconfirmed(self, driver: Any) -> bool:
        """Return whether the last commit on a connection did not wait for its standby to the end.

        The answer is ``True`` once.
        """
        return False

    def is_reader(self, driver: Any) -> bool:
        """Return whether a connection leads to a database that is read-only by default."""
        return False

    def find_forgotten(self, connection: Connection, drivers: Sequence[Any]) -> list[Any]:
        """Return those of the driver's connections on which the server does no work."""
        return []

    def is_closed(self, driver: Any) -> bool:
        return bool(driver.is_closed())


class LostConnectionError(Exception):
    """The connection was closed; raised from the driver's error, and never leaves ``sql``."""


class UnconfirmedError(LostConnectionError):
    """A commit may be on the primary only, as if the connection had been lost."""


def is_refused(exc: BaseException) -> bool:
    """Return whether the server refused the connection: no process listens on the port."""
    return any(isinstance(it, ConnectionRefusedError) for it in iterate_causes(exc))


def is_overtime(exc: BaseException) -> bool:
    """Return whether a statement exceeded its timeout; network timeouts carry an errno."""
    return isinstance(exc, TimeoutError) and exc.errno is None


def iterate_causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, outermost first."""
    at: BaseException | None = exc
    while at is not None:
        yield at
        at = at.orig if isinstance(at, DBAPIError) else at.__cause__
