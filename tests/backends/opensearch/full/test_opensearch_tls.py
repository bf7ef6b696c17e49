"""TLS and credentials, in front of a real node: a pipe ends TLS and notes the credentials."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from base64 import b64decode
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from opensearch_servers import Server
from servers import LOOPBACK, Tls, free_port

from locus_store import ConnectionFailedError, open_checkpointer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from indexes import TestIndex

pytestmark = pytest.mark.anyio

USER = "me:p@ss/word"


class TlsPipe:
    """Passes bytes on to a server; a double of the TLS that a security plugin ends."""

    def __init__(self, server: Server, tls: Tls) -> None:
        self._target = urlsplit(server.url)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(tls.certificate, tls.key)
        self.port = free_port()
        self.credentials: set[str] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[TlsPipe]:
        pipe = await asyncio.start_server(self._serve, LOOPBACK, self.port, ssl=self._context)
        async with pipe:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._target.port
        there = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, there[1]))
                group.create_task(self._pass(there[0], writer))
        finally:
            writer.close()
            there[1].close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # one side has left
            while content := await reader.read(65536):
                for found in re.findall(rb"(?i)authorization: basic (\S+)", content):
                    self.credentials.add(b64decode(found).decode())
                writer.write(content)
                await writer.drain()
        writer.close()


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@pytest.fixture
async def pipe(opensearch_server: Server, tls: Tls) -> AsyncIterator[TlsPipe]:
    async with TlsPipe(opensearch_server, tls).running() as running:
        yield running


def url(pipe: TlsPipe, index: TestIndex, *options: str) -> str:
    place = f"me:p%40ss%2Fword@{LOOPBACK}:{pipe.port}/{index.name}"
    return f"opensearch+https://{place}?{'&'.join(('retry_seconds=1', *options))}"


async def test_a_thread_is_saved_and_loaded_by_tls(
    index: TestIndex, pipe: TlsPipe, tls: Tls
) -> None:
    for trust in (f"ca_certs={tls.ca}", "verify_certs=false"):
        opened = open_checkpointer(url(pipe, index, trust), state_type=dict)
        await opened.save({"said": [trust]}, "t")
        assert await opened.load("t") == {"said": [trust]}
        await opened.close()
    assert pipe.credentials == {USER}


async def test_a_certificate_of_another_authority_is_refused(
    index: TestIndex, pipe: TlsPipe, tls: Tls
) -> None:
    for options in ((), (f"ca_certs={tls.other_ca}",)):
        opened = open_checkpointer(url(pipe, index, *options), state_type=dict)
        with pytest.raises(ConnectionFailedError, match="certificate") as told:
            await opened.save({"said": []}, "t")
        assert "p@ss" not in str(told.value)
        await opened.close()
    assert pipe.credentials == set()


async def test_the_server_of_the_tests_may_have_tls_and_a_user(pipe: TlsPipe) -> None:
    server = Server(f"https://me:p%40ss%2Fword@{LOOPBACK}:{pipe.port}")
    assert await asyncio.to_thread(server.answers)
    assert pipe.credentials == {USER}
