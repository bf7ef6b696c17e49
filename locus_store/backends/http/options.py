"""The options of the HTTP backend, for type checkers; a test holds them to the signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp


class HTTPOptions(TypedDict, total=False):
    """Of ``HTTPBackend``, beside ``base_url``."""

    headers: Mapping[str, str] | None
    auth: tuple[str, str] | None
    timeout: float
    client: aiohttp.ClientSession | None
    token: str | None
    retry_seconds: float
    pool_size: int
    max_state_bytes: int
