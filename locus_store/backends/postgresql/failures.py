"""PostgreSQL's errors, classified by asyncpg's classes and by SQLSTATE, and its sessions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from locus_store.errors import BackendError
from locus_store.sql.connections.database import LostConnectionError, iterate_causes
from locus_store.sql.schema.definition import make_place
from locus_store.sql.schema.migrations import get_reason

READ_ONLY: Final = "25006"
"""The server does not write: the database is read-only, or the server a standby."""

FORBIDDEN: Final = "42501"
NO_SCHEMA: Final = (
    "this role may not create the schema; let a role that may do it: CREATE SCHEMA … AUTHORIZATION"
    " of this role, or GRANT CREATE ON DATABASE … TO it; then: {command}"
)
REMEDIES: Final = {
    FORBIDDEN: "this role may not make, change or read the schema; let a role that may do it:"
    " {command}, and grant this one USAGE on the database schema, and SELECT, INSERT, UPDATE and"
    " DELETE on the tables",
    READ_ONLY: "the server is read-only; migrate on the primary: {command}",
    "2BP01": "row security, or objects that the library did not create, depend on the tables; drop"
    " them first: locus-store db row-security disable",
    "55P03": "another transaction held a table for longer than lock_timeout; nothing was changed;"
    " try again when it has ended",
}
"""Of a migration that the server refuses, by SQLSTATE."""


_FOREIGN_KEY_VIOLATION, DUPLICATE = "23503", "23505"
_DEADLOCK, _SERIALIZATION_FAILURE = "40P01", "40001"
RACES: Final = frozenset({DUPLICATE, _DEADLOCK, _SERIALIZATION_FAILURE, "55P03"})
"""Another transaction was faster; the last: it has the lock of a line that this one may not wait
for."""

MISSING: Final = frozenset({"42P01", "42703", "3F000"})
"""There is no such table, column or schema."""

CANCELLED: Final = "57014"
DAMAGED: Final = frozenset({"XX001", "XX002"})
_BOUNCED: Final = (
    "as behind PgBouncer in transaction mode: open with pgbouncer=true, or make your engine with "
    "connect_args={'statement_cache_size': 0, 'prepared_statement_cache_size': 0}, your pool with "
    "statement_cache_size=0"
)
STATEMENT_REMEDIES: Final = {
    "53100": "the server's disk is full: free some space and save again",
    "53200": "the server is out of memory: save again later",
    FORBIDDEN: "the role may not do this: it needs SELECT, INSERT, UPDATE and DELETE on the tables,"
    " and has to name its own tenant",
    READ_ONLY: "the server is read-only: connect to the primary (target_session_attrs=read-write)",
    "55P03": "another transaction held a row for longer than the server's lock_timeout: try again",
    CANCELLED: "the statement took longer than its timeout (statement_timeout) and was cancelled: "
    "try again",
    # Ours: it may have been executed before the server was asked to cancel it.
    "TimeoutError": "the statement took longer than its timeout (statement_timeout_seconds); the"
    " outcome of a save is unknown, and saving again is safe",
    "25P02": "the transaction of this connection has failed; roll it back first",
    "26000": f"a prepared statement is gone, {_BOUNCED}",
    "42P05": f"a prepared statement is there already, {_BOUNCED}",
    **dict.fromkeys(
        (DUPLICATE, _FOREIGN_KEY_VIOLATION),
        "two transactions made the same row several times over: try again",
    ),
    "23": "a constraint that the library did not make refuses the row: see the server's log",
    "40": "other transactions held the locks several times over: try again",
}
"""Of a statement that failed, by SQLSTATE or by its class."""


def get_driver_errors() -> tuple[type[Exception], ...]:
    """Return the classes that asyncpg raises, except ``OSError``; empty if it is not imported."""
    asyncpg = sys.modules.get("asyncpg")
    found: tuple[type[Exception], ...] = ()
    if asyncpg:
        found = asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
        found = (TimeoutError, *found)
    return found


LIMITS: Final = {
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "57P05": "idle_session_timeout",
}
"""The settings by which the server ends a session, by SQLSTATE."""

CLOSED: Final = (
    "closed by a restart, the network, or the server's idle_in_transaction_session_timeout, of "
    "which asyncpg does not tell"
)
"""The reasons for which a connection ends without a message of the server."""

_LOST_STATES: Final = frozenset({"57P01", "57P02", *LIMITS})
"""The server ended the session: shut down, crashed, or a limit of time."""


def get_sqlstate(exc: BaseException) -> str:
    """Return the SQLSTATE; ``""`` for an error that is not the server's.

    The state of a limit counts before that of the connection, which asyncpg puts around it.
    """
    found = [getattr(it, "sqlstate", None) for it in iterate_causes(exc)]
    states = [it for it in found if isinstance(it, str)]
    return next((it for it in states if it in LIMITS), next(iter(states), ""))


def is_lost(exc: BaseException) -> bool:
    """Return whether a connection was lost or could not be made."""
    asyncpg = sys.modules.get("asyncpg")
    theirs: tuple[type[BaseException], ...] = ()
    if asyncpg:  # the second: it got FATAL between two statements, and the socket is not closed yet
        theirs = asyncpg.PostgresConnectionError, asyncpg.InternalClientError
    lost: tuple[type[BaseException], ...] = (LostConnectionError, ConnectionError, *theirs)
    return get_sqlstate(exc) in _LOST_STATES or any(
        isinstance(cause, lost) for cause in iterate_causes(exc)
    )


@contextmanager
def translate_owner_errors(
    connection: Connection, work: str = "making the index"
) -> Iterator[None]:
    """Translate a refusal of work on the tables into an error that names the required role.

    Raises:
        BackendError: The role may not do it.
    """
    try:
        yield
    except DBAPIError as exc:
        if get_sqlstate(exc) != FORBIDDEN:
            raise
        raise BackendError(
            f"PostgreSQL {make_place(connection).shown}: {FORBIDDEN}: {work} needs the"
            f" role that owns the tables; name that role in the URL ({get_reason(exc)})"
        ) from exc


_BUSY: Final = """
SELECT pg_backend_pid(), ARRAY(SELECT pid FROM pg_stat_activity
  WHERE pid = ANY ($1::int[]) AND (state LIKE 'idle%'
    AND state_change < clock_timestamp() - interval '2 seconds') IS NOT TRUE)
"""
"""The sessions that work on a statement, or did so just now."""


def is_reader(driver: Any) -> bool:
    """Return whether a connection leads to a primary that is read-only by default.

    By what the server reported when the session began; a pooler may not pass on either setting.
    """
    settings = driver.get_settings()
    return (
        getattr(settings, "default_transaction_read_only", "off") == "on"
        and getattr(settings, "in_hot_standby", "on") == "off"
    )


def find_forgotten(connection: Connection, drivers: Sequence[Any]) -> list[Any]:
    """Return those of asyncpg's connections whose sessions do no work.

    A pooler invents the numbers of sessions, so nothing is known behind one.
    """
    pids = [it.get_server_pid() for it in drivers]
    own, busy = connection.exec_driver_sql(_BUSY, (pids,)).one()
    driver: Any = connection.connection.driver_connection
    if driver.get_server_pid() != own:
        return []
    return [it for it, pid in zip(drivers, pids, strict=True) if pid not in busy]
