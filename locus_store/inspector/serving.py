"""The inspector as a server: alone for ``inspect``, and beside ``/v1`` for ``serve``."""

from __future__ import annotations

import asyncio
import html
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse
from starlette.routing import Router

from locus_store.inspector.access import Codes, Mounted, Tokens
from locus_store.inspector.application import LOOPBACK, Inspector
from locus_store.service.access import EVERYTHING, Door
from locus_store.service.parts import Parts, PartsOfTenants
from locus_store.service.serving import listening, require_uvicorn, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from locus_store.backend import StorageBackend
    from locus_store.service.serving import ServeOptions
    from locus_store.store import BaseStore

PREFIX: Final = "/inspector"


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """The options of ``locus-store inspect``."""

    port: int = 0
    allow_write: bool = False


def inspect(
    backend: StorageBackend,
    store: BaseStore | None,
    options: InspectOptions,
    announce: Callable[[str], None],
) -> None:
    """Serve the pages on loopback until a signal ends the process.

    Args:
        backend: Opened and closed here.
        store: Likewise, if there is one.
        options: The options.
        announce: Called with the login link once the port is taken.

    Raises:
        ConnectionFailedError: The port is taken.
        LocusStoreError: The storage cannot be opened.
        MissingExtraError: uvicorn is not installed.
    """
    require_uvicorn()
    asyncio.run(_tried(backend, store))  # uvicorn would print the traceback of an error
    codes = Codes(EVERYTHING if options.allow_write else frozenset({"read"}))
    pages = Inspector(
        PartsOfTenants(Parts(backend, store, None)),
        codes,
        allow_write=options.allow_write,
        allowed_hosts=LOOPBACK,
    )

    @asynccontextmanager
    async def running(_: Any) -> AsyncIterator[None]:
        async with _opened(backend, store):
            yield

    application = Router(default=pages, lifespan=running, redirect_slashes=False)
    with listening("127.0.0.1", options.port) as listener:
        port = listener.getsockname()[1]
        announce(f"http://127.0.0.1:{port}/login?code={codes.new_code()}")
        served(application, listener)


@asynccontextmanager
async def _opened(backend: StorageBackend, store: BaseStore | None) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(backend)
        await backend.open()
        if store is not None:
            await stack.enter_async_context(store)
        yield


async def _tried(backend: StorageBackend, store: BaseStore | None) -> None:
    async with _opened(backend, store):
        pass


def start_page(link: str) -> Path:
    """Return a file that leads to a login link, readable for its owner only.

    Other users of the machine see the arguments of the browser, so the link is not among them.
    """
    path = Path(mkdtemp(prefix="locus-store-")) / "inspect.html"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">')
    return path


def beside(
    service: ASGIApp, backend: StorageBackend, store: BaseStore | None, settings: ServeOptions
) -> ASGIApp:
    """Return the service with the pages below ``PREFIX``."""
    if settings.token_file is None:
        entrance: Any = Mounted(None)
    else:
        door = Door(settings.token_file, read_only=settings.read_only, requests_per_second=None)
        entrance = Tokens(door, settings.session_key)
    pages = Inspector(
        PartsOfTenants(Parts(backend, store, None)),
        entrance,
        allow_write=settings.allow_write and not settings.read_only,
        allowed_hosts=settings.hosts,
        is_secure=settings.behind_proxy,
        requests_per_second=settings.requests_per_second,
    )
    return _Beside(service, pages)


class _Beside:
    """Two applications: the pages below their prefix, and the service."""

    def __init__(self, service: ASGIApp, pages: Inspector) -> None:
        self._service = service
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path == PREFIX:
            response = RedirectResponse(f"{PREFIX.removeprefix('/')}/")
            await response(scope, receive, send)
        elif path.startswith(f"{PREFIX}/"):
            root = scope.get("root_path", "") + PREFIX
            await self._pages({**scope, "root_path": root}, receive, send)
        else:
            await self._service(scope, receive, send)
