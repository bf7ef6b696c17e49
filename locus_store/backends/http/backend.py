"""A storage behind a URL: the backend whose primitives are requests to a service."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import aiohttp

from locus_store.backend import FullBackend, TakesTurns
from locus_store.backends.http.connections import HTTPConnections, make_requests
from locus_store.backends.http.options import HTTPCheckpointerOptions, HTTPOptions, HTTPURLOptions
from locus_store.backends.http.remote import RemoteService
from locus_store.backends.http.transport import (
    ANSWER_BYTES,
    TIMEOUT_SECONDS,
    ClientOptions,
    encode_basic_credentials,
)
from locus_store.checkpointer import S, StorageBackendAdapter
from locus_store.errors import ConflictError, InvalidArgumentError, UnsupportedError
from locus_store.messages import BaseMessageLog
from locus_store.runtime.extras import make_factory
from locus_store.store import BaseStore, Embed
from locus_store.types import (
    ArchivedThread,
    CheckpointerCapabilities,
    Hit,
    LineContents,
    Save,
    Vacuumed,
    Version,
    Written,
)
from locus_store.types.arguments import check_days, choose_backend
from locus_store.types.facts import Fact
from locus_store.types.items import Change
from locus_store.types.options import CheckpointOptions, fill_defaults, split_options
from locus_store.types.thread_info import DescribesThreads
from locus_store.values.text import query_words
from locus_store.values.vectors import Metric
from locus_store.versions.sizes import ListsStatuses
from locus_store.wire.calls import BY_PATH
from locus_store.wire.records import SentItem, StateNeededError, encode_save

DEFAULT_URL = "http://localhost:8321"
FRAMING = frozenset({"connection", "content-length", "content-type", "host", "te", "trailer"})
FRAMING |= {"transfer-encoding", "upgrade"}
_TOKEN = re.compile("[!-~]+")
_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_Requests: Any = make_requests("threads")
"""Type checkers see the methods of the contract."""


class HTTPBackend(_Requests, FullBackend, TakesTurns, DescribesThreads, ListsStatuses):  # type: ignore[misc]
    """Keeps versions in a service of ``locus-store serve``.

    A save is one request with the changes, or two if the service needs the whole state. A load is
    one request, and the state of a known head is not sent again. All data belongs to the tenant of
    the token. The ``capabilities`` are those of the service. They are not known before the first
    call: until then, all but tenants, quotas and messages are declared.

    Args:
        base_url: ``http://host:port`` or ``https://host:port``, with a path if the service is
            mounted below one.
        headers: See ``options.HTTPClientOptions``, as the next three.
        auth: A pair (user, password) for HTTP Basic.
        timeout: Seconds for each attempt of a request.
        client: An ``aiohttp.ClientSession`` used instead.
        options: See ``options.HTTPOptions``.

    Raises:
        InvalidArgumentError: An option is not valid.
    """

    factory = "http_checkpointer"
    persistent_checkpoint_ids = True

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        client: aiohttp.ClientSession | None = None,
        **options: Unpack[HTTPOptions],
    ) -> None:
        own = {"headers": headers, "auth": auth, "timeout": timeout, "client": client}
        given = fill_defaults(HTTPURLOptions, {**own, **options}, "HTTPBackend")
        max_state_bytes, token = given["max_state_bytes"], given["token"]
        super().__init__(max_state_bytes=max_state_bytes)
        theirs = (headers, auth, token, timeout)
        if client is not None and theirs != (None, None, None, TIMEOUT_SECONDS):
            raise InvalidArgumentError(
                "a client has its own headers, auth and timeout; leave them out"
            )
        if token is not None and auth is not None:
            raise InvalidArgumentError("give token or auth, not both")
        of_client = ClientOptions(
            headers=_make_headers(headers, token, auth),
            client=client,
            timeout=given["timeout"],
            retry_seconds=given["retry_seconds"],
            pool_size=given["pool_size"],
            max_answer=2 * max_state_bytes + ANSWER_BYTES,
        )
        self.service = RemoteService(
            HTTPConnections(base_url, of_client), max_state_bytes=max_state_bytes
        )

    def __repr__(self) -> str:
        return f"HTTPBackend({self.service.where!r})"

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """See ``StorageBackend``: those of the service, once it was asked."""
        found = self.service.description
        if found is None:
            return super().capabilities
        return replace(found.capabilities, tenants=False, quotas=False, messages=found.has_messages)

    @property
    def compares_digests(self) -> bool:
        found = self.service.description
        return found is None or not found.has_keyed_digests

    def is_digest_of(self, version: Version, digest: bytes) -> bool:
        return not self.compares_digests or super().is_digest_of(version, digest)

    async def open(self) -> None:
        await self.service.read_description()

    async def close(self) -> None:
        await self.service.close()

    async def facts(self) -> list[Fact]:
        """See ``StorageBackend``; of what the service stands over, ask beside it."""
        found = await self.service.read_description()
        return [*await super().facts(), Fact("service", f"locus-store {found.version}")]

    async def commit(self, save: Save) -> Written:
        client, sdk = await self.service.get_client(), await self.service.get_sdk_backend()

        async def commit() -> Written:
            if sdk is not None:
                return await sdk.commit(save)
            try:
                written = await client.ask(_COMMIT, {"save": encode_save(save, with_state=False)})
            except StateNeededError:
                written = await client.ask(_COMMIT, {"save": encode_save(save, with_state=True)})
            done: Written = written
            return done

        return await client.run_in_order(save.thread_id, commit)

    async def find(self, query: str, limit: int = 10) -> list[Hit]:
        query_words(query)
        found: list[Hit] = await _Requests.find(self, query, limit)
        return found

    async def contents(self, versions: Sequence[Version]) -> list[LineContents]:
        bare = [replace(it, metadata={}, labels={}) for it in versions]  # they are not needed
        found: list[LineContents] = await _Requests.contents(self, bare)
        return found

    async def rewrite_thread(
        self, thread_id: str, change: Callable[[ArchivedThread], ArchivedThread]
    ) -> bool:
        """See ``StoresThreads``; a thread that is changed meanwhile is read again.

        Raises:
            ConflictError: It is changed all the time.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            old = await _Requests.read_thread(self, thread_id)
            if old is None or (made := change(old)) == old:
                return old is not None
            try:
                await _Requests.replace_thread(self, old, made)
            except ConflictError:
                if attempt == _ATTEMPTS:
                    raise
            else:
                return True
        return False

    async def vacuum_report(self, older_than_days: float = 30) -> Vacuumed:
        days = check_days(older_than_days)  # JSON has no infinity
        found: Vacuumed = await _Requests.vacuum_report(self, days)
        return found


