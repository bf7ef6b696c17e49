"""PostgreSQL's DSNs as hosts issue them, translated for asyncpg; and connecting by them.

What asyncpg does as libpq does is left to it. Read here is what it reads otherwise or not at all:
libpq's keyword form, bare ``/ ? # [`` in a password, services, ``channel_binding``,
``sslrootcert=system``, ``load_balance_hosts``, ``keepalives``, escapes in ``.pgpass``, and a time
limit for each host, without which a host that swallows packets hides the others.
"""

from __future__ import annotations

import configparser
import getpass
import inspect
import os
import random
import re
import socket
import ssl
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from sqlalchemy.engine import URL

from locus_store.errors import ConnectionFailedError, InvalidArgumentError, MissingExtraError
from locus_store.sql.failures import causes, is_lost, is_refused, sqlstate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from locus_store.errors import LocusStoreError

    Password = str | Callable[[], str | Awaitable[str]]

DEFAULT_PORT: Final = 5432
LAST_PORT: Final = 65535

_CHOICES: Final = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslnegotiation": ("postgres", "direct"),
    "ssl_min_protocol_version": ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"),
    "ssl_max_protocol_version": ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"),
    "channel_binding": ("disable", "prefer", "require"),
    "target_session_attrs": (
        *("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
    "load_balance_hosts": ("disable", "random"),
    "keepalives": ("0", "1"),
    "sslcompression": ("0", "1"),
    "gsslib": ("gssapi", "sspi"),
}
"""The values that there are."""

_REFUSED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "gssencmode": (("disable", "prefer"), "encrypt with TLS instead: sslmode=verify-full"),
    "gssdelegation": (("0",), "leave it out"),
    "hostaddr": ((), "write the address as host"),
    "replication": ((), "leave it out: what is kept here needs an ordinary connection"),
    "require_auth": ((), "leave it out; sslmode=verify-full keeps the password from impostors"),
    "requirepeer": ((), "leave it out, and protect the socket's directory"),
    "sslcertmode": (("allow",), "give sslcert to send a certificate, or leave it out"),
    "sslcrldir": ((), "put the lists in one file, and name that one as sslcrl"),
    "sslkeylogfile": ((), "set the environment variable SSLKEYLOGFILE"),
    "sslsni": (("1",), "leave it out: the host's name is always sent"),
}
"""Parameters that asyncpg does not support: accepted values, and the remedy for others."""

_NUMBERS: Final = {
    "connect_timeout": "",
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}
"""Whole numbers, 0 for the default; and the option of the socket that they are."""

_TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_TLS_IN_DSN: Final = (
    *_TLS_FILES,
    *("sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version"),
)
"""Taken by asyncpg in a DSN only."""

_TEXTS: Final = (
    *("host", "port", "dbname", "user", "password", "passfile", "service", "servicefile"),
    *("application_name", "fallback_application_name", "options", "client_encoding"),
    *("krbsrvname", *_TLS_FILES, "sslpassword"),
)

PARAMETERS: Final = frozenset((*_TEXTS, *_CHOICES, *_REFUSED, *_NUMBERS))
"""Names of libpq's that are known here."""

_WITHOUT_VARIABLE: Final = {
    *("sslpassword", "fallback_application_name", "replication", "keepalives", "sslkeylogfile"),
}
_VARIABLES: Final = {
    "PGDATABASE": "dbname",
    "PGAPPNAME": "application_name",
    "PGCONNECT_TIMEOUT": "connect_timeout",
    **{
        f"PG{name.replace('_', '').upper()}": name
        for name in PARAMETERS - _NUMBERS.keys() - _WITHOUT_VARIABLE
        if name not in {"dbname", "application_name"}
    },
}
"""The environment's, as libpq has them."""

_SECRETS: Final = {"password", "sslpassword"}
_ALIASES: Final = {"database": "dbname", "ssl": "sslmode"}
_SSL: Final = {"true": "require", "false": "disable"}


@dataclass(frozen=True, slots=True)
class Target:
    """A PostgreSQL database, and the parameters of connecting to it."""

    shown: str
    """Hosts, ports, user and database, as a URL without a secret: for messages and logs."""
    arguments: Mapping[str, Any] = field(repr=False)
    """Arguments of ``asyncpg.connect``; they include secrets."""
    options: Mapping[str, str] = field(repr=False)
    """Parameters of the query string that are meant for us, as they stand there."""
    socket_options: Mapping[str, int] = field(repr=False)
    """Socket options by their names in ``socket``; set by ``connect``."""
    shuffled: bool = field(default=False, repr=False)
    """``connect`` tries the hosts in a new random order each time."""


