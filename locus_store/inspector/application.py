"""The ASGI application of the pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection
from contextlib import suppress
from typing import Any, Final, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from locus_store.backend import StorageBackend
from locus_store.errors import InvalidArgumentError, LocusStoreError, UnsupportedError
from locus_store.inspector.access import (
    SESSION_SECONDS,
    Authorize,
    Entrance,
    Mounted,
    Viewer,
    require_form_token,
    require_same_origin,
)
from locus_store.inspector.escapes import SECURITY, escape
from locus_store.inspector.page_requests import (
    HOME,
    Answer,
    Handler,
    Links,
    Method,
    Page,
    PageRequest,
    Poller,
    Query,
    Redirect,
)
from locus_store.inspector.pages import changes, diffs, store, threads, timelines, versions
from locus_store.inspector.rendering import FOLDER, render
from locus_store.inspector.work import Blames, Descriptions, Jobs, States
from locus_store.service.access import LOOPBACK, Door, Rate
from locus_store.service.application import Parts
from locus_store.service.exchange import BodyLimits, LimitedRequest, RefusalError
from locus_store.store import BaseStore
from locus_store.wire import failures

log: Final = logging.getLogger("locus_store.inspector")
"""WARNING a failure of the storage; ERROR a page that failed for an unknown reason."""

LOGINS_PER_SECOND: Final = 10.0
"""Of all callers together, with a valid secret or not."""

FORM: Final = BodyLimits(bytes=64_000, seconds=20.0)


def app(
    backend: StorageBackend,
    store: BaseStore | None = None,
    authorize: Authorize | None = None,
    allow_write: bool = False,
    *,
    allowed_hosts: Collection[str] | None = None,
) -> Inspector:
    """Return the inspector over a backend, as an ASGI application to mount.

    Args:
        backend: For example ``open_checkpointer(url).backend``; the caller opens and closes it.
        store: The long-term store, if there is one.
        authorize: Is called with each request (Starlette's), and returns a ``Caller``, or ``None``
            to refuse; a coroutine function is awaited. Without it only requests from this machine
            are answered, which no proxy passed on.
        allow_write: Offer forks, rewinds and deletions to callers with the right ``write``.
        allowed_hosts: The names in the header ``Host`` that are answered, without ports. ``None``:
            with ``authorize`` any, else those of this machine.

    Raises:
        TypeError: ``backend`` is not a ``StorageBackend``.
    """
    if not isinstance(backend, StorageBackend):
        raise TypeError(f"the inspector needs a StorageBackend, not {type(backend).__name__}")
    if allowed_hosts is None and authorize is None:
        allowed_hosts = LOOPBACK
    parts = Parts(backend, store, None)
    return Inspector(
        parts, Mounted(authorize), allow_write=allow_write, allowed_hosts=allowed_hosts
    )


class Inspector:
    """The ASGI application; see ``app``.

    Args:
        parts: What the pages show.
        entrance: Who may see them.
        allow_write: The writing routes exist.
        allowed_hosts: See ``app``.
        is_secure: Browsers send the cookie over TLS only.
        requests_per_second: Of each caller; ``None``: any number.
    """

    def __init__(
        self,
        parts: Parts,
        entrance: Entrance,
        *,
        allow_write: bool,
        allowed_hosts: Collection[str] | None,
        is_secure: bool = False,
        requests_per_second: float | None = None,
    ) -> None:
        self._parts = parts
        self._entrance = entrance
        self._allow_write = allow_write
        self._door = Door(
            None,
            read_only=True,
            requests_per_second=requests_per_second,
            allowed_hosts=allowed_hosts,
        )
        self._logins = Rate(LOGINS_PER_SECOND)
        self._is_secure = is_secure
        self._jobs = Jobs()
        self._states = States(self._jobs)
        self._blames = Blames(self._jobs)
        self._descriptions = Descriptions(self._jobs)
        self._poller = Poller()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; see the specification of ASGI."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            request = LimitedRequest(scope, receive, FORM)
            response = await self._answer(request)
            await request.answer(response, send)

    async def _answer(self, request: LimitedRequest) -> Response:
        as_json = _wants_json(request)
        try:
            return await self._dispatch(request, as_json=as_json)
        except RefusalError as refusal:
            found = _render_failure(refusal.status, str(refusal), as_json=as_json)
            found.headers.update(refusal.headers)
            return found
        except LocusStoreError as error:
            if not failures.is_shown(error):
                log.warning("%s: %s", request.path[:80], error, exc_info=error)
            status, failure = failures.encode_error(error)
            return _render_failure(status, failure["message"], as_json=as_json)
        except Exception:
            log.exception("%s failed", request.path[:80])
            return _render_failure(500, failures.HIDDEN, as_json=as_json)

    async def _dispatch(self, request: LimitedRequest, *, as_json: bool) -> Response:
        self._door.require_host(request.get_header(b"host"))
        if request.method == "POST":
            require_same_origin(request)
        name = request.path.removeprefix("/")
        if name in _FILES:
            content = (FOLDER / "static" / name).read_bytes()
            headers = SECURITY | {"cache-control": "max-age=3600"}
            return Response(content, 200, headers, _FILES[name])
        if name == "login":
            return await self._log_in(request, as_json=as_json)
        viewer = await self._entrance.find_viewer(request)
        if viewer is None:
            return self._render_login(as_json=as_json, is_refused=True)
        self._door.require_rate(viewer.caller)
        if name == "logout" and request.method == "POST":
            await self._read_form(request, viewer)
            response = render(Redirect("login"), as_json=False)
            self._set_cookie(response, "", 0)
            return response
        writing = WRITING.get(name) if self._may_write(viewer) else None
        handler = writing or ROUTES.get(name)
        if handler is None:
            raise RefusalError(404, UnsupportedError("the inspector has no page at this address"))
        request.require_method("GET", *(("POST",) if writing else ()))
        return await self._answer_page(handler, request, viewer, as_json=as_json)

    def _may_write(self, viewer: Viewer) -> bool:
        return self._allow_write and "write" in viewer.caller.rights

    async def _answer_page(
        self, handler: Handler, request: LimitedRequest, viewer: Viewer, *, as_json: bool
    ) -> Response:
        viewer.caller.require("read")
        text = _query(request)
        if request.method == "POST":
            text = f"{text}&{await self._read_form(request, viewer)}"
        query = Query(text)
        tenant = query.get_optional("tenant") if viewer.is_operator else None
        page_request = PageRequest(
            method=cast("Method", request.method),
            query=query,
            viewer=viewer,
            tenant=tenant or viewer.caller.tenant,
            parts=self._parts.for_tenant(tenant or viewer.caller.tenant),
            links=Links(tenant),
            jobs=self._jobs,
            states=self._states,
            blames=self._blames,
            descriptions=self._descriptions,
            poller=self._poller,
            may_write=self._may_write(viewer),
        )
        with viewer.caller.act():
            answer = await _answer_unless_left(request, handler(page_request))
        return render(answer, as_json=as_json, request=page_request, to=page_request.links.to)

    async def _read_form(self, request: LimitedRequest, viewer: Viewer) -> str:
        """Return the fields of a form that carries the token of its session."""
        text = (await request.body()).decode("utf-8", "replace")
        require_form_token(viewer, Query(text).get_text("form_token"))
        return text

    async def _log_in(self, request: LimitedRequest, *, as_json: bool) -> Response:
        """Begin a session: with a code in the address, or a token in the form."""
        if request.method == "POST" and self._entrance.kind == "token":
            secret = Query((await request.body()).decode("utf-8", "replace")).get_text("token")
        elif request.method == "GET" and self._entrance.kind == "code":
            secret = Query(_query(request)).get_text("code")
        else:
            return self._render_login(as_json=as_json)
        if secret:
            self._logins.require_room()
        subject = self._entrance.check_secret(secret) if secret else None
        if subject is None:
            was_wrong = bool(secret)
            return self._render_login(as_json=as_json, is_refused=was_wrong, was_wrong=was_wrong)
        # From another site the cookie is not sent along a redirect, but from a page of ours.
        page = Page("entered", "Logged in", {"home": HOME})
        response = render(page, as_json=as_json, request=None)
        self._set_cookie(response, self._entrance.sessions.begin(subject), SESSION_SECONDS)
        return response

    def _render_login(
        self, *, as_json: bool, is_refused: bool = False, was_wrong: bool = False
    ) -> Response:
        status = 401 if is_refused else 200
        values: dict[str, Any] = {"kind": self._entrance.kind, "was_wrong": was_wrong}
        if is_refused:
            values |= {"status": status, "message": self._entrance.refusal}
        return render(Page("login", "Log in", values, status=status), as_json=as_json, request=None)

    def _set_cookie(self, response: Response, value: str, seconds: int) -> None:
        """Set the cookie. Without a path it is of the folder of this page, under any prefix."""
        response.set_cookie(
            self._entrance.sessions.cookie,
            value,
            max_age=seconds,
            path=cast("Any", None),
            secure=self._is_secure,
            httponly=True,
            samesite="strict",
        )


def _query(request: LimitedRequest) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


def _wants_json(request: LimitedRequest) -> bool:
    if "format=json" in _query(request).split("&"):
        return True
    accepted = request.get_header(b"accept")
    return "application/json" in accepted and "text/html" not in accepted


def _render_failure(status: int, message: str, *, as_json: bool) -> Response:
    values = {"status": status, "message": escape(message)}  # may hold a surrogate of an address
    page = Page("error", "Error", values, status=status)
    return render(page, as_json=as_json, request=None)


async def _answer_unless_left(request: LimitedRequest, page: Awaitable[Answer]) -> Answer:
    """Return the answer of a page; cancel its work if the browser leaves."""
    working = asyncio.ensure_future(page)
    leaving = asyncio.ensure_future(_wait_for_leaving(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RefusalError(400, InvalidArgumentError("the browser left"))
        return await working
    finally:
        for task in (working, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _wait_for_leaving(request: LimitedRequest) -> None:
    """Return when the browser has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


ROUTES: Final[dict[str, Handler]] = {
    "": threads.show_threads,
    "threads": threads.show_threads,
    "tenants": threads.show_tenants,
    "version": versions.show_version,
    "timeline": timelines.show_timeline,
    "bisect": diffs.show_answers,
    "writes": versions.show_writes,
    "messages": timelines.show_messages,
    "message": timelines.download_message,
    "diff": diffs.show_diff,
    "download": threads.download_state,
    "live": threads.show_live,
    "store": store.show_namespaces,
    "items": store.show_items,
    "item": store.show_item,
    "value": store.download_value,
    "report": threads.show_report,
    "report-file": threads.download_report,
    "export": threads.export,
    "image": threads.download_picture,
}
WRITING: Final[dict[str, Handler]] = {
    "fork": changes.fork,
    "rewind": changes.rewind,
    "delete": changes.delete,
}
"""With ``allow_write`` only, for callers that may write; also with POST: the form was checked."""

_FILES: Final = {
    "inspector.css": "text/css; charset=utf-8",
    "normalize.css": "text/css; charset=utf-8",
    "tokens.css": "text/css; charset=utf-8",
    "inspector.js": "text/javascript; charset=utf-8",
}
"""Static files; of no caller in particular. Pages ask for those of their release."""
