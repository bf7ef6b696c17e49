"""The class of asyncpg that is replaced, in the asyncpg that is installed and in others."""

from __future__ import annotations

import asyncio
import gc
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
from asyncpg import connect_utils

from locus_store import ConnectionFailedError, postgresql_checkpointer
from locus_store.backends.postgresql import connecting

pytestmark = pytest.mark.anyio


async def test_the_error_of_a_lost_request_is_not_printed() -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    protocol = connect_utils.TLSUpgradeProto(loop, "host", 1, ssl.create_default_context(), False)
    protocol.connection_lost(None)
    assert protocol.on_data.done()
    del protocol
    gc.collect()
    assert told == []


async def test_a_proxy_without_a_server_does_not_refuse_tls() -> None:
    closing = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = closing.sockets[0].getsockname()[1]
    async with closing, postgresql_checkpointer(f"postgresql://u@127.0.0.1:{port}/db") as unreached:
        with pytest.raises(ConnectionFailedError, match="was reset"):
            await unreached.load("t")


def test_the_class_is_replaced_once() -> None:
    there = connect_utils.TLSUpgradeProto
    assert there.__name__ == "Quiet"
    connecting.quiet_tls_requests()
    assert connect_utils.TLSUpgradeProto is there


@pytest.mark.parametrize("module", [None, SimpleNamespace()], ids=["module", "class"])
def test_an_asyncpg_without_the_class_is_left_as_it_is(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "connect_utils", module)
    connecting.quiet_tls_requests()
    assert not hasattr(module, "TLSUpgradeProto")


def test_a_class_without_its_future_works_as_before() -> None:
    lost = []

    class Another(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.append(exc)

    connecting.quiet(Another)().connection_lost(None)
    assert [type(it) for it in lost] == [ConnectionResetError]
