"""A client whose requests a transport of httpx answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.backends.http import HTTPBackend


class Answered:
    """Stands for the connections of a client."""

    def __init__(self, url: str, transport: Any) -> None:
        self._url, self._transport = url, transport

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        import httpx

        from locus_store.backends.http.transport import Answer, NoAnswerError

        url = httpx.URL(self._url, raw_path=path.encode())
        request = httpx.Request(method, url, content=body, headers=dict(headers))
        try:
            response = await self._transport.handle_async_request(request)
            content = await response.aread()
        except httpx.HTTPError as exc:
            is_unsent = isinstance(exc, httpx.ConnectError)
            raise NoAnswerError(str(exc), is_unsent=is_unsent) from exc
        return Answer(response.status_code, response.headers, content)

    async def close(self) -> None:
        """Nothing is open."""


def answered_by(transport: Any, backend: HTTPBackend) -> HTTPBackend:
    """Return the backend, whose requests ``transport`` answers."""
    connections: Any = backend.service._connections
    connections._make_transport = lambda: Answered(connections.where, transport)
    return backend
