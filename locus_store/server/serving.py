"""``locus-store serve`` and ``inspect``: applications on a socket, in one process or in several."""

from __future__ import annotations

import asyncio
import html
import importlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from locus_store.backend import StorageBackend
from locus_store.errors import ConnectionFailedError, InvalidArgumentError, require_extra
from locus_store.open import open_storage
from locus_store.service.access import EVERYTHING, LOOPBACK, Door
from locus_store.service.application import WORKERS_FOLDER, Parts, app
from locus_store.store import BaseStore

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from locus_store.server.options import ServeOptions


MAX_PORT: Final = 65_535

PREFIX: Final = "/inspector"
"""The place of the pages beside the service."""


def serve(url: str, settings: ServeOptions, announce: Callable[[str], None]) -> None:
    """Serve until a signal ends the process.

    Args:
        url: Of the storage.
        settings: The options.
        announce: Called with the URL once the port is taken.

    Raises:
        InvalidArgumentError: An option is not valid, or the port would be open to strangers.
        LocusStoreError: The port is taken, or the storage cannot be opened.
        MissingExtraError: uvicorn is not installed.
    """
    require_uvicorn()
    log_to_stderr()
    if settings.token_file is None and not settings.is_on_loopback:
        raise InvalidArgumentError(
            f"--host {settings.host} lets strangers in: pass --token-file, which "
            "`locus-store tokens add` makes"
        )
    if settings.inspector and not settings.is_on_loopback and not settings.behind_proxy:
        raise InvalidArgumentError(
            f"--inspector on --host {settings.host} would send tokens without TLS: put a proxy "
            "with TLS before it, and pass --behind-proxy"
        )
    if settings.behind_proxy and settings.token_file is None:
        raise InvalidArgumentError("--behind-proxy needs --token-file: a proxy lets strangers in")
    if settings.workers < 1:
        raise InvalidArgumentError("--workers must be at least 1")
    if settings.workers > 1 and url.partition(":")[0] == "memory":
        raise InvalidArgumentError(
            "--workers: each process would have a memory of its own; use one worker, or a database"
        )
    if not 0 <= settings.port <= MAX_PORT:
        raise InvalidArgumentError(f"--port must be from 0 to {MAX_PORT}")
    # Both raise for a wrong option or storage, before the port is announced.
    service = make_application(url, settings)
    with listen(settings.host, settings.port) as listener:
        asyncio.run(try_starting(service))
        announce(f"http://{settings.literal_host}:{listener.getsockname()[1]}")
        if settings.workers == 1:
            serve_socket(service, listener)
        else:
            _supervise(url, settings, listener)


def run(url: str, settings: ServeOptions, listener: socket.socket) -> None:
    """Serve on a socket, as a worker, which opens a service of its own."""
    serve_socket(make_application(url, settings), listener)


def make_application(url: str, settings: ServeOptions) -> ASGIApp:
    """Return the service over the storage of a URL, which it opens and closes, with its pages.

    Raises:
        InvalidArgumentError: The URL is not valid.
    """
    storage, store = open_storage(url), None
    if storage.has_store:
        metric: Any = settings.metric  # the store checks it
        store = storage.store(dimension=settings.dimension, metric=metric)
    service = app(
        storage.backend,
        store=store,
        messages=storage.messages() if storage.has_messages else None,
        token_file=settings.token_file,
        read_only=settings.read_only,
        max_body=settings.max_body_bytes,
        requests_per_second=settings.rate,
        allowed_hosts=_list_hosts(settings) if settings.token_file is None else None,
        owns=True,
    )
    if not settings.inspector:
        return service
    return mount_pages(service, storage.backend, store, settings)


def _list_hosts(settings: ServeOptions) -> frozenset[str]:
    """Return the names of the service: those of loopback, its own, and those that were given."""
    names = (settings.literal_host, *(settings.allow_host or ()))
    return frozenset({*LOOPBACK, *map(str.lower, names)})