def parse(
    dsn: str | URL, *, password: Password | None = None, ours: Collection[str] = ()
) -> Target:
    r"""Read a DSN: ``postgresql://`` or ``postgres://``, or libpq's ``host=… dbname=…``.

    A driver in the scheme (``postgresql+asyncpg``) is dropped. What the DSN does not say is read
    from its ``service``, then from libpq's environment variables (``PGHOST`` …; not ``PGTZ``,
    ``PGDATESTYLE``, ``PGGEQO``), then from ``.pgpass`` (at every connection). An empty value says
    nothing. In a query string ``+`` is a space, ``host=`` may hold ports and be repeated, and wins
    over the host before the path (``@localhost/db?host=/cloudsql/…``). A password may hold any
    character, but ``/ ? # @ %`` are safe as ``%2F %3F %23 %40 %25`` only.

    Where asyncpg cannot do as libpq does:

    * ``channel_binding=require`` (Neon's DSNs): asyncpg cannot bind channels. The hole is closed
      another way: the server's certificate and name are verified, as by ``sslmode=verify-full``,
      against ``sslrootcert`` if given, else against the system's authorities. Refused on a unix
      socket. ``disable`` and ``prefer`` ask for nothing.
    * ``sslrootcert=system``: the authorities are read now, all other certificates and keys at
      every connection.
    * ``sslnegotiation=direct`` needs asyncpg 0.32.
    * ``load_balance_hosts=random``: hosts are tried in a new order each time, but the addresses of
      one name in that of the name server.
    * ``connect_timeout`` is for each host; ``keepalives*`` and ``tcp_user_timeout`` are set on the
      socket where the system has them. Keep-alive is on unless ``keepalives=0``.
    * ``client_encoding`` may be UTF-8 only; ``sslcompression`` is ignored, as TLS libraries do.
    * Refused unless the value asks for nothing: ``gssencmode``, ``gssdelegation``, ``hostaddr``,
      ``replication``, ``require_auth``, ``requirepeer``, ``sslcertmode``, ``sslcrldir``,
      ``sslkeylogfile``, ``sslsni=0``, and abstract unix sockets (``host=@…``).

    Args:
        dsn: Or SQLAlchemy's URL.
        password: Wins over the DSN's; a callable, asynchronous or not, is asked for each
            connection.
        ours: Names of our own options in the DSN; none of them is one of libpq's.

    Raises:
        InvalidArgumentError: The DSN is not valid, or needs an unsupported feature. The message
            never repeats a value that may be a secret.
    """
    found, pairs = _from_url(dsn) if isinstance(dsn, URL) else _from_text(dsn)
    stated, options = _sorted(pairs, ours)
    given = _completed({**_stated(found), **_stated(stated)})
    _check(given)
    addresses = _addresses(given)
    user = given.get("user") or _user()
    database = given.get("dbname") or user
    arguments: dict[str, Any] = {"user": user, "database": database}
    if addresses:
        arguments["host"] = [host for host, _ in addresses]
        arguments["port"] = [port for _, port in addresses]
    elif "port" in given:
        arguments["port"] = _port(given["port"])
    arguments |= _tls(given, addresses) | _session(given) | _password(given, password)
    return Target(
        shown=_shown(user, addresses, database),
        arguments=arguments,
        options=options,
        socket_options=_socket_options(given),
        shuffled=given.get("load_balance_hosts") == "random",
    )


# --- the text -------------------------------------------------------------------------------

