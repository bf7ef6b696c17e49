"""What went wrong between us and Redis: by class and error code, never by a message's text."""

from __future__ import annotations

from typing import Final

from redis import exceptions as driver

from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    LocusStoreError,
    SchemaError,
)

_TRANSIENT: Final = (
    driver.BusyLoadingError,
    driver.ClusterDownError,
    driver.ClusterError,
    driver.SlotNotCoveredError,
    driver.TryAgainError,
    driver.AskError,
    driver.ReadOnlyError,
)
"""The server said that it cannot just now, and did nothing."""

_LOST: Final = (driver.ConnectionError, driver.TimeoutError, OSError)
_REFUSED: Final = (
    driver.AuthenticationError,
    driver.AuthorizationError,
    driver.MaxConnectionsError,
)
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


def is_refused(exc: BaseException) -> bool:
    """Whether nobody listens there."""
    return any(isinstance(it, ConnectionRefusedError) for it in _causes(exc))


def translated(exc: BaseException, where: str) -> LocusStoreError:
    """The error to raise from ``exc``."""
    if isinstance(exc, driver.MaxConnectionsError):
        return ConnectionFailedError(
            f"Redis {where}: all connections are in use; raise pool_size= or do less at once"
        )
    if isinstance(exc, (driver.AuthenticationError, driver.AuthorizationError)):
        return ConnectionFailedError(
            f"Redis {where} refuses the user or password; look at the URL and at ACL WHOAMI"
        )
    if isinstance(exc, driver.NoPermissionError):
        return BackendError(
            f"Redis {where}: the user may not do this; docs/redis.md lists the rights it needs"
        )
    if isinstance(exc, driver.OutOfMemoryError):
        return BackendError(
            f"Redis {where} has no memory left, and nothing was written; raise maxmemory, or "
            "remove threads (vacuum, ttl_seconds)"
        )
    if is_lost(exc) or is_transient(exc):
        what = code(exc) or type(exc).__name__
        return ConnectionFailedError(
            f"cannot reach Redis {where} ({what}); what was under way may have been done or not, "
            "and saving again is safe"
        )
    if "WRONGTYPE" in str(exc):
        return SchemaError(
            f"Redis {where} has a key of our name that is not ours; use another prefix="
        )
    return BackendError(f"Redis {where}: {code(exc) or type(exc).__name__}")


def _causes(exc: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    at: BaseException | None = exc
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found
