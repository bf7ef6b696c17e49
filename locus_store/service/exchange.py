"""Requests with limits, answers and refusals, on Starlette's requests and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from locus_store.backend import StorageBackend
from locus_store.errors import (
    ConnectionFailedError,
    IntegrityError,
    InvalidArgumentError,
    LocusStoreError,
    SerializationError,
    UnsupportedError,
)
from locus_store.messages import BaseMessageLog
from locus_store.store import BaseStore
from locus_store.types import ArchivedThread, Save
from locus_store.types.arguments import check_keep_last, check_number, check_ttl, check_writes
from locus_store.types.items import Change, PutItem, Remove, check_name, check_stamp
from locus_store.types.messages import LogChange, check_put, require_distinct
from locus_store.types.thread_info import check_put as check_facts
from locus_store.values import vectors
from locus_store.values.encoding import LONGEST_JSON, decode, measure_payload, require_size
from locus_store.values.sealing import SEALED_BYTES, is_sealed_by_client, split_records
from locus_store.versions.archives import require_whole
from locus_store.wire import bodies, failures
from locus_store.wire.calls import WireCall
from locus_store.wire.records import ClientSave, SentChange, SentItem

DIGITS: Final = 18

FORBIDDEN: Final = 403
"""The status of a caller without the right."""

MAX_BODY: Final = 100_000_000
BODY_SECONDS: Final = 60.0

LINGER_BYTES: Final = 64_000_000
LINGER_SECONDS: Final = 5.0
"""A body that is not wanted is dropped up to these bounds after its answer was sent. A connection
that is closed with bytes unread is reset, and the answer would be lost with it."""

NO_STORE: Final = {"cache-control": "no-store"}


class RefusalError(Exception):
    """A request that is answered with a status, before any backend sees it.

    Args:
        status: The status.
        error: Its class and message are the answer.
        headers: More headers, with ``_`` for ``-``.
    """

    def __init__(self, status: int, error: LocusStoreError, **headers: str) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = {name.replace("_", "-"): it for name, it in headers.items()}


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """Return a value as JSON."""
    return Response(bodies.encode_json(value), status, {**NO_STORE, **headers}, bodies.JSON)


def respond_error(error: LocusStoreError) -> Response:
    """Return an error of a call."""
    status, value = failures.encode_error(error)
    seconds = failures.get_retry_after(error)
    return answer(value, status, **({} if seconds is None else {"retry-after": f"{seconds}"}))


def respond_refusal(refusal: RefusalError) -> Response:
    """Return a refusal, whose message is for the caller."""
    _, value = failures.encode_error(refusal.error)
    return answer({**value, "message": str(refusal)}, refusal.status, **refusal.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """The limits of a request's body."""

    bytes: int = MAX_BODY
    seconds: float = BODY_SECONDS

    def __post_init__(self) -> None:
        for name, value in (("max_body", self.bytes), ("body_seconds", self.seconds)):
            check_number(name, value)


_ONCE: Final = frozenset(
    {b"authorization", b"content-encoding", b"content-length", b"content-type", b"host", b"origin"}
)
"""Headers of which a request has one at most."""


