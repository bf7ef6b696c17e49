"""The transports of the client, over servers that answer with given bytes."""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from lazily import TESTS_RUN
from servers import Tls
from services import Service
from tiers import first_of

from locus_store import (
    BackendError,
    ConnectionFailedError,
    InvalidArgumentError,
    MemoryBackend,
    SerializationError,
)

if TESTS_RUN:
    import aiohttp

    from locus_store.backends.http import HTTPBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

SECRET = "s3cret"  # noqa: S105  (a test)
OK = b'{"status": "?"}'
WAIT = 20
"""Seconds that a slow machine has; what a test must not wait for takes longer."""


class Canned:
    """A server that answers each request with the next of some bytes.

    Args:
        answers: The last one is repeated; an empty one closes the connection.
        reads_body: Read a request to its end before the answer.
    """

    def __init__(self, *answers: bytes, reads_body: bool = True) -> None:
        self._answers = [*answers]
        self._reads_body = reads_body
        self.seen: list[bytes] = []
        self.connections = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.seen.append(head)
                if self._reads_body:
                    await reader.readexactly(length(head))
                made = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                writer.write(made)
                await writer.drain()
                if not made or b"connection: close" in made:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def length(head: bytes) -> int:
    """Return the length of the body after a head."""
    lines = head.lower().split(b"\r\n")
    return next((int(it[15:]) for it in lines if it.startswith(b"content-length:")), 0)


def answer(body: bytes = OK, status: str = "200 OK", *headers: str) -> bytes:
    """Return the bytes of an answer."""
    head = [f"HTTP/1.1 {status}", "content-type: application/json", *headers]
    return "\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body


