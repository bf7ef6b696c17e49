"""A proxy before PostgreSQL that ends a session behind the reply of the test's choice."""

from __future__ import annotations

import struct

import servers

READY, TYPES, ROW, NOTHING = b"Z", b"t", b"T", b"n"
"""Messages of the server; the last two end a reply behind ``TYPES`` only, as asyncpg prepares."""

_FIELDS = (b"SFATAL", b"VFATAL", b"C57P01", b"Mterminating connection due to administrator command")


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


FATAL = _message(b"E", b"\0".join(_FIELDS) + b"\0\0")


class Side(servers._Side):
    """The server's end counts replies."""

    proxy: Proxy
    _unread = b""
    _before = b""

    def data_received(self, data: bytes) -> None:
        """Pass it on, up to the reply behind which the session ends."""
        if self.is_client and self.is_ended:
            self.transport.abort()  # the client wrote to a server that is gone
            return
        if not self.is_client:
            data = self._counted(data)
        super().data_received(data)
        if not self.is_client and self.is_ended:
            self._end()

    is_ended = False

    def _counted(self, data: bytes) -> bytes:
        self._unread += data
        at = 0
        while not self.is_ended and len(self._unread) >= at + 5:
            kind = self._unread[at : at + 1]
            end = at + 1 + struct.unpack_from("!i", self._unread, at + 1)[0]
            if len(self._unread) < end:
                break
            at = end
            is_reply = kind == READY or (self._before == TYPES and kind in {ROW, NOTHING})
            self._before = kind
            if is_reply and self.proxy.ends_here():
                self.is_ended = True
        passed, self._unread = self._unread[:at], self._unread[at:]
        return passed

    def _end(self) -> None:
        client, self.other = self.other, None
        assert isinstance(client, Side)
        client.is_ended, client.other = True, None
        client.transport.write(FATAL)
        if not self.proxy.is_late:
            client.transport.close()
        self.transport.abort()  # the server undoes what was not committed


class Proxy(servers.Proxy):
    """Ends one session, with FATAL 57P01 behind its k-th reply.

    Connections must not ask for TLS.
    """

    side = Side

    def __init__(self, port: int, host: str = servers.LOOPBACK) -> None:
        super().__init__(port, host)
        self._left = 0
        self.is_late = False
        self.was_ended = False

    def end_behind(self, reply: int, *, late: bool) -> None:
        """End the session that gets the reply of this number, counted from 1.

        Args:
            reply: The number, from now on.
            late: The connection is closed when the client writes to it, and not before.
        """
        self._call(self._arm(reply, late=late))

    async def _arm(self, reply: int, *, late: bool) -> None:
        self._left, self.is_late, self.was_ended = reply, late, False

    def ends_here(self) -> bool:
        """Count a reply; whether the session ends behind it."""
        self._left -= 1
        if self._left == 0:
            self.was_ended = True
        return self._left == 0
