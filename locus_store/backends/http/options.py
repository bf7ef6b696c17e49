"""The options of the client of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import TypedDict

from locus_store.backends.http.transport import POOL_SIZE, TIMEOUT_SECONDS
from locus_store.types.options import (
    DAY,
    IN_PYTHON,
    Bounds,
    CheckpointOptions,
    Count,
    Option,
    Patience,
    StateOptions,
)

if TYPE_CHECKING:
    from aiohttp import ClientSession

    Pair = tuple[str, str]
else:  # of an extra, and checked where it is used
    ClientSession = Pair = Any


class HTTPClientOptions(TypedDict, total=False):
    """Of an HTTP client; the arguments that follow ``base_url``."""

    headers: Annotated[Mapping[str, str] | None, Option(None, "sent with each request"), IN_PYTHON]
    auth: Annotated[Pair | None, Option(None, "`(user, password)` for HTTP Basic"), IN_PYTHON]
    timeout: Annotated[
        Annotated[float, Bounds(gt=0, le=DAY)],
        Option(TIMEOUT_SECONDS, "seconds for each attempt of a request"),
    ]
    client: Annotated[
        ClientSession | None,
        Option(
            None,
            "an `aiohttp.ClientSession` instead, left open. It works in its process and in the"
            " event loop of its first use",
        ),
        IN_PYTHON,
    ]


class HTTPOptions(StateOptions, total=False):
    """Of ``HTTPBackend``, beside ``base_url`` and ``HTTPClientOptions``."""

    token: Annotated[str | None, Option(None, "sent as `Authorization: Bearer …`")]
    retry_seconds: Annotated[
        Patience,
        Option(
            10.0,
            "how long a request is repeated while the service cannot be reached or is busy. After"
            " a lost reply, only idempotent requests are repeated",
        ),
    ]
    pool_size: Annotated[
        Count, Option(POOL_SIZE, "most requests at once, and most connections, per event loop")
    ]


class HTTPCheckpointerOptions(HTTPOptions, CheckpointOptions, total=False):
    """Of ``HTTPCheckpointer``, beside ``base_url``, ``HTTPClientOptions`` and ``state_type``."""


class HTTPURLOptions(HTTPClientOptions, HTTPOptions, total=False):
    """All options."""


URL_OPTIONS = HTTPURLOptions


def parse_place(url: str) -> tuple[dict[str, str], str]:
    """Return the URL without its query string, and the query string."""
    base_url, _, query = url.partition("?")
    return {"base_url": base_url}, query
