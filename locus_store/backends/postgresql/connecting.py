"""Connecting to PostgreSQL by a target, and the reasons for which that fails."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final
from weakref import WeakSet

from locus_store.backends.postgresql.dsn import PasswordError, Target
from locus_store.backends.postgresql.failures import get_sqlstate, is_lost
from locus_store.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    LocusStoreError,
    MissingExtraError,
    require_extra,
)
from locus_store.sql.connections.database import is_refused, iterate_causes

try:
    from asyncpg import connect_utils  # type: ignore[import-untyped]
except ImportError:  # reported when something is opened
    connect_utils = None


def require_asyncpg() -> Any:
    """Return the module asyncpg.

    Raises:
        MissingExtraError: It is not installed.
    """
    with require_extra("PostgreSQL needs asyncpg", "postgres"):
        return import_module("asyncpg")


async def connect(
    target: Target,
    *,
    timeout: float | None = None,  # noqa: ASYNC109  (for each host)
    command_timeout: float | None = None,
    statement_cache_size: int | None = None,
) -> Any:
    """Return a new asyncpg connection to the first host that meets the target's conditions.

    Args:
        target: From ``dsn.parse``.
        timeout: Seconds for each host; overrides the DSN's ``connect_timeout``. Without either,
            asyncpg's minute applies.
        command_timeout: Seconds for each statement.
        statement_cache_size: 0 behind PgBouncer in transaction mode.

    Raises:
        ConnectionFailedError: With the reason, what to do, and the driver's error as its cause.
        InvalidArgumentError: asyncpg makes nothing of the DSN, or the system of ``keepalives``.
        MissingExtraError: asyncpg is not installed.
    """
    stated = {
        "timeout": timeout,
        "command_timeout": command_timeout,
        "statement_cache_size": statement_cache_size,
    }
    stated = {name: value for name, value in stated.items() if value is not None}
    try:
        connection = await _try_hosts(require_asyncpg(), target, {**target.arguments, **stated})
    except MissingExtraError:
        raise
    except Exception as exc:
        raise _make_refusal(exc, target.shown) from exc
    _set(connection, target.socket_options)
    _register_arrays(connection)
    connection.add_log_listener(_note_warning)
    return connection


async def _try_hosts(driver: Any, target: Target, arguments: dict[str, Any]) -> Any:
    """Try the hosts as libpq does: asyncpg's own search has one timeout for all hosts."""
    if not target.hosts:
        return await driver.connect(**arguments, target_session_attrs=target.wanted)
    mismatch = driver.exceptions.TargetServerAttributeNotMatched
    refusals = (OSError, driver.CannotConnectNowError, driver.ConnectionDoesNotExistError, mismatch)
    is_other = False
    hosts = random.sample(target.hosts, len(target.hosts)) if target.is_shuffled else target.hosts
    failure: Exception | None = None
    for wanted in _list_passes(target.wanted):
        for host, port in hosts:
            place = {"host": [host], "port": [port], "target_session_attrs": wanted}
            if host.startswith("/"):
                place |= {"ssl": False, "direct_tls": False}
            try:
                return await driver.connect(**arguments | place)
            except refusals as exc:
                failure, is_other = exc, is_other or isinstance(exc, mismatch)
        if not is_other:
            break  # no host can be reached: none would be taken for what it is
    assert failure is not None  # noqa: S101  (there is a host)
    raise failure


def _list_passes(attributes: str | None) -> tuple[str, ...]:
    """Return what is asked of a host, in turn; by default a server that writes is preferred."""
    if attributes is None:
        return "read-write", "any"
    return ("standby", "any") if attributes == "prefer-standby" else (attributes,)


def _set(connection: Any, options: Mapping[str, int]) -> None:
    # asyncpg has no public way to the socket.
    opened = connection._transport.get_extra_info("socket")  # noqa: SLF001
    if opened is None or opened.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for name, value in options.items():
        option = getattr(socket, name, None)
        if option is not None:
            level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
            try:
                opened.setsockopt(level, option, value)
            except OSError:
                connection.terminate()
                raise InvalidArgumentError(f"the system refuses {name} {value}") from None