_SCHEME: Final = re.compile(r"([a-z][a-z0-9]*)(?:\+\w+)?://", re.ASCII | re.IGNORECASE)
_PAIR: Final = re.compile(
    r"""
    \s* ([^\s=]+) \s* = \s*
    (?: ' ((?: [^'\\] | \\. )*) '                       # quoted,
    | ((?: [^\s'\\] | \\. ) (?: [^\s\\] | \\. )*) |)  # or one word, or nothing
    (?= \s | $)
    """,
    re.DOTALL | re.VERBOSE,
)
_NAME: Final = re.compile(r"\w+", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")

_Read = tuple["Mapping[str, str]", "Sequence[tuple[str, str]]"]
"""The parts before the query string, by libpq's names; and the query's parameters."""


def _from_text(dsn: str) -> _Read:
    dsn = dsn.strip()
    scheme = _SCHEME.match(dsn)
    if scheme is None:
        return {}, list(_keywords(dsn))
    if scheme[1].lower() not in {"postgresql", "postgres"}:
        raise InvalidArgumentError(
            f"{scheme[1]}:// is not PostgreSQL; write postgresql://user@host/database"
        )
    place, path, query = _cut(dsn[scheme.end() :])
    try:
        return _place(place, path), parse_qsl(
            query.strip("&"), keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
    except UnicodeDecodeError:
        raise InvalidArgumentError(
            "the DSN's %-escapes are not UTF-8; write %25 for a % that is meant"
        ) from None
    except InvalidArgumentError:
        raise
    except ValueError:
        # The error is hidden: it repeats the text, which may hold a password.
        raise InvalidArgumentError(
            "what follows ? in the DSN is not name=value&name=value;"
            " in a password write %3F for ?, and in a value %26 for &"
        ) from None


def _cut(rest: str) -> tuple[str, str, str]:
    """Split into user and hosts, database, and query string; refuse misplaced characters."""
    before, _, query = rest.partition("?")
    place, _, path = before.partition("/")
    if "@" in path or (place and "@" in query):
        raise InvalidArgumentError(
            "the DSN has an @ after the end of its hosts; write %40 for it there,"
            " and in a password %2F for / and %3F for ?"
        )
    if "#" in path or "#" in query:
        raise InvalidArgumentError("a DSN has no #fragment; write %23 for #")
    return place, path, query


def _place(place: str, path: str) -> dict[str, str]:
    login, _, hosts = place.rpartition("@")
    user, _, password = login.partition(":")
    named = [_host_and_port(it, is_bare=False) for it in hosts.split(",")] if hosts else []
    ports = ",".join(port for _, port in named)
    return {
        "user": _decoded(user),
        "password": _decoded(password),
        "host": ",".join(_decoded(host) for host, _ in named),
        "port": ports if ports.strip(",") else "",
        "dbname": _decoded(path),
    }


def _decoded(text: str) -> str:
    return unquote(text, errors="strict")


def _keywords(text: str) -> Iterator[tuple[str, str]]:
    r"""Yield the pairs of ``name=value name='value'``; ``\\`` escapes a quote or a ``\\``."""
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise InvalidArgumentError(
                "the DSN is neither postgresql://user@host/database nor name=value name='value'"
            )
        value = pair[2] if pair[2] is not None else pair[3] or ""
        yield pair[1], re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        at = pair.end()


def _from_url(url: URL) -> _Read:
    _from_text(f"{url.drivername}://")
    found = {
        "user": url.username or "",
        "password": "" if url.password is None else str(url.password),
        "host": url.host or "",
        "port": "" if url.port is None else str(url.port),
        "dbname": url.database or "",
    }
    return found, [(name, it) for name, values in url.normalized_query.items() for it in values]


def _sorted(
    pairs: Sequence[tuple[str, str]], ours: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Split parameters into libpq's and this library's."""
    given: dict[str, str] = {}
    options: dict[str, str] = {}
    seen: set[str] = set()
    for place, (written, text) in enumerate(pairs, 1):
        name = _ALIASES.get(written, written)
        value = _SSL.get(text.lower(), text) if written == "ssl" else text
        if name not in PARAMETERS and name not in ours:
            raise _unknown(name, place=place, may_be_secret=not seen.isdisjoint(_SECRETS))
        seen.add(name)
        kept = given if name in PARAMETERS else options
        if name not in kept:
            kept[name] = value
        elif name in {"host", "port"}:
            kept[name] += f",{value}"
        else:
            raise InvalidArgumentError(f"{name} is given twice in the DSN; leave one out")
    return given, options


def _unknown(name: str, *, place: int, may_be_secret: bool) -> InvalidArgumentError:
    if may_be_secret or not _NAME.fullmatch(name):
        return InvalidArgumentError(
            f"parameter {place} of the DSN is none of PostgreSQL's; correct it or leave it out"
            " (is it a part of a password? write %26 for & there, or put 'quotes' around a"
            " password=value)"
        )
    return InvalidArgumentError(
        f"{name} is not a parameter of a PostgreSQL DSN; correct it or leave it out"
        f" (a setting of the server is written options=-c%20{name}%3Dvalue)"
    )


def _stated(found: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if value}


# --- what stands elsewhere ------------------------------------------------------------------


def _completed(given: dict[str, str]) -> dict[str, str]:
    """Add the parameters of the service file, then of the environment."""
    environment = _stated(
        {name: os.environ.get(variable, "") for variable, name in _VARIABLES.items()}
    )
    known = {**environment, **given}
    if "service" not in known:
        return known
    service = _service(known["service"], known.get("servicefile"))
    return {**environment, **_stated(service), **given}


def _service(name: str, file: str | None) -> dict[str, str]:
    files = [Path(file)] if file else [it for it in (_home(".pg_service.conf"),) if it]
    if folder := os.environ.get("PGSYSCONFDIR"):
        files.append(Path(folder, "pg_service.conf"))
    for it in files:
        # asyncpg reads % in a value as an interpolation, and no unknown name as an error.
        parser = configparser.RawConfigParser(
            delimiters=("=",), comment_prefixes=("#",), empty_lines_in_values=False
        )
        try:
            parser.read(it, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            # The error is hidden: it repeats lines of the file.
            raise InvalidArgumentError(f"{it} cannot be read as a service file") from None
        if parser.has_section(name):
            given, _ = _sorted([*parser.items(name)], ())
            return given
    places = ", ".join(map(str, files)) or "a home directory"
    raise InvalidArgumentError(f"there is no service {name!r} in {places}")


def _home(*names: str) -> Path | None:
    try:
        return Path.home().joinpath(*names)
    except (RuntimeError, KeyError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        raise InvalidArgumentError(
            "the DSN names no user, and this process has none; write postgresql://user@host/…"
        ) from None


# --- values ---------------------------------------------------------------------------------


def _check(given: Mapping[str, str]) -> None:
    """Refuse unsupported parameters; values are not repeated, as one may be a password."""
    for name, value in given.items():
        if not _is_text(value):
            raise InvalidArgumentError(f"{name} in the DSN has a NUL or a lone surrogate")
        if name in _CHOICES and value not in _CHOICES[name]:
            choices = ", ".join(_CHOICES[name])
            raise InvalidArgumentError(f"{name} in the DSN must be one of: {choices}")
        accepted, remedy = _REFUSED.get(name, ((value,), ""))
        if value not in accepted:
            raise InvalidArgumentError(f"asyncpg does not support this value of {name}; {remedy}")
        if name in _NUMBERS and not _NUMBER.fullmatch(value):
            raise InvalidArgumentError(f"{name} in the DSN must be a whole number, 0 or more")
    encoding = given.get("client_encoding", "utf8").lower().replace("-", "").replace("_", "")
    if encoding not in {"utf8", "unicode"}:
        raise InvalidArgumentError("client_encoding must be utf8, the only one of asyncpg's")


def _is_text(value: str) -> bool:
    """Return whether the value can be sent: it has neither NUL nor a lone surrogate."""
    return "\0" not in value and value == value.encode(errors="replace").decode()


def _addresses(given: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return hosts and their ports; an empty list means the default ones."""
    if "host" not in given:
        return []
    hosts = [_host_and_port(it, is_bare=True) for it in given["host"].split(",")]
    ports = given.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        raise InvalidArgumentError(
            f"the DSN has {len(hosts)} hosts but {len(ports)} ports;"
            " give one port, or one for each host"
        )
    return [
        (_host(host), _port(own or port)) for (host, own), port in zip(hosts, ports, strict=True)
    ]


def _host_and_port(text: str, *, is_bare: bool) -> tuple[str, str]:
    """Split host and port; a bare IPv6 address needs no brackets if ports are separate."""
    if text.startswith("["):
        address, bracket, port = text[1:].partition("]")
        if bracket and port[:1] in {"", ":"}:
            return address, port[1:]
        raise InvalidArgumentError("an IPv6 address in the DSN is written [::1] or [::1]:5432")
    if text.startswith("/") or (is_bare and text.count(":") > 1):
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def _host(host: str) -> str:
    if not host:
        raise InvalidArgumentError("the DSN's list of hosts has an empty one; leave it out")
    if host.startswith("@"):
        raise InvalidArgumentError(
            "asyncpg cannot connect to an abstract unix socket; give the directory of one, or TCP"
        )
    try:
        if not host.startswith("/"):
            host.encode("idna")
    except UnicodeError:
        raise InvalidArgumentError("the DSN's list of hosts has one that is not a name") from None
    return host


def _port(text: str) -> int:
    if not text:
        return DEFAULT_PORT
    if _NUMBER.fullmatch(text) and 0 < int(text) <= LAST_PORT:
        return int(text)
    raise InvalidArgumentError(
        "a port in the DSN is not a number from 1 to 65535"
        " (in a user or password write %3A for :, %2F for / and %3F for ?)"
    )


def _shown(user: str, addresses: Sequence[tuple[str, int]], database: str) -> str:
    hosts = ",".join(f"{_written(host)}:{port}" for host, port in addresses)
    return f"postgresql://{quote(user, safe='')}@{hosts}/{quote(database, safe='')}"


def _written(host: str) -> str:
    if ":" in host and not host.startswith("/"):
        return f"[{quote(host, safe=':')}]"
    return quote(host, safe="")


# --- asyncpg's arguments --------------------------------------------------------------------


def _session(given: Mapping[str, str]) -> dict[str, Any]:
    settings = {"options": given.get("options", "")}
    settings["application_name"] = given.get(
        "application_name", given.get("fallback_application_name", "")
    )
    found: dict[str, Any] = {
        name: given[name]
        for name in ("target_session_attrs", "krbsrvname", "gsslib", "passfile")
        if name in given
    }
    if stated := _stated(settings):
        found["server_settings"] = stated
    if "connect_timeout" in given:
        found["timeout"] = int(given["connect_timeout"]) or None
    return found


def _socket_options(given: Mapping[str, str]) -> dict[str, int]:
    numbers = {
        option: int(given[name]) for name, option in _NUMBERS.items() if option and name in given
    }
    if given.get("keepalives") == "0":
        return {name: it for name, it in numbers.items() if name == "TCP_USER_TIMEOUT" and it}
    return {"SO_KEEPALIVE": 1, **{name: it for name, it in numbers.items() if it}}


class _PasswordError(Exception):
    """Raised if the callable gave no password; the other hosts are not tried."""


def _password(given: Mapping[str, str], password: Password | None) -> dict[str, Any]:
    if callable(password):
        return {"password": _asked(password)}
    if password is None:
        return {"password": given["password"]} if "password" in given else {}
    if not _is_text(password):
        raise InvalidArgumentError("password= has a NUL or a lone surrogate")
    return {"password": password}


def _asked(password: Callable[[], str | Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    async def ask() -> str:
        try:
            answer = password()
            found = await answer if inspect.isawaitable(answer) else answer
        except Exception as exc:
            raise _PasswordError(f"the password= callable raised {type(exc).__name__}") from exc
        # asyncpg would wait for ever on anything else.
        if not isinstance(found, str):
            raise _PasswordError(f"the password= callable gave {type(found).__name__}, no str")
        return found

    return ask


# --- TLS ------------------------------------------------------------------------------------

_VERIFYING: Final = {"verify-ca", "verify-full"}


def _tls(given: Mapping[str, str], addresses: Sequence[tuple[str, int]]) -> dict[str, Any]:
    is_local = [host.startswith("/") for host, _ in addresses]
    mode, root = _verified(given, is_tcp=bool(addresses) and not any(is_local))
    is_direct = given.get("sslnegotiation") == "direct"
    if mode == "disable" or (addresses and all(is_local)):
        return {"ssl": "disable", "direct_tls": False}
    if is_direct and mode not in {"require", *_VERIFYING}:
        raise InvalidArgumentError("sslnegotiation=direct needs sslmode=require or verify-full")
    if mode in _VERIFYING and not root and not _is_file(_home(".postgresql", "root.crt")):
        raise InvalidArgumentError(
            f"sslmode={mode} needs sslrootcert: the file of the authority that signed the server's"
            " certificate, or system for those that this machine trusts"
        )
    for name in _TLS_FILES:
        if name in given and given[name] != "system" and not _is_file(Path(given[name])):
            raise InvalidArgumentError(f"{name} in the DSN: there is no file {given[name]!r}")
    found: dict[str, Any] = {"direct_tls": is_direct}
    if root == "system":
        return {**found, "ssl": _system_context(given)}
    # In arguments of their own asyncpg takes a finished context only.
    if stated := {name: given[name] for name in _TLS_IN_DSN if name in given}:
        found["dsn"] = f"postgresql://?{urlencode(stated)}"
    return {**found, "ssl": mode}


def _verified(given: Mapping[str, str], *, is_tcp: bool) -> tuple[str, str | None]:
    """Return ``sslmode`` and ``sslrootcert``, adjusted for ``channel_binding``."""
    mode, root = given.get("sslmode"), given.get("sslrootcert")
    if given.get("channel_binding") == "require":
        if mode == "disable" or not is_tcp:
            raise InvalidArgumentError(
                "channel_binding=require needs TLS: name hosts, no unix sockets, and no"
                " sslmode=disable; or leave it out"
            )
        mode, root = "verify-full", root or "system"
    if root == "system" and mode not in {None, "verify-full"}:
        raise InvalidArgumentError(f"sslrootcert=system needs sslmode=verify-full, not {mode}")
    return mode or ("verify-full" if root == "system" else "prefer"), root


def _is_file(path: Path | None) -> bool:
    return path is not None and path.is_file()


def _system_context(given: Mapping[str, str]) -> ssl.SSLContext:
    """Return asyncpg's context for ``verify-full``, with the system's certificate authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    context.set_alpn_protocols(["postgresql"])
    for name, limit in (("min", "minimum_version"), ("max", "maximum_version")):
        if version := given.get(f"ssl_{name}_protocol_version", "TLSv1.2" if name == "min" else ""):
            setattr(context, limit, ssl.TLSVersion[version.replace(".", "_")])
    try:
        if "sslcrl" in given:
            context.load_verify_locations(cafile=given["sslcrl"])
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
        if "sslcert" in given:
            secret = given.get("sslpassword", "")
            context.load_cert_chain(given["sslcert"], given.get("sslkey"), lambda: secret)
    except OSError:
        raise InvalidArgumentError(
            "sslcert, sslkey or sslcrl cannot be read; they are PEM files, and sslpassword is the"
            " password of the key"
        ) from None
    return context


# --- connecting -----------------------------------------------------------------------------


def require_asyncpg() -> Any:
    """Return the module asyncpg.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module("asyncpg")
    except ImportError as exc:
        raise MissingExtraError(
            "PostgreSQL needs asyncpg: pip install 'locus-store[postgres]'"
        ) from exc


async def connect(
    target: Target,
    *,
    timeout: float | None = None,  # noqa: ASYNC109  (for each host)
    command_timeout: float | None = None,
    statement_cache_size: int | None = None,
    server_settings: Mapping[str, str] | None = None,
) -> Any:
    """Return a new asyncpg connection to the first host that meets the target's conditions.

    Args:
        target: From ``parse``.
        timeout: Seconds for each host; wins over the DSN's ``connect_timeout``. Without either it
            is asyncpg's minute.
        command_timeout: Seconds for each statement.
        statement_cache_size: 0 behind PgBouncer in transaction mode.
        server_settings: Each wins over the DSN's.

    Raises:
        ConnectionFailedError: With the reason, what to do, and the driver's error as its cause.
        InvalidArgumentError: asyncpg makes nothing of the DSN, or the system of ``keepalives``.
        MissingExtraError: asyncpg is not installed.
    """
    driver = require_asyncpg()
    arguments = dict(target.arguments)
    wanted = {
        "timeout": timeout,
        "command_timeout": command_timeout,
        "statement_cache_size": statement_cache_size,
    }
    arguments |= {name: value for name, value in wanted.items() if value is not None}
    if server_settings:
        arguments["server_settings"] = {**arguments.get("server_settings", {}), **server_settings}
    try:
        connection = await _first(driver, arguments, shuffled=target.shuffled)
    except Exception as exc:
        raise _refusal(exc, target.shown) from exc
    _set(connection, target.socket_options)
    return connection


async def _first(driver: Any, arguments: dict[str, Any], *, shuffled: bool) -> Any:
    """Try the hosts as libpq does: asyncpg's own search has one timeout for all hosts."""
    if "host" not in arguments:
        return await driver.connect(**arguments)
    next_host = (
        OSError,
        driver.CannotConnectNowError,
        driver.ConnectionDoesNotExistError,
        driver.exceptions.TargetServerAttributeNotMatched,
    )
    addresses = list(zip(arguments["host"], arguments["port"], strict=True))
    if shuffled:
        random.shuffle(addresses)
    failure: Exception | None = None
    for wanted in _passes(arguments.get("target_session_attrs", "any")):
        for host, port in addresses:
            place = {"host": host, "port": port, "target_session_attrs": wanted}
            place |= _from_passfile(arguments, host, port)
            try:
                return await driver.connect(**arguments | place)
            except next_host as exc:
                failure = exc
    assert failure is not None  # noqa: S101  (there is a host)
    raise failure


def _passes(wanted: str) -> tuple[str, ...]:
    return ("standby", "any") if wanted == "prefer-standby" else (wanted,)


def _from_passfile(arguments: Mapping[str, Any], host: str, port: int) -> dict[str, str]:
    r"""Return a host's password; asyncpg does not unescape ``\:`` and ``\\`` in the file."""
    path = Path(arguments["passfile"]) if "passfile" in arguments else _home(".pgpass")
    if "password" in arguments or path is None:
        return {}
    try:
        # A file that others can read is ignored; asyncpg, called next, warns of it.
        if os.name == "posix" and path.stat().st_mode & 0o077:
            return {}
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    names = {host, "localhost"} if host.startswith("/") else {host}
    wanted = (names, {str(port)}, {arguments["database"]}, {arguments["user"]})
    for line in lines:
        *places, secret = _fields(line)
        if all(it == "*" or it in any_of for it, any_of in zip(places, wanted, strict=True)):
            return {"password": secret}
    return {}


def _fields(line: str) -> list[str]:
    """Return the fields of a line of ``.pgpass``: host, port, database, user, password."""
    entry = None if line.startswith("#") else _ENTRY.fullmatch(line.strip())
    return [re.sub(r"\\(.)", r"\1", it) for it in (entry.groups() if entry else [""] * 5)]


_ENTRY: Final = re.compile(r"((?:[^:\\]|\\.)*):" * 4 + "(.*)")


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


# --- errors ---------------------------------------------------------------------------------

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

_KINDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (ssl.SSLCertVerificationError, _NO_TRUST),
    (ssl.SSLError, _NO_TLS),
    (TimeoutError, "no answer in time; see the host, the port and firewalls, or raise the timeout"),
    (ConnectionRefusedError, "refused; see whether the server runs, and listens on this port"),
    (socket.gaierror, "the host is not known; correct its name, or see the name server"),
    (FileNotFoundError, "there is no socket; see whether the server runs, and its directory"),
    (PermissionError, "the system does not permit it; see the socket's rights and firewalls"),
    (ConnectionResetError, "the connection was reset; see whether PostgreSQL is at this port"),
)

_NAME_MISMATCH: Final = {62, 64}
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


ConnectingError = ConnectionFailedError
"""The errors that ``connect`` raises."""


def _refusal(exc: Exception, where: str) -> LocusStoreError:
    """Return the error for a failed ``connect``."""
    if isinstance(exc, require_asyncpg().exceptions.ClientConfigurationError):
        return InvalidArgumentError(f"PostgreSQL {where}: asyncpg cannot use this DSN")
    return ConnectionFailedError(f"PostgreSQL {where}: {_reason(exc)}")


def connection_error(exc: BaseException, where: str) -> ConnectionFailedError | None:
    """Return the error for a lost connection, or for one that could not be opened elsewhere.

    By class and SQLSTATE. The message says what to do, and repeats nothing of the driver's.

    Args:
        exc: The driver's, as it is or wrapped. A time limit may be a statement's: it is none.
        where: The database, for a person.
    """
    reason = _reason_in_use(exc)
    return ConnectionFailedError(f"PostgreSQL {where}: {reason}") if reason else None


def _reason_in_use(exc: BaseException) -> str | None:
    state = sqlstate(exc)
    if state in _STATES.keys() - _OF_STATEMENTS:
        return _STATES[state]
    if is_lost(exc) and not is_refused(exc):
        return _STATES["08003"]
    system = (it for it in causes(exc) if isinstance(it, OSError))
    failed = next(system, None)
    return None if failed is None or isinstance(failed, TimeoutError) else _reason(failed)


def _reason(exc: BaseException) -> str:
    driver = require_asyncpg().exceptions
    if isinstance(exc, _PasswordError):
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
