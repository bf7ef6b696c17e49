"""The message log of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.http.backend import DEFAULT_URL, HTTPBackend
from locus_store.backends.http.connections import requests
from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.messages import BaseMessageLog

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from locus_store.backends.http.options import HTTPURLOptions
    from locus_store.wire.calls import WireCall


_Requests: Any = requests("messages")
"""Type checkers see the methods of the contract."""


class HTTPMessageLog(_Requests, BaseMessageLog):  # type: ignore[misc]
    """The message logs of a service of ``locus-store serve``.

    Args:
        base_url: See ``HTTPBackend``, as its other options.
        ttl_seconds: See ``BaseMessageLog``.
        backend: Use the connections of this backend; it closes them.
        options: Those of ``HTTPBackend``.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        ttl_seconds: float | None = None,
        backend: HTTPBackend | None = None,
        **options: Unpack[HTTPURLOptions],
    ) -> None:
        if backend is not None and (options or base_url != DEFAULT_URL):
            raise InvalidArgumentError("a backend has its own URL and options; leave them out")
        self.backend = backend or HTTPBackend(base_url, **options)
        self._owns = backend is None
        super().__init__(ttl_seconds=ttl_seconds, max_state_bytes=self.backend.max_state_bytes)

    def __repr__(self) -> str:
        return f"HTTPMessageLog({self.backend.service.where!r})"

    async def open(self) -> None:
        """See ``BaseMessageLog``, also for the following methods."""
        if not (await self.backend.service.described()).has_messages:
            raise UnsupportedError("this service has no message logs")

    async def ask(self, call: WireCall, arguments: dict[str, Any]) -> Any:
        """Send a call; return its result."""
        return await self.backend.service.ask(call, arguments)

    async def close(self) -> None:
        if self._owns:
            await self.backend.close()