_ARRAYS: Final = {
    1000: (16, "bool"),
    1001: (17, "bytea"),
    1005: (21, "int2"),
    1007: (23, "int4"),
    1009: (25, "text"),
    1016: (20, "int8"),
    1021: (700, "float4"),
    1022: (701, "float8"),
    1028: (26, "oid"),
    1185: (1184, "timestamptz"),
    2287: (2249, "record"),
}
"""PostgreSQL's types of arrays that statements of ours have: the type of the elements, its name."""


def _register_arrays(connection: Any) -> None:
    """Tell asyncpg of arrays, which it would ask the server about once for each connection.

    Its question takes three round trips, and would run a function ``array_agg(oid)`` that another
    role made in a schema of the search path.
    """
    nothing = dict.fromkeys(("kind", "basetype", "range_subtype", "attrtypoids"))
    known = [
        {**nothing, "oid": oid, "ns": "pg_catalog", "name": f"_{name}", "elemtype": element}
        | {"elemtype_name": name, "elemdelim": ","}
        for oid, (element, name) in _ARRAYS.items()
    ]
    # As the socket above: asyncpg has no public way.
    connection._protocol.get_settings().register_data_types(known)  # noqa: SLF001


_unconfirmed: WeakSet[Any] = WeakSet()


def _note_warning(connection: Any, message: Any) -> None:
    """Note a wait for a synchronous standby that was cancelled: the server reports a success."""
    # By the function, as the text is in the server's language.
    if message.server_source_function == "SyncRepWaitForLSN":
        _unconfirmed.add(connection)


def is_unconfirmed(driver: Any) -> bool:
    """See ``ServerDatabase.is_unconfirmed``."""
    is_noted = bool(_unconfirmed) and driver in _unconfirmed
    if is_noted:
        _unconfirmed.discard(driver)
    return is_noted


_STOPPED: Final = "the server is starting, stopping or recovering; try again"
_SETTING: Final = "the server refuses a setting; correct options= in the DSN"
_STATES: Final = {
    "28P01": "the password is wrong, or the user is; correct them in the DSN or in password=",
    "28000": "the server does not let this user in; ask whether the role exists, what its"
    " pg_hba.conf says of the user and database, and whether TLS (sslmode=) or a certificate"
    " (sslcert=, sslkey=) is wanted",
    "3D000": "there is no such database; create it, or correct its name",
    "42501": "the user may not connect to this database; GRANT CONNECT ON DATABASE … TO …",
    "53300": "the server has no connection left; lower pool_size, put PgBouncer before the server,"
    " or raise its max_connections",
    "57P01": _STOPPED,
    "57P02": _STOPPED,
    "57P03": _STOPPED,
    "08P01": "the server, or the pooler before it, does not understand; a pooler may not know"
    " options= (PgBouncer: ignore_startup_parameters)",
    "08003": "the connection was closed by the server or on the way; try again",
    "22023": _SETTING,
    "42601": _SETTING,
    "42704": _SETTING,
}

_OF_STATEMENTS: Final = {"08P01", "22023", "42501", "42601", "42704"}
"""Have another meaning once a connection is made."""

_MISMATCH: Final = (
    "the server's certificate is for another name; connect by a name that stands in it, or with"
    " sslmode=verify-ca, which asks for no name"
)
_NO_HOST: Final = "no host is as target_session_attrs wants it; see which of them is the primary"
_NO_LOGIN: Final = (
    "the server wants a kind of login that asyncpg does not have, or does not prove that it knows"
    " the password; use scram-sha-256"
)
_NO_TRUST: Final = (
    "the server's certificate is not signed by an authority that is trusted; name the one that"
    " signed it as sslrootcert="
)
_NO_TLS: Final = (
    "TLS failed; see whether the server's versions and these meet (ssl_min_protocol_version=), and"
    " whether sslcert=, sslkey= and sslpassword= belong together"
)

_RESET: Final = (
    "the connection was reset; see whether PostgreSQL is at this port, and whether a proxy there"
    " has a server"
)

_KINDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (ssl.SSLCertVerificationError, _NO_TRUST),
    (ssl.SSLError, _NO_TLS),
    (TimeoutError, "no answer in time; see the host, the port and firewalls, or raise the timeout"),
    (ConnectionRefusedError, "refused; see whether the server runs, and listens on this port"),
    (socket.gaierror, "the host is not known; correct its name, or see the name server"),
    (FileNotFoundError, "there is no socket; see whether the server runs, and its directory"),
    (PermissionError, "the system does not permit it; see the socket's rights and firewalls"),
    (ConnectionResetError, _RESET),
)