def mount_pages(
    service: ASGIApp, backend: StorageBackend, store: BaseStore | None, settings: ServeOptions
) -> ASGIApp:
    """Return the service with the pages below ``PREFIX``."""
    from starlette.responses import RedirectResponse  # noqa: PLC0415  (of an extra, as the next)

    from locus_store.inspector.access import Mounted, Tokens  # noqa: PLC0415
    from locus_store.inspector.application import Inspector  # noqa: PLC0415

    if settings.token_file is None:
        entrance: Any = Mounted(None)
    else:
        door = Door(settings.token_file, read_only=settings.read_only, requests_per_second=None)
        entrance = Tokens(door, settings.session_key)
    pages = Inspector(
        Parts(backend, store, None),
        entrance,
        allow_write=settings.allow_write and not settings.read_only,
        allowed_hosts=_list_hosts(settings),
        is_secure=settings.behind_proxy,
        requests_per_second=settings.rate,
    )
    redirect = RedirectResponse(f"{PREFIX.removeprefix('/')}/")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path == PREFIX:
            await redirect(scope, receive, send)
        elif path.startswith(f"{PREFIX}/"):
            root = scope.get("root_path", "") + PREFIX
            await pages({**scope, "root_path": root}, receive, send)
        else:
            await service(scope, receive, send)

    return answer


_log: Final = logging.getLogger("locus_store.server")

_STEADY_SECONDS: Final = 10.0
_MOST_SECONDS: Final = 30.0
"""A worker that ends before it ran steadily is started again after a pause, which grows."""


def _supervise(url: str, settings: ServeOptions, listener: socket.socket) -> None:
    """Let workers serve until a signal; one that ends is started again."""
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: stopping.append(got))
    with TemporaryDirectory(prefix="locus-store-") as folder:
        os.environ[WORKERS_FOLDER] = folder
        workers = [_Worker(url, settings, listener) for _ in range(settings.workers)]
        while not stopping:
            wait([it.process.sentinel for it in workers if it.process.is_alive()], timeout=0.2)
            for worker in () if stopping else workers:
                worker.revive()
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.end()


class _Worker:
    """A process that serves, and the one after it; arguments as for ``run``."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
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
            is_steady = self._ended - self._begun > _STEADY_SECONDS
            self._pause = 0.0 if is_steady else min(2 * self._pause + 0.5, _MOST_SECONDS)
            _log.error(
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
            _log.error("a worker did not end in %s s; it is killed", GRACE_SECONDS)
            self.process.kill()
            self.process.join()


def inspect(
    backend: StorageBackend,
    store: BaseStore | None,
    announce: Callable[[str], None],
    *,
    port: int,
    allow_write: bool,
) -> None:
    """Serve the pages on loopback until a signal ends the process.

    Args:
        backend: Opened and closed here.
        store: Likewise, if there is one.
        announce: Called with the login link once the port is taken.
        port: On loopback; 0 is any free one.
        allow_write: The pages offer forks, rewinds and deletions.

    Raises:
        ConnectionFailedError: The port is taken.
        LocusStoreError: The storage cannot be opened.
        MissingExtraError: uvicorn is not installed.
    """
    from starlette.routing import Router  # noqa: PLC0415  (of an extra, as the next)

    from locus_store.inspector.access import Codes  # noqa: PLC0415
    from locus_store.inspector.application import Inspector  # noqa: PLC0415

    require_uvicorn()
    parts = Parts(backend, store, None)
    codes = Codes(EVERYTHING if allow_write else frozenset({"read"}))
    pages = Inspector(parts, codes, allow_write=allow_write, allowed_hosts=LOOPBACK)
    application = Router(default=pages, lifespan=lambda _: parts.open(), redirect_slashes=False)
    asyncio.run(try_starting(application))
    with listen("127.0.0.1", port) as listener:
        announce(f"http://127.0.0.1:{listener.getsockname()[1]}/login?code={codes.generate_code()}")
        serve_socket(application, listener)


def start_page(link: str) -> Path:
    """Return a file that leads to a login link, readable for its owner only.

    Other users of the machine see the arguments of the browser, so the link is not among them.
    """
    path = Path(mkdtemp(prefix="locus-store-")) / "inspect.html"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">')
    return path


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
