"""Errors of Redis, classified by class and error code.

Some servers give no code to an error within a script; such errors are recognized by their message.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

from redis import exceptions as driver

from locus_store.errors import BackendError, ConnectionFailedError, LocusStoreError, SchemaError


class StaleError(driver.ConnectionError):
    """A connection that was idle did not answer; nothing else was sent on it."""


class CrowdedError(StaleError):
    """No other call ended in the time of an answer; nothing was sent."""


class SilentError(driver.TimeoutError):
    """There was no answer in the time of the first attempt."""


class SentinelError(driver.ConnectionError):
    """The sentinels name no primary; nothing was sent to one. Its text has no secrets."""


class NoPrimaryError(SentinelError):
    """The primary that the sentinels name cannot be used: a fail-over is due."""


_OURS: Final = (StaleError, SilentError, SentinelError)
"""Errors whose messages have no secrets."""

_WORDS: Final[Mapping[type[BaseException], str]] = {
    driver.ConnectionError: "the connection was closed",
    driver.TimeoutError: "no answer",
}
"""The reasons of errors of redis-py that have no cause in the system."""

REPLACING: Final = (StaleError, SilentError, driver.ReadOnlyError)
"""After these the other connections are of no use either; the last: the master was demoted."""

_TRANSIENT: Final = (
    StaleError,
    NoPrimaryError,
    driver.BusyLoadingError,
    driver.ClusterError,
    driver.SlotNotCoveredError,
    driver.TryAgainError,
    driver.AskError,
    driver.ReadOnlyError,
    driver.MaxConnectionsError,
)
"""Errors that pass: the server cannot run the call now, and did nothing."""

_LOST: Final = (driver.ConnectionError, driver.TimeoutError, OSError)
_REFUSED: Final = (driver.AuthenticationError, driver.AuthorizationError)
_BUSY_CODES: Final = frozenset({"BUSY", "MASTERDOWN", "NOREPLICAS", "UNKILLABLE", "CLUSTERDOWN"})


def get_code(exc: BaseException) -> str:
    """Return the server's error code; ``""`` for an error that is not the server's."""
    if not isinstance(exc, driver.ResponseError):
        return ""
    first = str(exc).partition(" ")[0]
    return first if first.isupper() else ""


def find_cause(exc: BaseException) -> BaseException:
    """Return the cause of a cluster client's error that only says that it could not start."""
    while isinstance(exc, driver.RedisClusterException) and (exc.__cause__ or exc.__context__):
        exc = exc.__cause__ or exc.__context__ or exc
    return exc


def is_transient(exc: BaseException) -> bool:
    """Return whether nothing was done and the call may soon succeed."""
    return isinstance(exc, _TRANSIENT) or get_code(exc) in _BUSY_CODES


def is_lost(exc: BaseException) -> bool:
    """Return whether the connection was lost, and with it the outcome of the call."""
    exc = find_cause(exc)
    return isinstance(exc, _LOST) and not isinstance(exc, _REFUSED)


def is_of_closed_transport(exc: BaseException) -> bool:
    """Return whether asyncio raised an error because a connection is closed already.

    With Python 3.12 and later, what writes several buffers meets attributes that are ``None``:
    https://github.com/python/cpython/issues/136234
    """
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals["__name__"] == "asyncio.selector_events"


def may_be_done(exc: BaseException) -> bool:
    """Return whether the connection was lost after it was established, so the call may have run."""
    is_sent = not isinstance(exc, StaleError | SentinelError) and "connecting to" not in str(exc)
    return is_lost(exc) and find_cause(exc) is exc and is_sent


def require_no_cluster(exc: BaseException, where: str) -> None:
    """Refuse a single-server client that was pointed at a node of a cluster."""
    if isinstance(exc, driver.AskError | driver.ClusterCrossSlotError):
        raise ConnectionFailedError(
            f"Redis {where} is a cluster: use redis+cluster://, or a RedisCluster; nothing was done"
        ) from exc


