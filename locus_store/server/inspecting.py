"""``locus-store inspect``: the pages of the inspector on loopback, behind a login link."""

from __future__ import annotations

import asyncio
import html
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from starlette.routing import Router

from locus_store.backend import StorageBackend
from locus_store.inspector.access import Codes
from locus_store.inspector.application import Inspector
from locus_store.server.listener import listen, require_uvicorn, serve_socket, try_starting
from locus_store.service.access import EVERYTHING, LOOPBACK
from locus_store.service.application import Parts
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
