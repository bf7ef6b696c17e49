"""Requests to a service: a client per event loop, retries, and the translation of failures."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import httpx

from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    LocusStoreError,
    SerializationError,
)
from locus_store.runtime import observe
from locus_store.runtime.loops import Home, Homes
from locus_store.wire import bodies, failures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from locus_store.wire.calls import WireCall

TIMEOUT_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 10.0
POOL_SIZE: Final = 64
MAX_PORT: Final = 65535

PAUSE_SECONDS: Final = 0.05
"""The average pause before the second attempt; doubled each time, up to a second."""

BUSY: Final = 429
GATEWAYS: Final = frozenset({502, 503, 504})
"""The statuses of a service that is not there for the moment, or of a proxy before it."""

_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures after which the service has not seen the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a client's connections; see ``HTTPBackend``."""

    headers: Mapping[str, str] = field(default_factory=dict)
    auth: Any = None
    timeout: float = TIMEOUT_SECONDS
    retry_seconds: float = RETRY_SECONDS
    pool_size: int = POOL_SIZE

    def client(self) -> httpx.AsyncClient:
        """Return a client for the running loop."""
        return httpx.AsyncClient(
            headers={"user-agent": "locus-store", **self.headers},
            auth=self.auth,
            timeout=self.timeout,
            limits=httpx.Limits(
                max_connections=self.pool_size, max_keepalive_connections=self.pool_size
            ),
        )


class HTTPConnections:
    """The clients of the event loops that use a service.

    Args:
        base_url: Of the service.
        options: Of the connections.
        client: A client to use, which is left open; ``None``: one is made for each event loop.
    """

    def __init__(
        self, base_url: str, options: ClientOptions, client: httpx.AsyncClient | None = None
    ) -> None:
        self._base_url = _checked_url(base_url)
        self.where = f"{self._base_url.scheme}://{self._base_url.netloc.decode()}"
        self.where += self._base_url.path.rstrip("/")
        refusal = "a client belongs to the event loop that it was first used in"

        def home() -> HTTPClient:
            made = options.client() if client is None else client
            return HTTPClient(made, self._base_url, self.where, options, is_owner=client is None)

        self._homes = Homes(home, None if client is None else refusal)

    async def home(self) -> HTTPClient:
        """Return the running loop's client."""
        return await self._homes.mine()

    async def close(self) -> None:
        """Release the connections; those of other loops are released there."""
        await self._homes.close()


def _checked_url(base_url: str) -> httpx.URL:
    try:
        found = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError) as exc:
        raise InvalidArgumentError("base_url is not a URL") from exc
    if found.scheme not in {"http", "https"} or not found.host:
        raise InvalidArgumentError("base_url must be http://host:port or https://host:port")
    if found.port is not None and found.port > MAX_PORT:
        raise InvalidArgumentError(f"a port is at most {MAX_PORT}")
    if found.userinfo:
        raise InvalidArgumentError(
            "base_url has a user or a password: pass auth=(user, password), or token="
        )
    if found.query or found.fragment:
        raise InvalidArgumentError("base_url has no ?query and no #fragment")
    return found


