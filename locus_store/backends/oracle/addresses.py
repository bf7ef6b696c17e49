"""Addresses of Oracle databases: options, URLs and wallets, the errors of connecting, and codes."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Unpack

from locus_store.backends.oracle.options import OracleConnections
from locus_store.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    MissingExtraError,
    make_install_command,
)
from locus_store.sql.connections.database import iterate_causes
from locus_store.types.arguments import make_absolute
from locus_store.types.options import fill_defaults

try:
    import oracledb
except ImportError:  # reported when something is opened
    oracledb = None  # type: ignore[assignment]


DRIVER_ERRORS: Final[tuple[type[Exception], ...]] = (oracledb.Error,) if oracledb else ()
"""The driver's errors, beside ``OSError``."""

PORT: Final = 1521
RELEASE: Final = 23
"""The first one with ``IF NOT EXISTS`` and vectors."""

CONNECT_TIMEOUT_SECONDS: Final = 20.0
"""A serverless database may have to be woken."""

_SESSION: Final = (
    "ALTER SESSION SET TIME_ZONE = '+00:00' NLS_COMP = BINARY NLS_SORT = BINARY"
    " NLS_NUMERIC_CHARACTERS = '.,'"
)
"""Session settings, so that text and times do not depend on the database's defaults."""

_DESCRIPTOR: Final = re.compile(r"\s*\(")
_NO_SERVICE: Final = re.compile(r"[^/():\s]+:\d+/?")
_PEM: Final = "ewallet.pem"
_SYSTEM: Final = "SYSTEM"
"""Instead of a wallet: the operating system's certificates. The driver's word for it."""


def require_oracledb() -> None:
    """Refuse to open a database without the driver."""
    if oracledb is None:
        raise MissingExtraError(f"Oracle needs python-oracledb: {make_install_command('oracle')}")


def is_blocking(pool: object) -> bool:
    """Return whether the pool is the driver's pool for programs without an event loop."""
    return isinstance(pool, oracledb.ConnectionPool)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleAddress:
    """A database, and the settings of its connections."""

    shown: str
    """The address as messages show it, without the password."""

    arguments: Mapping[str, Any]
    """Arguments of ``oracledb.connect_async``."""

    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    """The timeout for connecting, in total."""

    call_timeout_seconds: float | None = None
    """The timeout for each round trip."""

    async def connect(self, *_: Any, **__: Any) -> Any:
        """Return a driver's connection whose session reads text and times as the library does.

        Raises:
            ConnectionFailedError: With the cause and what to do.
        """
        try:
            # A listener that accepts and says nothing is not stopped by tcp_connect_timeout.
            async with asyncio.timeout(self.timeout_seconds):
                made = await oracledb.connect_async(**self.arguments)
                # Nor is what a cancelled call waits for.
                made.call_timeout = round(self.timeout_seconds * 1000)
                await self._begin_session(made)
        except (oracledb.Error, OSError, ValueError) as exc:  # an OSError: TimeoutError too
            raise make_connection_error(exc, self.shown) from exc
        if int(str(made.version).partition(".")[0]) < RELEASE:
            made.terminate()
            raise ConnectionFailedError(
                f"Oracle {self.shown} is of release {made.version}; {RELEASE}ai or later is needed"
            )
        made.call_timeout = round((self.call_timeout_seconds or 0) * 1000)
        return made

    async def _begin_session(self, connection: Any) -> None:
        try:
            with connection.cursor() as cursor:
                await cursor.execute(_SESSION)
        except BaseException:
            connection.terminate()
            raise


