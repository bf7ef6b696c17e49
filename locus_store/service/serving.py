"""``locus-store serve``: storages opened by URL, uvicorn over them, and workers on one port."""

from __future__ import annotations

import asyncio
import importlib
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from multiprocessing.connection import wait
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from locus_store.errors import ConnectionFailedError, InvalidArgumentError, MissingExtraError
from locus_store.open import MESSAGE_LOGS, STORES, open_checkpointer
from locus_store.service.application import app
from locus_store.service.exchange import MAX_BODY
from locus_store.service.metrics import WORKERS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    from starlette.types import ASGIApp

log: Final = logging.getLogger("locus_store.service")

GRACE_SECONDS: Final = 30
"""Requests that are under way at the end have this long."""

KEPT_SECONDS: Final = 75
"""An idle connection stays open for so long: longer than clients and proxies (nginx: 60 s) keep
one, so that none sends a request into a connection that ends."""

BACKLOG: Final = 2048
MAX_PORT: Final = 65_535

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

STEADY_SECONDS: Final = 10.0
MOST_SECONDS: Final = 30.0
"""A worker that ends before it ran steadily is started again after a pause, which grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of ``locus-store serve``."""

    url: str
    host: str = "127.0.0.1"
    port: int = 8321
    token_file: str | None = None
    read_only: bool = False
    max_body: int = MAX_BODY
    requests_per_second: float | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Beside the names of loopback; for the pages, and for callers without tokens."""

    workers: int = 1
    dimension: int | None = None
    metric: Any = "cosine"
    inspector: bool = False
    """Show the pages of ``locus_store.inspector`` at ``/inspector/``."""

    behind_proxy: bool = False
    """The pages are reached through a proxy with TLS only."""

    allow_write: bool = False
    """The pages offer forks, rewinds and deletions."""

    session_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Signs the sessions of the pages, in all workers."""

    @property
    def hosts(self) -> frozenset[str]:
        """The names of the service: those of loopback, its own, and those that were given."""
        names = (_literal(self.host), *self.allowed_hosts)
        return frozenset({*LOOPBACK, *map(str.lower, names)})


def serve(settings: ServeOptions, announce: Callable[[str], None]) -> None:
    """Serve until a signal ends the process.

    Args:
        settings: The options.
        announce: Called with the URL once the port is taken.

    Raises:
        InvalidArgumentError: An option is not valid, or the port would be open to strangers.
        ConnectionFailedError: The port is taken.
        MissingExtraError: uvicorn is not installed.
    """
    require_uvicorn()
    _log_to_stderr()
    if settings.token_file is None and not _is_loopback(settings.host):
        raise InvalidArgumentError(
            f"--host {settings.host} lets strangers in: pass --token-file, which "
            "`locus-store tokens add` makes"
        )
    if settings.inspector and not _is_loopback(settings.host) and not settings.behind_proxy:
        raise InvalidArgumentError(
            f"--inspector on --host {settings.host} would send tokens without TLS: put a proxy "
            "with TLS before it, and pass --behind-proxy"
        )
    if settings.behind_proxy and settings.token_file is None:
        raise InvalidArgumentError("--behind-proxy needs --token-file: a proxy lets strangers in")
    if settings.workers < 1:
        raise InvalidArgumentError("--workers must be at least 1")
    if settings.workers > 1 and settings.url.partition(":")[0] == "memory":
        raise InvalidArgumentError(
            "--workers: each process would have a memory of its own; use one worker, or a database"
        )
    if not 0 <= settings.port <= MAX_PORT:
        raise InvalidArgumentError(f"--port must be from 0 to {MAX_PORT}")
    service = opened(settings)  # raises for a wrong option, before the port is announced
    with listening(settings.host, settings.port) as listener:
        announce(f"http://{_literal(settings.host)}:{listener.getsockname()[1]}")
        if settings.workers == 1:
            run(settings, listener, service)
        else:
            _supervise(settings, listener)