_NAME_MISMATCH: Final = {62, 64}
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def _make_refusal(exc: Exception, where: str) -> LocusStoreError:
    """Return the error for a failed ``connect``."""
    if isinstance(exc, ValueError) and not isinstance(exc, OSError):
        has_reason = isinstance(exc, require_asyncpg().exceptions.ClientConfigurationError)
        reason = str(exc) if has_reason else "see its hosts, and the lines of the password file"
        return InvalidArgumentError(
            f"PostgreSQL {where}: asyncpg cannot use this DSN; correct it (sslrootcert=system: the"
            f" certificate authorities of this machine): {reason}"
        )
    return ConnectionFailedError(f"PostgreSQL {where}: {_find_reason(exc)}")


def make_connection_error(exc: BaseException, where: str) -> ConnectionFailedError | None:
    """Return the error for a lost connection, or for one that could not be opened elsewhere.

    By class and SQLSTATE. The message says what to do, and repeats nothing of the driver's.

    Args:
        exc: The driver's, as it is or wrapped. A time limit may be a statement's: it is none.
        where: The database, for a person.
    """
    reason = _find_reason_in_use(exc)
    return ConnectionFailedError(f"PostgreSQL {where}: {reason}") if reason else None


def _find_reason_in_use(exc: BaseException) -> str | None:
    state = get_sqlstate(exc)
    if state in _STATES.keys() - _OF_STATEMENTS:
        return _STATES[state]
    if is_lost(exc) and not is_refused(exc):
        return _STATES["08003"]
    system = (it for it in iterate_causes(exc) if isinstance(it, OSError))
    failed = next(system, None)
    return None if failed is None or isinstance(failed, TimeoutError) else _find_reason(failed)


def _find_reason(exc: BaseException) -> str:
    driver = require_asyncpg().exceptions
    if isinstance(exc, PasswordError):
        return str(exc)
    if isinstance(exc, driver.PostgresError):
        state = str(exc.sqlstate)
        return _STATES.get(state, f"the server says SQLSTATE {state}; see its log")
    if isinstance(exc, ssl.SSLCertVerificationError) and exc.verify_code in _NAME_MISMATCH:
        return _MISMATCH
    if type(exc) is ConnectionError:
        # Raised by asyncpg itself, and where TLS is asked for only.
        return "the server refuses TLS; turn it on there (ssl = on), or change sslmode="
    kinds = (
        (driver.TargetServerAttributeNotMatched, _NO_HOST),
        (driver.InterfaceError, _NO_LOGIN),
        *_KINDS,
    )
    known = (text for kind, text in kinds if isinstance(exc, kind))
    return next(known, f"{type(exc).__name__}; see whether the server runs and can be reached")


def check_pool(pool: Any) -> Any:
    """Return a caller's pool; refuse what is none of asyncpg."""
    if not callable(getattr(pool, "acquire", None)) or not callable(getattr(pool, "release", None)):
        raise InvalidArgumentError(
            f"pool must be an asyncpg pool (await asyncpg.create_pool(…)), not {pool!r}"
        )
    return pool


def quiet(protocol: type[Any]) -> type[Any]:
    """Return a class for asyncpg's request for TLS that marks the request's error as retrieved.

    A connection that is closed before the answer, as by a proxy without a server, counts as reset.
    A caller that awaits the answer still gets the error. No caller awaits it if a task is cancelled
    between the connection and the request, as at the end of ``asyncio.run``: asyncio then prints
    "Future exception was never retrieved". asyncpg has no hook for it (0.32.0).
    """

    class Quiet(protocol):  # type: ignore[misc]  # a class of asyncpg's, given as an argument
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc or ConnectionResetError())
            answer = getattr(self, "on_data", None)  # of this asyncpg, maybe not of another
            if answer and answer.done() and not answer.cancelled():
                answer.exception()

    return Quiet


def quiet_tls_requests() -> None:
    """Make asyncpg use the quiet protocol; do nothing if its parts have other names."""
    found = getattr(connect_utils, "TLSUpgradeProto", None)
    if found is not None and found.__name__ != "Quiet":
        connect_utils.TLSUpgradeProto = quiet(found)


quiet_tls_requests()
