"""The store and the message log of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locus_store.backends.http.backend import DEFAULT_URL, HTTPBackend
from locus_store.backends.http.connections import make_requests
from locus_store.errors import InvalidArgumentError, UnsupportedError
from locus_store.messages import BaseMessageLog
from locus_store.store import BaseStore
from locus_store.wire.calls import BY_PATH
from locus_store.wire.records import SentItem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Unpack

    from locus_store.backends.http.options import HTTPURLOptions
    from locus_store.store import Embed
    from locus_store.types.items import Change
    from locus_store.values.vectors import Metric
    from locus_store.wire.calls import WireCall

_StoreRequests: Any = make_requests("store")
_LogRequests: Any = make_requests("messages")
"""Type checkers see the methods of the contracts."""

_APPLY = BY_PATH["/v1/store/apply"]


class _Part:
    """A part of a service, over the connections of a backend."""

    def _connect(
        self, base_url: str, backend: HTTPBackend | None, options: Mapping[str, Any]
    ) -> None:
        """Use the connections of a backend, or new ones.

        Raises:
            InvalidArgumentError: A backend and a URL or an option are given.
        """
        if backend is not None and (options or base_url != DEFAULT_URL):
            raise InvalidArgumentError("a backend has its own URL and options; leave them out")
        self.backend = backend or HTTPBackend(base_url, **options)
        self._owns = backend is None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.backend.service.where!r})"

    async def ask(self, call: WireCall, arguments: dict[str, Any]) -> Any:
        """Send a call; return its result."""
        return await self.backend.service.ask(call, arguments)

    async def close(self) -> None:
        """Release the connections, unless they are those of a given backend."""
        if self._owns:
            await self.backend.close()


class HTTPStore(_Part, _StoreRequests, BaseStore):  # type: ignore[misc]
    """The items of a service of ``locus-store serve``.

    Args:
        base_url: See ``HTTPBackend``, as its other options.
        dimension: That of the service, or ``None``; see ``BaseStore``.
        metric: The metric of the service.
        embed: Computes embeddings here, before they are sent.
        backend: Use the connections of this backend; it closes them.
        options: Those of ``HTTPBackend``.

    Raises:
        InvalidArgumentError: An option is not valid, or the service keeps other embeddings.
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
        """See ``BaseStore``, also for the following methods."""
        found = await self.backend.service.read_description()
        if not found.has_store:
            raise UnsupportedError("this service has no store")
        self.stored_dimension = found.dimension
        if self.dimension is not None and (self.dimension, self.metric) != (
            found.dimension,
            found.metric,
        ):
            raise InvalidArgumentError(
                f"the service keeps embeddings of dimension {found.dimension} and metric "
                f"{found.metric}, not {self.dimension} and {self.metric}"
            )

    async def apply(self, changes: Sequence[Change]) -> list[int]:
        found: list[int] = await self.ask(
            _APPLY, {"changes": [SentItem.from_change(it) for it in changes]}
        )
        return found


class HTTPMessageLog(_Part, _LogRequests, BaseMessageLog):  # type: ignore[misc]
    """The message logs of a service of ``locus-store serve``.

    Args:
        base_url: See ``HTTPBackend``, as its other options.
        ttl_seconds: See ``BaseMessageLog``.
        backend: Use the connections of this backend; it closes them.
        options: Those of ``HTTPBackend``.
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
        """See ``BaseMessageLog``, also for the following methods."""
        if not (await self.backend.service.read_description()).has_messages:
            raise UnsupportedError("this service has no message logs")
