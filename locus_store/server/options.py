"""The options of ``locus-store serve``, which Typer reads from their annotations."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Annotated

import typer

from locus_store.errors import InvalidArgumentError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of the service beside its URL."""

    host: Annotated[str, typer.Option(help="Address; without tokens, loopback only.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port; 0 is any free one.")] = 8321
    token_file: Annotated[
        str | None,
        typer.Option(help="Let callers with tokens in only.", envvar="LOCUS_STORE_TOKEN_FILE"),
    ] = None
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse writes.")] = False
    max_body: Annotated[str, typer.Option(help="The longest request, as 100MB.")] = "100MB"
    rate: Annotated[
        float | None, typer.Option(help="Requests per second of each token; none: any number.")
    ] = None
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another name of the service: for the inspector, and without tokens; repeatable."
        ),
    ] = None
    workers: Annotated[int, typer.Option(help="Processes on the port.")] = 1
    dimension: Annotated[
        int | None, typer.Option(help="Dimensions of new embeddings; none: as stored.")
    ] = None
    metric: Annotated[str, typer.Option(help="cosine, l2 or ip.")] = "cosine"
    inspector: Annotated[
        bool, typer.Option("--inspector", help="Show the browser inspector at /inspector/.")
    ] = False
    behind_proxy: Annotated[
        bool,
        typer.Option("--behind-proxy", help="The inspector is reached through TLS of a proxy."),
    ] = False
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Let the inspector fork, rewind and delete.")
    ] = False
    session_key: bytes = field(
        default_factory=lambda: secrets.token_bytes(32), repr=False, init=False
    )
    """Signs the sessions of the pages, in all workers."""

    @property
    def max_body_bytes(self) -> int:
        """The longest request in bytes.

        Raises:
            InvalidArgumentError: ``max_body`` is not a number of bytes, such as ``100MB``.
        """
        found = re.fullmatch(r"(\d{1,12}) ?([KMG]B)?", self.max_body.strip(), re.IGNORECASE)
        if found is None or not int(found[1]):
            raise InvalidArgumentError(
                f"--max-body {self.max_body!r} must be a number with KB, MB or GB"
            )
        return int(found[1]) * _UNITS[(found[2] or "").upper()]

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
