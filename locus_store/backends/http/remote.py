"""The service that backends, stores and message logs share: its description and its calls.

A service that speaks only the wire of the Locus SDK's own ``HTTPCheckpointer`` has whole states by
id, and nothing of versions. So its backend compares the newest id before a save, which is not
atomic: a writer between both requests is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import Any, Final, cast
from urllib.parse import quote

import orjson

from locus_store.backend import StorageBackend
from locus_store.backends.http.connections import HTTPClient, HTTPConnections
from locus_store.errors import (
    BackendError,
    ConflictError,
    ConnectionFailedError,
    InvalidArgumentError,
    UnsupportedError,
)
from locus_store.runtime.notebooks import Table
from locus_store.runtime.recent import Recent
from locus_store.types import CheckpointerCapabilities, Mark, Save, Stored, Version, Written
from locus_store.types.arguments import MAX_COUNT, check_limit, check_names
from locus_store.types.codec import get_labels
from locus_store.values import frames
from locus_store.values.msgpack import convert_to_json
from locus_store.values.times import EPOCH
from locus_store.wire import bodies
from locus_store.wire.calls import DESCRIPTION, SERVICE, VERSION, Description, WireCall

ELSEWHERE: Final = frozenset({404, 405})
"""The statuses of a server that does not have our wire."""

SDK_WIRE: Final = "the Locus SDK's wire"
SDK_SECONDS: Final = 60.0
"""The time after which a service of the SDK's wire is asked again whether it has ours."""

SDK_DESCRIPTION: Final = Description(
    version=SDK_WIRE,
    capabilities=CheckpointerCapabilities(persistent_checkpoint_ids=True),
    has_store=False,
    dimension=None,
    metric=None,
    has_messages=False,
    rights=[],
    max_body=0,
)


class RemoteService:
    """A service, asked for its description before the first call."""

    def __init__(self, connections: HTTPConnections, *, max_state_bytes: int) -> None:
        self._connections = connections
        self._sdk = SdkServiceBackend(connections, max_state_bytes=max_state_bytes)
        self.where = connections.where
        self.description: Description | None = None
        """``None``: it was not asked yet."""

        self._until = 0.0

    async def get_client(self) -> HTTPClient:
        """Return the running loop's client, once the service is known."""
        client = await self._connections.get()
        if self.description is None or monotonic() > self._until:
            self.description = found = await _fetch_description(client)
            self._until = monotonic() + SDK_SECONDS if found is SDK_DESCRIPTION else inf
        client.max_body = self.description.max_body or None
        return client

    async def read_description(self) -> Description:
        """Return the description that the service gives of itself.

        Raises:
            ConnectionFailedError: There is no such service.
        """
        await self.get_client()
        assert self.description is not None  # noqa: S101  (get_client asked)
        return self.description

    async def get_sdk_backend(self) -> SdkServiceBackend | None:
        """Return the backend of a service that speaks the Locus SDK's wire only."""
        return self._sdk if (await self.read_description()).version == SDK_WIRE else None

    async def ask(self, call: WireCall, arguments: dict[str, Any]) -> Any:
        """Send a call; return its result. A write continues after the caller is cancelled.

        Raises:
            UnsupportedError: The service speaks the Locus SDK's wire only, which has no such call.
        """
        if sdk := await self.get_sdk_backend():
            if call.contract is not StorageBackend:
                raise UnsupportedError(f"{self.where} has no {call.name}: it only keeps states")
            return await getattr(sdk, call.name)(**arguments)
        client = await self.get_client()
        if call.right == "read":
            return await client.ask(call, arguments)
        threads = _list_threads(arguments)
        if not threads:
            return await client.run_shielded(client.ask(call, arguments))
        return await client.run_in_order(
            threads[0], lambda: client.ask(call, arguments), *threads[1:]
        )

    async def close(self) -> None:
        await self._connections.close()


def _list_threads(arguments: dict[str, Any]) -> list[str]:
    """Return the threads that a write changes; writes of one thread keep their order."""
    named = [it for name, it in arguments.items() if name.endswith("thread_id")]
    found = [*named, *(getattr(it, "thread_id", None) for it in arguments.values())]
    return [it for it in found if isinstance(it, str)]