class LimitedRequest(Request):
    """A request whose body has limits.

    Args:
        scope: Of ASGI.
        receive: Of ASGI.
        limits: Of the body.
    """

    def __init__(self, scope: Scope, receive: Receive, limits: BodyLimits) -> None:
        super().__init__(scope, receive)
        self.path = get_raw_path(scope)
        self._limits = limits
        self._is_read = False
        # One dict for the four headers of a request: Starlette's Headers scan the list for each.
        self._first = dict(reversed(scope["headers"]))
        self._has_repeated = len(self._first) < len(scope["headers"])

    def get_header(self, name: bytes) -> str:
        """Return the first header of a name; empty if there is none.

        Raises:
            RefusalError: There are several, and a proxy may have judged by another one.
        """
        has_one = not self._has_repeated or name not in _ONCE
        if not has_one and sum(it == name for it, _ in self.scope["headers"]) > 1:
            message = f"the request has several headers {name.decode()!r}; send one"
            raise RefusalError(400, InvalidArgumentError(message))
        found: bytes = self._first.get(name, b"")
        return found.decode("latin-1")

    async def body(self) -> bytes:
        """Return the body.

        Raises:
            RefusalError: It is too long or too slow, or the caller went away.
        """
        if self.get_header(b"content-encoding").lower() not in {"", "identity"}:
            error = UnsupportedError("the body is encoded; send it without Content-Encoding")
            raise RefusalError(415, error)
        length = self.get_header(b"content-length")
        self._require_short(int(length[:DIGITS]) if length.isdecimal() else 0)
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._read_whole()
        except TimeoutError as exc:
            text = f"the body took more than {self._limits.seconds:g} seconds"
            raise RefusalError(408, ConnectionFailedError(text)) from exc
        except ClientDisconnect as exc:
            raise RefusalError(400, InvalidArgumentError("the caller went away")) from exc

    async def _read_whole(self) -> bytes:
        parts, size, more = [], 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            size += len(part)
            self._require_short(size)
            parts.append(part)
            more = message.get("more_body", False)
        self._is_read = True
        return b"".join(parts)

    def _require_short(self, size: int) -> None:
        if size > self._limits.bytes:
            error = SerializationError(
                f"the request exceeds the {self._limits.bytes:,} bytes that this service accepts"
            )
            raise RefusalError(413, error)

    def require_method(self, *methods: str) -> None:
        """Refuse other methods."""
        if self.method not in methods:
            error = UnsupportedError(f"use {' or '.join(methods)} here")
            raise RefusalError(405, error, allow=", ".join(methods))

    async def answer(self, response: Response, send: Send) -> None:
        """Send the answer; close the connection after it if the body was not read."""
        if self._is_read or not self._has_body():
            await response(self.scope, self.receive, send)
            return
        response.headers["connection"] = "close"

        async def send_part(message: Message) -> None:
            is_last = message["type"] == "http.response.body"
            await send({**message, "more_body": True} if is_last else message)

        await response(self.scope, self.receive, send_part)
        await self._linger()
        await send({"type": "http.response.body"})

    def _has_body(self) -> bool:
        length = self.get_header(b"content-length")
        return bool(self.get_header(b"transfer-encoding")) or length not in {"", "0"}

    async def _linger(self) -> None:
        """Drop the rest of the body, within bounds."""
        left, more = LINGER_BYTES, True
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while more and left > 0:
                    message = await self.receive()
                    left -= len(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError:
            pass  # the connection is closed all the same


def get_raw_path(scope: Scope) -> str:
    """Return the path below the place where the application is mounted, as it was sent.

    In a decoded path ``a%2Fb`` would be two segments.
    """
    raw: str = scope.get("raw_path", b"").decode("latin-1") or quote(scope["path"])
    mounted = quote(scope.get("root_path", ""))
    return raw.removeprefix(mounted).partition("?")[0] or "/"


async def check_arguments(call: WireCall, target: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a call, checked.

    Raises:
        LocusStoreError, RefusalError: A rule refuses them; nothing was written.
    """
    check, convert = _CHECKS.get(call.path), _CONVERSIONS.get(call.path)
    try:
        if check is not None and call.path in _SLOW:
            await asyncio.to_thread(check, target, **arguments)
        elif check is not None:
            check(target, **arguments)
        return arguments if convert is None else {**arguments, **convert(target, **arguments)}
    except IntegrityError as exc:  # of what was sent: the caller may read it, and no log needs it
        raise RefusalError(422, exc) from exc


def _check_save(backend: StorageBackend, save: Save) -> None:
    check_ttl(save.ttl_seconds)
    change: SentChange = save.change  # type: ignore[assignment]
    most = backend.max_state_bytes
    if not 0 <= change.state_bytes <= most * LONGEST_JSON:
        raise InvalidArgumentError("state_bytes is negative, or exceeds what the service stores")
    for payload in (change.frames, change.state):
        if payload is not None and is_sealed_by_client(payload):
            _check_sealed(backend, payload)
        elif payload is not None:
            try:
                measure_payload(payload, most)
            except IntegrityError as exc:
                raise InvalidArgumentError(f"a payload of the save: {exc}") from exc
    check_keep_last(save.keep_last)


def _check_sealed(backend: StorageBackend, payload: bytes) -> None:
    """Refuse records that are cut off or too long, or that are to be sealed twice."""
    if backend.has_keyed_digests:
        raise UnsupportedError(
            "this service encrypts with its own keys; open it without encryption=, or give its "
            "storage none"
        )
    try:
        list(split_records(payload))
    except IntegrityError as exc:
        raise InvalidArgumentError(f"a payload of the save: {exc}") from exc
    require_size(len(payload) - SEALED_BYTES, backend.max_state_bytes)


def _check_thread(backend: StorageBackend, thread: ArchivedThread) -> None:
    require_whole(thread, backend.max_state_bytes)
    for line in thread.lines:
        for record in line.records:
            if is_sealed_by_client(record.payload):
                _check_sealed(backend, record.payload)


def _make_save(_: StorageBackend, save: Save) -> dict[str, Any]:
    """Return the save of a client that seals as one that keeps its id."""
    change: SentChange = save.change  # type: ignore[assignment]
    if not any(it and is_sealed_by_client(it) for it in (change.frames, change.state)):
        return {}
    return {"save": ClientSave(**{it.name: getattr(save, it.name) for it in fields(save)})}


def _make_changes(store: BaseStore, changes: list[SentItem]) -> dict[str, Any]:
    made = [_make_change(store, it) for it in changes]
    if len({it.name for it in made}) < len(made):
        raise InvalidArgumentError("two changes are of one item")
    return {"changes": made}


def _make_change(store: BaseStore, item: SentItem) -> Change:
    if item.json is None:
        check_name(item.namespace, item.key)
        return Remove(namespace=item.namespace, key=item.key)
    try:
        value = decode(item.json)
    except IntegrityError as exc:
        raise InvalidArgumentError("the value of an item is not JSON") from exc
    options = item.metadata, item.ttl_seconds, item.expected_version
    put = store.checked(PutItem(item.namespace, item.key, value, *options))
    embeddings = tuple(_check_vector(store, it) for it in item.vectors)
    return replace(put, vectors=embeddings, stamp=check_stamp(item.stamp, item.ttl_seconds))


def _check_vector(store: BaseStore, vector: bytes) -> bytes:
    if store.dimension is None:
        raise UnsupportedError("the store of this service keeps no embeddings")
    if len(vector) % vectors.FLOAT_BYTES:
        raise InvalidArgumentError("an embedding is float32, little-endian")
    return vectors.pack(vectors.unpack(vector), store.dimension, store.metric)


def _check_change(log: BaseMessageLog, change: LogChange) -> None:
    check_ttl(change.ttl_seconds)
    require_distinct(change)
    for edit in change.split():
        for put in edit.puts:
            check_put(put, edit.namespace, log.max_state_bytes)


_CHECKS: Final[dict[str, Callable[..., object]]] = {
    "/v1/commit": _check_save,
    "/v1/store_writes": lambda _, put: check_writes(put.writes),
    "/v1/restore": _check_thread,
    "/v1/replace_thread": lambda backend, old, thread: _check_thread(backend, thread),
    "/v1/renew": lambda _, ttl_seconds, **_others: check_ttl(ttl_seconds),
    "/v1/put_facts": lambda _, put: check_facts(put),
    "/v1/store/vectors_of": lambda _, namespace, key: check_name(namespace, key),
    "/v1/messages/change": _check_change,
}
"""Rules that refuse arguments, by the path of a call."""

_SLOW: Final = frozenset({"/v1/restore", "/v1/replace_thread"})
"""Checks that leave the event loop."""

_CONVERSIONS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "/v1/commit": _make_save,
    "/v1/store/apply": _make_changes,
    "/v1/store/nearest": lambda store, vector, **_: {"vector": _check_vector(store, vector)},
}
"""Rules that return arguments in another form."""
