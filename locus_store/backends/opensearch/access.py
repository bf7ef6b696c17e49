"""Access to a cluster of OpenSearch: its hosts, the index, the credentials, and the client."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any, Final
from urllib.parse import urlsplit

from locus_store.backends.opensearch.options import OpenSearchOptions
from locus_store.errors import InvalidArgumentError, MissingExtraError, make_install_command

DEFAULT_INDEX: Final = "locus-checkpoints"
MOST_SECONDS: Final = 86_400.0

_INDEX: Final = re.compile("[a-z0-9][a-z0-9._-]{0,199}")
_HOST: Final = re.compile(r"(https?://)?[^/\s@]+(?<!:)(/[^\s@]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """An index of a cluster."""

    hosts: tuple[str, ...]
    """URLs without credentials."""

    name: str

    def __str__(self) -> str:
        return f"index {self.name!r} of {', '.join(self.hosts) or 'the given client'}"


def make_place(
    hosts: str | Sequence[str] | None, index_name: str, *, use_ssl: bool, client: Any
) -> IndexPlace:
    """Return the place that options name; refuse invalid ones."""
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
    return IndexPlace(hosts=tuple(_make_url(it, scheme) for it in named), name=index_name)


def _make_url(host: object, scheme: str) -> str:
    """Return the URL of a host, by default on port 9200; refuse credentials, unrepeated."""
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


def require(access: OpenSearchOptions) -> None:
    """Refuse options that are not valid, before anything is opened.

    Raises:
        InvalidArgumentError: An option is not valid.
        MissingExtraError: opensearch-py is not installed.
    """
    if find_spec("opensearchpy") is None:
        raise MissingExtraError(
            f"OpenSearch needs opensearch-py: {make_install_command('opensearch')}"
        )
    if (access["username"] is None) is not (access["password"] is None):
        raise InvalidArgumentError("username= and password= belong together")
    if access["client"] is None:
        return
    if access["username"] is not None:
        raise InvalidArgumentError("client= has its own credentials; leave out username=")
    perform = getattr(getattr(access["client"], "transport", None), "perform_request", None)
    if perform is None or iscoroutinefunction(perform):
        raise InvalidArgumentError("client= must be an opensearchpy.OpenSearch, which is not async")


def open_client(place: IndexPlace, access: OpenSearchOptions) -> Any:
    """Return a client that repeats nothing by itself, and leaves out hosts that have failed."""
    import opensearchpy  # noqa: PLC0415  (of an extra, and slow to import)

    options: dict[str, Any] = {}
    if access["username"] is not None:
        options["http_auth"] = (access["username"], access["password"])
    if any(it.startswith("https:") for it in place.hosts):
        options |= {"verify_certs": access["verify_certs"], "ssl_show_warn": False}
        options |= {"ca_certs": access["ca_certs"]} if access["ca_certs"] else {}
    return opensearchpy.OpenSearch(
        list(place.hosts),
        timeout=access["timeout_seconds"],
        pool_maxsize=2 * access["pool_size"],
        max_retries=0,
        retry_on_timeout=True,
        **options,
    )
