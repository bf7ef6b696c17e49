"""uvicorn's connections with limits of a request's head, which httptools does not have."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from locus_store.errors import InvalidArgumentError
from locus_store.wire import bodies, failures

HEAD_BYTES: Final = 65_536
"""The longest head of a request: its URL and its headers."""

HEADERS: Final = 100
"""The most headers of a request."""

HEAD_SECONDS: Final = 10.0
"""A head that takes longer ends the connection; so does a connection that sends nothing."""

READ_SECONDS: Final = 60.0
"""A caller that reads nothing of its answer for so long is disconnected."""

FRAMING: Final = 8
"""A chunk of one byte takes six; chunks, their extensions and trailers may take so many times the
body, and a head."""


WRITE_BYTES: Final = 65_536
"""More is written as it comes."""


class _Joined:
    """A transport that sends the head and the body of an answer at once.

    uvicorn writes them apart, which are two calls of the system and two packets.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if len(data) > WRITE_BYTES:
            self._flush()
            self._transport.write(data)
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        self._flush()
        self._transport.close()


class LimitedConnection(HttpToolsProtocol):
    """A connection that refuses a head that is too large, and closes if one takes too long."""

    _fed = 0
    """Bytes of this request, without those of the segment in which it began."""

    _body = 0
    _is_in_head = True
    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _refusal = 400, "the request is not valid HTTP"

    def connection_made(self, transport: Any) -> None:
        joined: Any = _Joined(transport, self.loop)
        super().connection_made(joined)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_watching()

    def pause_writing(self) -> None:
        """See asyncio: the caller does not read as fast as it is answered."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _watch(self) -> None:
        """End the connection if nothing of the answer is read until then."""
        self._stop_watching()
        left = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(READ_SECONDS, self._end_unread, left)

    def _end_unread(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._watch()
        else:
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def data_received(self, data: bytes) -> None:
        self._fed += len(data)
        super().data_received(data)
        if self._fed > HEAD_BYTES + FRAMING * self._body and not self.transport.is_closing():
            self._refusal = TOO_LARGE
            self.send_400_response("")
        if self._is_in_head and self._timer is None:
            self._wait_for_head()
        elif not self._is_in_head and self._timer is not None:
            self._stop_waiting()

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        if self.flow.read_paused:  # a request before this one is not answered yet
            self._wait_for_head()
        else:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._fed = self._body = 0
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        """See httptools.

        Raises:
            ValueError: The head is too large, or asks for what is not supported.
        """
        self._is_in_head = False
        if self.parser.should_upgrade():  # llhttp would not read the body, and take it for requests
            self._refusal = UPGRADE
            raise ValueError(UPGRADE[1])
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if any(it.lower() != b"chunked" for it in codings):
            self._refusal = CODED
            raise ValueError(CODED[1])
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEAD_BYTES or len(self.headers) > HEADERS:
            self._refusal = TOO_LARGE
            raise ValueError(TOO_LARGE[1])
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that no application sees, and close the connection."""
        status, text = self._refusal
        _, value = failures.encode_error(InvalidArgumentError(text))
        body = bodies.encode_json(value)
        head = f"content-type: {bodies.JSON}\r\ncontent-length: {len(body)}\r\nconnection: close"
        self.transport.write(STATUS_LINE[status] + head.encode() + b"\r\n\r\n" + body)
        self.transport.close()


UPGRADE: Final = 400, "this service does not upgrade connections: send no header Upgrade"
CODED: Final = 501, "the only transfer coding that this service knows is chunked"
TOO_LARGE: Final = 431, f"the head of the request exceeds {HEAD_BYTES:,} bytes or {HEADERS} headers"
