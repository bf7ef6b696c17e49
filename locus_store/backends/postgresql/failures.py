"""PostgreSQL's errors, classified by asyncpg's classes and by SQLSTATE, not by message."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from locus_store.errors import BackendError
from locus_store.sql.failures import LostConnectionError, causes
from locus_store.sql.place import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection


REMEDIES: Final = {
    "42501": "this role may not make, change or read the schema; let a role that may do it:"
    " {command}, and grant this one USAGE on the database schema, and SELECT, INSERT, UPDATE and"
    " DELETE on the tables",
    "25006": "the server is read-only; migrate on the primary: {command}",
    "55P03": "another transaction held a table for longer than lock_timeout; nothing was changed;"
    " try again when it has ended",
}
"""Of a migration that the server refuses, by SQLSTATE."""


def driver_errors() -> tuple[type[Exception], ...]:
    """Return the classes that asyncpg raises, except ``OSError``; empty if it is not imported."""
    asyncpg = sys.modules.get("asyncpg")
    found: tuple[type[Exception], ...] = ()
    if asyncpg:
        found = asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
        found = (TimeoutError, *found)
    return found


_LOST_STATES: Final = frozenset({"57P01", "57P02", "57P05", "25P03"})
"""The server ended the session: shut down, crashed, idle for too long."""

_FORBIDDEN: Final = "42501"


def sqlstate(exc: BaseException) -> str:
    """Return the SQLSTATE; ``""`` for an error that is not the server's."""
    found = (getattr(it, "sqlstate", None) for it in causes(exc))
    return next((it for it in found if isinstance(it, str)), "")


def is_lost(exc: BaseException) -> bool:
    """Return whether a connection was lost or could not be made."""
    asyncpg = sys.modules.get("asyncpg")
    theirs: tuple[type[BaseException], ...] = ()
    if asyncpg:  # the second: it got FATAL between two statements, and the socket is not closed yet
        theirs = asyncpg.PostgresConnectionError, asyncpg.InternalClientError
    lost: tuple[type[BaseException], ...] = (LostConnectionError, ConnectionError, *theirs)
    return sqlstate(exc) in _LOST_STATES or any(isinstance(it, lost) for it in causes(exc))


@contextmanager
def owner_only(connection: Connection) -> Iterator[None]:
    """Translate a refusal to create an index into an error that names the required role.

    Raises:
        BackendError: The role may not create the index.
    """
    try:
        yield
    except DBAPIError as exc:
        if sqlstate(exc) != _FORBIDDEN:
            raise
        raise BackendError(
            f"PostgreSQL {place_of(connection).shown}: {_FORBIDDEN}: making the index needs the"
            " role that owns the tables; name that role in the URL"
        ) from exc
