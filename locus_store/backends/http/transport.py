"""Requests to a service, by aiohttp."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from locus_store.errors import BackendError, InvalidArgumentError

TIMEOUT_SECONDS: Final = 30.0
POOL_SIZE: Final = 64
ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The room of an answer beside twice the largest state."""

PART_BYTES: Final = 256 * 1024
"""A longer body is sent in parts, so that an answer is read meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a client; see ``HTTPBackend``."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = TIMEOUT_SECONDS
    pool_size: int = POOL_SIZE
    max_answer: int = ANSWER_BYTES
    """The longest body of an answer, decompressed."""

    retry_seconds: float = 10.0
    client: aiohttp.ClientSession | None = None
    """Used instead of connections of our own, and left open."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """Their names are found in any case."""

    body: bytes
    is_repeated: bool = False
    """An earlier attempt was sent and had no answer."""

    @property
    def is_success(self) -> bool:
        """True for a status from 200 to 299."""
        return 200 <= self.status <= 299  # noqa: PLR2004  (RFC 9110)

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "")


class NoAnswerError(Exception):
    """A request that has no answer.

    Args:
        message: Says why.
        is_unsent: The service cannot have acted on the request.
    """

    def __init__(self, message: str, *, is_unsent: bool) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent


class Transport:
    """The connections of one event loop to a service.

    Args:
        base_url: Of the service.
        options: Of the connections; their number is limited by the caller.
    """

    def __init__(self, base_url: str, options: ClientOptions) -> None:
        client = options.client
        self._base = base_url
        self._most = options.max_answer
        self._is_owner = client is None
        self._proxy = {} if client else _make_proxy_arguments(URL(base_url))
        self._session = client or _make_session(URL(base_url), options, self._proxy)

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request once; a redirect is an answer.

        Args:
            method: The method.
            path: Below the base URL, percent-encoded; it is sent as it is.
            body: The body.
            headers: Beside those of the session.

        Raises:
            NoAnswerError: There is no answer.
            BackendError: The answer is too long.
        """
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
                answer = await _read_limited(response.content.iter_any(), self._most)
            finally:
                if not sent.is_sent:
                    response.close()
                response.release()
        except aiohttp.ClientResponseError as exc:  # it holds the headers, and the token in them
            raise NoAnswerError(exc.message, is_unsent=False) from None
        except (aiohttp.ClientError, OSError) as exc:
            reason = str(exc) or type(exc).__name__
            raise NoAnswerError(reason, is_unsent=not sent.is_begun) from exc
        return Answer(response.status, response.headers, answer)

    async def close(self) -> None:
        """Release the connections, unless they are the caller's."""
        if self._is_owner:
            await self._session.close()


def _make_session(url: URL, options: ClientOptions, proxy: dict[str, Any]) -> aiohttp.ClientSession:
    is_secure = url.scheme == "https"
    proxy_headers = {} if is_secure else proxy.get("proxy_headers", {})
    return aiohttp.ClientSession(
        # The context of aiohttp is made at its import, and would not see SSL_CERT_FILE later.
        connector=_Connector(limit=0, ssl=ssl.create_default_context() if is_secure else True),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={**options.headers, **proxy_headers},
        timeout=aiohttp.ClientTimeout(total=options.timeout),
        # Proxies are looked up once. For each request, aiohttp would also read ~/.netrc.
        trust_env=False,
    )


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


def _make_proxy_arguments(url: URL) -> dict[str, Any]:
    """Return the arguments of a request that name the proxy of the environment."""
    found = _find_proxy(url.scheme, url.host or "", url.port or 0)
    if not found:
        return {}
    proxy = URL(found)
    if proxy.scheme not in {"http", "https"}:
        raise InvalidArgumentError(
            f"a proxy by {proxy.scheme} is not supported; pass client=aiohttp.ClientSession(...)"
            " with a connector for it, such as that of aiohttp-socks"
        )
    if proxy.user is None:
        return {"proxy": proxy}
    credentials = encode_basic_credentials((proxy.user, proxy.password or ""))
    return {"proxy": proxy.with_user(None), "proxy_headers": {"proxy-authorization": credentials}}


async def _read_limited(parts: AsyncIterable[bytes], most: int) -> bytes:
    """Return a body that is read part by part; refuse a longer one, whose rest is not read."""
    found: list[bytes] = []
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise BackendError(
                f"the service gave an answer of more than {most:,} bytes; pass a larger "
                "max_state_bytes to read it"
            )
        found.append(part)
    return found[0] if len(found) == 1 else b"".join(found)


def encode_basic_credentials(pair: object) -> str:
    """Return the header of basic authentication for a user and a password.

    Raises:
        InvalidArgumentError: ``pair`` is not one of two strings.
    """
    if not isinstance(pair, tuple) or [*map(type, pair)] != [str, str]:
        raise InvalidArgumentError(
            "auth must be a pair (user, password); for another scheme pass headers= or token=, or"
            " client=aiohttp.ClientSession(...)"
        )
    return f"Basic {b64encode(':'.join(pair).encode()).decode()}"


def _find_proxy(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy that the environment names for a service."""
    if proxy_bypass(f"{host}:{port}"):
        return None
    named = getproxies()
    found = named.get(scheme) or named.get("all")
    return found if not found or "://" in found else f"http://{found}"
