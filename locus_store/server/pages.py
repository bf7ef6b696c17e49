"""The pages of the inspector and the service ``/v1`` in one application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse

from locus_store.inspector.access import Mounted, Tokens
from locus_store.inspector.application import Inspector
from locus_store.service.access import Door
from locus_store.service.parts import Parts, PartsOfTenants

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from locus_store.backend import StorageBackend
    from locus_store.server.options import ServeOptions
    from locus_store.store import BaseStore

PREFIX: Final = "/inspector"


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
