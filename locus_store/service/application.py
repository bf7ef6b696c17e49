"""The ASGI application."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from locus_store import __version__
from locus_store.backend import StorageBackend
from locus_store.errors import BackendError, LocusStoreError, UnsupportedError
from locus_store.service import sdk_threads
from locus_store.service.access import Caller, Door
from locus_store.service.admission import admitted
from locus_store.service.exchange import Answer, RefusalError, Request
from locus_store.service.metrics import Metrics
from locus_store.service.openapi import document
from locus_store.service.parts import Parts, PartsOfTenants
from locus_store.wire import bodies, failures
from locus_store.wire.calls import BY_PATH, VERSION
from locus_store.wire.description import Description

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

    from locus_store.messages import BaseMessageLog
    from locus_store.store import BaseStore
    from locus_store.wire.calls import WireCall

log: Final = logging.getLogger("locus_store.service")
"""WARNING a failure of the storage; ERROR a request that failed for an unknown reason."""

MAX_BODY: Final = 100_000_000
PROMETHEUS: Final = "text/plain; version=0.0.4"


def app(
    backend: StorageBackend,
    *,
    store: BaseStore | None = None,
    messages: BaseMessageLog | None = None,
    token_file: str | Path | None = None,
    read_only: bool = False,
    max_body: int = MAX_BODY,
    requests_per_second: float | None = None,
    owns: bool = False,
) -> Service:
    """Return the service over a backend, as an ASGI application.

    Args:
        backend: For example ``open_checkpointer(url).backend``.
        store: The store, if there is one.
        messages: The message log, if there is one.
        token_file: The file of the tokens, see ``locus-store tokens``; ``None``: every caller may
            do everything, so let no stranger reach the port.
        read_only: Refuse writes, whatever a token may do.
        max_body: The longest body of a request in bytes.
        requests_per_second: Of each token, on average and in a burst; ``None``: any number.
        owns: Open the backend, the store and the message log when the server starts, and close
            them when it ends (ASGI's lifespan); else their maker does.

    Raises:
        TypeError: ``backend`` is not a ``StorageBackend``.
        InvalidArgumentError: A number is not positive.
        BackendError: The token file cannot be read.
    """
    if not isinstance(backend, StorageBackend):
        raise TypeError(f"the service stands over a StorageBackend, not {type(backend).__name__}")
    access = Door(token_file, read_only=read_only, requests_per_second=requests_per_second)
    return Service(PartsOfTenants(Parts(backend, store, messages)), access, max_body, owns=owns)


class Service:
    """The ASGI application; see ``app``."""

    def __init__(self, tenants: PartsOfTenants, access: Door, max_body: int, *, owns: bool) -> None:
        self._owns = owns
        self._tenants = tenants
        self._access = access
        self._max_body = max_body
        self._metrics = Metrics()
        self._pages: dict[str, Callable[[Request], Awaitable[Answer]]] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._shown_metrics,
            "/openapi.json": self._openapi,
            VERSION: self._description,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; see the specification of ASGI."""
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"this application does not speak {scope['type']}")
        request = Request(scope, receive, self._max_body)
        name, begun = self._name(request.path), perf_counter()
        answer = await self._answered(request)
        self._metrics.count(name, answer.status, perf_counter() - begun)
        await answer.send(send)
        return None

    async def _live(self, receive: Receive, send: Send) -> None:
        """Answer the server's start and its end."""
        stage = ""
        while stage != "shutdown":
            message: Any = await receive()
            stage = message["type"].partition(".")[2]
            try:
                await self._at(stage)
            except LocusStoreError as exc:
                await send({"type": f"lifespan.{stage}.failed", "message": str(exc)})
            else:
                await send({"type": f"lifespan.{stage}.complete"})

    async def _at(self, stage: str) -> None:
        """Open or close what the service stands over, if that is its own."""
        if not self._owns:
            return
        parts = self._tenants.parts
        for it in (parts.store, parts.messages, parts.threads):
            if it is not None:
                await (it.open() if stage == "startup" else it.close())

    def _name(self, path: str) -> str:
        """Return the name under which a request is counted, which holds no id."""
        if path in BY_PATH or path in self._pages:
            return path
        return "/threads" if path.startswith("/threads/") else "other"

    async def _answered(self, request: Request) -> Answer:
        try:
            return await self._dispatched(request)
        except RefusalError as refusal:
            return Answer.refused(refusal)
        except LocusStoreError as error:
            answer = Answer.failed(error)
            if not failures.is_shown(error):
                log.warning("%s: %s", self._name(request.path), error, exc_info=error)
            return answer
        except Exception as exc:
            log.exception("%s failed", self._name(request.path))
            answer = Answer.failed(BackendError(type(exc).__name__))
            answer.status = 500
            return answer

    async def _dispatched(self, request: Request) -> Answer:
        path = request.path
        if call := BY_PATH.get(path):
            return await self._called(call, request)
        if page := self._pages.get(path):
            request.require_method("GET")
            return await page(request)
        if path.startswith("/threads/"):
            caller = self._caller(request)
            backend = self._tenants.of(caller.tenant).threads
            return await sdk_threads.answered(request, caller, backend)
        raise RefusalError(404, UnsupportedError("this service has nothing at this path"))

    # --- the backend contract

    async def _called(self, call: WireCall, request: Request) -> Answer:
        request.require_method("POST")
        caller = self._caller(request)
        caller.require(call.right)
        target = self._tenants.of(caller.tenant).target(call)
        value, payloads = bodies.received(await request.body(), request.header(b"content-type"))
        arguments = await admitted(call, target, call.arguments.read(value, payloads))
        result = await getattr(target, call.name)(**arguments)
        if bodies.FRAMED in request.header(b"accept"):
            return Answer(200, *bodies.framed(result))
        return Answer.of(result)

    def _caller(self, request: Request) -> Caller:
        return self._access.caller(request.header(b"authorization"))

    # --- pages

    async def _description(self, request: Request) -> Answer:
        caller = self._caller(request)
        parts = self._tenants.of(caller.tenant)
        return Answer.of(
            Description(
                version=__version__,
                capabilities=parts.threads.capabilities,
                dimension=parts.store.dimension if parts.store else None,
                metric=parts.store.metric if parts.store else None,
                has_store=parts.store is not None,
                has_messages=parts.messages is not None,
                rights=sorted(caller.rights),
                max_body=self._max_body,
            )
        )

    async def _health(self, _: Request) -> Answer:
        return Answer.of({"status": "ok"})

    async def _ready(self, _: Request) -> Answer:
        await self._tenants.parts.threads.has_thread("locus-store/ready")
        return Answer.of({"status": "ok"})

    async def _shown_metrics(self, request: Request) -> Answer:
        self._caller(request).require("admin")
        return Answer(200, self._metrics.shown().encode(), PROMETHEUS)

    async def _openapi(self, _: Request) -> Answer:
        return Answer.of(document())
