"""Addresses of Oracle databases: options, URLs and wallets, and the errors of connecting."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from locus_store.backends.oracle.failures import codes
from locus_store.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    MissingExtraError,
    pip_install,
)
from locus_store.sql.connections.database import causes

try:
    import oracledb
except ImportError:  # reported when something is opened
    oracledb = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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
_ALIAS: Final = re.compile(r"[\w.$#-]+")
_PEM: Final = "ewallet.pem"
_SYSTEM: Final = "SYSTEM"
"""Instead of a wallet: the operating system's certificates. The driver's word for it."""


def require_oracledb() -> None:
    """Check that the driver is installed.

    Raises:
        MissingExtraError: The driver is not installed.
    """
    if oracledb is None:
        raise MissingExtraError(f"Oracle needs python-oracledb: {pip_install('oracle')}")


def blocks(pool: object) -> bool:
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

    def without_call_timeout(self) -> OracleAddress:
        """Return the same address without a call timeout, for migrations, which may take long."""
        return replace(self, call_timeout_seconds=None)

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
            raise connection_error(exc, self.shown) from exc
        if int(str(made.version).partition(".")[0]) < RELEASE:
            made.terminate()
            raise ConnectionFailedError(
                f"Oracle {self.shown} is of release {made.version}; {RELEASE}ai or later is needed"
            )
        made.call_timeout = round((self.call_timeout_seconds or 0) * 1000)
        return made

    async def _begin_session(self, made: Any) -> None:
        try:
            with made.cursor() as cursor:
                await cursor.execute(_SESSION)
        except BaseException:
            made.terminate()
            raise


# --- as users give it


def place(
    dsn: str | None,
    user: str | None,
    password: str | None,
    *,
    wallet_location: str | None = None,
    wallet_password: str | None = None,
    config_dir: str | None = None,
    host: str | None = None,
    port: int | None = None,
    service_name: str | None = None,
    timeout_seconds: float | None = None,
    call_timeout_seconds: float | None = None,
) -> OracleAddress:
    """Return the database that these options name.

    Args:
        dsn: An alias of ``tnsnames.ora``, EZConnect (``host:1521/service``) or a descriptor.
        user: Whose schema it is, unless another one is named.
        password: The user's password.
        wallet_location: The directory of a wallet; ``~`` is the home directory. ``SYSTEM``: TLS
            with the operating system's certificates.
        wallet_password: Of an encrypted one; ``None`` or ``""``: it is not.
        config_dir: Where ``tnsnames.ora`` is, if not beside the wallet.
        host: Instead of ``dsn``, with ``port`` and ``service_name``.
        port: 1521, if it is not given.
        service_name: The database's.
        timeout_seconds: See ``OracleAddress``, as the next.
        call_timeout_seconds: For each round trip.

    Raises:
        InvalidArgumentError: They name none, or a wallet that cannot be used.
        MissingExtraError: python-oracledb is not installed.
    """
    require_oracledb()
    texts = {
        "dsn": dsn,
        "user": user,
        "password": password,
        "wallet_location": wallet_location,
        "wallet_password": wallet_password,
        "config_dir": config_dir,
        "host": host,
        "service_name": service_name,
    }
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise InvalidArgumentError(f"{name} must be a str, not {type(value).__name__}")
    where = _where(dsn, host, port, service_name)
    if not user or password is None:
        raise InvalidArgumentError("Oracle needs user= and password=")
    arguments: dict[str, Any] = {"user": user, "password": password, **where}
    if wallet_password and wallet_location in {None, _SYSTEM}:
        raise InvalidArgumentError("wallet_password is of a wallet: give its wallet_location=")
    if wallet_location == _SYSTEM:
        arguments["wallet_location"] = _SYSTEM
    elif wallet_location is not None:
        wallet = _wallet(wallet_location, wallet_password or None)
        arguments |= {"wallet_location": wallet, "config_dir": wallet}
        if wallet_password:
            arguments["wallet_password"] = wallet_password
    if config_dir is not None:
        arguments["config_dir"] = _directory("config_dir", config_dir)
    at = where.get("dsn") or f"{where['host']}:{where['port']}/{where['service_name']}"
    shown = f"{user}@{at if not _DESCRIPTOR.match(at) else '(a descriptor)'}"
    return OracleAddress(
        shown=shown,
        arguments=arguments,
        timeout_seconds=timeout_seconds or CONNECT_TIMEOUT_SECONDS,
        call_timeout_seconds=call_timeout_seconds,
    )


def _where(
    dsn: str | None, host: str | None, port: int | None, service_name: str | None
) -> dict[str, Any]:
    if dsn is not None:
        if host is not None or port is not None or service_name is not None:
            raise InvalidArgumentError("give dsn, or host, port and service_name, not both")
        if not dsn.strip() or "@" in dsn:
            raise InvalidArgumentError(
                "dsn must be an alias of tnsnames.ora, host:port/service or a descriptor; user "
                "and password are options of their own"
            )
        if dsn.startswith("oracle") and "://" in dsn:
            raise InvalidArgumentError("dsn is not a URL; open_checkpointer(url) takes one")
        if _NO_SERVICE.fullmatch(dsn.strip()):
            raise InvalidArgumentError(f"dsn={dsn!r} names no service: write host:port/service")
        return {"dsn": dsn}
    if not host or not service_name:
        raise InvalidArgumentError("Oracle needs dsn=, or host= and service_name=")
    if port is not None and (type(port) is not int or not 0 < port < 2**16):
        raise InvalidArgumentError(f"port={port!r} must be a whole number from 1 to 65535")
    return {"host": host, "port": port or PORT, "service_name": service_name}


def _directory(name: str, given: str) -> str:
    path = Path(given).expanduser()
    if not path.is_dir():
        raise InvalidArgumentError(f"{name}={given!r} is not a directory")
    return str(path)


def _wallet(given: str, password: str | None) -> str:
    """Return a wallet's text for the driver's thin mode, which ignores a missing wallet."""
    found = _directory("wallet_location", given)
    pem = Path(found) / _PEM
    if not pem.is_file():
        raise InvalidArgumentError(
            f"wallet_location={given!r} has no {_PEM}; unzip the whole wallet there (the driver's "
            "thin mode reads no cwallet.sso and no ewallet.p12)"
        )
    text = pem.read_text(errors="replace")
    if password is None and "ENCRYPTED" in text:
        raise InvalidArgumentError(
            f"the wallet in wallet_location={given!r} is encrypted: give wallet_password="
        )
    if "-----BEGIN" not in text:
        raise InvalidArgumentError(f"{_PEM} of wallet_location={given!r} has no certificate")
    if "PRIVATE KEY" in text:
        # The driver ignores a key that it cannot read, and then the server closes the connection.
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(pem, password=password)
        except (ssl.SSLError, OSError, ValueError) as exc:
            if getattr(exc, "reason", None) == "KEY_VALUES_MISMATCH":
                return found  # the client's certificate is not the first
            raise InvalidArgumentError(
                f"the key in {_PEM} of wallet_location={given!r} cannot be read: another "
                "wallet_password made it, or the file is damaged"
            ) from exc
    return found


def split(text: str) -> SplitResult:
    """Split an Oracle URL into its parts; Python's parser does not know all of its schemes.

    Raises:
        InvalidArgumentError: The text is not a URL.
    """
    try:
        found = urlsplit(f"oracle://{text.partition('://')[2]}")
    except ValueError:
        raise InvalidArgumentError("the host of the Oracle URL is not valid") from None
    query = parse_qsl(found.query, keep_blank_values=True)
    # As --schema and PostgreSQL's URLs call it.
    named = [("schema_name" if name == "schema" else name, value) for name, value in query]
    return found._replace(query=urlencode(named))


def parts_of(url: SplitResult) -> dict[str, Any]:
    """Return the options that an ``oracle://`` URL names before its query.

    ``oracle://user:password@host:1521/service``, or ``oracle://user:password@alias``.

    Raises:
        InvalidArgumentError: It has another form.
    """
    if url.fragment:
        raise InvalidArgumentError("an Oracle URL has no #fragment; write %23 in a password")
    try:
        host, port = url.hostname, url.port
    except ValueError:
        raise InvalidArgumentError(
            "the port of the Oracle URL is not valid; in user and password write %2F for / and "
            "%3F for ?"
        ) from None
    found: dict[str, Any] = {
        name: unquote(value)
        for name, value in (("user", url.username), ("password", url.password))
        if value is not None
    }
    service = unquote(url.path.strip("/"))
    is_alias = port is None and not service and "service_name" not in dict(parse_qsl(url.query))
    place_of_url = url.netloc.rpartition("@")[2]
    if not place_of_url:
        return found
    if is_alias:
        if not _ALIAS.fullmatch(place_of_url):
            raise InvalidArgumentError(
                "write oracle://user:password@alias, or oracle://user:password@host:1521/service; "
                "percent-encode what is neither letter nor digit in user and password"
            )
        return {**found, "dsn": place_of_url}
    found |= {"host": host}
    found |= {} if port is None else {"port": port}
    return {**found, "service_name": service} if service else found


def read_url(text: str, ours: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Split a URL's options into those of ``place`` and those named in ``ours``.

    Raises:
        InvalidArgumentError: It has another form, or others.
    """
    url = split(text)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    unknown = query.keys() - set(ours) - _PLACE_OPTIONS
    if unknown:
        raise InvalidArgumentError(f"no option {min(unknown)!r} for a database URL of Oracle")
    found = {**parts_of(url), **{it: query[it] for it in query if it in _PLACE_OPTIONS}}
    if "port" in query:
        found["port"] = int(query["port"]) if query["port"].isdecimal() else query["port"]
    for name in ("dsn", "user", "password"):
        found.setdefault(name, None)
    return found, {name: value for name, value in query.items() if name in ours}


_PLACE_OPTIONS: Final = frozenset(
    {
        *("dsn", "user", "password", "wallet_location", "wallet_password", "config_dir"),
        *("host", "port", "service_name"),
    }
)


# --- what goes wrong


def connection_error(exc: BaseException, shown: str) -> ConnectionFailedError:
    """Return the error for a failed connection; it never contains a password."""
    kinds = list(causes(exc))
    for code in codes(exc):
        if code in _REMEDIES:
            return _failed(shown, code, _REMEDIES[code])
    for kind, told in _BY_KIND:
        if any(isinstance(it, kind) for it in kinds):
            return _failed(shown, kind.__name__, told)
    code = next(iter(reversed(codes(exc))), type(exc).__name__)
    return _failed(shown, code, "see the driver's message in __cause__")


def _failed(shown: str, code: str, told: str) -> ConnectionFailedError:
    return ConnectionFailedError(f"cannot connect to Oracle {shown} ({code}): {told}")


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
