"""The options of the servers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from locus_store.service.access import LOOPBACK
from locus_store.service.exchange import MAX_BODY


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of ``locus-store serve``."""

    url: str
    host: str = "127.0.0.1"
    port: int = 8321
    token_file: str | None = None
    read_only: bool = False
    max_body: int = MAX_BODY
    requests_per_second: float | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Beside the names of loopback; for the pages, and for callers without tokens."""

    workers: int = 1
    dimension: int | None = None
    metric: Any = "cosine"
    inspector: bool = False
    """Show the pages of ``locus_store.inspector`` at ``/inspector/``."""

    behind_proxy: bool = False
    """The pages are reached through a proxy with TLS only."""

    allow_write: bool = False
    """The pages offer forks, rewinds and deletions."""

    session_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Signs the sessions of the pages, in all workers."""

    @property
    def hosts(self) -> frozenset[str]:
        """The names of the service: those of loopback, its own, and those that were given."""
        names = (self.literal_host, *self.allowed_hosts)
        return frozenset({*LOOPBACK, *map(str.lower, names)})

    @property
    def literal_host(self) -> str:
        """The host as a URL has it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def is_on_loopback(self) -> bool:
        """True if only this machine reaches the service."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """The options of ``locus-store inspect``."""

    port: int = 0
    allow_write: bool = False
