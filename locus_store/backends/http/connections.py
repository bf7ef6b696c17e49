"""Requests to a service: a client per event loop, retries, and the translation of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import aiohttp
import orjson
from yarl import URL

from locus_store.backends.http.transport import (
    Answer,
    ClientOptions,
    NoAnswerError,
    Transport,
    is_untrusted,
)
from locus_store.errors import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    LocusStoreError,
    QuotaError,
    SerializationError,
    TurnError,
)
from locus_store.runtime import observe
from locus_store.runtime.loops import LoopResources, ResourcesPerLoop, bind_to_loop
from locus_store.runtime.retries import Pauses, parse_date
from locus_store.wire import bodies, failures
from locus_store.wire.calls import Part, WireCall, list_calls, may_repeat

MAX_PORT: Final = 65535

BUSY: Final = 429
TOO_LONG: Final = 413
GATEWAYS: Final = frozenset({502, 503, 504})
"""The statuses of a service that is not there for the moment, or of a proxy before it."""


class HTTPConnections(ResourcesPerLoop["HTTPClient"]):
    """The clients of the event loops that use a service.

    Args:
        base_url: Of the service.
        options: Of the connections.
    """

    def __init__(self, base_url: str, options: ClientOptions) -> None:
        self.where = _check_url(base_url)
        if not isinstance(options.client, aiohttp.ClientSession | None):
            raise InvalidArgumentError("client must be an aiohttp.ClientSession")
        self._options = options
        self._get_client = None if options.client is None else bind_to_loop(options.client)
        super().__init__(lambda: HTTPClient(self._make_transport, self.where, options), None)

    def _make_transport(self) -> Transport:
        if self._get_client is not None:
            self._get_client()  # refuses to share a caller's client
        return Transport(self.where, self._options)


def _check_url(base_url: object) -> str:
    """Return the URL of a service without a slash at its end."""
    url = _parse_url(base_url)
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidArgumentError("base_url must be http://host:port or https://host:port")
    if url.user is not None or url.password is not None:
        raise InvalidArgumentError(
            "base_url has a user or a password: pass auth=(user, password), or token="
        )
    if url.raw_query_string or url.raw_fragment:
        raise InvalidArgumentError("base_url has no ?query and no #fragment")
    return str(url).rstrip("/")


def _parse_url(base_url: object) -> URL:
    try:
        url = URL(base_url)  # type: ignore[arg-type]  # refuses what is not a string
    except (ValueError, TypeError):
        raise InvalidArgumentError("base_url is not a URL") from None  # it may have a password
    if url.port is not None and url.port > MAX_PORT:
        raise InvalidArgumentError(f"a port is at most {MAX_PORT}")
    return url


class HTTPClient(LoopResources):
    """The client of one event loop.

    Args:
        make: Returns a transport.
        where: The URL of the service.
        options: Of the connections.
    """

    def __init__(self, make: Callable[[], Transport], where: str, options: ClientOptions) -> None:
        super().__init__()
        self._make = make
        self._transport = make()
        self.where = where
        self.max_body: int | None = None
        """The longest body that the service accepts, once it was asked."""

        self._retry_seconds = options.retry_seconds
        self._wait_seconds = max(options.timeout, options.retry_seconds)
        self._places = asyncio.Semaphore(options.pool_size)
        self._idle = asyncio.Event()
        self._idle.set()
        self._asked = 0
        self._is_over = False

    async def _release(self) -> None:
        """Close the connections, once each request has its answer."""
        self._is_over = True
        await self._idle.wait()
        await self._transport.close()

    async def ask(self, call: WireCall, arguments: Mapping[str, Any]) -> Any:
        """Send a call; return its result.

        Raises:
            LocusStoreError: The service refused it, or cannot be reached.
        """
        body, media_type = bodies.encode_body(arguments)
        if self.max_body is not None and len(body) > self.max_body:
            raise SerializationError(
                f"the request exceeds the {self.max_body:,} bytes that {self.where} accepts; "
                "nothing was sent"
            )
        headers = {"content-type": media_type, "accept": _ACCEPTED}
        answer = await self.send(
            *("POST", call.path, body, headers),
            may_repeat(call, arguments),
            is_write=call.right != "read",
        )
        if not answer.is_success:
            refusal = self.make_refusal(answer)
            if answer.is_repeated and isinstance(refusal, QuotaError | TurnError):
                raise _make_doubtful_error(
                    ConnectionFailedError(f"no answer from {self.where}; then {refusal}")
                )
            raise refusal
        try:
            value, payloads = bodies.decode_body(answer.body, answer.media_type)
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
        *,
        is_write: bool = False,
    ) -> Answer:
        """Send a request, again if that is safe; return the answer, whatever its status.

        Raises:
            ConnectionFailedError: There is no answer, or the service is not there; of a write that
                was sent, it says that the change may have been written.
        """
        pauses, was_sent = Pauses(0.1, 2.0, self._retry_seconds), False
        while True:
            try:
                answer = await self._send(method, path, body, headers)
            except NoAnswerError as exc:
                failure = self._make_no_answer_error(exc)
                was_sent = was_sent or not exc.is_unsent
                repeats = (is_repeatable or exc.is_unsent) and not is_untrusted(exc)
                at_least = 0.0
            else:
                absence = self._find_absence(answer)
                if absence is None:
                    return replace(answer, is_repeated=was_sent)
                failure = absence
                was_sent = was_sent or answer.status != BUSY
                repeats = is_repeatable or answer.status == BUSY
                at_least = _retry_after(answer)
            pause = pauses.get_next(at_least) if repeats else None
            if pause is None:
                raise _make_doubtful_error(failure) if is_write and was_sent else failure
            observe.connections.warning("%s: %s; trying again", self.where, failure)
            await asyncio.sleep(pause)

    async def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        if self._is_over:  # closed while this call was on its way here
            transport = self._make()
            try:
                return await transport.send(method, path, body, headers)
            finally:
                await transport.close()
        self._asked += 1
        self._idle.clear()
        try:
            await self._wait_for_place()
            try:
                return await self._transport.send(method, path, body, headers)
            finally:
                self._places.release()
        finally:
            self._asked -= 1
            if not self._asked:
                self._idle.set()

    async def _wait_for_place(self) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds if self._places.locked() else None):
                await self._places.acquire()
        except TimeoutError:
            raise NoAnswerError(
                "each of the pool_size connections is in use", is_unsent=True
            ) from None

    def _make_no_answer_error(self, exc: NoAnswerError) -> ConnectionFailedError:
        hint = "is the service running, and reachable?"
        if is_untrusted(exc):
            hint = "set SSL_CERT_FILE to the file of your certificate authority"
        error = ConnectionFailedError(f"no answer from {self.where}: {exc}; {hint}")
        error.__cause__ = exc
        return error

    def _find_absence(self, answer: Answer) -> ConnectionFailedError | None:
        """Return the error of a service that is not there now; ``None`` for any other answer."""
        status = answer.status
        if status != BUSY and status not in GATEWAYS:
            return None
        error = failures.decode_error(_parse_json(answer))
        if error is not None and not isinstance(error, ConnectionFailedError):
            return None
        return ConnectionFailedError(f"{self.where} answered {status}: {error or 'try later'}")

    def make_refusal(self, answer: Answer) -> LocusStoreError:
        """Return the error of an answer that is not a result."""
        status, error = answer.status, failures.decode_error(_parse_json(answer))
        if error is not None:
            return error
        if status == TOO_LONG:
            return SerializationError(
                f"a proxy before {self.where} does not accept a request of this length; nothing "
                "was written"
            )
        if status in {404, 405}:
            return ConnectionFailedError(
                f"there is no locus-store service at {self.where}: it answered {status}"
            )
        return BackendError(f"{self.where} answered {status}")


def _make_doubtful_error(failure: ConnectionFailedError) -> ConnectionFailedError:
    """Return the error of a write that the service may have done."""
    error = ConnectionFailedError(
        f"{failure}; the change may have been written: read before you repeat it"
    )
    error.__cause__ = failure.__cause__
    return error


_ACCEPTED: Final = f"{bodies.FRAMED}, {bodies.JSON}"


def _retry_after(answer: Answer) -> float:
    """Return the seconds after which a service wants to be asked again; 0 if it does not say."""
    text = answer.headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text)
    at = parse_date(text)
    return max(0.0, (at - datetime.now(UTC)).total_seconds()) if at else 0.0


def _parse_json(answer: Answer) -> Any:
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return None


class HasService(Protocol):
    """An object over a ``RemoteService``."""

    service: Any


def make_requests(part: Part) -> Any:
    """Return a class with each method of a part of the service, to inherit before the contract."""
    methods = {call.name: _make_method(call) for call in list_calls(part)}
    return type(f"Requests_{part}", (), {"__doc__": f"The calls of {part}.", **methods})


def _make_method(call: WireCall) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def method(self: HasService, *args: Any, **kwargs: Any) -> Any:
        return await self.service.ask(call, call.bind(args, kwargs))

    method.__name__, method.__qualname__ = call.name, f"{call.contract.__name__}.{call.name}"
    method.__doc__ = f"Ask the service; see ``{method.__qualname__}``."
    return method
