"""Checks of what a caller sent, beyond its form, by the rules that a caller of Python goes through.

The primitives of a backend expect records that the methods above them have checked.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from locus_store.errors import IntegrityError, InvalidArgumentError, UnsupportedError
from locus_store.service.exchange import RefusalError
from locus_store.types.arguments import check_writes, checked_ttl
from locus_store.types.items import PutItem, Remove, check_name
from locus_store.types.messages import check_put, require_distinct
from locus_store.types.thread_info import check_put as check_facts
from locus_store.values import vectors
from locus_store.values.encoding import LONGEST_JSON, check_frames, decode
from locus_store.versions.archives import require_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from locus_store.backend import StorageBackend
    from locus_store.messages import BaseMessageLog
    from locus_store.store import BaseStore
    from locus_store.types import PendingWrite, Save
    from locus_store.types.items import Change, Namespace
    from locus_store.wire.calls import WireCall
    from locus_store.wire.records import SentChange, SentItem


async def admitted(call: WireCall, target: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a call, checked.

    Raises:
        LocusStoreError, RefusalError: A rule refuses them; nothing was written.
    """
    check = _CHECKS.get(call.path)
    if check is None:
        return arguments
    try:
        return {**arguments, **(await check(target, **arguments))}
    except IntegrityError as exc:  # of what was sent: the caller may read it, and no log needs it
        raise RefusalError(422, exc) from exc


async def _commit(backend: StorageBackend, save: Save) -> dict[str, Any]:
    checked_ttl(save.ttl_seconds)
    change: SentChange = save.change  # type: ignore[assignment]
    most = backend.max_state_bytes
    if not 0 <= change.state_bytes <= most * LONGEST_JSON:
        raise InvalidArgumentError("state_bytes is negative, or exceeds what the service stores")
    for payload in (change.frames, change.state):
        if payload is not None:
            _check_frames(payload, most)
    if save.keep_last == 0:
        raise InvalidArgumentError("keep_last must be at least 1")
    return {}


def _check_frames(payload: bytes, most: int) -> None:
    """Refuse a payload that is not frames, or exceeds the limit.

    Raises:
        InvalidArgumentError: It does.
    """
    try:
        check_frames(payload, most)
    except IntegrityError as exc:
        raise InvalidArgumentError(f"a payload of the save: {exc}") from exc


async def _store_writes(
    backend: StorageBackend, writes: list[PendingWrite], **_: Any
) -> dict[str, Any]:
    del backend
    check_writes(writes)
    return {}


async def _restore(backend: StorageBackend, thread: Any) -> dict[str, Any]:
    await asyncio.to_thread(require_whole, thread, backend.max_state_bytes)
    return {}


async def _renew(backend: StorageBackend, ttl_seconds: float, **_: Any) -> dict[str, Any]:
    del backend
    checked_ttl(ttl_seconds)
    return {}


async def _put_facts(backend: StorageBackend, put: Any) -> dict[str, Any]:
    del backend
    check_facts(put)
    return {}


async def _apply(store: BaseStore, changes: list[SentItem]) -> dict[str, Any]:
    made = [_change(store, it) for it in changes]
    if len({it.name for it in made}) < len(made):
        raise InvalidArgumentError("two changes are of one item")
    return {"changes": made}


def _change(store: BaseStore, sent: SentItem) -> Change:
    if sent.json is None:
        check_name(sent.namespace, sent.key)
        return Remove(namespace=sent.namespace, key=sent.key)
    put = store.checked(
        PutItem(
            sent.namespace,
            sent.key,
            _value(sent.json),
            sent.metadata,
            sent.ttl_seconds,
            sent.expected_version,
        )
    )
    return replace(put, vectors=tuple(_vector(store, it) for it in sent.vectors))


def _value(json: bytes) -> Any:
    try:
        return decode(json)
    except IntegrityError as exc:
        raise InvalidArgumentError("the value of an item is not JSON") from exc


async def _vectors_of(store: BaseStore, namespace: Namespace, key: str) -> dict[str, Any]:
    del store
    check_name(namespace, key)
    return {}


async def _nearest(store: BaseStore, vector: bytes, **_: Any) -> dict[str, Any]:
    return {"vector": _vector(store, vector)}


def _vector(store: BaseStore, vector: bytes) -> bytes:
    """Return an embedding, if it is one of the store's.

    Raises:
        InvalidArgumentError, UnsupportedError: It is not.
    """
    if store.dimension is None:
        raise UnsupportedError("the store of this service keeps no embeddings")
    if len(vector) % vectors.FLOAT_BYTES:
        raise InvalidArgumentError("an embedding is float32, little-endian")
    return vectors.packed(vectors.unpacked(vector), store.dimension, store.metric)


async def _change_log(log: BaseMessageLog, change: Any) -> dict[str, Any]:
    checked_ttl(change.ttl_seconds)
    require_distinct(change)
    for edit in change.edits():
        for put in edit.puts:
            check_put(put, edit.namespace, log.max_state_bytes)
    return {}


_CHECKS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "/v1/commit": _commit,
    "/v1/store_writes": _store_writes,
    "/v1/restore": _restore,
    "/v1/renew": _renew,
    "/v1/put_facts": _put_facts,
    "/v1/store/apply": _apply,
    "/v1/store/vectors_of": _vectors_of,
    "/v1/store/nearest": _nearest,
    "/v1/messages/change": _change_log,
}
