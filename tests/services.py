"""A real service on loopback: uvicorn in a thread of the tests, with a loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from locus_store import InMemoryMessageLog, InMemoryStore, MemoryBackend
from locus_store.backends import (
    PostgreSQLBackend,
    PostgreSQLMessageLog,
    PostgreSQLStore,
    SQLiteBackend,
    SQLiteMessageLog,
    SQLiteStore,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@cache
def _make_server_class() -> Any:
    """Return uvicorn's server that ends at once: its own looks every 100 ms, and waits as long."""
    import uvicorn

    class Prompt(uvicorn.Server):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.told: Future[None] = Future()

        async def main_loop(self) -> None:
            told = asyncio.wrap_future(self.told)
            while not told.done():
                await self.on_tick(0)
                await asyncio.wait([told], timeout=1)

        async def shutdown(self, sockets: Any = None) -> None:
            for server in self.servers:
                server.close()
            for connection in list(self.server_state.connections):
                connection.shutdown()
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    return Prompt


class Running:
    """A running ASGI application.

    Args:
        application: An ASGI application.
        closes: Closed at the end, in the loop of the application.
        kept_seconds: For which an idle connection stays open.
    """

    def __init__(self, application: Any, closes: Any = (), *, kept_seconds: int = 5) -> None:
        import uvicorn

        from locus_store.service.connections import LimitedConnection

        self.app = application
        self.asked: list[str] = []
        self._sent: list[int] = []
        self._closes = list(closes)
        # With its protocol named, asyncio turns Nagle's algorithm off.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            self._counting,
            interface="asgi3",
            http=LimitedConnection,
            ws="none",
            timeout_keep_alive=kept_seconds,
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self._server = _make_server_class()(config)
        self._thread = threading.Thread(target=self._run, args=[listener], daemon=True)
        self._thread.start()

    async def _counting(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])

        async def counted(message: Any) -> None:
            self._sent.append(len(message.get("body", b"")))
            await send(message)

        await self.app(scope, receive, counted)

    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        """The bytes of the bodies that are answered meanwhile."""
        self._sent = []
        yield self._sent

    def _run(self, listener: socket.socket) -> None:
        async def serve() -> None:
            await self._server.serve([listener])
            for it in filter(None, self._closes):
                await it.close()

        with listener:  # which uvicorn 0.32 leaves open
            asyncio.run(serve())

    def stop(self) -> None:
        if not self._server.told.done():
            self._server.told.set_result(None)
        self._thread.join(20)
        assert not self._thread.is_alive()


class Service(Running):
    """A running service.

    Args:
        backend: What it stands over; it is closed at the end, in the loop of the service.
        kept_seconds: For which an idle connection stays open.
        options: Of ``locus_store.service.app``.
    """

    def __init__(self, backend: Any, *, kept_seconds: int = 5, **options: Any) -> None:
        from locus_store.service import app

        closes = [backend, *(options.get(it) for it in ("store", "messages"))]
        super().__init__(app(backend, **options), closes, kept_seconds=kept_seconds)


def parts(place: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    """Return a backend, its store and its message log.

    Args:
        place: The path of an SQLite file, or the URL of a PostgreSQL database; ``None``: memory.
        options: Of the store.
    """
    if place is None:
        memory = MemoryBackend()
        return memory, InMemoryStore(**options), InMemoryMessageLog(backend=memory)
    kinds: Any = (SQLiteBackend, SQLiteStore, SQLiteMessageLog)
    if str(place).startswith("postgresql"):
        kinds = (PostgreSQLBackend, PostgreSQLStore, PostgreSQLMessageLog)
    backend = kinds[0](place)
    return backend, kinds[1](backend=backend, **options), kinds[2](backend=backend)