async def _fetch_description(client: HTTPClient) -> Description:
    answer = await client.send("GET", VERSION, b"", {}, True)
    if answer.status in ELSEWHERE:
        health = await client.send("GET", "/health", b"", {}, True)
        if health.is_success and SERVICE.encode() not in health.body:  # a wrong URL has none
            return SDK_DESCRIPTION
        raise ConnectionFailedError(
            f"there is no locus-store service at {client.where}: {VERSION} answered {answer.status}"
        )
    if not answer.is_success:
        raise client.make_refusal(answer)
    try:
        read = bodies.decode_body(answer.body, answer.media_type)
        found: Description = DESCRIPTION.read(*read)
    except InvalidArgumentError as exc:
        raise BackendError(f"the service gave an answer that is not valid: {exc}") from exc
    return found


REMEMBERED: Final = 1000
"""Threads whose last own save is remembered."""

ABSENT: Final = 404


class SdkServiceBackend(StorageBackend):
    """Keeps whole states in such a service: save, load, list, delete.

    Args:
        connections: To the service.
        max_state_bytes: The largest state.
    """

    persistent_checkpoint_ids = True

    def __init__(self, connections: HTTPConnections, *, max_state_bytes: int) -> None:
        super().__init__(max_state_bytes=max_state_bytes)
        self._connections = connections
        self._own: Recent[str, tuple[str, str | None, str | None]] = Recent(REMEMBERED)

    async def commit(self, save: Save) -> Written:
        _require_root(save.namespace)
        limits = save.keep_last, save.ttl_seconds
        if save.parent_id is not None or limits != (None, None) or save.thread_must_exist:
            raise UnsupportedError(
                "this service keeps no parents and no limits: parent_checkpoint_id, keep_last, "
                "ttl_seconds and thread_must_exist do not work over it; nothing was written"
            )
        await self._require_head(save)
        body = {
            "checkpoint_id": save.checkpoint_id,
            "thread_id": save.thread_id,
            "created_at": datetime.now(UTC),
            "state": convert_to_json(save.change.tree.to_state()),
            "metadata": dict(save.metadata),
        }
        answer = await self._ask("POST", save.thread_id, body=bodies.encode_json(body))
        answered = answer.get("checkpoint_id") if isinstance(answer, dict) else None
        name = answered if isinstance(answered, str) else save.checkpoint_id
        self._own.put(save.thread_id, (name, save.writer, save.run))
        return Written(name, _make_mark(name, save.change.tree.digest), "head")

    async def _require_head(self, save: Save) -> None:
        """Raise ``ConflictError`` if another writer saved since the state was loaded."""
        if save.expected is None or save.on_conflict == "overwrite":
            return
        newest = await self._find_newest(save.thread_id)
        expected = save.expected.head.store if save.expected.head else None
        if newest in {expected, save.checkpoint_id} or self._is_own(save, newest):
            return
        if save.on_conflict == "branch":
            raise UnsupportedError("this service keeps no side branches; nothing was written")
        raise ConflictError(
            f"thread {save.thread_id!r} is at {newest!r}, but this state was made from "
            f"{expected!r}; nothing was written. Load the thread and run the step again",
            head_id=newest,
            parent_id=expected,
        )

    def _is_own(self, save: Save, newest: str | None) -> bool:
        name, writer, run = self._own.get(save.thread_id) or (None, None, None)
        if newest is None or name != newest:
            return False
        return writer == save.writer if save.writer is not None else run == save.run

    async def fetch(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        checkpoint_id: str | None = None,
        with_writes: bool = False,
    ) -> Stored | None:
        _require_root(namespace)
        if with_writes:
            raise UnsupportedError("this service keeps no pending writes")
        newest = await self._find_newest(thread_id)
        wanted = checkpoint_id or newest
        if wanted is None or newest is None:
            return None
        found = await self._ask("GET", thread_id, wanted)
        if found is None and checkpoint_id is None:
            raise BackendError(f"the service lists checkpoint {wanted!r}, and has none")
        return None if found is None else _make_stored(thread_id, wanted, newest, found)

    async def history(
        self, thread_id: str, *, namespace: str = "", limit: int = 10, before: str | None = None
    ) -> list[Version]:
        check_names(thread_id, namespace, before)
        check_limit(limit)
        _require_root(namespace)
        names = await self._list_names(thread_id, MAX_COUNT if before else limit)
        if before is not None:
            if before not in names:
                raise InvalidArgumentError(f"there is no checkpoint {before!r} to list below")
            names = names[names.index(before) + 1 :]
        return Table(_make_version(thread_id, it, b"", {}, {}) for it in names[:limit])

    async def remove(
        self,
        thread_id: str,
        checkpoint_ids: Sequence[str] | None = None,
        *,
        namespace: str = "",
        writer: str | None = None,
    ) -> int:
        _require_root(namespace)
        if checkpoint_ids is None:
            count = len(await self._list_names(thread_id, MAX_COUNT))
            await self._ask("DELETE", thread_id)
            return count
        answers = [await self._ask("DELETE", thread_id, it) for it in checkpoint_ids]
        return sum(it is not None for it in answers)

    async def _find_newest(self, thread_id: str) -> str | None:
        return next(iter(await self._list_names(thread_id, 1)), None)

    async def _list_names(self, thread_id: str, limit: int) -> list[str]:
        """Return checkpoint ids, newest first; the SDK reads any of these forms."""
        found = await self._ask("GET", thread_id, query=f"?limit={limit}")
        if found is None:  # a 404
            return []
        rows = found.get("checkpoints", found.get("data")) if isinstance(found, dict) else found
        names = [_find_name(it) for it in rows] if isinstance(rows, list) else [None]
        if None in names:
            raise BackendError("the service gave a list of checkpoints that is not valid")
        return cast("list[str]", names)[:limit]

    async def _ask(
        self,
        method: str,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        query: str = "",
        body: bytes = b"",
    ) -> Any:
        """Return the JSON of an answer; ``None`` if it is a 404, which alone means absence."""
        client = await self._connections.get()
        path = f"/threads/{_quote_segment(thread_id)}/checkpoints"
        path += f"/{_quote_segment(checkpoint_id)}" if checkpoint_id is not None else ""
        headers = {"content-type": bodies.JSON} if body else {}
        answer = await client.send(method, path + query, body, headers, True)
        if answer.status == ABSENT and method != "POST":
            return None
        if not answer.is_success:
            raise client.make_refusal(answer)
        if not answer.body and method != "GET":
            return {}
        try:
            found = orjson.loads(answer.body)
        except orjson.JSONDecodeError as exc:
            raise BackendError("the service gave an answer that is not JSON") from exc
        if not found and method == "GET" and checkpoint_id is not None:
            raise BackendError("the service gave an empty checkpoint")
        return {} if found is None else found


