"""The wire of the Locus SDK's own ``HTTPCheckpointer``: ``/threads/…``."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import unquote

from starlette.responses import Response

from locus_store.backend import StorageBackend
from locus_store.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from locus_store.service.access import Caller
from locus_store.service.exchange import LimitedRequest, RefusalError, answer
from locus_store.types.arguments import check_text
from locus_store.types.codec import get_labels
from locus_store.versions.archives import select
from locus_store.wire import bodies

MOST_LISTED: Final = 10
DIGITS: Final = 10

MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1
_MANY_DIGITS: Final = re.compile(rb"\d{19}")

FIELDS: Final = frozenset({"checkpoint_id", "thread_id", "created_at", "state", "metadata"})


async def answer_request(
    request: LimitedRequest, caller: Caller, backend: StorageBackend
) -> Response:
    """Answer a request of that client.

    Raises:
        LocusStoreError, RefusalError: It is not valid, or not permitted.
    """
    thread_id, checkpoint_id = _parse_ids(request.path)
    if request.method == "GET":
        caller.require("read")
        if checkpoint_id is None:
            return await _list(request, backend, thread_id)
        return await _load(backend, thread_id, checkpoint_id)
    if request.method == "DELETE":
        caller.require("write")
        return await _delete(backend, thread_id, checkpoint_id)
    if checkpoint_id is not None:
        request.require_method("GET", "DELETE")
    request.require_method("GET", "POST", "DELETE")
    caller.require("write")
    body = await request.body()
    sent, _ = bodies.decode_body(body, request.get_header(b"content-type"))
    _require_exact(body)
    return await _save(sent, backend, thread_id)


def _parse_ids(path: str) -> tuple[str, str | None]:
    """Return the thread and the checkpoint that a raw path names.

    HTTP clients remove the segments ``.`` and ``..``; what is left of such a path names nothing.
    A path that is not one of this wire is refused.
    """
    _, _, *segments = path.split("/")
    match segments:
        case [thread, "checkpoints"] if thread:
            return _parse_id("thread_id", thread), None
        case [thread, "checkpoints", checkpoint] if thread and checkpoint:
            return _parse_id("thread_id", thread), _parse_id("checkpoint_id", checkpoint)
        case _:
            raise RefusalError(404, UnsupportedError("this service has nothing at this path"))


def _parse_id(name: str, segment: str) -> str:
    try:
        found = unquote(segment, errors="strict")
    except UnicodeDecodeError as exc:
        raise InvalidArgumentError(f"{name} in the path is not UTF-8") from exc
    check_text(name, found)
    return found


def _require_exact(body: bytes) -> None:
    """Refuse integers of more than 64 bits, which orjson reads as floats."""

    def parse_integer(text: str) -> int:
        if not MIN_INTEGER <= (found := int(text)) <= MAX_INTEGER:
            raise InvalidArgumentError("the body has an integer of more than 64 bits")
        return found

    if _MANY_DIGITS.search(body):
        json.loads(body, parse_int=parse_integer)


async def _save(body: Any, backend: StorageBackend, thread_id: str) -> Response:
    if not isinstance(body, dict) or not isinstance(body.get("state"), dict):
        raise InvalidArgumentError("the body must be an object with the state as an object")
    if body.keys() - FIELDS or body.get("thread_id", thread_id) != thread_id:
        raise InvalidArgumentError("the body names another thread, or has an unknown field")
    state: dict[str, Any] = body["state"]
    written = await backend.write_state(
        thread_id,
        state,
        checkpoint_id=body.get("checkpoint_id"),
        metadata=body.get("metadata"),
        labels=get_labels(state),
    )
    return answer({"checkpoint_id": written.checkpoint_id})


async def _list(request: LimitedRequest, backend: StorageBackend, thread_id: str) -> Response:
    found = dict(request.query_params)
    limit = found.pop("limit", str(MOST_LISTED))
    if found or not limit.isascii() or not limit.isdigit() or len(limit) > DIGITS:
        raise InvalidArgumentError("the query string may be ?limit=N, with a whole number N")
    versions = await backend.history(thread_id, limit=int(limit))
    return answer({"checkpoints": [it.checkpoint_id for it in versions]})


async def _load(backend: StorageBackend, thread_id: str, checkpoint_id: str) -> Response:
    found = await backend.read_state(thread_id, checkpoint_id)
    if found is None:
        raise _make_absence_error(thread_id, checkpoint_id)
    names = ("checkpoint_id", "thread_id", "created_at", "metadata")
    return answer(select(found.version, names) | {"state": found.state})


async def _delete(backend: StorageBackend, thread_id: str, checkpoint_id: str | None) -> Response:
    if not await backend.delete(thread_id, checkpoint_id):
        raise _make_absence_error(thread_id, checkpoint_id)
    return answer({"status": "deleted"})


def _make_absence_error(thread_id: str, checkpoint_id: str | None) -> NotFoundError:
    which = f"thread {thread_id!r}" if checkpoint_id is None else f"checkpoint {checkpoint_id!r}"
    return NotFoundError(f"there is no {which}")
