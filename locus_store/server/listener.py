"""A listening socket, and uvicorn that serves an application on it until a signal."""

from __future__ import annotations

import asyncio
import importlib
import logging
import multiprocessing
import socket
import threading
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import ConnectionFailedError, require_extra

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

GRACE_SECONDS: Final = 30
"""Requests that are under way at the end have this long."""

KEPT_SECONDS: Final = 75
"""An idle connection stays open for so long: longer than clients and proxies (nginx: 60 s) keep
one, so that none sends a request into a connection that ends."""

BACKLOG: Final = 2048


def require_uvicorn() -> None:
    """Refuse to start without uvicorn."""
    with require_extra("the service needs uvicorn", "service"):
        importlib.import_module("uvicorn")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Its protocol is named: asyncio turns Nagle's algorithm off for such sockets only, and with it
    an answer would wait 40 ms for an acknowledgement.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        raise ConnectionFailedError(f"cannot listen on {host} port {port}: {exc}") from exc
    listener.set_inheritable(True)
    return listener


async def try_starting(application: ASGIApp) -> None:
    """Let an application start and end, for an error of which uvicorn would print the traceback."""
    kinds = iter(("lifespan.startup", "lifespan.shutdown"))

    async def receive() -> Message:
        return {"type": next(kinds)}

    async def send(_: Message) -> None:
        await asyncio.sleep(0)

    await application({"type": "lifespan"}, receive, send)


def serve_socket(application: ASGIApp, listener: socket.socket) -> None:
    """Serve an application on a socket until a signal."""
    log_to_stderr()
    uvicorn = importlib.import_module("uvicorn")
    from locus_store.service.connections import LimitedConnection  # noqa: PLC0415  (of uvicorn)

    config = uvicorn.Config(
        application,
        http=LimitedConnection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEPT_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=[parent, server], daemon=True).start()
    with suppress(KeyboardInterrupt):
        asyncio.run(server.serve([listener]))


def _end_with(parent: BaseProcess, server: Any) -> None:
    """End a worker whose parent was killed; it would keep the port."""
    parent.join()
    server.should_exit = True


def log_to_stderr() -> None:
    """Write to standard error: warnings and errors with their causes, and changes by the pages."""
    root = logging.getLogger("locus_store")
    if any(isinstance(it, logging.StreamHandler) for it in root.handlers):
        return
    handler = _make_handler(logging.WARNING)
    root.addHandler(handler)
    changes = logging.getLogger("locus_store.inspector.changes")
    changes.setLevel(logging.INFO)
    changes.addHandler(_make_handler(logging.INFO))
    servers = logging.getLogger("uvicorn.error")
    servers.setLevel(logging.ERROR)  # each request that is not HTTP would be a warning
    servers.addHandler(handler)


def _make_handler(level: int) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(level)
    return handler