_ATTEMPTS = 10
_COMMIT = BY_PATH["/v1/commit"]


def _make_headers(
    headers: Mapping[str, str] | None, token: str | None, pair: tuple[str, str] | None
) -> dict[str, str]:
    """Return the headers of each request; refuse one that cannot be sent, without its value."""
    found = {"user-agent": "locus-store", **(headers or {})}
    for name, value in found.items():
        if name.lower() in FRAMING:
            raise InvalidArgumentError(f"the header {name!r} is set for each request; leave it out")
        if not _NAME.fullmatch(name) or not isinstance(value, str) or _CONTROL.search(value):
            raise InvalidArgumentError(f"the header {name!r} cannot be sent")
    if token is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
        raise InvalidArgumentError(
            "the token has a character that no token has, such as a line break at its end"
        )
    if token is not None:
        found["authorization"] = f"Bearer {token}"
    return found if pair is None else {**found, "authorization": encode_basic_credentials(pair)}


class HTTPCheckpointer(StorageBackendAdapter[S, HTTPBackend]):
    """A checkpointer over a service, with the arguments of the Locus SDK's class.

    Arguments and errors are those of ``HTTPBackend`` and ``StorageBackendAdapter``.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        client: aiohttp.ClientSession | None = None,
        *,
        state_type: type[S] | None = None,
        **options: Unpack[HTTPCheckpointerOptions],
    ) -> None:
        own, rest = split_options(CheckpointOptions, options)
        backend = HTTPBackend(base_url, headers, auth, timeout, client, **rest)
        super().__init__(backend, state_type=state_type, **own)


http_checkpointer = make_factory(
    HTTPCheckpointer,
    "http_checkpointer",
    "Return a checkpointer over a service; options as ``HTTPCheckpointer``.",
)


_StoreRequests: Any = make_requests("store")
_LogRequests: Any = make_requests("messages")
"""Type checkers see the methods of the contracts."""


class _Part:
    """A part of a service, over the connections of a backend."""

    def _connect(
        self, base_url: str, backend: HTTPBackend | None, options: Mapping[str, Any]
    ) -> None:
        """Use the connections of a backend, or new ones; refuse a URL or option beside it."""
        self.backend: HTTPBackend = choose_backend(
            backend, HTTPBackend, base_url, defaults=[DEFAULT_URL], **options
        )
        self.service = self.backend.service
        self._owns = backend is None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.service.where!r})"

    async def close(self) -> None:
        """Release the connections, unless they are those of a given backend."""
        if self._owns:
            await self.backend.close()


class HTTPStore(_Part, _StoreRequests, BaseStore):  # type: ignore[misc]
    """The items of a service of ``locus-store serve``.

    Arguments and errors are those of ``HTTPBackend`` and ``BaseStore``; ``dimension`` and
    ``metric`` are the service's, and ``embed`` runs here. With ``backend``, its connections are
    used.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        dimension: int | None = None,
        metric: Metric = "cosine",
        embed: Embed | None = None,
        backend: HTTPBackend | None = None,
        **options: Unpack[HTTPURLOptions],
    ) -> None:
        self._connect(base_url, backend, options)
        super().__init__(
            dimension=dimension,
            metric=metric,
            embed=embed,
            max_state_bytes=self.backend.max_state_bytes,
        )

    async def setup(self) -> None:
        found = await self.service.read_description()
        if not found.has_store:
            raise UnsupportedError("this service has no store")
        self.stored_dimension = found.dimension
        theirs = found.dimension, found.metric
        if self.dimension is not None and (self.dimension, self.metric) != theirs:
            raise InvalidArgumentError(
                f"the service keeps embeddings of dimension {found.dimension} and metric "
                f"{found.metric}, not {self.dimension} and {self.metric}"
            )

    async def apply(self, changes: Sequence[Change]) -> list[int]:
        sent = [SentItem.from_change(it) for it in changes]
        found: list[int] = await _StoreRequests.apply(self, sent)
        return found


class HTTPMessageLog(_Part, _LogRequests, BaseMessageLog):  # type: ignore[misc]
    """The message logs of a service of ``locus-store serve``.

    Arguments and errors are those of ``HTTPBackend`` and ``BaseMessageLog``. With ``backend``, its
    connections are used.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        ttl_seconds: float | None = None,
        backend: HTTPBackend | None = None,
        **options: Unpack[HTTPURLOptions],
    ) -> None:
        self._connect(base_url, backend, options)
        super().__init__(ttl_seconds=ttl_seconds, max_state_bytes=self.backend.max_state_bytes)

    async def open(self) -> None:
        if not (await self.service.read_description()).has_messages:
            raise UnsupportedError("this service has no message logs")
