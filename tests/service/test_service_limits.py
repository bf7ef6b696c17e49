"""Slow requests and their framing, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from services import Service

from locus_store import MemoryBackend

if TESTS_RUN:
    from locus_store.service import connections, exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BODY = 100_000


@pytest.fixture
def seconds() -> float:
    """The most that a head or a body takes; a slow machine is not refused."""
    return 60.0


is_hasty = pytest.mark.parametrize("seconds", [0.5])


@pytest.fixture
def service(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(connections, "HEAD_SECONDS", seconds)
    monkeypatch.setattr(exchange, "LINGER_SECONDS", 0.5)
    made = Service(MemoryBackend(), max_body=MAX_BODY, body_seconds=seconds)
    yield made
    made.stop()


@pytest.fixture
def connection(service: Service) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", service.port), 20) as made:
        yield made


def head(*headers: str, method: str = "POST", path: str = "/v1/fetch") -> bytes:
    told = "".join(f"{it}\r\n" for it in ("content-type: application/json", *headers))
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{told}\r\n".encode()


def answer(connection: socket.socket) -> tuple[int, Any]:
    """Return the status and the JSON of the last answer of a connection, which must end then."""
    received = b"".join(iter(lambda: connection.recv(65_536), b""))
    top, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in top.lower()
    return int(top.split()[1]), json.loads(body)


def pushed(connection: socket.socket, data: bytes) -> None:
    """Send until the other side takes no more."""
    try:
        connection.sendall(data)
    except OSError:
        return


@is_hasty
def test_a_body_that_never_begins_is_refused_with_408(connection: socket.socket) -> None:
    connection.sendall(head("content-length: 100"))
    assert answer(connection)[0] == 408


@is_hasty
@pytest.mark.parametrize("sent", [b"", b"POST /v1/fetch HTTP/1.1\r\nhost:"])
def test_a_slow_head_ends_the_connection(connection: socket.socket, sent: bytes) -> None:
    connection.sendall(sent)
    assert connection.recv(1) == b""


def test_a_long_url_is_refused_with_431(connection: socket.socket) -> None:
    pushed(connection, head(path="/threads/" + "a" * 70_000))
    assert answer(connection)[0] == 431


def test_a_large_trailer_ends_the_connection(connection: socket.socket) -> None:
    pushed(connection, head("transfer-encoding: chunked") + b"1\r\n{\r\n0\r\n")
    for _ in range(1_000):
        pushed(connection, b"a: " + b"b" * 10_000 + b"\r\n")
    with pytest.raises(OSError, match=r"."):
        connection.sendall(b"a: b\r\n" * 100_000)


def test_small_chunks_are_no_large_head(connection: socket.socket) -> None:
    body = json.dumps({"thread_id": "t", "checkpoint_id": None, "namespace": "a" * 20_000})
    chunks = b"".join(b"1\r\n" + it.encode() + b"\r\n" for it in body)
    connection.sendall(head("transfer-encoding: chunked", "connection: close") + chunks)
    connection.sendall(b"0\r\n\r\n")
    assert answer(connection)[0] in {200, 404, 422}


def test_the_heads_of_one_connection_are_counted_apart(service: Service) -> None:
    connection = HTTPConnection("127.0.0.1", service.port)
    for _ in range(200):
        connection.request("GET", "/health", headers={"x-a": "a" * 1_000})
        assert connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize("path", ["/health", "/openapi.json"])
def test_an_answer_is_whole(service: Service, path: str) -> None:
    connection = HTTPConnection("127.0.0.1", service.port)
    for _ in range(3):
        connection.request("GET", path)
        assert json.loads(connection.getresponse().read())
    connection.close()


def test_a_small_answer_is_written_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    kind = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    write = kind.write

    def kept(transport: Any, data: bytes) -> None:
        written.append(data)
        write(transport, data)

    monkeypatch.setattr(kind, "write", kept)
    connection = HTTPConnection("127.0.0.1", service.port)
    connection.request("GET", "/health")
    assert connection.getresponse().read()
    connection.close()
    assert len(written) == 1
