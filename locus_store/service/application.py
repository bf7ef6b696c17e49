"""The ASGI application, and the storages that it stands over, in their form for each tenant."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from locus_store import __version__
from locus_store.backend import StorageBackend, needs
from locus_store.errors import BackendError, LocusStoreError, UnsupportedError
from locus_store.messages import BaseMessageLog
from locus_store.runtime.recent import Recent
from locus_store.service import sdk_threads
from locus_store.service.access import Caller, Door
from locus_store.service.exchange import (
    BODY_SECONDS,
    FORBIDDEN,
    MAX_BODY,
    NO_STORE,
    BodyLimits,
    LimitedRequest,
    RefusalError,
    answer,
    check_arguments,
    respond_error,
    respond_refusal,
)
from locus_store.service.openapi import make_document
from locus_store.store import BaseStore
from locus_store.types.tenants import ForTenants
from locus_store.wire import bodies, failures
from locus_store.wire.calls import BY_PATH, SERVICE, VERSION, Description, WireCall

P = TypeVar("P", bound="ForTenants")

TENANTS: Final = 1000
"""Tenants whose objects are kept; another one's are made again."""


@dataclass(frozen=True)
class Parts:
    """The objects that a service stands over."""

    threads: StorageBackend
    store: BaseStore | None
    messages: BaseMessageLog | None

    @cached_property
    def _of_tenants(self) -> Recent[str, Parts]:
        return Recent(TENANTS)

    def find_target(self, call: WireCall) -> Any:
        """Return the object that has the method of a call.

        Raises:
            UnsupportedError: There is none, or it does not declare the power.
        """
        found = getattr(self, call.part)
        if found is None:
            raise UnsupportedError(f"this service has no part {call.part!r}")
        if issubclass(call.contract, StorageBackend):
            return needs(found, call.contract)
        if not isinstance(found, call.contract):
            raise UnsupportedError(f"the storage of this service has no {call.name!r}")
        return found

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open the parts, and close them at the end; a store gets the dimension that is stored."""
        async with AsyncExitStack() as opened:
            for part in (self.threads, self.messages, self.store):
                if part is not None:
                    opened.push_async_callback(part.close)
                    await part.open()
            if self.store is not None:
                self.store.dimension = self.store.stored_dimension or self.store.dimension
            yield

    def for_tenant(self, tenant: str | None) -> Parts:
        """Return the parts of a tenant; ``None`` is the one that they were opened for."""
        if tenant is None:
            return self
        found = self._of_tenants.get(tenant)
        if found is None:
            threads = self.threads.for_tenant(tenant)
            found = Parts(threads, _bind(self.store, tenant), _bind(self.messages, tenant))
            self._of_tenants.put(tenant, found)
        return found


def _bind(part: P | None, tenant: str) -> P | None:
    return None if part is None else part.for_tenant(tenant)


log: Final = logging.getLogger("locus_store.service")
"""WARNING a failure of the storage; ERROR a request that failed for an unknown reason."""

PROMETHEUS: Final = "text/plain; version=0.0.4"


def app(
    backend: StorageBackend,
    *,
    store: BaseStore | None = None,
    messages: BaseMessageLog | None = None,
    token_file: str | Path | None = None,
    read_only: bool = False,
    max_body: int = MAX_BODY,
    body_seconds: float = BODY_SECONDS,
    requests_per_second: float | None = None,
    allowed_hosts: Collection[str] | None = None,
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
        body_seconds: A body that takes longer is refused with 408.
        requests_per_second: Of each token, on average and in a burst; ``None``: any number.
        allowed_hosts: The names in the header ``Host`` that are answered, without ports;
            ``None``: any. Give them if there are no tokens.
        owns: Open the backend, the store and the message log when the server starts, and close
            them when it ends (ASGI's lifespan); else their maker does.

    Raises:
        TypeError: ``backend`` is not a ``StorageBackend``.
        InvalidArgumentError: A number is not positive.
        BackendError: The token file cannot be read.
    """
    if not isinstance(backend, StorageBackend):
        raise TypeError(f"the service stands over a StorageBackend, not {type(backend).__name__}")
    access = Door(
        token_file,
        read_only=read_only,
        requests_per_second=requests_per_second,
        allowed_hosts=allowed_hosts,
    )
    limits = BodyLimits(bytes=max_body, seconds=body_seconds)
    return Service(Parts(backend, store, messages), access, limits, owns=owns)


