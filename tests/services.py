"""A real service on loopback: uvicorn in a thread of the tests, with a loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import uvicorn

from locus_store.service import app


class Service:
    """A running service.

    Args:
        backend: What it stands over; it is closed at the end, in the loop of the service.
        options: Of ``locus_store.service.app``.
    """

    def __init__(self, backend: Any, **options: Any) -> None:
        self.app = app(backend, **options)
        self.asked: list[str] = []
        self._closes = [backend, *(options[it] for it in ("store", "messages") if it in options)]
        # With its protocol named, asyncio turns Nagle's algorithm off.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            self._counting, interface="asgi3", lifespan="off", log_config=None, access_log=False
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=[listener], daemon=True)
        self._thread.start()

    async def _counting(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        await self.app(scope, receive, send)

    def _run(self, listener: socket.socket) -> None:
        async def serve() -> None:
            await self._server.serve([listener])
            for it in self._closes:
                await it.close()

        asyncio.run(serve())

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
