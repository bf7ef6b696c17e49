"""Parameters of a DSN as arguments of asyncpg: session, password, socket and TLS."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from locus_store.errors import InvalidArgumentError

Password: TypeAlias = str | Callable[[], str | Awaitable[str]]

OURS: Final = ("pgbouncer", "statement_cache_size", "prepared_statement_cache_size")
"""Options that a DSN may contain for this library, as hosts and other libraries write them."""

STATEMENT_CACHE_SIZE: Final = 100

NUMBERS: Final = {
    "connect_timeout": "",
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}
"""Whole numbers, 0 for the default; and the option of the socket that they are."""

ALIVE: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,
}
"""Where the DSN does not say: a minute after a host has vanished, the system ends its connections.

The last one is in milliseconds; the system's own values are hours.
"""

TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_TLS_IN_DSN: Final = (
    *TLS_FILES,
    *("sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version"),
)
"""Taken by asyncpg in a DSN only."""


def nonempty(found: Mapping[str, str]) -> dict[str, str]:
    """Return what has a value."""
    return {name: value for name, value in found.items() if value}


def home(*names: str) -> Path | None:
    """Return a place in the user's directory; ``None`` where there is none."""
    try:
        return Path.home().joinpath(*names)
    except (RuntimeError, KeyError):
        return None


def is_text(value: str) -> bool:
    """Return whether the value can be sent: it has neither NUL nor a lone surrogate."""
    return "\0" not in value and value == value.encode(errors="replace").decode()


def session(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of the session, and of the choice of a host."""
    settings = {"options": given.get("options", "")}
    settings["application_name"] = given.get(
        "application_name", given.get("fallback_application_name", "")
    )
    found: dict[str, Any] = {
        name: given[name]
        for name in ("target_session_attrs", "krbsrvname", "gsslib", "passfile")
        if name in given
    }
    if stated := nonempty(settings):
        found["server_settings"] = stated
    if "connect_timeout" in given:
        found["timeout"] = int(given["connect_timeout"]) or None
    return found


def socket_options(given: Mapping[str, str]) -> dict[str, int]:
    """Return the options of the socket, by name in ``socket``."""
    numbers = {
        option: int(given[name]) for name, option in NUMBERS.items() if option and name in given
    }
    if given.get("keepalives") == "0":
        return {name: it for name, it in numbers.items() if name == "TCP_USER_TIMEOUT" and it}
    numbers = {**ALIVE, **numbers}
    return {"SO_KEEPALIVE": 1, **{name: it for name, it in numbers.items() if it}}


class PasswordError(Exception):
    """Raised if the callable gave no password; the other hosts are not tried."""


def secret(given: Mapping[str, str], password: Password | None) -> dict[str, Any]:
    """Return the argument ``password``: a text, or a function that asks for it."""
    if callable(password):
        return {"password": _asked(password)}
    if password is None:
        return {"password": given["password"]} if "password" in given else {}
    if not is_text(password):
        raise InvalidArgumentError("password= has a NUL or a lone surrogate")
    return {"password": password}


def _asked(password: Callable[[], str | Awaitable[str]]) -> Callable[[], Awaitable[str]]:
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


# --- TLS ------------------------------------------------------------------------------------

_VERIFYING: Final = {"verify-ca", "verify-full"}


def tls(given: Mapping[str, str], addresses: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return the arguments of TLS."""
    is_local = [host.startswith("/") for host, _ in addresses]
    mode, root = _verified(given, is_tcp=bool(addresses) and not any(is_local))
    is_direct = given.get("sslnegotiation") == "direct"
    if mode == "disable" or (addresses and all(is_local)):
        return {"ssl": "disable", "direct_tls": False}
    if is_direct and mode not in {"require", *_VERIFYING}:
        raise InvalidArgumentError("sslnegotiation=direct needs sslmode=require or verify-full")
    if mode in _VERIFYING and not root and not _is_file(home(".postgresql", "root.crt")):
        raise InvalidArgumentError(
            f"sslmode={mode} needs sslrootcert: the file of the authority that signed the server's"
            " certificate, or system for those that this machine trusts"
        )
    for name in TLS_FILES:
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


def cache_size(said: Mapping[str, str], *, pgbouncer: bool) -> int:
    """Return how many prepared statements a connection may keep; 0 behind PgBouncer."""
    if not isinstance(pgbouncer, bool):
        raise InvalidArgumentError(f"pgbouncer={pgbouncer!r} must be True or False")
    if pgbouncer or said.get("pgbouncer", "false").lower() in {"true", "1"}:
        return 0
    sizes = [said[name] for name in OURS[1:] if name in said]
    if not all(it.isdigit() for it in sizes):
        raise InvalidArgumentError("statement_cache_size in the DSN must be a number from 0")
    return min((int(it) for it in sizes), default=STATEMENT_CACHE_SIZE)