class Service:
    """The ASGI application; see ``app``."""

    def __init__(self, parts: Parts, access: Door, limits: BodyLimits, *, owns: bool) -> None:
        self._parts = parts
        self._access = access
        self._limits = limits
        self._metrics = _Metrics()
        run = parts.open if owns else nullcontext
        self._router = Router(
            redirect_slashes=False, default=self._answer, lifespan=lambda _: run()
        )
        self._pages: dict[str, Callable[[LimitedRequest], Awaitable[Response]]] = {
            "/health": self._show_health,
            "/ready": self._show_readiness,
            "/metrics": self._show_metrics,
            "/openapi.json": self._show_openapi,
            VERSION: self._show_description,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; see the specification of ASGI."""
        await self._router(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._router.not_found(scope, receive, send)
        request, begun = LimitedRequest(scope, receive, self._limits), perf_counter()
        response = await self._respond(request)
        self._metrics.count(self._name(request.path), response.status_code, perf_counter() - begun)
        await request.answer(response, send)
        return None

    def _name(self, path: str) -> str:
        """Return the name under which a request is counted, which holds no id."""
        if path in BY_PATH or path in self._pages:
            return path
        return "/threads" if path.startswith("/threads/") else "other"

    async def _respond(self, request: LimitedRequest) -> Response:
        try:
            return await self._dispatch(request)
        except RefusalError as refusal:
            return respond_refusal(refusal)
        except LocusStoreError as error:
            if not failures.is_shown(error):
                log.warning("%s: %s", self._name(request.path), error, exc_info=error)
            return respond_error(error)
        except Exception:
            log.exception("%s failed", self._name(request.path))
            return respond_refusal(RefusalError(500, BackendError(failures.HIDDEN)))

    async def _dispatch(self, request: LimitedRequest) -> Response:
        self._access.require_host(request.get_header(b"host"))
        path = request.path
        if call := BY_PATH.get(path):
            return await self._call(call, request)
        if page := self._pages.get(path):
            request.require_method("GET")
            return await page(request)
        if path.startswith("/threads/"):
            caller = self._identify(request)
            backend = self._parts.for_tenant(caller.tenant).threads
            async with self._act_as(caller, f"{request.method} /threads"):
                return await sdk_threads.answer_request(request, caller, backend)
        raise RefusalError(404, UnsupportedError("this service has nothing at this path"))

    async def _call(self, call: WireCall, request: LimitedRequest) -> Response:
        request.require_method("POST")
        caller = self._identify(request)
        async with self._act_as(caller, call.name):
            caller.require(call.right)
            target = self._parts.for_tenant(caller.tenant).find_target(call)
            value, payloads = bodies.decode_body(
                await request.body(), request.get_header(b"content-type")
            )
            arguments = await check_arguments(call, target, call.arguments.read(value, payloads))
            result = await getattr(target, call.name)(**arguments)
        if bodies.FRAMED in request.get_header(b"accept"):
            body, kind = bodies.encode_body(result)
            return Response(body, 200, NO_STORE, kind)
        return answer(result)

    @asynccontextmanager
    async def _act_as(self, caller: Caller, method: str) -> AsyncIterator[None]:
        """Name the caller in the storage's audit, which also records that a right is missing."""
        with caller.act():
            try:
                yield
            except RefusalError as refusal:
                threads = self._parts.for_tenant(caller.tenant).threads
                if refusal.status == FORBIDDEN and hasattr(threads, "refuse_call"):
                    await threads.refuse_call(method, f"{FORBIDDEN}")
                raise

    def _identify(self, request: LimitedRequest) -> Caller:
        return self._access.identify(request.get_header(b"authorization"))

    async def _show_description(self, request: LimitedRequest) -> Response:
        caller = self._identify(request)
        parts = self._parts.for_tenant(caller.tenant)
        return answer(
            Description(
                version=__version__,
                capabilities=parts.threads.capabilities,
                dimension=parts.store.dimension if parts.store else None,
                metric=parts.store.metric if parts.store else None,
                has_store=parts.store is not None,
                has_messages=parts.messages is not None,
                rights=sorted(caller.rights),
                max_body=self._limits.bytes,
                has_keyed_digests=parts.threads.has_keyed_digests,
            )
        )

    async def _show_health(self, _: LimitedRequest) -> Response:
        return answer({"status": "ok", "service": SERVICE})

    async def _show_readiness(self, _: LimitedRequest) -> Response:
        self._access.read_tokens()
        await self._parts.threads.has_thread("locus-store/ready")
        return answer({"status": "ok"})

    async def _show_metrics(self, request: LimitedRequest) -> Response:
        self._identify(request).require("admin")
        return Response(self._metrics.render(), 200, NO_STORE, PROMETHEUS)

    async def _show_openapi(self, _: LimitedRequest) -> Response:
        return answer(make_document())


WORKERS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of the environment with the folder in which several workers count together;
prometheus-client reads it when it is imported."""


class _Metrics:
    """Requests by path and status, and their seconds. Holds no id and no tenant."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        requests = Counter(
            "locus_store_requests",
            "Requests by path and status.",
            ("path", "status"),
            registry=self._registry,
        )
        times = Histogram(
            "locus_store_request_seconds",
            "Seconds that requests took, by path.",
            ("path",),
            registry=self._registry,
        )
        self._requests = cache(requests.labels)
        self._seconds = cache(times.labels)

    def count(self, path: str, status: int, seconds: float) -> None:
        self._requests(path, status).inc()
        self._seconds(path).observe(seconds)

    def render(self) -> bytes:
        """Return the text of ``/metrics``: the sum over all workers of the service."""
        registry = self._registry
        if WORKERS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
