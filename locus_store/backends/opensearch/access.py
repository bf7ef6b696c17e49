"""Access to a cluster of OpenSearch: its hosts, the index, the credentials, and the client."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from locus_store.errors import InvalidArgumentError, MissingExtraError, pip_install
from locus_store.types.arguments import check_number

if TYPE_CHECKING:
    from collections.abc import Sequence

Refresh: TypeAlias = Literal["interval", "wait"]

DEFAULT_INDEX: Final = "locus-checkpoints"
POOL_SIZE: Final = 16
RETRY_SECONDS: Final = 30.0
TIMEOUT_SECONDS: Final = 10.0
"""Less than ``RETRY_SECONDS``: a call that one host does not answer asks another one."""

MOST_SECONDS: Final = 86_400.0
MOST_THREADS: Final = 256
LANGUAGES: Final = frozenset({
    "arabic", "armenian", "basque", "bengali", "brazilian", "bulgarian", "catalan", "cjk",
    "czech", "danish", "dutch", "english", "estonian", "finnish", "french", "galician", "german",
    "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "latvian", "lithuanian",
    "norwegian", "persian", "portuguese", "romanian", "russian", "sorani", "spanish", "swedish",
    "thai", "turkish",
})  # fmt: skip
"""The analyzers of languages that OpenSearch has without a plugin."""

_INDEX: Final = re.compile("[a-z0-9][a-z0-9._-]{0,199}")
_KINDS: Final = {
    "username": str | None,
    "password": str | None,
    "verify_certs": bool,
}
_HOST: Final = re.compile(r"(https?://)?[^/\s@]+(?<!:)(/[^\s@]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """An index of a cluster."""

    hosts: tuple[str, ...]
    """URLs without credentials."""

    name: str

    def __str__(self) -> str:
        return f"index {self.name!r} of {', '.join(self.hosts) or 'the given client'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAccess:
    """Credentials, and limits of calls."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    verify_certs: bool = True
    ca_certs: str | None = None
    client: Any = None
    language: str | None = None
    refresh: Refresh = "interval"
    pool_size: int = POOL_SIZE
    retry_seconds: float = RETRY_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS


def place_of(
    hosts: str | Sequence[str] | None, index_name: str, *, use_ssl: bool, client: Any
) -> IndexPlace:
    """Return the place that options name.

    Raises:
        InvalidArgumentError: One is not valid.
    """
    if (hosts is None) is (client is None):
        raise InvalidArgumentError("pass hosts= or client=, and not both")
    if not isinstance(index_name, str) or not _INDEX.fullmatch(index_name):
        raise InvalidArgumentError(
            f"index_name={index_name!r} must have lowercase letters, digits, '.', '_' and '-' only"
        )
    if not isinstance(hosts, (str, list, tuple, type(None))):
        raise InvalidArgumentError(f"hosts={type(hosts).__name__} must be a string or a list")
    named = [hosts] if isinstance(hosts, str) else list(hosts or ())
    if client is None and not named:
        raise InvalidArgumentError("hosts= is empty")
    scheme = "https" if use_ssl else "http"
    return IndexPlace(hosts=tuple(_url(it, scheme) for it in named), name=index_name)


def _url(host: object, scheme: str) -> str:
    """Return the URL of a host; a host without a port is on 9200.

    Raises:
        InvalidArgumentError: It is none, or it has credentials, which are not repeated.
    """
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        raise InvalidArgumentError(
            "a host must have the form host:9200 or https://host:9200; pass username= and "
            "password= for credentials"
        )
    try:
        parts = urlsplit(host if "://" in host else f"{scheme}://{host}")
        port = 9200 if parts.port is None else parts.port
    except ValueError as exc:
        raise InvalidArgumentError(f"host {host!r} is not valid: {exc}") from exc
    if not parts.hostname or not port or parts.query or parts.fragment:
        raise InvalidArgumentError(
            f"host {host!r} must have a name, and may have a port and a path"
        )
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{name}:{port}{parts.path.rstrip('/')}"


def require(access: IndexAccess) -> None:
    """Refuse options that are not valid, before anything is opened.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: opensearch-py is not installed.
    """
    if find_spec("opensearchpy") is None:
        raise MissingExtraError(f"OpenSearch needs opensearch-py: {pip_install('opensearch')}")
    _require_language(access.language)
    if access.refresh not in get_args(Refresh):
        known = ", ".join(get_args(Refresh))
        raise InvalidArgumentError(f"refresh={access.refresh!r} must be one of: {known}")
    if (access.username is None) is not (access.password is None):
        raise InvalidArgumentError("username= and password= belong together")
    for name, kind in _KINDS.items():
        if not isinstance(getattr(access, name), kind):
            raise InvalidArgumentError(f"{name}= has a value of a wrong type")
    if access.client is not None:
        _require_client(access)
    for name in ("retry_seconds", "timeout_seconds"):
        check_number(name, getattr(access, name), MOST_SECONDS)
    if not access.timeout_seconds:
        raise InvalidArgumentError("timeout_seconds= must be above 0")
    if not isinstance(access.pool_size, int) or access.pool_size < 1:
        raise InvalidArgumentError(f"pool_size={access.pool_size!r} must be an integer above 0")
    check_number("pool_size", access.pool_size, MOST_THREADS)


def _require_language(language: str | None) -> None:
    """Refuse a language that OpenSearch has no analyzer for.

    Raises:
        InvalidArgumentError: It has none.
    """
    if language is not None and (not isinstance(language, str) or language not in LANGUAGES):
        known = ", ".join(sorted(LANGUAGES))
        raise InvalidArgumentError(f"language={language!r} must be None or one of: {known}")


def _require_client(access: IndexAccess) -> None:
    if access.username is not None:
        raise InvalidArgumentError("client= has its own credentials; leave out username=")
    perform = getattr(getattr(access.client, "transport", None), "perform_request", None)
    if perform is None or iscoroutinefunction(perform):
        raise InvalidArgumentError("client= must be an opensearchpy.OpenSearch, which is not async")


def opened(place: IndexPlace, access: IndexAccess) -> Any:
    """Return a client that repeats nothing by itself, and leaves out hosts that have failed."""
    import opensearchpy  # noqa: PLC0415  (of an extra, and slow to import)

    options: dict[str, Any] = {}
    if access.username is not None:
        options["http_auth"] = (access.username, access.password)
    if any(it.startswith("https:") for it in place.hosts):
        options |= {"verify_certs": access.verify_certs, "ssl_show_warn": False}
        options |= {"ca_certs": access.ca_certs} if access.ca_certs else {}
    return opensearchpy.OpenSearch(
        list(place.hosts),
        timeout=access.timeout_seconds,
        pool_maxsize=2 * access.pool_size,
        max_retries=0,
        retry_on_timeout=True,
        **options,
    )
