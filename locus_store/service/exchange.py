"""One request and its answer, over ASGI."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from locus_store.errors import (
    InvalidArgumentError,
    LocusStoreError,
    SerializationError,
    UnsupportedError,
)
from locus_store.wire import bodies, failures

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]

DIGITS: Final = 18

NO_STORE: Final = (b"cache-control", b"no-store")


class RefusalError(Exception):
    """A request that is answered with a status, before any backend sees it.

    Args:
        status: The status.
        error: Its class and message are the answer.
        headers: More headers.
    """

    def __init__(self, status: int, error: LocusStoreError, *headers: tuple[str, str]) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = [(name.encode(), value.encode()) for name, value in headers]


@dataclass(slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes
    media_type: str = bodies.JSON
    headers: Headers = field(default_factory=list)

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Answer:
        """Return a value as JSON."""
        return cls(status, bodies.plain(value))

    @classmethod
    def failed(cls, error: LocusStoreError) -> Answer:
        """Return an error of a call."""
        status, value = failures.told(error)
        return cls.of(value, status)

    @classmethod
    def refused(cls, refusal: RefusalError) -> Answer:
        """Return a refusal, whose message is for the caller."""
        _, value = failures.told(refusal.error)
        answer = cls.of({**value, "message": str(refusal.error)}, refusal.status)
        answer.headers = refusal.headers
        return answer

    async def send(self, send: Send) -> None:
        """Send the answer."""
        length = str(len(self.body)).encode()
        kind = (b"content-type", self.media_type.encode())
        headers = [kind, (b"content-length", length), NO_STORE, *self.headers]
        start: Message = {
            "type": "http.response.start",
            "status": self.status,
            "headers": headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": self.body})


class Request:
    """A request, whose body is read up to a limit.

    Args:
        scope: Of ASGI.
        receive: Of ASGI.
        max_body: The longest body that is read.
    """

    def __init__(self, scope: Scope, receive: Receive, max_body: int) -> None:
        self.method: str = scope["method"]
        self.query: bytes = scope.get("query_string", b"")
        self.path = raw_path(scope)
        self._headers: Headers = scope["headers"]
        self._receive = receive
        self._max_body = max_body

    def header(self, name: bytes) -> str:
        """Return the first header of a name; empty if there is none."""
        return next((it.decode("latin-1") for key, it in self._headers if key == name), "")

    async def body(self) -> bytes:
        """Return the body.

        Raises:
            RefusalError: It is too long; the rest is not read.
        """
        self._require_short(_number(self.header(b"content-length")))
        parts, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise RefusalError(400, InvalidArgumentError("the caller went away"))
            part = message.get("body", b"")
            size += len(part)
            self._require_short(size)
            parts.append(part)
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _require_short(self, size: int) -> None:
        if size > self._max_body:
            raise RefusalError(
                413,
                SerializationError(
                    f"the request exceeds the {self._max_body:,} bytes that this service accepts"
                ),
                ("connection", "close"),
            )

    def require_method(self, *methods: str) -> None:
        """Refuse other methods."""
        if self.method not in methods:
            error = UnsupportedError(f"use {' or '.join(methods)} here")
            raise RefusalError(405, error, ("allow", ", ".join(methods)))


def _number(text: str) -> int:
    return int(text[:DIGITS]) if text.isascii() and text.isdigit() else 0


def raw_path(scope: Scope) -> str:
    """Return the path below the place where the application is mounted, as it was sent.

    In a decoded path ``a%2Fb`` would be two segments.
    """
    raw: str = scope.get("raw_path", b"").decode("latin-1") or quote(scope["path"])
    mounted = quote(scope.get("root_path", ""))
    return raw.removeprefix(mounted).partition("?")[0] or "/"
