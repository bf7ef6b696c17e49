"""What went wrong between us and Redis: by class and error code.

Of an error within a script some servers tell no code; those are known by their text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from redis import exceptions as driver

from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    LocusStoreError,
    SchemaError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRANSIENT: Final = (
    driver.BusyLoadingError,
    driver.ClusterDownError,
    driver.ClusterError,
    driver.SlotNotCoveredError,
    driver.TryAgainError,
    driver.AskError,
    driver.ReadOnlyError,
    driver.MaxConnectionsError,
)
"""It cannot be done just now, and nothing was done."""

_LOST: Final = (driver.ConnectionError, driver.TimeoutError, OSError)
_REFUSED: Final = (driver.AuthenticationError, driver.AuthorizationError)
_BUSY_CODES: Final = frozenset({"BUSY", "MASTERDOWN", "NOREPLICAS", "UNKILLABLE", "CLUSTERDOWN"})


def code(exc: BaseException) -> str:
    """The server's error code; ``""`` for an error that is not the server's."""
    if not isinstance(exc, driver.ResponseError):
        return ""
    first = str(exc).partition(" ")[0]
    return first if first.isupper() else ""


def is_transient(exc: BaseException) -> bool:
    """Whether nothing was done, and it may be better in a moment."""
    if isinstance(exc, _REFUSED):
        return False
    return isinstance(exc, _TRANSIENT) or code(exc) in _BUSY_CODES


def is_lost(exc: BaseException) -> bool:
    """Whether the connection is gone, and with it the outcome of what ran on it."""
    return isinstance(exc, _LOST) and not isinstance(exc, _REFUSED)


def translated(exc: BaseException, where: str) -> LocusStoreError:
    """The error to raise from ``exc``."""
    for kinds, text, kind, told in _TOLD:
        if isinstance(exc, kinds) or (text and text.search(str(exc))):
            return kind(f"Redis {where}{told}")
    if is_lost(exc) or is_transient(exc):
        what = code(exc) or type(exc).__name__
        return ConnectionFailedError(
            f"cannot reach Redis {where} ({what}); what was under way may have been done or not. "
            "Saving again is safe; look before you repeat anything else"
        )
    return BackendError(f"Redis {where}: {code(exc) or type(exc).__name__}")


_Kinds = tuple[type[Exception], ...]
_TOLD: Final[Sequence[tuple[_Kinds, re.Pattern[str] | None, type[LocusStoreError], str]]] = (
    (
        (driver.MaxConnectionsError,),
        None,
        ConnectionFailedError,
        ": all connections are in use; raise max_connections of the client, or do less at once",
    ),
    (
        (driver.AuthenticationError, driver.AuthorizationError),
        None,
        ConnectionFailedError,
        " refuses the user or password; look at the URL and at ACL WHOAMI",
    ),
    (
        (driver.NoPermissionError,),
        re.compile(r"ACL failure in script|user executing the script can't"),
        BackendError,
        ": the user may not do this; docs/redis.md lists the rights it needs",
    ),
    (
        (driver.OutOfMemoryError,),
        re.compile(r"-OOM command not allowed"),  # of Redis 6.2
        BackendError,
        " has no memory left, and nothing was written; raise maxmemory, or remove threads",
    ),
    (
        (),
        re.compile(r"\bWRONGTYPE\b"),
        SchemaError,
        " has a key of our name that is not ours; use another prefix=",
    ),
)
