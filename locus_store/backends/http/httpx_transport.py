"""Requests by httpx, for callers who bring a client or an authentication of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.http.transports import Answer, NoAnswerError, limited
from locus_store.errors import InvalidArgumentError, MissingExtraError, pip_install

try:
    import httpx
except ImportError as exc:
    raise MissingExtraError(
        f"client= and auth= of httpx need it: {pip_install('http')}", name="httpx"
    ) from exc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.backends.http.transports import TransportOptions

_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class HttpxTransport:
    """A client of httpx; see ``Transport``.

    Args:
        base_url: Of the service.
        options: Of the connections.
        client: The caller's own, with its own headers and timeout; it is left open.
        auth: Of httpx.

    Raises:
        InvalidArgumentError: An argument is not of httpx.
    """

    def __init__(
        self,
        base_url: str,
        options: TransportOptions,
        *,
        client: httpx.AsyncClient | None = None,
        auth: Any = None,
    ) -> None:
        self._base = httpx.URL(base_url)
        self._prefix = self._base.raw_path.rstrip(b"/")
        self._most = options.max_answer
        self._timeout = options.timeout if client is None else None
        self._is_owner = client is None
        self._client = client or _made(options, auth)

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """See ``Transport``, also for the following methods."""
        url = self._base.copy_with(raw_path=self._prefix + path.encode())
        request = self._client.build_request(method, url, content=body, headers=dict(headers))
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.send(request, stream=True, follow_redirects=False)
                try:
                    answer = await limited(response.aiter_bytes(), self._most)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, TimeoutError) as exc:
            told = str(exc) or type(exc).__name__
            raise NoAnswerError(told, is_unsent=isinstance(exc, _UNSENT)) from exc
        return Answer(response.status_code, response.headers, answer)

    async def close(self) -> None:
        if self._is_owner:
            await self._client.aclose()


def require_httpx(client: object, auth: object) -> None:
    """Refuse what is not of httpx.

    Raises:
        InvalidArgumentError: An argument is not of httpx.
    """
    if client is not None and not isinstance(client, httpx.AsyncClient):
        raise InvalidArgumentError("client must be an httpx.AsyncClient")
    if auth is not None and not (isinstance(auth, httpx.Auth) or callable(auth)):
        raise InvalidArgumentError("auth must be a pair (user, password) or an httpx.Auth")


def _made(options: TransportOptions, auth: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers=dict(options.headers),
        auth=auth,
        timeout=options.timeout,
        limits=httpx.Limits(
            max_connections=options.pool_size, max_keepalive_connections=options.pool_size
        ),
    )
