"""PostgreSQL's DSNs as hosts issue them, and the part of them that asyncpg does not read.

asyncpg reads the parameters, the environment and ``.pgpass``. Read here are the places of several
hosts, since each has a time limit of its own, libpq's keyword form, service files, and the
parameters that asyncpg lacks.
"""

from __future__ import annotations

import configparser
import inspect
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode

from sqlalchemy.engine import URL

from locus_store.backends.postgresql.options import URL_OPTIONS
from locus_store.errors import InvalidArgumentError
from locus_store.types.arguments import make_absolute
from locus_store.types.options import URL_EXTRAS, read_options, suggest_option

Password: TypeAlias = str | Callable[[], str | Awaitable[str]]

OURS: Final = ("pgbouncer", "statement_cache_size", "prepared_statement_cache_size")
"""Options that a DSN may contain for this library, as hosts and other libraries write them."""

STATEMENT_CACHE_SIZE: Final = 100
DEFAULT_PORT: Final = 5432
LAST_PORT: Final = 65535

_TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_TLS_VERSIONS: Final = ("ssl_min_protocol_version", "ssl_max_protocol_version")
_ASYNCPGS: Final[tuple[str, ...]] = (
    *("user", "password", "dbname", "passfile", "application_name", "options"),
    *("sslmode", "sslnegotiation", "sslpassword", *_TLS_FILES, *_TLS_VERSIONS),
    *("krbsrvname", "gsslib"),
)
"""Parameters that asyncpg gets as the DSN has them."""

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "channel_binding": ("disable", "prefer", "require"),
    "target_session_attrs": (
        *("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
    "load_balance_hosts": ("disable", "random"),
    "keepalives": ("0", "1"),
    "client_encoding": ("utf8", "utf-8", "unicode"),
    "sslcompression": ("0", "1"),
    "gssencmode": ("disable", "prefer"),
    "gssdelegation": ("0",),
    "sslcertmode": ("allow",),
    "sslsni": ("1",),
    **dict.fromkeys(
        ("hostaddr", "replication", "require_auth", "requirepeer", "sslcrldir", "sslkeylogfile"), ()
    ),
}
"""The accepted values of parameters that are checked here; asyncpg has no others."""

_SOCKET: Final = {
    "keepalives_idle": ("TCP_KEEPIDLE", 30),
    "keepalives_interval": ("TCP_KEEPINTVL", 10),
    "keepalives_count": ("TCP_KEEPCNT", 3),
    "tcp_user_timeout": ("TCP_USER_TIMEOUT", 30_000),
}
"""Options of the socket, and their values where the DSN has none.

A minute after a host has vanished, the system ends its connections. The last one is in
milliseconds; the system's own values are hours.
"""

PARAMETERS: Final = frozenset(
    (*_ASYNCPGS, *_CHOICES, *_SOCKET, "host", "port", "connect_timeout")
) | {"fallback_application_name", "service", "servicefile"}
"""The names of libpq's parameters that are known."""

_VARIABLES: Final = {
    **{f"PG{it.replace('_', '').upper()}": it for it in PARAMETERS},
    "PGAPPNAME": "application_name",
    "PGCONNECT_TIMEOUT": "connect_timeout",
    "PGDATABASE": "dbname",
}
_SECRETS: Final = {"password", "sslpassword"}
_ALIASES: Final = {"database": "dbname", "ssl": "sslmode"}
_SSL: Final = {"true": "require", "false": "disable"}


@dataclass(frozen=True, slots=True)
class Target:
    """A PostgreSQL database, and the parameters of connecting to it."""

    shown: str
    """Hosts, ports, user and database, as a URL without a secret: for messages and logs."""
    hosts: tuple[tuple[str, int], ...] = field(repr=False)
    """In the order of the DSN; none: the usual places."""
    arguments: Mapping[str, Any] = field(repr=False)
    """Arguments of ``asyncpg.connect`` for each host; they include secrets."""
    options: Mapping[str, str] = field(repr=False)
    """Parameters of the query string that are meant for this library, as they stand there."""
    wanted: str | None = field(repr=False)
    """``target_session_attrs``."""
    socket_options: Mapping[str, int] = field(repr=False)
    """Socket options by their names in ``socket``; set by ``connect``."""
    is_shuffled: bool = field(repr=False)
    """``connect`` tries the hosts in a new random order each time."""


def parse(
    dsn: str | URL, *, password: Password | None = None, ours: Collection[str] = ()
) -> Target:
    """Read a DSN: ``postgresql://`` or ``postgres://``, or libpq's ``host=… dbname=…``.

    A driver in the scheme (``postgresql+asyncpg``) is dropped. Parameters that are missing are read
    from the service, then from libpq's environment variables. ``host=`` in a query string may hold
    ports and be repeated, and overrides the host before the path.

    ``channel_binding=require`` (Neon's DSNs): asyncpg cannot bind channels. Instead, the server's
    certificate and name are verified, as by ``sslmode=verify-full``, against ``sslrootcert`` if
    given, else against the system's authorities.

    Args:
        dsn: Or SQLAlchemy's URL.
        password: Overrides the DSN's; a callable, asynchronous or not, is called for each
            connection.
        ours: Names of this library's options in the DSN; none of them is one of libpq's.

    Raises:
        InvalidArgumentError: The DSN is not valid, or needs an unsupported feature. The message
            never repeats a value that may be a secret.
    """
    found, pairs = _from_text(dsn) if isinstance(dsn, str) else _from_url(dsn)
    stated, options = _split_parameters(pairs, ours)
    settings = _add_defaults(_drop_empty({**found, **_drop_empty(stated)}))
    _check(settings)
    hosts = _parse_hosts(settings)
    if "fallback_application_name" in settings:
        settings.setdefault("application_name", settings["fallback_application_name"])
    arguments: dict[str, Any] = _make_tls_arguments(settings, [host for host, _ in hosts])
    passed = {name: settings[name] for name in _ASYNCPGS if name in settings}
    if not hosts and "port" in settings:
        passed["port"] = str(_parse_port(settings["port"]))
    arguments["dsn"] = f"postgresql://?{urlencode(passed)}"
    if "connect_timeout" in settings:
        arguments["timeout"] = int(settings["connect_timeout"]) or None
    if password is not None:
        arguments["password"] = _wrap(password) if callable(password) else _check_text(password)
    return Target(
        shown=_render_address(settings, hosts),
        hosts=hosts,
        arguments=arguments,
        options=options,
        wanted=settings.get("target_session_attrs"),
        socket_options=_make_socket_options(settings),
        is_shuffled=settings.get("load_balance_hosts") == "random",
    )


def parse_replicas(text: str, primary: Target) -> list[Target]:
    """Return the targets of ``host:port,host:port``, all else as of the primary's.

    Raises:
        InvalidArgumentError: A host is empty, or a port is not a number.
    """
    default_port = str(primary.hosts[0][1]) if primary.hosts else ""
    try:
        hosts = _parse_hosts({"host": text, "port": default_port})
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"replicas= is read as hosts of a DSN: {exc}") from None
    return [
        replace(primary, shown=f"{_quote_host(host)}:{port}", hosts=((host, port),), wanted="any")
        for host, port in hosts
    ]


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
_NUMBER: Final = re.compile(r"[0-9]{1,9}")

