"""Requests by aiohttp, the transport of a client that names no other."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp.payload import Payload
from yarl import URL

from locus_store.backends.http.transports import Answer, NoAnswerError, basic, limited, proxy_of
from locus_store.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.abc import AbstractStreamWriter

    from locus_store.backends.http.transports import TransportOptions

PART_BYTES: Final = 256 * 1024
"""A longer body is sent in parts, so that an answer is read meanwhile."""


class AiohttpTransport:
    """A session of aiohttp; see ``Transport``.

    Args:
        base_url: Of the service.
        options: Of the connections; their number is limited by the caller.
    """

    def __init__(self, base_url: str, options: TransportOptions) -> None:
        self._base, url = base_url, URL(base_url)
        self._most = options.max_answer
        self._proxy = proxy = _proxy(url)
        is_secure = url.scheme == "https"
        told = {} if is_secure else proxy.get("proxy_headers", {})
        self._session = aiohttp.ClientSession(
            # The context of aiohttp is made at its import, and would not see SSL_CERT_FILE later.
            connector=_Connector(limit=0, ssl=ssl.create_default_context() if is_secure else True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={**options.headers, **told},
            timeout=aiohttp.ClientTimeout(total=options.timeout),
            # Proxies are looked up once. For each request, aiohttp would also read ~/.netrc.
            trust_env=False,
        )

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """See ``Transport``, also for the following methods."""
        sent = _Body(body)
        try:
            response = await self._session.request(
                method,
                URL(self._base + path, encoded=True),
                data=sent if body else None,
                headers=headers,
                allow_redirects=False,
                **self._proxy,
            )
            try:
                answer = await limited(response.content.iter_any(), self._most)
            finally:
                if not sent.is_sent:
                    response.close()
                response.release()
        except aiohttp.ClientResponseError as exc:  # it holds the headers, and the token in them
            raise NoAnswerError(exc.message, is_unsent=False) from None
        except (aiohttp.ClientError, OSError) as exc:
            told = str(exc) or type(exc).__name__
            raise NoAnswerError(told, is_unsent=not sent.is_begun) from exc
        return Answer(response.status, response.headers, answer)

    async def close(self) -> None:
        await self._session.close()


class _Connector(aiohttp.TCPConnector):
    """Connections that end with their event loop, of which aiohttp then reports nothing."""

    @property
    def closed(self) -> bool:
        return super().closed or self._loop.is_closed()

    def __del__(self, *_: Any) -> None:
        """Close nothing: the sockets may be those of a parent process."""


class _Body(Payload):
    """The body of a request, which remembers how much of it was sent."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.is_begun = False
        self.is_sent = not body

    @property
    def size(self) -> int:
        return len(self._value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        found: bytes = self._value
        return found.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        self.is_begun = True
        body = memoryview(self._value)
        for at in range(0, len(body), PART_BYTES):
            await writer.write(body[at : at + PART_BYTES])
        self.is_sent = True


def is_untrusted(error: BaseException | None) -> bool:
    """Return whether an error is that of a certificate, which no second attempt mends."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__
    return error is not None


def _proxy(url: URL) -> dict[str, Any]:
    """Return the arguments of a request that name the proxy of the environment."""
    found = proxy_of(url.scheme, url.host or "", url.port or 0)
    if not found:
        return {}
    proxy = URL(found)
    if proxy.scheme not in {"http", "https"}:
        raise InvalidArgumentError(
            f"a proxy by {proxy.scheme} is not supported; pass client=httpx.AsyncClient(proxy=...)"
        )
    if proxy.user is None:
        return {"proxy": proxy}
    told = basic((proxy.user, proxy.password or ""))
    return {"proxy": proxy.with_user(None), "proxy_headers": {"proxy-authorization": told}}