def require_uvicorn() -> None:
    """Refuse to start without uvicorn.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        importlib.import_module("uvicorn")
    except ImportError as exc:
        raise MissingExtraError(
            'the service needs uvicorn: pip install "locus-store[service]"', name="uvicorn"
        ) from exc


def _log_to_stderr() -> None:
    """Write to standard error: warnings and errors with their causes, and changes by the pages."""
    root = logging.getLogger("locus_store")
    if any(isinstance(it, logging.StreamHandler) for it in root.handlers):
        return
    handler = _handler(logging.WARNING)
    root.addHandler(handler)
    changes = logging.getLogger("locus_store.inspector.changes")
    changes.setLevel(logging.INFO)
    changes.addHandler(_handler(logging.INFO))
    servers = logging.getLogger("uvicorn.error")
    servers.setLevel(logging.ERROR)  # each request that is not HTTP would be a warning
    servers.addHandler(handler)


def _handler(level: int) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(level)
    return handler


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening(host: str, port: int) -> socket.socket:
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


def run(settings: ServeOptions, listener: socket.socket, service: ASGIApp | None = None) -> None:
    """Serve on a socket, in this process; a worker opens a service of its own."""
    served(service or opened(settings), listener)


def served(application: ASGIApp, listener: socket.socket) -> None:
    """Serve an application on a socket until a signal."""
    _log_to_stderr()
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


def opened(settings: ServeOptions) -> ASGIApp:
    """Return the service over the storage of a URL, which it opens and closes, with its pages.

    Raises:
        InvalidArgumentError: The URL is not valid.
    """
    backend = open_checkpointer(settings.url).backend
    store = store_beside(
        settings.url, backend, dimension=settings.dimension, metric=settings.metric
    )
    service = app(
        backend,
        store=store,
        messages=_messages(backend),
        token_file=settings.token_file,
        read_only=settings.read_only,
        max_body=settings.max_body,
        requests_per_second=settings.requests_per_second,
        allowed_hosts=settings.hosts if settings.token_file is None else None,
        owns=True,
    )
    if not settings.inspector:
        return service
    pages: Any = importlib.import_module("locus_store.inspector.serving")
    with_pages: ASGIApp = pages.beside(service, backend, store, settings)
    return with_pages


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def store_beside(url: str, backend: Any, **options: Any) -> Any:
    """Return the store beside a backend; over its connections, where a store can use them.

    Args:
        url: Of the backend.
        backend: Need not be open.
        options: Of the store.
    """
    folder = folder_of(backend)
    if folder not in STORES:
        return None
    if folder in {"memory", "redis"}:
        opening = importlib.import_module("locus_store.open")
        return opening.open_store(url, **options)
    kind = getattr(importlib.import_module("locus_store.backends"), STORES[folder])
    return kind(backend=backend, **options)


def folder_of(backend: Any) -> str:
    """Return the folder of a backend's technology."""
    return type(backend).__module__.split(".")[2]


def _messages(backend: Any) -> Any:
    folder = folder_of(backend)
    if folder not in MESSAGE_LOGS:
        return None
    kind = getattr(importlib.import_module("locus_store.backends"), MESSAGE_LOGS[folder])
    return kind(backend=backend)


# --- several processes


def _supervise(settings: ServeOptions, listener: socket.socket) -> None:
    """Run the workers until a signal; one that ends is started again."""
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: stopping.append(got))
    with TemporaryDirectory(prefix="locus-store-") as folder:
        os.environ[WORKERS_FOLDER] = folder
        workers = [_Worker(settings, listener) for _ in range(settings.workers)]
        while not stopping:
            wait([it.process.sentinel for it in workers if it.process.is_alive()], timeout=0.2)
            for it in () if stopping else workers:
                it.revive()
        for it in workers:
            it.process.terminate()
        for it in workers:
            it.end()


class _Worker:
    """A process that serves, and the one after it."""

    def __init__(self, settings: ServeOptions, listener: socket.socket) -> None:
        self._arguments = settings, listener
        self._pause = 0.0
        self._start()

    def _start(self) -> None:
        self._begun, self._ended = monotonic(), 0.0
        context = multiprocessing.get_context("spawn")
        self.process: BaseProcess = context.Process(target=run, args=self._arguments)
        self.process.start()

    def revive(self) -> None:
        """Start another process if this one has ended, after a pause if it did not run long."""
        if self.process.is_alive():
            return
        if not self._ended:
            self._ended = monotonic()
            ran = self._ended - self._begun
            self._pause = 0.0 if ran > STEADY_SECONDS else min(2 * self._pause + 0.5, MOST_SECONDS)
            log.error(
                "a worker ended with %s; another one starts in %.1f s",
                self.process.exitcode,
                self._pause,
            )
        if monotonic() - self._ended >= self._pause:
            self._start()

    def end(self) -> None:
        """Wait for the end of the process."""
        self.process.join(GRACE_SECONDS)
        if self.process.is_alive():
            log.error("a worker did not end in %s s; it is killed", GRACE_SECONDS)
            self.process.kill()
            self.process.join()