_Read = tuple["Mapping[str, str]", "Sequence[tuple[str, str]]"]
"""The parts before the query string, by libpq's names; and the query's parameters."""


def _from_text(dsn: str) -> _Read:
    dsn = dsn.strip()
    scheme = _SCHEME.match(dsn)
    if scheme is None:
        return {}, list(_parse_keywords(dsn))
    if scheme[1].lower() not in {"postgresql", "postgres"}:
        raise InvalidArgumentError(
            f"{scheme[1]}:// is not PostgreSQL; write postgresql://user@host/database"
        )
    before, _, query = dsn[scheme.end() :].partition("?")
    place, _, path = before.partition("/")
    if "@" in path or (place and "@" in query) or "#" in path or "#" in query:
        raise InvalidArgumentError(
            "the DSN has an @ or a # after the end of its hosts; write %40 and %23 for them there,"
            " and in a password %2F for / and %3F for ?"
        )
    login, _, hosts = place.rpartition("@")
    user, _, password = login.partition(":")
    named = [_split(it) for it in hosts.split(",")]
    names, ports = (",".join(it) for it in zip(*named, strict=True))
    found = {"user": user, "password": password, "host": names, "port": ports, "dbname": path}
    found = found if ports.strip(",") else {**found, "port": ""}
    try:
        return {name: unquote(it, errors="strict") for name, it in found.items()}, parse_qsl(
            query.strip("&"), keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
    except ValueError:
        # The error is hidden: it repeats the text, which may hold a password.
        raise InvalidArgumentError(
            "what follows ? in the DSN is not name=value&name=value, or %-escapes are not UTF-8;"
            " in a password write %3F for ? and %25 for %, and in a value %26 for &"
        ) from None


def _from_url(url: URL) -> _Read:
    found, pairs = _from_text(url.set(database=None).render_as_string(hide_password=False))
    return {**found, "dbname": url.database or ""}, pairs


def _parse_keywords(text: str) -> Iterator[tuple[str, str]]:
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


def _split_parameters(
    pairs: Sequence[tuple[str, str]], ours: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Split parameters into libpq's and this library's."""
    settings: dict[str, str] = {}
    options: dict[str, str] = {}
    for place, (written, text) in enumerate(pairs, 1):
        name = _ALIASES.get(written, written)
        value = _SSL.get(text.lower(), text) if written == "ssl" else text
        if name not in PARAMETERS and name not in ours:
            # What follows a password may be a part of it.
            is_plain = re.fullmatch(r"\w+", name, re.ASCII) and not settings.keys() & _SECRETS
            known = {it for kind in (URL_OPTIONS, *URL_EXTRAS) for it in read_options(kind)}
            similar = suggest_option(name, PARAMETERS | known - {name}) if is_plain else ""
            raise InvalidArgumentError(
                f"{name if is_plain else f'name {place} in the DSN'} is not a parameter of a"
                f" PostgreSQL DSN{similar}; correct it or leave it out (in a password write %26 for"
                " &, or put 'quotes' around a password=value; a setting of the server is written"
                " options=-c%20name%3Dvalue)"
            )
        kept = settings if name in PARAMETERS else options
        is_list = name in {"host", "port"} and name in kept
        kept[name] = f"{kept[name]},{value}" if is_list else value
    return settings, options


def _drop_empty(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if value}


def _add_defaults(settings: dict[str, str]) -> dict[str, str]:
    """Add the parameters of the service, then of the environment."""
    environment = _drop_empty({name: os.environ.get(it, "") for it, name in _VARIABLES.items()})
    known = {**environment, **settings}
    if "service" not in known:
        return known
    file = make_absolute("servicefile", known.get("servicefile", "~/.pg_service.conf"))
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",))
    try:
        parser.read(file, encoding="utf-8")
        found = parser.items(known["service"])
    except configparser.NoSectionError:
        raise InvalidArgumentError(f"there is no service {known['service']!r} in {file}") from None
    except (configparser.Error, OSError, ValueError):
        # The error is hidden: it repeats lines of the file.
        raise InvalidArgumentError(f"{file} cannot be read as a service file") from None
    return {**environment, **_drop_empty(_split_parameters(found, ())[0]), **settings}


def _check(settings: Mapping[str, str]) -> None:
    """Refuse unsupported parameters; values are not repeated, as one may be a password."""
    for name, value in settings.items():
        _check_text(value, f"{name} in the DSN")
        accepted = _CHOICES.get(name)
        if accepted == ():
            raise InvalidArgumentError(
                f"asyncpg does not support {name}; leave it out (name an address as host;"
                " sslmode=verify-full protects the connection)"
            )
        if accepted and value.lower() not in accepted:
            raise InvalidArgumentError(f"{name} in the DSN must be one of: {', '.join(accepted)}")
        if name in {*_SOCKET, "connect_timeout"} and not _NUMBER.fullmatch(value):
            raise InvalidArgumentError(f"{name} in the DSN must be a whole number, 0 or more")
        if name in _TLS_FILES and value != "system" and not Path(value).is_file():
            raise InvalidArgumentError(f"{name} in the DSN: there is no file {value!r}")


def _check_text(value: str, what: str = "password=") -> str:
    if "\0" in value or value != value.encode(errors="replace").decode():
        raise InvalidArgumentError(f"{what} has a NUL or a lone surrogate")
    return value


def _parse_hosts(settings: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    if "host" not in settings:
        return ()
    hosts = [_split(it) for it in settings["host"].split(",")]
    if not all(host for host, _ in hosts):
        raise InvalidArgumentError("the DSN's list of hosts has an empty one; leave it out")
    ports = settings.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        raise InvalidArgumentError(
            f"the DSN has {len(hosts)} hosts but {len(ports)} ports;"
            " give one port, or one for each host"
        )
    return tuple(
        (host, _parse_port(own or port)) for (host, own), port in zip(hosts, ports, strict=True)
    )


def _split(text: str) -> tuple[str, str]:
    """Split host and port; a bare IPv6 address needs no brackets if ports are separate."""
    if text.startswith("["):
        address, bracket, port = text[1:].partition("]")
        if bracket and port[:1] in {"", ":"}:
            return address, port[1:]
        raise InvalidArgumentError("an IPv6 address in the DSN is written [::1] or [::1]:5432")
    if text.startswith("/") or text.count(":") > 1:
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def _parse_port(text: str) -> int:
    if not text:
        return DEFAULT_PORT
    if _NUMBER.fullmatch(text) and 0 < int(text) <= LAST_PORT:
        return int(text)
    raise InvalidArgumentError(
        "a port in the DSN is not a number from 1 to 65535"
        " (in a user or password write %3A for :, %2F for / and %3F for ?)"
    )


def _render_address(settings: Mapping[str, str], hosts: Sequence[tuple[str, int]]) -> str:
    user, database = (quote(settings.get(it, ""), safe="") for it in ("user", "dbname"))
    places = ",".join(f"{_quote_host(host)}:{port}" for host, port in hosts)
    return f"postgresql://{user}{'@' if user else ''}{places}/{database}"


def _quote_host(host: str) -> str:
    is_ipv6 = ":" in host and not host.startswith("/")
    return f"[{quote(host, safe=':')}]" if is_ipv6 else quote(host, safe="")


def _make_tls_arguments(settings: dict[str, str], hosts: Sequence[str]) -> dict[str, Any]:
    """Return asyncpg's argument for the system's authorities; adjust for ``channel_binding``."""
    if settings.get("channel_binding") == "require":
        is_tcp = hosts and not any(it.startswith("/") for it in hosts)
        if settings.get("sslmode") == "disable" or not is_tcp:
            raise InvalidArgumentError(
                "channel_binding=require needs TLS: name hosts, no unix sockets, and no"
                " sslmode=disable; or leave it out"
            )
        settings["sslmode"] = "verify-full"
        settings.setdefault("sslrootcert", "system")
    if settings.get("sslrootcert") != "system":
        return {}
    if (mode := settings.get("sslmode", "verify-full")) != "verify-full":
        raise InvalidArgumentError(f"sslrootcert=system needs sslmode=verify-full, not {mode}")
    if other := [it for it in ("sslcrl", *_TLS_VERSIONS) if it in settings]:
        raise InvalidArgumentError(
            f"{other[0]} cannot be combined with the system's authorities; name the authority's"
            " file as sslrootcert"
        )
    # asyncpg's ssl=True would read all authorities for each connection.
    context = ssl.create_default_context()
    context.set_alpn_protocols(["postgresql"])
    if "sslcert" in settings:
        try:
            context.load_cert_chain(
                settings["sslcert"], settings.get("sslkey"), settings.get("sslpassword", "")
            )
        except OSError:
            raise InvalidArgumentError(
                "sslcert or sslkey cannot be read; they are PEM files, and sslpassword is the"
                " password of the key"
            ) from None
    return {"ssl": context}


def _make_socket_options(settings: Mapping[str, str]) -> dict[str, int]:
    is_kept_alive = settings.get("keepalives") != "0"
    numbers = {
        option: int(settings.get(name, default if is_kept_alive else 0))
        for name, (option, default) in _SOCKET.items()
    }
    return {"SO_KEEPALIVE": int(is_kept_alive), **{name: it for name, it in numbers.items() if it}}


class PasswordError(Exception):
    """Raised if the callable gave no password; the other hosts are not tried."""


def _wrap(password: Callable[[], str | Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    async def ask() -> str:
        try:
            answer = password()
            found = await answer if inspect.isawaitable(answer) else answer
        except Exception as exc:
            raise PasswordError(f"the password= callable raised {type(exc).__name__}") from exc
        # asyncpg would wait for ever on anything else.
        if not isinstance(found, str):
            raise PasswordError(f"the password= callable gave {type(found).__name__}, no str")
        return found

    return ask


def compute_cache_size(options: Mapping[str, str], *, pgbouncer: bool) -> int:
    """Return how many prepared statements a connection may keep; 0 behind PgBouncer."""
    if not isinstance(pgbouncer, bool):
        raise InvalidArgumentError(f"pgbouncer={pgbouncer!r} must be True or False")
    if pgbouncer or options.get("pgbouncer", "false").lower() in {"true", "1"}:
        return 0
    sizes = [options[name] for name in OURS[1:] if name in options]
    if not all(it.isdigit() for it in sizes):
        raise InvalidArgumentError("statement_cache_size in the DSN must be a number from 0")
    return min((int(it) for it in sizes), default=STATEMENT_CACHE_SIZE)
