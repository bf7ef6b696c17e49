"""PostgreSQL's DSNs as hosts issue them, for asyncpg.

What asyncpg does as libpq does is left to it. Read here, in ``driver_arguments`` and in
``connecting`` is what it reads otherwise or not at all: libpq's keyword form, bare ``/ ? # [`` in a
password, services, ``channel_binding``, ``sslrootcert=system``, ``load_balance_hosts``,
``keepalives``, escapes in ``.pgpass``, and a time limit for each host, without which a host that
swallows packets hides the others.
"""

from __future__ import annotations

import configparser
import getpass
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote

from sqlalchemy.engine import URL

from locus_store.backends.postgresql.driver_arguments import (
    NUMBERS,
    TLS_FILES,
    home,
    is_text,
    nonempty,
    secret,
    session,
    socket_options,
    tls,
)
from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from locus_store.backends.postgresql.driver_arguments import Password

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

_TEXTS: Final = (
    *("host", "port", "dbname", "user", "password", "passfile", "service", "servicefile"),
    *("application_name", "fallback_application_name", "options", "client_encoding"),
    *("krbsrvname", *TLS_FILES, "sslpassword"),
)

PARAMETERS: Final = frozenset((*_TEXTS, *_CHOICES, *_REFUSED, *NUMBERS))
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
        for name in PARAMETERS - NUMBERS.keys() - _WITHOUT_VARIABLE
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
    given = _completed({**nonempty(found), **nonempty(stated)})
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
    arguments |= tls(given, addresses) | session(given) | secret(given, password)
    return Target(
        shown=_shown(user, addresses, database),
        arguments=arguments,
        options=options,
        socket_options=socket_options(given),
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


# --- what stands elsewhere ------------------------------------------------------------------


def _completed(given: dict[str, str]) -> dict[str, str]:
    """Add the parameters of the service file, then of the environment."""
    environment = nonempty(
        {name: os.environ.get(variable, "") for variable, name in _VARIABLES.items()}
    )
    known = {**environment, **given}
    if "service" not in known:
        return known
    service = _service(known["service"], known.get("servicefile"))
    return {**environment, **nonempty(service), **given}


def _service(name: str, file: str | None) -> dict[str, str]:
    files = [Path(file)] if file else [it for it in (home(".pg_service.conf"),) if it]
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
        if not is_text(value):
            raise InvalidArgumentError(f"{name} in the DSN has a NUL or a lone surrogate")
        if name in _CHOICES and value not in _CHOICES[name]:
            choices = ", ".join(_CHOICES[name])
            raise InvalidArgumentError(f"{name} in the DSN must be one of: {choices}")
        accepted, remedy = _REFUSED.get(name, ((value,), ""))
        if value not in accepted:
            raise InvalidArgumentError(f"asyncpg does not support this value of {name}; {remedy}")
        if name in NUMBERS and not _NUMBER.fullmatch(value):
            raise InvalidArgumentError(f"{name} in the DSN must be a whole number, 0 or more")
    encoding = given.get("client_encoding", "utf8").lower().replace("-", "").replace("_", "")
    if encoding not in {"utf8", "unicode"}:
        raise InvalidArgumentError("client_encoding must be utf8, the only one of asyncpg's")


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
