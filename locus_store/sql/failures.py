"""Errors of a connection, classified by class, SQLSTATE or Oracle's code, not by message."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from locus_store.errors import BackendError
from locus_store.sql.place import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection


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


class LostConnectionError(Exception):
    """The connection was closed; raised from the driver's error, and never leaves ``sql``."""


def sqlstate(exc: BaseException) -> str:
    """Return the SQLSTATE; ``""`` for an error that is not the server's."""
    found = (getattr(it, "sqlstate", None) for it in causes(exc))
    return next((it for it in found if isinstance(it, str)), "")


def codes(exc: BaseException) -> list[str]:
    """Return the codes (``ORA-00001``) of an Oracle error and its causes.

    What went wrong within a PL/SQL block comes before the code that says where.
    """
    found: list[str] = []
    for told in (arg for it in causes(exc) for arg in it.args[:1] if hasattr(arg, "full_code")):
        if told.full_code in _SAYS_WHERE:
            found += [it for it in _CODE.findall(str(told.message)) if it not in _SAYS_WHERE]
        found += [str(told.full_code)] if told.full_code else []
    return found


NOT_COMPILED: Final = "ORA-06550"
_SAYS_WHERE: Final = frozenset({NOT_COMPILED, "ORA-06512"})
_CODE: Final = re.compile(r"\b(?:ORA|PLS)-\d{5}\b")


def is_lost(exc: BaseException) -> bool:
    """Return whether a connection was lost or could not be made."""
    asyncpg = sys.modules.get("asyncpg")
    theirs: tuple[type[BaseException], ...] = ()
    if asyncpg:  # the second: it got FATAL between two statements, and the socket is not closed yet
        theirs = asyncpg.PostgresConnectionError, asyncpg.InternalClientError
    lost: tuple[type[BaseException], ...] = (LostConnectionError, ConnectionError, *theirs)
    return sqlstate(exc) in _LOST_STATES or any(isinstance(it, lost) for it in causes(exc))


def is_refused(exc: BaseException) -> bool:
    """Return whether the server refused the connection: no process listens on the port."""
    return any(isinstance(it, ConnectionRefusedError) for it in causes(exc))


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


def is_overtime(exc: BaseException) -> bool:
    """Return whether a statement exceeded its timeout; network timeouts carry an errno."""
    return isinstance(exc, TimeoutError) and exc.errno is None


def causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, outermost first."""
    at: BaseException | None = exc
    while at is not None:
        yield at
        at = at.orig if isinstance(at, DBAPIError) else at.__cause__
