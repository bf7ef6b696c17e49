"""A database behind connections that may be lost."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from locus_store.sql.connections.database import Database

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from sqlalchemy.engine import Connection


class ServerDatabase(Database):
    """A database behind connections that may be lost."""

    @abstractmethod
    def lost_race(self, exc: BaseException) -> bool:
        """Return whether another transaction caused a rollback, so that a retry may succeed."""

    @abstractmethod
    def lost_connection(self, exc: BaseException) -> bool:
        """Return whether the connection was lost, and with it the outcome of the last statement."""

    @abstractmethod
    def lost_schema(self, exc: BaseException) -> bool:
        """Return whether the tables no longer exist, so that the schema must be checked again."""

    @abstractmethod
    def begin_copy(self, connection: Connection) -> None:
        """Begin a transaction that writes what it reads of one snapshot."""

    # --- what drivers call differently

    def begin_statement(self, connection: Connection) -> None:
        """Set autocommit: a single statement follows, which commits by itself."""
        connection.execution_options(isolation_level="AUTOCOMMIT")

    def leave(self, connection: Connection) -> None:
        """Undo the settings of a ``begin`` before the connection is returned."""

    @abstractmethod
    def ping(self, driver: Any) -> Coroutine[Any, Any, Any]:
        """Ask the server for an answer on a connection of the driver."""

    def abort(self, driver: Any) -> None:
        """Close the driver's connection at once, whatever is under way on it."""
        driver.terminate()

    def lost_primary(self, exc: BaseException) -> bool:
        """Return whether the server refused to write: it is a standby, or was demoted to one."""
        del exc
        return False

    def only_reads(self, driver: Any) -> bool:
        """Return whether a connection leads to a database that is read-only by default."""
        del driver
        return False

    def forgotten(self, connection: Connection, drivers: Sequence[Any]) -> list[Any]:
        """Return those of the driver's connections on which the server does no work."""
        del connection, drivers
        return []

    def is_closed(self, driver: Any) -> bool:
        """Return whether the driver's connection is closed."""
        return bool(driver.is_closed())

    def identity(self) -> object:
        """Return the server's address, which is the database's identity."""
        return None