def _find_name(row: object) -> str | None:
    name = row.get("checkpoint_id") if isinstance(row, dict) else row
    return name if isinstance(name, str) else None


def _quote_segment(name: str) -> str:
    """Return an id as a segment of a path; refuse one that HTTP clients and proxies remove."""
    if name in {".", ".."}:
        raise InvalidArgumentError(f"the id {name!r} cannot be sent to such a service")
    return quote(name, safe="")


def _require_root(namespace: str) -> None:
    if namespace:
        raise UnsupportedError("this service has no namespaces")


def _make_mark(name: str, digest: bytes) -> Mark:
    """Return the identity of a version, which here is its id."""
    return Mark(name, 0, 0, digest)


def _make_version(
    thread_id: str, name: str, digest: bytes, metadata: dict[str, Any], state: dict[str, Any]
) -> Version:
    return Version(
        mark=_make_mark(name, digest),
        thread_id=thread_id,
        namespace="",
        checkpoint_id=name,
        parent_id=None,
        metadata=metadata,
        labels=get_labels(state),
        created_at=EPOCH,
    )


def _make_stored(thread_id: str, name: str, newest: str, answer: Any) -> Stored:
    state = answer.get("state", answer) if isinstance(answer, dict) else None
    metadata = answer.get("metadata") if isinstance(answer, dict) else None
    if not isinstance(state, dict):
        raise BackendError(f"the service gave checkpoint {name!r} without a state")
    change = frames.compare_states(state, None)
    known = metadata if isinstance(metadata, dict) and "state" in answer else {}
    version = _make_version(thread_id, name, change.tree.digest, known, state)
    return Stored(
        version=version,
        head=version.mark if name == newest else _make_mark(newest, b""),
        payloads=[change.to_payload()],
    )
