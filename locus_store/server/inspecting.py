"""``locus-store inspect``: the pages of the inspector on loopback, behind a login link."""

from __future__ import annotations

import asyncio
import html
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from starlette.routing import Router

from locus_store.backend import StorageBackend
from locus_store.inspector.access import Codes
from locus_store.inspector.application import Inspector
from locus_store.server.listener import listen, require_uvicorn, serve_socket
from locus_store.service.access import EVERYTHING, LOOPBACK
from locus_store.service.application import Parts, PartsOfTenants
from locus_store.store import BaseStore


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
    require_uvicorn()
    asyncio.run(_try_opening(backend, store))  # uvicorn would print the traceback of an error
    codes = Codes(EVERYTHING if allow_write else frozenset({"read"}))
    pages = Inspector(
        PartsOfTenants(Parts(backend, store, None)),
        codes,
        allow_write=allow_write,
        allowed_hosts=LOOPBACK,
    )

    @asynccontextmanager
    async def run(_: Any) -> AsyncIterator[None]:
        async with _open_both(backend, store):
            yield

    application = Router(default=pages, lifespan=run, redirect_slashes=False)
    with listen("127.0.0.1", port) as listener:
        announce(f"http://127.0.0.1:{listener.getsockname()[1]}/login?code={codes.generate_code()}")
        serve_socket(application, listener)


@asynccontextmanager
async def _open_both(backend: StorageBackend, store: BaseStore | None) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(backend)
        await backend.open()
        if store is not None:
            await stack.enter_async_context(store)
            if store.dimension is None:  # the number is in the storage, not in the URL
                store.dimension = store.stored_dimension
        yield


async def _try_opening(backend: StorageBackend, store: BaseStore | None) -> None:
    async with _open_both(backend, store):
        pass


def start_page(link: str) -> Path:
    """Return a file that leads to a login link, readable for its owner only.

    Other users of the machine see the arguments of the browser, so the link is not among them.
    """
    path = Path(mkdtemp(prefix="locus-store-")) / "inspect.html"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">')
    return path