class HTTPClient(Home):
    """The client of one event loop."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        base_url: httpx.URL,
        where: str,
        options: ClientOptions,
        *,
        is_owner: bool,
    ) -> None:
        super().__init__()
        self._client = client
        self._base = base_url
        self._prefix = base_url.raw_path.rstrip(b"/")
        self.where = where
        self._options = options
        self._is_owner = is_owner
        self._urls: dict[str, httpx.URL] = {}
        self.max_body: int | None = None
        """The longest body that the service accepts, once it was asked."""

        self._usual = [*client.headers.raw]
        self._timeout = {"timeout": client.timeout.as_dict()}
        self._places = asyncio.Semaphore(options.pool_size)
        self._idle = asyncio.Event()
        self._idle.set()
        self._asked = 0
        self._is_over = False

    async def _release(self) -> None:
        """Close the connections, once each request has its answer."""
        self._is_over = True
        await self._idle.wait()
        if self._is_owner:
            await self._client.aclose()

    async def ask(self, call: WireCall, arguments: Mapping[str, Any]) -> Any:
        """Send a call; return its result.

        Raises:
            LocusStoreError: The service refused it, or cannot be reached.
        """
        body, media_type = bodies.framed(arguments)
        if self.max_body is not None and len(body) > self.max_body:
            raise SerializationError(
                f"the request exceeds the {self.max_body:,} bytes that {self.where} accepts; "
                "nothing was sent"
            )
        url = self._urls.get(call.name) or self._urls.setdefault(call.name, self._url(call.path))
        headers = {"content-type": media_type, "accept": _ACCEPTED}
        response = await self._answered("POST", url, body, headers, call.is_repeatable)
        if not response.is_success:
            raise self.refusal(response)
        try:
            value, payloads = bodies.received(
                response.content, response.headers.get("content-type", "")
            )
            return call.answer.read(value, payloads)
        except InvalidArgumentError as exc:
            raise BackendError(f"{self.where} gave an answer that is not valid: {exc}") from exc

    async def send(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        is_repeatable: bool,
    ) -> httpx.Response:
        """Send a request, again if that is safe; return the answer, whatever its status.

        Raises:
            ConnectionFailedError: There is no answer, or the service is not there.
        """
        return await self._answered(method, self._url(path), body, headers, is_repeatable)

    def _url(self, path: str) -> httpx.URL:
        return self._base.copy_with(raw_path=self._prefix + path.encode())

    async def _answered(
        self,
        method: str,
        url: httpx.URL,
        body: bytes,
        headers: Mapping[str, str],
        is_repeatable: bool,
    ) -> httpx.Response:
        attempts = _Attempts(self._options.retry_seconds)
        while True:
            try:
                response = await self._sent(method, url, body, headers)
            except httpx.HTTPError as exc:
                failure = self._lost(exc)
                may_repeat, pause = is_repeatable or isinstance(exc, _UNSENT), 0.0
            else:
                absence = self._absence(response)
                if absence is None:
                    return response
                failure = absence
                may_repeat = is_repeatable or response.status_code == BUSY
                pause = _retry_after(response)
            if not may_repeat or not attempts.are_left(pause):
                raise failure
            observe.connections.warning("%s: %s; trying again", self.where, failure)
            await attempts.pause(pause)

    async def _sent(
        self, method: str, url: httpx.URL, body: bytes, headers: Mapping[str, str]
    ) -> httpx.Response:
        if self._is_over and self._is_owner:  # closed while this call was on its way here
            async with self._options.client() as client:
                return await client.send(self._request(method, url, body, headers))
        self._asked += 1
        self._idle.clear()
        try:
            async with self._places:
                return await self._client.send(self._request(method, url, body, headers))
        finally:
            self._asked -= 1
            if not self._asked:
                self._idle.set()

    def _request(
        self, method: str, url: httpx.URL, body: bytes, headers: Mapping[str, str]
    ) -> httpx.Request:
        """Return a request; the client's own ``request`` takes a tenth of a millisecond more."""
        ours = [(name.encode(), it.encode()) for name, it in headers.items()]
        usual = [it for it in self._usual if it[0].lower().decode() not in headers]
        return httpx.Request(
            method, url, content=body, headers=[*usual, *ours], extensions=self._timeout
        )

    def _lost(self, exc: httpx.HTTPError) -> ConnectionFailedError:
        told = str(exc) or type(exc).__name__
        error = ConnectionFailedError(
            f"no answer from {self.where}: {told}; is the service running, and reachable?"
        )
        error.__cause__ = exc
        return error

    def _absence(self, response: httpx.Response) -> ConnectionFailedError | None:
        """Return the error of a service that is not there now; ``None`` for any other answer."""
        status = response.status_code
        if status != BUSY and status not in GATEWAYS:
            return None
        told = failures.raised(_json(response))
        if told is not None and not isinstance(told, ConnectionFailedError):
            return None
        return ConnectionFailedError(f"{self.where} answered {status}: {told or 'try later'}")

    def refusal(self, response: httpx.Response) -> LocusStoreError:
        """Return the error of an answer that is not a result."""
        status, told = response.status_code, failures.raised(_json(response))
        if told is not None:
            return told
        if status in {404, 405}:
            return ConnectionFailedError(
                f"there is no locus-store service at {self.where}: it answered {status}"
            )
        return BackendError(f"{self.where} answered {status}")


_ACCEPTED: Final = f"{bodies.FRAMED}, {bodies.JSON}"


class _Attempts:
    """The attempts of a request, as long as the time for them lasts."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self._pause = PAUSE_SECONDS

    def are_left(self, at_least: float) -> bool:
        """Return whether there is time for another one after a pause."""
        return self._loop.time() + max(at_least, self._pause) < self._until

    async def pause(self, at_least: float) -> None:
        """Wait, longer each time, and not as long as others."""
        await asyncio.sleep(at_least + self._pause * (0.5 + random.random()))  # noqa: S311
        self._pause = min(2 * self._pause, 1.0)


def _retry_after(response: httpx.Response) -> float:
    """Return the seconds after which a service wants to be asked again; 0 if it does not say."""
    text = response.headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    from datetime import UTC, datetime  # noqa: PLC0415

    return max(0.0, (at - datetime.now(UTC)).total_seconds()) if at.tzinfo else 0.0


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