def make_address(
    dsn: str | None, user: str | None, password: str | None, **options: Unpack[OracleConnections]
) -> OracleAddress:
    """Return the database that these options name.

    Args:
        dsn: An alias of ``tnsnames.ora``, EZConnect (``host:1521/service``) or a descriptor.
        user: Whose schema it is, unless another one is named.
        password: The user's password.
        options: See ``options.OracleConnections``.

    Raises:
        InvalidArgumentError: They name none, or a wallet that cannot be used.
        MissingExtraError: python-oracledb is not installed.
    """
    require_oracledb()
    given = fill_defaults(OracleConnections, options, "place")
    for name, value in {"dsn": dsn, "user": user, "password": password}.items():
        if value is not None and not isinstance(value, str):
            raise InvalidArgumentError(f"{name} must be a str, not {type(value).__name__}")
    where = _connect_string(dsn, given["host"], given["port"], given["service_name"])
    if not user or password is None:
        raise InvalidArgumentError("Oracle needs user= and password=")
    arguments: dict[str, Any] = {"user": user, "password": password, "dsn": where}
    location, wallet_password = given["wallet_location"], given["wallet_password"]
    if wallet_password and location in {None, _SYSTEM}:
        raise InvalidArgumentError("wallet_password is of a wallet: give its wallet_location=")
    if location == _SYSTEM:
        arguments["wallet_location"] = _SYSTEM
    elif location is not None:
        wallet = _read_wallet(location, wallet_password or None)
        arguments |= {"wallet_location": wallet, "config_dir": wallet}
        if wallet_password:
            arguments["wallet_password"] = wallet_password
    if given["config_dir"] is not None:
        arguments["config_dir"] = _check_directory("config_dir", given["config_dir"])
    shown = f"{user}@{where if not _DESCRIPTOR.match(where) else '(a descriptor)'}"
    return OracleAddress(
        shown=shown,
        arguments=arguments,
        timeout_seconds=given["connect_timeout_seconds"] or CONNECT_TIMEOUT_SECONDS,
        call_timeout_seconds=given["statement_timeout_seconds"],
    )


def _connect_string(
    dsn: str | None, host: str | None, port: int | None, service_name: str | None
) -> str:
    if dsn is None:
        if not host or not service_name:
            raise InvalidArgumentError("Oracle needs dsn=, or host= and service_name=")
        return f"{f'[{host}]' if ':' in host else host}:{port or PORT}/{service_name}"
    if host is not None or port is not None:
        raise InvalidArgumentError("give dsn, or host, port and service_name, not both")
    if service_name is not None:
        dsn = f"{dsn}/{service_name}"
    if not dsn.strip() or "@" in dsn or (dsn.startswith("oracle") and "://" in dsn):
        raise InvalidArgumentError(
            "dsn must be an alias of tnsnames.ora, host:port/service or a descriptor; user and"
            " password are options of their own, and open_checkpointer(url) takes a URL"
        )
    if _NO_SERVICE.fullmatch(dsn.strip()):
        raise InvalidArgumentError(f"dsn={dsn!r} names no service: write host:port/service")
    return dsn


def _check_directory(name: str, text: str) -> str:
    path = Path(make_absolute(name, text))
    if not path.is_dir():
        raise InvalidArgumentError(f"{name}={text!r} is not a directory")
    return str(path)


def _read_wallet(place: str, password: str | None) -> str:
    """Return a wallet's text for the driver's thin mode, which ignores a missing wallet."""
    found = _check_directory("wallet_location", place)
    pem = Path(found) / _PEM
    if not pem.is_file():
        raise InvalidArgumentError(
            f"wallet_location={place!r} has no {_PEM}; unzip the whole wallet there (the driver's "
            "thin mode reads no cwallet.sso and no ewallet.p12)"
        )
    text = pem.read_text(errors="replace")
    if password is None and "ENCRYPTED" in text:
        raise InvalidArgumentError(
            f"the wallet in wallet_location={place!r} is encrypted: give wallet_password="
        )
    if "-----BEGIN" not in text:
        raise InvalidArgumentError(f"{_PEM} of wallet_location={place!r} has no certificate")
    if "PRIVATE KEY" in text:
        # The driver ignores a key that it cannot read, and then the server closes the connection.
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(pem, password=password)
        except (ssl.SSLError, OSError, ValueError) as exc:
            if getattr(exc, "reason", None) == "KEY_VALUES_MISMATCH":
                return found  # the client's certificate is not the first
            raise InvalidArgumentError(
                f"the key in {_PEM} of wallet_location={place!r} cannot be read: another "
                "wallet_password made it, or the file is damaged"
            ) from exc
    return found


def make_connection_error(exc: BaseException, shown: str) -> ConnectionFailedError:
    """Return the error for a failed connection; it never contains a password."""
    kinds = list(iterate_causes(exc))
    for code in list_codes(exc):
        if code in _REMEDIES:
            return _make_error(shown, code, _REMEDIES[code])
    for kind, advice in _BY_KIND:
        if any(isinstance(it, kind) for it in kinds):
            return _make_error(shown, kind.__name__, advice)
    code = next(iter(reversed(list_codes(exc))), type(exc).__name__)
    return _make_error(shown, code, "see the driver's message in __cause__")