def translate_error(exc: BaseException, where: str, *, is_unsure: bool) -> LocusStoreError:
    """Return the error to raise for ``exc``; ``is_unsure``: the call may have taken effect."""
    exc = find_cause(exc)
    for cause, (kind, remedy) in _TOLD.items():
        if isinstance(exc, cause.kinds) or (cause.text and re.search(cause.text, str(exc))):
            # Without the position in a script.
            message = re.split(r"\.? script: \w{40}|, on @user_script", str(exc))[0]
            return kind(f"Redis {where}" + remedy.replace("{said}", message))
    found = "" if isinstance(exc, SentinelError) else get_code(exc) or get_reason(exc)
    words = _WORDS.get(type(exc)) or type(exc).__name__
    what = found or (str(exc) if isinstance(exc, _OURS) else words)
    if is_lost(exc) or is_transient(exc):
        end = _UNSURE if is_unsure else _NOTHING
        return ConnectionFailedError(f"cannot reach Redis {where} ({what}); {end}")
    return BackendError(f"Redis {where}: {what}")


_UNSURE: Final = (
    "what was under way may have been done or not. Saving again is safe; look before you repeat "
    "anything else"
)


_NOTHING: Final = "nothing was done. Look at its host and port, and whether it runs"


def get_reason(exc: BaseException | None) -> str:
    """Return the system's reason for a failed connection; redis-py's may contain secrets."""
    while exc is not None:
        if isinstance(exc, ssl.SSLCertVerificationError):
            return f"TLS: {exc.verify_message}"
        if isinstance(exc, ssl.SSLError):
            return f"TLS: {exc.reason}"
        if isinstance(exc, socket.gaierror):
            return f"the name is not resolved: {exc.strerror}"
        if isinstance(exc, OSError) and (number := _ERRNO.search(str(exc))):
            return os.strerror(int(number[1]))
        exc = exc.__cause__ or exc.__context__
    return ""


_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
"""Finds the errno of a name's first address: asyncio reports several errors as text."""


class _Cause(NamedTuple):
    """An error by its class, or by its text where a script had it."""

    kinds: tuple[type[Exception], ...] = ()
    text: str = ""


_TOLD: Final[Mapping[_Cause, tuple[type[LocusStoreError], str]]] = {
    _Cause((driver.MaxConnectionsError,)): (
        ConnectionFailedError,
        ": all connections are in use; raise max_connections of the client, or do less at once",
    ),
    _Cause(_REFUSED): (
        ConnectionFailedError,
        " refuses the user or password; look at the URL and at ACL WHOAMI",
    ),
    _Cause((driver.NoPermissionError,), "ACL failure in script|user executing the script can't"): (
        BackendError,
        ": the user may not do this; docs/redis.md lists its rights, ACL LOG the refusals ({said})",
    ),
    _Cause((driver.ReadOnlyError,), r"\bREADONLY\b"): (
        ConnectionFailedError,
        " is a replica: name the master; nothing was done",
    ),
    _Cause(text="cluster support disabled"): (
        ConnectionFailedError,
        " is not a cluster: use redis://, or a client that is no RedisCluster; nothing was done",
    ),
    _Cause(text="DB index is out of range"): (
        ConnectionFailedError,
        ": DB index is out of range; name another database, or raise `databases` of the server",
    ),
    _Cause((driver.OutOfMemoryError,), "-OOM command not allowed"): (  # the text: of Redis 6.2
        BackendError,
        " has no memory left, and nothing was written; raise maxmemory, or remove threads",
    ),
    _Cause(text=r"\bMISCONF\b"): (
        BackendError,
        " cannot write its files, and nothing was written; look at its log, and at its disk",
    ),
    _Cause(text=r"\bWRONGTYPE\b"): (
        SchemaError,
        " has a key of our name that is not ours; use another prefix=",
    ),
}