@asynccontextmanager
async def serving(canned: Canned, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Yield the URL of a server."""
    writers: list[asyncio.StreamWriter] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await canned.answer(reader, writer)

    server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    yield f"http{'s' if context else ''}://127.0.0.1:{port}"
    server.close()
    for it in writers:
        it.transport.abort()
    await asyncio.sleep(0.01)


async def test_headers_and_a_token_are_sent() -> None:
    canned = Canned(answer())
    async with (
        serving(canned) as url,
        HTTPBackend(url, headers={"X-Team": "a"}, token=SECRET) as backend,
    ):
        with pytest.raises(BackendError, match="not valid"):
            await backend.open()
    head = canned.seen[0].lower()
    assert b"x-team: a\r\n" in head
    assert b"authorization: bearer s3cret\r\n" in head
    assert b"user-agent: locus-store" in head
    assert b"cookie" not in head


async def test_a_user_and_a_password_are_sent_as_basic_authentication() -> None:
    canned = Canned(answer())
    async with serving(canned) as url, HTTPBackend(url, auth=("me", "pä")) as backend:
        with pytest.raises(BackendError):
            await backend.open()
    assert b"Basic bWU6cMOk\r\n" in canned.seen[0]


@pytest.mark.parametrize("auth", [("a",), ("a", 1), ("a", "b", "c"), 7, "a:b"])
def test_an_auth_that_is_none_is_refused(auth: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="auth"):
        HTTPBackend("http://h", auth=auth)


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"a": "b\r\nx: y"}, {"": "c"}, {"a": 7}])
def test_a_header_that_cannot_be_sent_is_refused_and_not_shown(headers: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot be sent|must be") as caught:
        HTTPBackend("http://h", headers=headers)
    assert "x: y" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"timeout": it} for it in (0, -1, float("nan"), float("inf"), 10**400, True, "1")),
        *({"retry_seconds": it} for it in (-1, float("nan"), float("inf"), None)),
        *({"pool_size": it} for it in (0, -1, 1.5, True, "1")),
        *({"headers": {it: "x"}} for it in ("Content-Length", "upgrade", "Transfer-Encoding")),
    ],
    ids=lambda it: str(it)[:40],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        HTTPBackend("http://h", **wrong)


@pytest.mark.parametrize(
    "after", ["Fri, 31 Dec 99999999999999999999 23:59:59 GMT", "999999", "soon", "-1"]
)
async def test_a_retry_after_that_is_none_does_not_matter(after: str) -> None:
    busy = answer(b"{}", "503 Service Unavailable", f"retry-after: {after}")
    async with serving(Canned(busy)) as url, HTTPBackend(url, retry_seconds=0.3) as backend:
        async with asyncio.timeout(WAIT):
            with pytest.raises(ConnectionFailedError):
                await backend.load("t")


def test_a_token_beside_an_auth_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not both"):
        HTTPBackend("http://h", token=SECRET, auth=("a", "b"))


async def test_a_redirect_is_not_followed() -> None:
    elsewhere = Canned(answer())
    async with serving(elsewhere) as other:
        canned = Canned(answer(b"", "307 Temporary Redirect", f"location: {other}/v1"))
        async with serving(canned) as url, HTTPBackend(url) as backend:
            with pytest.raises(BackendError, match="307"):
                await backend.load("t")
    assert not elsewhere.seen


async def test_an_answer_beyond_the_limit_is_not_read() -> None:
    told = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999999999\r\n\r\n"
    canned = Canned(told.encode() + b" " * 68_000_000)
    async with serving(canned) as url, HTTPBackend(url, max_state_bytes=1_000) as backend:
        with pytest.raises(BackendError, match="more than 67,110,864 bytes"):
            await backend.load("t")


async def test_a_body_that_is_cut_is_an_error() -> None:
    canned = Canned(answer()[:-4] + b"", answer()[:-4])
    canned.answer = _cut(canned)  # type: ignore[method-assign]
    async with serving(canned) as url, HTTPBackend(url, retry_seconds=0.0) as backend:
        with pytest.raises(ConnectionFailedError):
            await backend.load("t")


def _cut(canned: Canned) -> Any:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer()[:-4])
        await writer.drain()
        writer.close()

    return cut


async def test_the_timeout_covers_an_answer_that_comes_slowly() -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for byte in answer(b" " * 1_000):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            writer.close()

    canned = Canned()
    canned.answer = slowly  # type: ignore[method-assign]
    async with (
        serving(canned) as url,
        HTTPBackend(url, timeout=0.3, retry_seconds=0.0) as backend,
        asyncio.timeout(WAIT),
    ):
        with pytest.raises(ConnectionFailedError):
            await backend.load("t")


async def test_a_kept_connection_that_was_closed_is_opened_again() -> None:
    service = Service(MemoryBackend(), kept_seconds=0)
    async with HTTPBackend(service.url, retry_seconds=5) as backend:
        for n in range(5):
            await backend.save("t", {"n": n}, checkpoint_id=f"v{n}")
            await asyncio.sleep(0.05)
        assert await backend.load("t") == {"n": 4}
    service.stop()


@pytest.mark.parametrize("size", first_of(6_000, 30_000_000))
async def test_a_body_above_the_limit_is_refused_before_it_was_sent(size: int) -> None:
    service = Service(MemoryBackend(), max_body=2_000)
    async with HTTPBackend(service.url) as backend:
        home = await backend.service._connections.get()
        await backend.open()
        home.max_body = None
        with pytest.raises(SerializationError, match="2,000 bytes"):
            await backend.save("t", {"body": os.urandom(size // 2).hex()})
    service.stop()


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Tls, ssl.SSLContext]:
    """Certificates, and the context of a server that has them."""
    made = Tls(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    return made, context


async def test_a_proxy_that_accepts_no_long_request_is_named() -> None:
    canned = Canned(answer(b"<html>", "413 Content Too Large"))
    async with serving(canned) as url, HTTPBackend(url) as backend:
        with pytest.raises(SerializationError, match="a proxy before"):
            await backend.load("t")


async def test_an_unknown_certificate_fails_at_once_and_says_what_to_set(
    tls: tuple[Tls, ssl.SSLContext],
) -> None:
    async with (
        serving(Canned(answer()), tls[1]) as url,
        asyncio.timeout(WAIT),
        HTTPBackend(url, retry_seconds=2 * WAIT) as backend,
    ):
        with pytest.raises(ConnectionFailedError, match="SSL_CERT_FILE"):
            await backend.load("t")


async def test_ssl_cert_file_names_the_authority(
    tls: tuple[Tls, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[0].ca))
    async with serving(Canned(answer()), tls[1]) as url, HTTPBackend(url) as backend:
        with pytest.raises(BackendError, match="not valid"):
            await backend.open()


async def test_a_service_is_asked_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    canned = Canned(answer())
    async with serving(canned) as url:
        monkeypatch.setenv("http_proxy", url.replace("://", "://me:s3cret@"))
        async with HTTPBackend("http://service.invalid/base") as backend:
            with pytest.raises(BackendError, match="not valid"):
                await backend.open()
    assert canned.seen[0].startswith(b"GET http://service.invalid/base/v1 HTTP/1.1\r\n")
    assert b"proxy-authorization: basic" in canned.seen[0].lower()


async def test_hosts_of_no_proxy_are_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    canned = Canned(answer())
    async with serving(canned) as url:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with HTTPBackend(url) as backend:
            with pytest.raises(BackendError, match="not valid"):
                await backend.open()


def test_a_callers_client_serves_one_loop_and_is_left_open() -> None:
    service = Service(MemoryBackend())

    async def session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    with asyncio.Runner() as first:
        client = first.run(session())
        backend = HTTPBackend(service.url, client=client)
        first.run(backend.save("t", {"n": 1}))
        with pytest.raises(InvalidArgumentError, match="event loop"):
            asyncio.run(backend.load("t"))
        first.run(backend.close())
        assert not client.closed
        first.run(client.close())
    service.stop()


@pytest.mark.parametrize("client", [7, object()])
def test_a_client_that_is_none_is_refused(client: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"aiohttp\.ClientSession"):
        HTTPBackend("http://h", client=client)


async def test_more_callers_than_connections_take_turns() -> None:
    service = Service(MemoryBackend())
    async with HTTPBackend(service.url, pool_size=2) as backend:
        saves = (backend.save(f"t{n}", {"n": n}) for n in range(50))
        await asyncio.gather(*saves)
        assert len(await backend.list_threads(limit=100)) == 50
    service.stop()


async def test_close_waits_for_the_requests_under_way_and_leaves_nothing_open() -> None:
    begun, held = asyncio.Event(), asyncio.Event()

    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await held.wait()
        writer.write(answer())
        await writer.drain()
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    canned = Canned()
    canned.answer = later  # type: ignore[method-assign]
    async with serving(canned) as url, asyncio.timeout(WAIT):
        backend = HTTPBackend(url)
        asked = asyncio.create_task(backend.open())
        await begun.wait()
        closing = asyncio.create_task(backend.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        held.set()
        with pytest.raises(BackendError, match="not valid"):
            await asked
        await closing
        await ended.wait()