def _make_error(shown: str, code: str, advice: str) -> ConnectionFailedError:
    return ConnectionFailedError(f"cannot connect to Oracle {shown} ({code}): {advice}")


_UNKNOWN: Final = (
    "the listener does not know this service; look at service_name or the alias, and whether the "
    "database is started"
)
_WRONG: Final = "the user or the password is wrong"
_NO_ALIAS: Final = (
    "there is no such alias: look into tnsnames.ora in config_dir or wallet_location, or write "
    "host:port/service"
)
_CERTIFICATE: Final = "the server's certificate has another name; look at the wallet and the alias"
_REMEDIES: Final = {
    "DPY-6001": _UNKNOWN,
    "ORA-12514": _UNKNOWN,
    "DPY-6003": _UNKNOWN,
    "ORA-12505": _UNKNOWN,
    "ORA-01017": _WRONG,
    "ORA-28000": "the user is locked; an administrator may unlock it",
    "ORA-28001": "the password has expired; set a new one",
    "ORA-01045": "the user may not connect; grant it CREATE SESSION",
    "ORA-12516": "the listener has no free handler; raise PROCESSES, or use fewer connections",
    "ORA-00018": "the database has no session left; use fewer connections",
    "ORA-00020": "the database has no process left; use fewer connections",
    "ORA-01033": "the database is being started or shut down; try again",
    "ORA-01034": "the database is not started",
    "DPY-3010": "the database is older than the driver can talk to; 23ai or later is needed",
    "DPY-4000": _NO_ALIAS,
    "DPY-4026": "config_dir has no tnsnames.ora; name it, or write host:port/service as dsn",
    "DPY-4027": "an alias needs tnsnames.ora: wallet_location=, config_dir= or TNS_ADMIN names it",
    "DPY-4021": "dsn is neither an alias, nor host:port/service, nor a descriptor",
    "DPY-4017": "dsn is no descriptor that can be read",
    "DPY-4018": "dsn is no descriptor that can be read",
    "DPY-6000": "the listener refused the connection; look at its log, or at the access control"
    " list of an Autonomous Database",
    "DPY-6002": _CERTIFICATE,
    "DPY-6006": _CERTIFICATE,
    "DPY-4011": "the server hung up; does the port want TLS, and a wallet?",
    "DPY-3001": "the driver's thin mode does not do this",
}
_BY_KIND: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (socket.gaierror, "there is no host of this name"),
    (ssl.SSLError, "TLS failed; look at the wallet, its password, and whether the port has TLS"),
    (ConnectionRefusedError, "nobody listens there; look at host and port"),
    (TimeoutError, "no answer in time; is it the listener, and does a firewall let it through?"),
)


MIGRATION_REMEDIES: Final = {
    "ORA-01031": "this user may not make the tables; grant it what docs/oracle.md lists, or let a"
    " user that may do it: {command}",
    "ORA-00955": "something else has a name of ours; choose another prefix (prefix='mine_')",
    "ORA-00054": "another transaction held a table; try again when it has ended: {command}",
    **dict.fromkeys(
        ("ORA-01950", "ORA-01536", "ORA-01652", "ORA-01653", "ORA-01658"),
        "there is no room for the tables: give the user a quota on its tablespace, or the"
        " tablespace space; then go on: {command}",
    ),
    **dict.fromkeys(("ORA-01918", "ORA-00959"), "there is no such user or tablespace: {command}"),
    "ORA-43853": "the tablespace has no automatic segment space management, which JSON and vectors"
    " need; give the user another one as its default, then: {command}",
    "ORA-16000": "the database is read-only; migrate on the primary: {command}",
}
"""Of a migration that the server refuses, by code."""


def list_codes(exc: BaseException) -> list[str]:
    """Return the codes (``ORA-00001``) of an Oracle error and its causes.

    What went wrong within a PL/SQL block comes before the code that says where.
    """
    found: list[str] = []
    for error in (
        arg for cause in iterate_causes(exc) for arg in cause.args[:1] if hasattr(arg, "full_code")
    ):
        if error.full_code in _SAYS_WHERE:
            found += [it for it in _CODE.findall(str(error.message)) if it not in _SAYS_WHERE]
        found += [str(error.full_code)] if error.full_code else []
    return found


_SAYS_WHERE: Final = frozenset({"ORA-06550", "ORA-06512"})
_CODE: Final = re.compile(r"\b(?:ORA|PLS)-\d{5}\b")
